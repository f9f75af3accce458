"""Which SGLang may be watched: known releases whose source is as it is known, and no other."""

import shutil
from pathlib import Path

import pytest

from hisparse_sim.gpu_replay.engine.releases import (
    METHODS,
    RELEASES,
    EngineError,
    check_package,
    known_release,
)

FAKE = Path(__file__).parent / "fake_engine" / "sglang"
COORDINATOR = "srt/managers/hisparse_coordinator.py"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the stand-in, to be changed."""
    return Path(shutil.copytree(FAKE, tmp_path / "sglang"))


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_stand_in_has_what_0_5_17_has() -> None:
    assert check_package(FAKE, "0.5.17") is RELEASES["0.5.17"]


@pytest.mark.parametrize("version", ["0.5.17+cu130", "0.5.17.post1"])
def test_builds_and_corrections_of_a_release_are_that_release(version: str) -> None:
    assert known_release(version) is RELEASES["0.5.17"]


@pytest.mark.parametrize("version", ["0.5.11", "0.5.24", "0.6.0", "1.0", ""])
def test_an_unknown_release_is_refused(version: str) -> None:
    with pytest.raises(EngineError, match=r"is not known here: 0\.5\.12 to 0\.5\.23 are"):
        check_package(FAKE, version)


def test_another_release_than_its_number_says_is_refused() -> None:
    """0.5.16 keeps its kernel's function elsewhere, 0.5.18 knows plans."""
    for version in ("0.5.16", "0.5.18"):
        with pytest.raises(EngineError, match=f"installed SGLang {version} has"):
            check_package(FAKE, version)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_is_gone_or_takes_something_else_is_named(package: Path, name: str) -> None:
    replace(package / COORDINATOR, f"def {name}(", f"def no_{name}(")
    with pytest.raises(EngineError, match=f"has no HiSparseCoordinator.{name}:"):
        check_package(package, "0.5.17")


def test_other_arguments_are_named(package: Path) -> None:
    replace(package / COORDINATOR, "top_k_result, layer_id)", "top_k_result, layer_id, more)")
    with pytest.raises(EngineError, match=r"swap_in_selected_pages\(self, .*more\) in place of"):
        check_package(package, "0.5.17")


def test_a_missing_attribute_or_kernel_is_named(package: Path) -> None:
    replace(package / COORDINATOR, "self.num_real_reqs =", "self.real =")
    with pytest.raises(EngineError, match=r"has no HiSparseCoordinator\.num_real_reqs"):
        check_package(package, "0.5.17")
    shutil.copy(FAKE / COORDINATOR, package / COORDINATOR)
    (package / RELEASES["0.5.17"].kernel_file).unlink()
    with pytest.raises(EngineError, match=r"has no hisparse\.py that can be read"):
        check_package(package, "0.5.17")


def test_a_package_without_plugins_or_coordinator_is_refused(package: Path) -> None:
    (package / COORDINATOR).write_text("class Other: ...\n")
    with pytest.raises(EngineError, match="has no HiSparseCoordinator"):
        check_package(package, "0.5.17")
    (package / "srt/plugins/hook_registry.py").unlink()
    with pytest.raises(EngineError, match="has no srt/plugins"):
        check_package(package, "0.5.17")
