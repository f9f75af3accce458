"""What is built is what the tree holds, and what the documents show works."""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_package_is_listed() -> None:
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    packages = {"gpu_replay", "policies", "simulator", "traces"}
    found = {
        ".".join(("hisparse_sim", *file.parent.relative_to(ROOT).parts))
        for file in ROOT.rglob("__init__.py")
        if not file.parent.relative_to(ROOT).parts
        or file.parent.relative_to(ROOT).parts[0] in packages
    }
    assert listed == found


def test_the_lowest_versions_that_ci_takes_are_those_promised() -> None:
    extras = ("dask", "remote")
    promised = [*PROJECT["project"]["dependencies"]]
    promised += [
        one for extra in extras for one in PROJECT["project"]["optional-dependencies"][extra]
    ]
    lowest = {}
    for one in promised:
        found = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:;.*)?", one)
        assert found is not None, one
        lowest[found[1]] = found[2]
    lines = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()
    taken = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert set(taken) == set(lowest)
    for name, version in taken.items():
        # 1.26.0 is 1.26
        assert re.sub(r"(\.0)+$", "", version) == re.sub(r"(\.0)+$", "", lowest[name]), name


def test_the_lowest_python_is_the_first_of_the_classifiers() -> None:
    shown = [
        one.rpartition(" ")[2]
        for one in PROJECT["project"]["classifiers"]
        if one.startswith("Programming Language :: Python :: 3.")
    ]
    assert PROJECT["project"]["requires-python"] == f">={shown[0]}"


def test_a_stale_build_folder_ships_nothing(tmp_path: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    tree = tmp_path / "tree"
    for name in tracked.stdout.splitlines():
        source = ROOT / name
        if source.is_file() and not source.is_symlink():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(source.read_bytes())
    stale = tree / "build" / "lib" / "hisparse_sim" / "deleted.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, tree],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True, check=True
    ).stdout
    assert "hisparse_sim/policies/lru.py" in names
    assert "sample.parquet" in names
    assert "py.typed" in names
    assert "deleted.py" not in names
    assert "tests/" not in names


def test_no_large_files() -> None:
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    large = [
        name
        for name in listing.stdout.splitlines()
        if (ROOT / name).is_file() and (ROOT / name).stat().st_size > 3_000_000
    ]
    assert large == []


def snippets() -> list[tuple[str, str]]:
    return [
        (f"{document.name}-{number}", code)
        for document in DOCUMENTS
        # One example after the other: test_docs.py. On a folder of traces: test_trace_bad_input.py.
        # Files of the package: test_adding.py.
        if document.name not in ("api.md", "clusters.md", "add-a-policy.md", "add-a-prefetcher.md")
        for number, code in enumerate(
            re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
        )
    ]


@pytest.mark.parametrize(("name", "code"), snippets(), ids=[name for name, _ in snippets()])
def test_python_in_the_documents_runs(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "snippet.py"
    script.write_text(code)
    runpy.run_path(str(script))


def test_the_readme_shows_what_the_command_prints() -> None:
    from click.testing import CliRunner

    from hisparse_sim.cli import cli

    text = (ROOT / "README.md").read_text()
    shown = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    assert "hisparse-sim sweep --buffer 4096 --ratio 8\n" in text
    printed = CliRunner().invoke(cli, "sweep --buffer 4096 --ratio 8 --quiet".split()).stdout
    assert printed == shown[1]


def test_relative_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
