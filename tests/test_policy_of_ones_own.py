"""Policies that are not the package's: named as a file, and what is said about a slip in one."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import drift, table

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import PolicyError, get_policy
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Policy, Setup, Step
from hisparse_sim.simulator.replay import replay, sweep
from hisparse_sim.simulator.serving.api import plan
from hisparse_sim.traces import trace_from_frame

# First in, first out, with a slip to make: FIFO as somebody would write it in a file.
SOURCE = """
from typing import NamedTuple
import numpy as np
from hisparse_sim.policies import Policy
from hisparse_sim.policies.hook import hook

class State(NamedTuple):
    last_use: np.ndarray
    hand: np.ndarray

def state(setup):
    return State(np.zeros(setup.buffer_size, np.int32), np.zeros(1, np.int64))

@hook
def step(state, step, now):
    for slot in step.hits:
        state.last_use[slot] = now
    for i in range(len(step.victims)):
        while state.last_use[state.hand[0]] == now:
            state.hand[0] = (state.hand[0] + 1) % len(state.last_use)
        step.victims[i] = state.hand[0]
        state.last_use[state.hand[0]] = now

MINE = Policy("my-fifo", "round robin", "-", state, step)
"""
TRACE = trace_from_frame(table([drift(steps=60, top_k=8)]), top_k=8, name="tiny")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def misses(policy: str | Policy) -> list[int]:
    found: list[int] = replay(TRACE, policy, 12).misses.tolist()
    return found


def test_a_file_is_a_policy_wherever_a_name_is(file: Path) -> None:
    mine = get_policy(f"{file}:MINE")
    assert mine.name == "my-fifo"
    assert get_policy(f"{file}:my-fifo") is get_policy(str(file)) is mine
    assert misses(f"{file}:MINE") == misses(mine)
    assert sum(misses(mine)) > 0
    rows = sweep(TRACE, [f"{file}:MINE", "lru", mine], [12, 16]).rows
    assert rows["policy"].tolist() == ["my-fifo", "my-fifo", "lru", "lru"]


def test_it_is_run_again_only_when_it_changes(file: Path) -> None:
    first = get_policy(str(file))
    assert get_policy(str(file)) is first
    file.write_text(SOURCE.replace("my-fifo", "other"))
    os.utime(file, ns=(1, 1))
    assert get_policy(str(file)).name == "other"


def test_it_may_import_its_neighbours(file: Path) -> None:
    (file.parent / "neighbour_of_mine.py").write_text("NAME = 'from next door'\n")
    file.write_text("from neighbour_of_mine import NAME\n" + SOURCE.replace('"my-fifo"', "NAME"))
    before = list(sys.path)
    assert get_policy(str(file)).name == "from next door"
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("gone.py:LRU2", None, "gone.py cannot be read: No such file or directory"),
        ("mine.py:LRU2", SOURCE, "mine.py defines no policy LRU2; it has MINE"),
        (
            "mine.py",
            SOURCE + "\nTWO = Policy('two', '', '', state, step)",
            "defines several, MINE, TWO:",
        ),
        ("mine.py", "x = 1", "mine.py defines no policy"),
        ("mine.py:MINE", "x = 1\ny = z\n", "mine.py, line 2: NameError: name 'z' is not defined"),
        ("mine.py:MINE", "x = 1\nif\n", "mine.py, line 2: SyntaxError: invalid syntax"),
        ("mine.py:MINE", "import sys\nsys.exit(0)\n", "mine.py, line 2: SystemExit: 0"),
        ("mine.py:MINE", "import sys\nsys.path.pop(0)\n", "mine.py defines no policy"),
        (
            "mine.py:MINE",
            SOURCE.replace('"my-fifo"', "5"),
            "PolicyError: the name of a policy is 5, expected a text",
        ),
        (
            "mine.py:MINE",
            SOURCE.replace("my-fifo", ""),
            "PolicyError: a policy has no name",
        ),
        ("mine.py:MINE", SOURCE.replace("my-fifo", "LRU"), "the name 'LRU' is taken; choose"),
        ("mine.py:MINE", SOURCE.replace("my-fifo", "min"), "the name 'min' is taken; choose"),
    ],
)
def test_what_is_wrong_with_a_file(
    tmp_path: Path, name: str, text: str | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    with pytest.raises(PolicyError) as caught:
        get_policy(f"{tmp_path / name}")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_else_is_a_policy() -> None:
    with pytest.raises(PolicyError, match="unknown policy 'lru2'; known are lru, fifo"):
        get_policy("lru2")
    with pytest.raises(PolicyError, match="7 is not a policy: give a name or a Policy"):
        get_policy(7)  # type: ignore[arg-type]


def test_commands(file: Path, tmp_path: Path) -> None:
    own = f"{file}:MINE"
    runner = CliRunner()
    rows = tmp_path / "rows.csv"
    done = runner.invoke(
        cli, ["sweep", "--policy", f"lru,{own}", "--steps", "0:30", "-o", str(rows)]
    )
    assert done.exit_code == 0, done.output
    found = pd.read_csv(rows)
    assert found["policy"].unique().tolist() == ["lru", "my-fifo"]
    own_rows = found.query("policy == 'my-fifo'")
    again = hs.sweep(hs.sample_path(), [get_policy(own)], own_rows["buffer"], steps=(0, 30)).rows
    assert own_rows["misses"].tolist() == again["misses"].tolist()
    for command in (
        ["curve", "--steps", "0:120", "--buffer", "4096", "--format", "csv"],
        ["plan", "--buffer", "4096", "--ratio", "8", "--format", "csv"],
        ["serve", "--concurrency", "8", "--requests", "8", "--format", "csv"],
    ):
        done = runner.invoke(cli, [*command, "--policy", own, "--quiet"])
        assert done.exit_code == 0, done.output
    done = runner.invoke(cli, ["sweep", "--policy", f"{file}:ELSE"])
    assert (done.exit_code, "defines no policy ELSE" in done.output) == (2, True)


def test_plan_takes_a_policy(file: Path) -> None:
    mine = get_policy(str(file))
    options: dict[str, Any] = {"buffers": [4096], "ratios": [8]}
    by_object, by_name = (plan(policy=each, **options) for each in (mine, f"{file}:MINE"))
    pd.testing.assert_frame_equal(by_object.candidates, by_name.candidates)
    assert by_object.policies["policy"].iloc[0] == "my-fifo"


class State(NamedTuple):
    last_use: npt.NDArray[np.int32]
    hand: npt.NDArray[np.int64]


def state(setup: Setup) -> State:
    return State(np.zeros(setup.buffer_size, np.int32), np.zeros(1, np.int64))


def bare(state: State, step: Step, now: int) -> None:
    for i in range(len(step.victims)):
        step.victims[i] = i


def helper(state: State) -> int:
    return len(state.hand)


@hook
def marked(state: State, step: Step, now: int) -> None:
    pass


@hook
def misspelt(state: Any, step: Step, now: int) -> None:
    state.hnd[0] = now


@hook
def unheard_of(state: Any, step: Step, now: int) -> None:
    state.colour[0] = now


@hook
def misspelt_step(state: State, step: Any, now: int) -> None:
    step.victms[0] = 0


@hook
def calls_a_plain_function(state: State, step: Step, now: int) -> None:
    step.victims[0] = helper(state)


@hook
def two_arguments(state: State, step: Step) -> None:
    pass


@hook
def too_clever(state: State, step: Step, now: int) -> None:
    step.victims[0] = sorted(str(now))  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (bare, "policy 'mine': bare is not marked with @hook, which its step must be"),
        (misspelt, "policy 'mine': its state has no field hnd; did you mean hand? (test_policy_"),
        (unheard_of, "policy 'mine': its state has no field colour; it has last_use, hand (test_"),
        (misspelt_step, "policy 'mine': a step has no field victms; did you mean victims? (test"),
        (calls_a_plain_function, "policy 'mine': helper is called by a hook, and is not marked"),
        (two_arguments, "policy 'mine': its step takes 2 arguments, expected (state, step, now)"),
        (too_clever, "policy 'mine': Numba cannot compile `step.victims[0] = sorted(str(now))"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_a_slip_in_a_hook(step: Callable[..., None], sentence: str) -> None:
    with pytest.raises(PolicyError) as caught:
        misses(Policy("mine", "", "", state, step))
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


class OfNumbers(NamedTuple):
    hand: int


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ({}, "state(setup) returned dict, expected a NamedTuple of arrays"),
        (None, "state(setup) returned NoneType, expected a NamedTuple of arrays"),
        ((np.zeros(1),), "state(setup) returned tuple, expected a NamedTuple of arrays"),
        (OfNumbers(1), "hand of its state is 1, expected an array of numbers (a single one is an"),
        (State(np.zeros(1, object), np.zeros(1)), "last_use of its state is an array of object"),
    ],
    ids=str,
)
def test_a_state_that_compiled_code_cannot_take(made: Any, sentence: str) -> None:
    with pytest.raises(PolicyError) as caught:
        misses(Policy("mine", "", "", lambda setup: made, marked))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "program",
    [
        "import hisparse_sim as hs; table = hs.policies(); import hisparse_sim.policies",
        "import hisparse_sim.policies; import hisparse_sim as hs; table = hs.policies()",
        "from hisparse_sim import policies; table = policies()",
        "from hisparse_sim.policies import LRU; import hisparse_sim as hs; table = hs.policies()",
    ],
)
def test_policies_is_a_room_and_a_table_in_any_order(program: str) -> None:
    check = "; assert list(table['policy'])[0] == 'lru' and len(table.columns) == 4"
    end = "; import hisparse_sim; assert hisparse_sim.policies.POLICIES['lru'].name == 'lru'"
    done = subprocess.run([sys.executable, "-c", program + check + end], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
