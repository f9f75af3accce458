"""Machine code kept on disk: damage, folders that cannot be written, two processes at once."""

import ast
import os
import random
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from make_traces import drift, write
from numba.core.types import abstract

from hisparse_sim.traces import machine_code
from hisparse_sim.traces.file.passes import longest_row
from hisparse_sim.traces.machine_code import compiled

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


def hits(kind: type[np.integer] = np.int32) -> int:
    """Compile as a new process does; return how often the disk was of use."""
    loop: Any = compiled(longest_row.py_func)  # type: ignore[attr-defined]
    assert loop(np.array([0, 2, 5]), np.array([1, 2, 3, -1, 5], kind)) == 2
    found: int = loop.from_disk
    return found


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))


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


@pytest.mark.parametrize("suffix", [".nbi", ".nbc", "seal.json"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_compiled_away(
    folder: Path, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    assert (hits(), hits()) == (0, 1)
    (file,) = folder.rglob(f"*{suffix}")
    file.write_bytes(damage(file.read_bytes()))
    assert (hits(), hits()) == (0, 1)


def test_every_signature_has_a_folder_of_its_own(folder: Path) -> None:
    """So two processes that compile at once cannot take each other's file for their own."""
    assert (hits(), hits(np.int64), hits(), hits(np.int64)) == (0, 0, 1, 1)
    first, second = sorted(folder.rglob("*.nbc"))
    assert first.parents[1] != second.parents[1]
    first.write_bytes(second.read_bytes())
    assert hits() + hits(np.int64) == 1  # the one is compiled again


@pytest.mark.parametrize("suffix", [".nbi", ".nbc", "seal.json"])
def test_files_that_are_missing_or_too_many(folder: Path, suffix: str) -> None:
    assert (hits(), hits()) == (0, 1)
    (file,) = folder.rglob(f"*{suffix}")
    file.unlink()
    assert (hits(), hits()) == (0, 1)
    (file,) = folder.rglob(f"*{suffix}")
    file.with_name("stranger").write_bytes(b"")
    assert (hits(), hits()) == (0, 1)
    assert not list(folder.rglob("stranger"))


def test_what_is_whole_and_cannot_be_loaded(folder: Path) -> None:
    """An index of another layout, say, with the right digests: compiled without the folder."""
    assert hits() == 0
    (file,) = folder.rglob("*.nbi")
    file.write_bytes(b"not a pickle")
    (place,) = {seal.parent for seal in folder.rglob("seal.json")}
    machine_code._seal(place)
    assert (hits(), hits()) == (0, 0)


def test_other_sources_have_another_folder(folder: Path) -> None:
    """A whole number in a closure is the digest of sources that a loop calls into."""

    def loop_of(stamp: int) -> Any:
        def add(left: int, right: int) -> int:
            _ = stamp
            return left + right

        return compiled(add)

    loops = [loop_of(1), loop_of(1), loop_of(2)]
    assert [loop(1, 2) for loop in loops] == [3, 3, 3]
    assert [loop.from_disk for loop in loops] == [0, 1, 0]


def test_an_edit_in_another_file_is_seen(folder: Path, tmp_path: Path) -> None:
    """Of a function that the loop calls, or that one calls."""
    lower, upper = tmp_path / "lower_room.py", tmp_path / "upper_room.py"
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from upper_room import loop;"
        " print(loop(20), loop.from_disk)"
    )
    header = "from hisparse_sim.traces.machine_code import compiled, rule\n"
    body = (
        "@rule\ndef more(x):\n    return twice(x) + 1\n"
        "@compiled\ndef loop(x):\n    return more(x)\n"
    )
    upper.write_text(header + "from lower_room import twice\n" + body)

    def run(factor: int) -> str:
        lower.write_text(header + f"@rule\ndef twice(x):\n    return x * {factor}\n")
        done = subprocess.run(
            [sys.executable, "-B", "-c", program, str(tmp_path)], capture_output=True, text=True
        )
        return done.stdout.strip() or done.stderr

    assert [run(2), run(2), run(3), run(2)] == ["41 0", "41 1", "61 0", "41 1"]


def test_two_copies_of_a_source_keep_their_own(folder: Path, tmp_path: Path) -> None:
    """Two checkouts share the user's cache."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from copied import loop;"
        " print(loop(20), loop.from_disk)"
    )
    source = (
        "from hisparse_sim.traces.machine_code import compiled\n"
        "@compiled\ndef loop(x):\n    return x + 1\n"
    )
    for copy in ("one", "two"):
        (tmp_path / copy).mkdir()
        (tmp_path / copy / "copied.py").write_text(source)

    def run(copy: str) -> str:
        done = subprocess.run(
            [sys.executable, "-B", "-c", program, str(tmp_path / copy)],
            capture_output=True,
            text=True,
        )
        return done.stdout.strip() or done.stderr

    assert [run(copy) for copy in ("one", "two", "one", "two")] == ["21 0", "21 0", "21 1", "21 1"]


def test_a_loop_calls_rules_only(folder: Path) -> None:
    """A loop is an object that compiled code cannot call: what loops share is a rule."""
    root = Path(machine_code.__file__).parents[1]
    for file in (*root.glob("*/*/*.py"), *root.glob("*/*/*/*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        loops = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
            and any(ast.unparse(each).endswith("compiled") for each in node.decorator_list)
        ]
        called = {
            ast.unparse(call.func)
            for loop in loops
            for call in ast.walk(loop)
            if isinstance(call, ast.Call)
        }
        assert not called & {loop.name for loop in loops}, file


def test_two_tuples_of_one_name() -> None:
    """Policies of two files may both call their state State."""

    def first(state: Any) -> float:
        value: float = state.a[0]
        return value

    def state_of(value: float) -> Any:
        class State(NamedTuple):
            a: Any

        return State(np.full(3, value))

    loop = compiled(first, keep=False)
    assert [loop(state_of(value)) for value in (1.0, 2.0, 3.0, 2.0)] == [1, 2, 3, 2]


def test_two_threads_that_meet_a_type_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba gave it two numbers, looked for the one with the other, and failed an assertion."""
    number = abstract._autoincr

    def slowly() -> int:  # between the search for a known type and its entry
        time.sleep(0.001)
        return int(number())

    monkeypatch.setattr(abstract, "_autoincr", slowly)

    def first(state: Any) -> Any:
        return state.a[0]

    loop, start = compiled(first, keep=False), threading.Barrier(4)
    new = namedtuple("new", "a b c")  # type: ignore[misc]

    def call(kind: str) -> float:
        state = new(np.full(3, 1, kind), np.ones(1), np.ones((2, 2)))
        start.wait()
        return float(loop(state) + loop(state))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(call, ["f4", "f8", "f4", "f8"])) == [2, 2, 2, 2]


@pytest.mark.parametrize(
    "other",
    [
        *(np.ones(4, "f8"), np.ones((2, 2), "f4"), np.ones(8, "f4")[::2], np.ones(4, "i4")),
        *(np.ones(4, ">f4"), np.ones(4, "f4").view(np.recarray), (np.ones(4, "f4"),), 1.0, True),
        *(np.float32(1), np.ones((2, 2), "f4").T),
    ],
)
def test_kinds_tell_apart_what_numba_does(other: Any) -> None:
    array = np.ones(4, "f4")
    assert machine_code._kind(array) == machine_code._kind(array.copy())
    assert machine_code._kind(array) != machine_code._kind(other)
    array.flags.writeable = False
    assert machine_code._kind(array) != machine_code._kind(array.copy())


def test_old_neighbours_go(folder: Path) -> None:
    assert hits() == 0
    (place,) = (folder / "hisparse-sim").iterdir()
    os.utime(place, (0, 0))
    assert hits(np.int64) == 0
    assert not place.exists()


def test_numba_of_others_is_left_alone(folder: Path) -> None:
    before = numba.config.CACHE_DIR
    assert hits() == 0
    assert before == numba.config.CACHE_DIR


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
        assert {file.suffix for file in kept} == {".nbi", ".nbc", ".json"}
        for file in kept:
            file.write_bytes(file.read_bytes()[:100])


def test_no_folder_anywhere(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [drift()])
    (tmp_path / "home").touch()
    home = str(tmp_path / "home")
    program = "from hisparse_sim.traces import machine_code as m; print(m.machine_code_folder())"
    plain = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    plain |= {"XDG_CACHE_HOME": home, "HOME": home, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=plain, stdout=subprocess.PIPE, text=True, check=True
    )
    assert Path(done.stdout.strip()).parent == tmp_path
    process = start(path, NUMBA_CACHE_DIR=home)
    assert process.communicate(timeout=120)[0] == f"{path}: ok\n"
