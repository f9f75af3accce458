"""Prefetchers that are not the package's: named as a file, and what is said about a slip in one."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from make_traces import metadata, several, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import PolicyError, get_policy
from hisparse_sim.policies.hook import hook
from hisparse_sim.simulator.prefetch import Prefetcher, Setup, View, get_prefetcher
from hisparse_sim.simulator.prefetch.prefetching import Prefetch, try_out
from hisparse_sim.simulator.replay import sweep
from hisparse_sim.traces import open_trace

# The shipped slash with another default, as somebody would write it in a file.
SOURCE = """
from dataclasses import dataclass
from typing import NamedTuple
import numpy as np
import hisparse_sim as hs
from hisparse_sim.simulator.prefetch import Prefetcher, take

@dataclass(frozen=True)
class Parameters:
    shift: int = 2

class State(NamedTuple):
    shift: np.ndarray

def state(setup):
    return State(np.full(1, setup.parameters.shift))

@hs.hook
def propose(state, view, out):
    return take(view.row + np.uint32(state.shift[0]), view, out)

MINE = Prefetcher("moved", "the row, moved", "-", state, propose, parameters=Parameters())
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "t.parquet", several(requests=2, layers=(0, 1)), metadata())


def study(trace: Path, *arguments: str | Path) -> Result:
    words = "study --policy lru --buffer 16 --budget 4 --quiet".split()
    return CliRunner().invoke(cli, [*words, str(trace), *map(str, arguments)])


def test_a_file_is_a_prefetcher_wherever_a_name_is(file: Path, trace: Path, tmp_path: Path) -> None:
    mine = get_prefetcher(f"{file}:MINE")
    assert get_prefetcher(f"{file}:moved") is get_prefetcher(str(file)) is mine
    asked = f"slash:shift=2,slash,{file}:MINE,{file}:MINE:shift=1"
    out = tmp_path / "rows.csv"
    done = study(trace, "--prefetch", asked, "-o", out)
    assert done.exit_code == 0, done.output
    rows = pd.read_csv(out).query("trace == 'all' or trace == 't'").set_index("prefetcher")
    useful = rows["useful_per_step"]
    assert useful["moved"] == useful["slash:shift=2"]
    assert useful["moved:shift=1"] == useful["slash"] > 0
    assert useful["moved"] != useful["slash"]


def test_another_process_runs_the_file_again(file: Path) -> None:
    mine = get_prefetcher(str(file), shift=5)
    again = pickle.loads(pickle.dumps(mine))
    assert again == mine
    assert (again.name, again.parameters.shift) == ("moved:shift=5", 5)


def test_a_file_may_hold_a_policy_too(file: Path) -> None:
    more = "LRU = hs.Policy('my-lru', '', '', state, propose)\n"
    file.write_text(SOURCE + more)
    assert get_prefetcher(str(file)).name == "moved"
    assert get_policy(str(file)).name == "my-lru"


def test_its_work_is_not_kept(file: Path, trace: Path, tmp_path: Path) -> None:
    """A file of finished work knows a prefetcher by its name, and this one may change."""
    keep = tmp_path / "work.partial"
    shipped, mine = (Prefetch(get_prefetcher(name), 4) for name in ("slash", str(file)))
    sweep(open_trace(trace), "lru", 16, mode=shipped, compare_min=False, keep=keep)
    size = keep.stat().st_size
    sweep(open_trace(trace), "lru", 16, mode=mine, compare_min=False, keep=keep)
    assert keep.stat().st_size == size > 100


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("gone.py:X", None, "gone.py cannot be read: No such file or directory"),
        ("mine.py:X", SOURCE, "mine.py defines no prefetcher X; it has MINE"),
        ("mine.py", "x = 1", "mine.py defines no prefetcher"),
        ("mine.py", "x = 1\ny = z\n", "mine.py, line 2: NameError: name 'z' is not defined"),
        ("mine.py", SOURCE.replace("moved", "slash"), "the name 'slash' is taken; choose another"),
        ("mine.py", SOURCE.replace("moved", "none"), "the name 'none' is taken; choose another"),
        ("mine.py:shift=x", SOURCE, "prefetcher moved: shift cannot be x; its parameters are"),
        ("slush", None, "unknown prefetcher 'slush'; known are next-ranks,"),
    ],
)
def test_what_is_wrong_with_a_file(
    tmp_path: Path, trace: Path, name: str, text: str | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    where = tmp_path / name if ".py" in name else name
    done = study(trace, "--prefetch", where, "-o", tmp_path / "rows.csv")
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())
    assert not (tmp_path / "rows.csv").exists()


