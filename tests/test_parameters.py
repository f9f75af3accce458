"""Policies with parameters, and what the indexer tells a policy of a step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import demand, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import Policy, PolicyError, Setup, Step, get_policy, parameter
from hisparse_sim.policies.hook import hook
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.simulator.replay.kernel import compiled
from hisparse_sim.simulator.serving.misses import layer_misses
from hisparse_sim.traces import Demand, TraceError
from hisparse_sim.traces.demand import Ragged


@dataclass(frozen=True)
class Parameters:
    shift: int = parameter(0, "slots passed before a victim is taken", least=0, most=5)
    share: float = parameter(0.5, "of nothing", least=0, most=1, above=True)
    loud: bool = parameter(False, "of nothing")


class State(NamedTuple):
    shift: npt.NDArray[np.int64]  # [1]
    last_use: npt.NDArray[np.int32]  # [B]


def state(setup: Setup) -> State:
    return State(np.array([setup.parameters.shift]), np.zeros(setup.buffer_size, np.int32))


@hook
def step(state: State, step: Step, now: int) -> None:
    """Take slots from `shift` on that the step does not use."""
    slot = state.shift[0]
    for used in step.hits:
        state.last_use[used] = now
    for i in range(len(step.victims)):
        while state.last_use[slot % len(state.last_use)] == now:
            slot += 1
        step.victims[i] = slot % len(state.last_use)
        state.last_use[step.victims[i]] = now


SHIFTED = Policy("shifted", "-", "-", state, step, parameters=Parameters())
SOURCE = Path(__file__).read_text(encoding="utf-8")


def rows(count: int = 12) -> list[list[int]]:
    return [[(3 * step + i) % 17 for i in range(4)] for step in range(count)]


def victims(policy: str | Policy) -> list[int]:
    found = replay_part(demand(rows(), [20] * 12), policy, 6, victims=True).victims
    assert found is not None
    return list(map(int, found))


def test_parameters_reach_the_step_and_the_name() -> None:
    shifted = get_policy(SHIFTED, shift="2")
    assert (shifted.name, shifted.base) == ("shifted:shift=2", "shifted")
    # The first step with a miss is the second: it uses slots 3, 4 and 5.
    assert [victims(each)[0] for each in (SHIFTED, shifted, get_policy(SHIFTED, shift=4))] == [
        0,
        2,
        0,
    ]
    assert compiled(shifted) is compiled(SHIFTED)  # one loop for all values
    assert get_policy(shifted, shift=0) == SHIFTED
    assert get_policy(SHIFTED, share=0.25, shift=1).name == "shifted:shift=1,share=0.25"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    head = SOURCE[SOURCE.index("@dataclass") : SOURCE.index("SOURCE =")]
    path.write_text(
        "from dataclasses import dataclass\nfrom typing import NamedTuple\n"
        "import numpy as np\nimport numpy.typing as npt\n"
        "from hisparse_sim.policies import Policy, Setup, Step, parameter\n"
        "from hisparse_sim.policies.hook import hook\n" + head
    )
    return path


def test_written_after_a_name(file: Path, tmp_path: Path) -> None:
    assert get_policy(f"{file}:shifted:shift=1").name == "shifted:shift=1"
    assert get_policy(f"{file}: share=0.50 ,shift=3").name == "shifted:shift=3"
    assert get_policy(f"{file}:loud=TRUE").name == "shifted:loud=true"
    result = tmp_path / "rows.csv"
    options = ["--buffer", "4096", "--steps", "0:8", "--no-regret", "--quiet", "-o", str(result)]
    asked = ["--policy", f"lru,{file}:shift=1,share=0.75,fifo", "--policy", f"{file}:shift=2"]
    done = CliRunner().invoke(cli, ["sweep", *asked, *options])
    assert done.exit_code == 0, done.output
    assert pd.read_csv(result)["policy"].tolist() == [
        "lru",
        "shifted:shift=1,share=0.75",
        "fifo",
        "shifted:shift=2",
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("lru:decay=1", "policy lru has no parameters, so not decay"),
        ("{}:size=1", "policy shifted has no parameter size; its parameters are shift=0 (from 0 "),
        ("{}:shift=6", "policy shifted: shift cannot be 6; its parameters are shift=0 (from 0 to"),
        ("{}:shift=1.5", "shift cannot be 1.5"),
        ("bucketed-lru:width=99999999999999999999", "width cannot be 99999999999999999999"),
        ("{}:share=0", "share cannot be 0; its parameters are shift=0 (from 0 to 5), share=0.5 ("),
        ("{}:share=nan", "(above 0 to 1), loud=false (or true)"),
        ("{}:loud=loud", "loud cannot be loud"),
        ("{}:shift=1,shift=2", "write each parameter once, as FIELD=VALUE"),
        ("{}:shift=", "write each parameter once, as FIELD=VALUE"),
        ("lru:0.9", "unknown policy 'lru:0.9'; known are lru, fifo"),
    ],
)
def test_what_is_wrong_with_parameters(given: str, sentence: str, file: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        get_policy(given.format(file))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


# --- what the indexer told --------------------------------------------------------------------


class Heard(NamedTuple):
    last_use: npt.NDArray[np.int32]  # [B]
    ranks: npt.NDArray[np.int32]  # [steps + 1, 4]
    scores: npt.NDArray[np.float32]  # [steps + 1, 4]
    behind: npt.NDArray[np.int64]  # [steps + 1, 3]


@hook
def listen(state: Heard, step: Step, now: int) -> None:
    for slot in step.hits:
        state.last_use[slot] = now
    slot = 0
    for i in range(len(step.victims)):
        while state.last_use[slot] == now:
            slot += 1
        step.victims[i] = slot
        state.last_use[slot] = now
    for i in range(len(step.ranks)):
        state.ranks[now, i] = step.ranks[i]
    for i in range(len(step.scores)):
        state.scores[now, i] = step.scores[i]
    for i in range(len(step.next_positions)):
        state.behind[now, i] = step.next_positions[i]


def told(scored: bool = True) -> Demand:
    lists = [[9, 2, 4, 11], [5, 3], [2, 3, 4, 10]]
    scores = np.array([0.5, 2.0, -1.0, 2.0, 1.0, 3.0, 4.0, 3.0, 2.0, 1.0], np.float16)
    following = Ragged(np.array([0, 2, 2, 5]), np.array([7, 1, 1, 8, 5], np.int32))
    made: Demand = demand(lists, [12, 13, 14])
    return replace(made, scores=scores if scored else None, next_positions=following)


def heard(of: Demand, **needs: bool) -> Heard:
    kept: list[Heard] = []

    def state(setup: Setup) -> Heard:
        kept.append(
            Heard(
                np.zeros(setup.buffer_size, np.int32),
                np.full((4, 4), -1, np.int32),
                np.full((4, 4), -9, np.float32),
                np.full((4, 3), -1),
            )
        )
        return kept[-1]

    replay_part(of, Policy("listening", "-", "-", state, listen, **needs), 6)
    return kept[-1]


def test_a_step_tells_ranks_scores_and_what_is_ranked_behind() -> None:
    all_told = heard(told(), needs_ranks=True, needs_scores=True, needs_next=True)
    assert all_told.ranks[1:].tolist() == [[2, 0, 3, 1], [1, 0, -1, -1], [0, 1, 2, 3]]
    assert all_told.scores[1].tolist() == [0.5, 2.0, -1.0, 2.0]
    assert all_told.behind[1:].tolist() == [[7, 1, -1], [-1, -1, -1], [1, 8, 5]]
    listed = heard(told(scored=False), needs_ranks=True)
    assert listed.ranks[1:].tolist() == [[0, 1, 2, 3], [0, 1, -1, -1], [0, 1, 2, 3]]
    nothing = heard(told())
    assert (nothing.ranks.max(), nothing.scores.max(), nothing.behind.max()) == (-1, -9, -1)


def test_told_alike_where_positions_are_numbered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hisparse_sim.simulator.replay.replaying._LARGEST_TABLE", 8)
    found = heard(told(), needs_next=True)
    # 0 to 5 are kept, 7, 8, 9, 10 and 11 come after them.
    assert found.behind[1:].tolist() == [[6, 1, -1], [-1, -1, -1], [1, 7, 5]]


NEEDS: list[tuple[dict[str, Any], str]] = [
    ({"needs_scores": True}, "needs scores, and"),
    ({"needs_next": True}, "needs the positions ranked behind top_k, and"),
    ({"needs_ranks": True}, "needs the ranks of the selected positions, and"),
]


@pytest.mark.parametrize(("needs", "sentence"), NEEDS)
@pytest.mark.parametrize(
    "use",
    [
        lambda path, policy: hs.replay(path, policy, 8),
        lambda path, policy: hs.sweep(path, ["lru", policy], 8),
        lambda path, policy: hs.mrc(path, policy, buffers=8),
        lambda path, policy: layer_misses(path, policy, 8),
    ],
    ids=["replay", "sweep", "mrc", "layer_misses"],
)
def test_a_trace_without_it_is_refused(
    needs: dict[str, bool], sentence: str, use: Callable[[Path, Policy], Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "t.parquet", [demand(rows(), [20] * 12)])
    mine = Policy("mine", "-", "-", state, step, parameters=Parameters(), **needs)
    with pytest.raises(TraceError) as caught:
        use(path, mine)
    text = str(caught.value)
    assert text.startswith(f"policy mine {sentence} {path} has none; `trace capture hf --keep-ran")


def test_modes_refuse_it(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [demand(rows(), [20] * 12)])
    mine = Policy("mine", "-", "-", state, step, parameters=Parameters(), needs_ranks=True)
    with pytest.raises(PolicyError, match=r"^policy mine needs ranks or scores, which replays of"):
        hs.sweep(path, mine, 8, resident_tokens=1)
