"""Machine code kept on disk: damage, folders that cannot be written, two processes at once."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import pytest
from make_traces import drift, write

from hisparse_sim.traces.machine_code import compiled
from hisparse_sim.traces.file.passes import longest_row

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


def hits(kind: type[np.integer] = np.int32) -> int:
    """Compile as a new process does; return how often the disk was of use."""
    loop = compiled(longest_row.py_func)  # type: ignore[attr-defined]
    assert loop(np.array([0, 2, 5]), np.array([1, 2, 3, -1, 5], kind)) == 2
    found: int = sum(loop.stats.cache_hits.values())
    return found


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use(tmp_path / "cache", monkeypatch)
    return tmp_path / "cache"


def flipped(place: float) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        at = min(len(content) - 1, int(place * len(content)))
        return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]

    return damage


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "one byte": lambda content: content[:1],
    "half": lambda content: content[: len(content) // 2],
    "last byte gone": lambda content: content[:-1],
    "garbage": lambda content: random.Random(1).randbytes(len(content)),
    "text": lambda content: b"not a cache\n",
    **{f"bit at {place}": flipped(place) for place in (0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1)},
}


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_compiled_away(
    folder: Path, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    assert (hits(), hits()) == (0, 1)
    (file,) = folder.rglob(f"*{suffix}")
    file.write_bytes(damage(file.read_bytes()))
    assert (hits(), hits()) == (0, 1)


def test_a_file_of_another_signature_is_not_taken(folder: Path) -> None:
    assert (hits(), hits(np.int64)) == (0, 0)
    first, second = sorted(folder.rglob("*.nbc"))
    first.write_bytes(second.read_bytes())
    assert (hits(), hits()) == (0, 1)


def test_a_folder_that_takes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    use(tmp_path / "file", monkeypatch)
    assert (hits(), hits()) == (0, 0)


def test_a_disk_that_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert (hits(), hits()) == (0, 0)


def start(path: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hisparse_sim.cli", "trace", "validate", str(path)],
        env={**os.environ, "NUMBA_CACHE_DIR": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_compile_at_once_and_heal_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [drift(shuffled=True)])
    for _ in range(2):
        both = [start(path, NUMBA_CACHE_DIR=str(tmp_path / "cache")) for _ in range(2)]
        for process in both:
            out, error = process.communicate(timeout=120)
            assert (process.returncode, out) == (0, f"{path}: ok\n"), error
            assert "Traceback" not in error
        kept = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
        assert {file.suffix for file in kept} == {".nbi", ".nbc"}
        for file in kept:
            file.write_bytes(file.read_bytes()[:100])


def test_no_folder_anywhere(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [drift()])
    (tmp_path / "home").touch()
    home = str(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-c", "import hisparse_sim, numba; print(numba.config.CACHE_DIR)"],
        env={name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        | {"XDG_CACHE_HOME": home, "HOME": home, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).parent == tmp_path
    process = start(path, NUMBA_CACHE_DIR=home)
    assert process.communicate(timeout=120)[0] == f"{path}: ok\n"