class State(NamedTuple):
    count: npt.NDArray[np.int64]


def state(setup: Setup) -> State:
    return State(np.zeros(setup.positions + 1, np.int64))


def bare(state: State, view: View, out: Any) -> int:
    return 0


@hook
def misspelt(state: State, view: Any, out: Any) -> int:
    return len(view.rwo)


@hook
def two_arguments(state: State, view: View) -> int:
    return 0


@hook
def returns_nothing(state: State, view: View, out: Any) -> None:
    pass


@hook
def writes_text(state: State, view: View, out: Any) -> int:
    out[0] = "first"
    return 1


@hook
def divides(state: State, view: View, out: Any) -> int:
    return 1 // int(state.count[0])


@hook
def below_nothing(state: State, view: View, out: Any) -> int:
    out[0] = -1
    return 1


@pytest.mark.parametrize(
    ("propose", "sentence"),
    [
        (bare, "bare is not marked with @hook, which its propose must be"),
        (misspelt, "a view has no field rwo; did you mean row? (test_prefetcher_of_ones_own.py, "),
        (two_arguments, "its propose takes 2 arguments, expected (state, view, out)"),
        (returns_nothing, "Numba cannot compile its propose; does it always return a whole number"),
        (writes_text, 'Numba cannot compile `out[0] = "first"` (test_prefetcher_of_ones_own.py'),
        (divides, "its propose raised ZeroDivisionError: integer division by zero (request"),
        (below_nothing, "proposed more than 1 positions, or one that is not below view.newest"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_a_slip_in_a_hook(propose: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(PolicyError) as caught:
        try_out(Prefetcher("mine", "", "", state, propose))
    said = str(caught.value).replace("prefetcher 'mine' ", "prefetcher 'mine': ")
    assert said.startswith(f"prefetcher 'mine': {sentence}")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda setup: {}, "state(setup) returned dict, expected a NamedTuple of arrays"),
        (lambda setup: State(np.zeros(1, object)), "count of its state is an array of object"),
        (
            lambda setup: State(setup.position),
            "state(setup) raised AttributeError: 'Setup' object has no attribute 'position'"
            " (test_prefetcher_of_ones_own.py, line ",
        ),
    ],
    ids=["dict", "dtype", "exception"],
)
def test_a_slip_in_a_state(make: Callable[[Any], Any], sentence: str) -> None:
    with pytest.raises(PolicyError) as caught:
        try_out(Prefetcher("mine", "", "", make, hook(bare)))
    assert str(caught.value).startswith(f"prefetcher 'mine': {sentence}")


def test_a_slip_is_told_before_anything_is_replayed(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE.replace("view.row", "view.rwo"))
    with pytest.raises(PolicyError, match="did you mean row"):
        hs.study(trace, "lru", 16, prefetchers=str(file), progress=pytest.fail)
    done = study(trace, "--prefetch", file, "-o", tmp_path / "rows.csv")
    assert done.exit_code in (1, 2)
    assert "did you mean row? (mine.py, line 20)" in " ".join(done.stderr.split())
    assert [each.name for each in tmp_path.glob("rows*")] == []


@hook
def twice(state: State, view: View, out: Any) -> int:
    """Propose what is there already, then one absent position, and that again."""
    count = 0
    for position in range(view.newest):
        if view.present[position] > 0 and count < len(out) - 2:
            out[count] = position
            count += 1
    for position in range(view.newest):
        if view.present[position] == 0:
            out[count] = out[count + 1] = position
            return count + 2
    return count


def test_what_is_there_is_passed_over(trace: Path) -> None:
    mode = Prefetch(Prefetcher("twice", "", "", state, twice), 4)
    row = sweep(open_trace(trace), "lru", 20, mode=mode, compare_min=False).rows.iloc[0]
    assert 0 < row["fetched"] <= row["steps"]
