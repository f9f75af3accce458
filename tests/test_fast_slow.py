"""The policy that the native kernel runs beside LRU, against its NumPy form and by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_traces import demand, drift
from reference import Stream
from streams import cases, demand_of

import hisparse_sim as hs
from hisparse_sim.gpu_replay.harness.fast_slow import FastSlowState, Worths
from hisparse_sim.policies.fast_slow import FAST_SLOW, worth
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.traces import Demand
from hisparse_sim.traces.demand import Ragged


def test_the_page_says_where_it_is_of_no_use() -> None:
    root = Path(__file__).parents[1]
    found = json.loads((root / "benchmarks/results/policy-study-8k.json").read_text())
    top_k = found["order"]["study-8k"]["top_k"]

    def closed(reach: int, times: int) -> float:
        held_out = found["fast-slow"][f"ranks to {reach} x top-k"]["held_out"]
        share: float = held_out[str(times * top_k)]["fast-slow"]["closed_percent"]
        return share

    assert closed(2, 6) < 0 < closed(2, 4)
    row = (
        f"such as 6 x top-k | LRU | `fast-slow` closes {closed(2, 6):.0f} % there (8k traces, ranks"
        f" to 2 x top-k; {closed(3, 6):.0f} % with ranks to 3 x) |"
    )
    assert row in (root / "docs/choose-a-policy.md").read_text()


def with_next(of: Demand, seed: int, most: int) -> Demand:
    """Return the demand with up to `most` positions ranked behind every row, and scores."""
    random = np.random.default_rng(seed)
    lists = []
    for i in range(of.rows):
        others = np.setdiff1d(np.arange(of.seq_len[i]), of.row(i))
        lists.append(random.permutation(others)[: random.integers(0, most + 1)].astype(np.int32))
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    positions = np.concatenate([np.empty(0, np.int32), *lists])
    scores = random.integers(0, 9, len(of.positions)).astype(np.float16)
    return replace(of, next_positions=Ragged(offsets, positions), scores=scores)


def assert_agrees(of: Demand, buffer: int, start: str) -> int:
    """Compare every victim; return how many there were."""
    found = replay_part(of, FAST_SLOW, buffer, start, victims=True)
    assert found.victims is not None
    context = max(buffer, int(of.seq_len.max()))
    state = FastSlowState(buffer, start, of.prompt_len, context)
    worths = Worths(of)
    taken = 0
    for step in range(of.rows):
        outcome = state.step_by_worth(int(of.seq_len[step]), of.row(step), worths.of(step, context))
        assert len(outcome.victims) == found.misses[step]
        stop = taken + len(outcome.victims)
        assert outcome.victims.tolist() == found.victims[taken:stop].tolist()
        taken = stop
    return taken


@pytest.mark.parametrize("start", ["staged", "direct"])
@settings(max_examples=80, deadline=None)
@given(case=cases(), seed=st.integers(0, 1000), most=st.integers(0, 12))
def test_equals_numpy(start: str, case: tuple[Stream, int], seed: int, most: int) -> None:
    stream, buffer = case
    assert_agrees(with_next(demand_of(stream), seed, most), buffer, start)


@pytest.mark.parametrize("start", ["staged", "direct"])
def test_equals_numpy_over_long_runs(start: str) -> None:
    """Long enough for both sums to settle, with ranks in the hundreds."""
    of = with_next(drift(steps=200, top_k=200, first_seq_len=900, keep=0.8), 1, 300)
    assert assert_agrees(of, 400, start) > 1000


def test_worth_of_ranks() -> None:
    assert [worth(rank, 4096) for rank in (0, 63, 64, 2048, 4031, 4032, 4095)] == [
        62,
        62,
        61,
        23,
        0,
        0,
        0,
    ]
    assert worth(0, 1) == 62


def test_by_hand() -> None:
    rows = [[5, 0, 1], [6, 5, 0], [7, 6, 3]]
    following = Ragged(np.array([0, 3, 6, 9]), np.array([2, 4, 3, 2, 3, 1, 5, 2, 0], np.int32))
    of = replace(demand(rows, [20, 21, 22]), next_positions=following)
    assert [worth(rank, 6) for rank in range(6)] == [62, 48, 34, 23, 13, 5]
    # Slots 0 to 3 hold 0 to 3; 4 is ranked and in no slot.
    # 1: both sums become 48, 34, 23 and 5. Slots 0 and 1 are hits; keys of the others 23 * 7 and
    #    5 * 7: 5 takes slot 3 and starts with 77 = 5 * 62 // 4 and 31.
    # 2: fast sums 48 // 4 + 34 = 46, 34 // 4 + 5 = 13, 23 // 4 + 23 = 28, 77 // 4 + 48 = 67; slow
    #    ones 48 - 6 + 34 = 76, 34 - 4 + 5 = 35, 23 - 2 + 23 = 44, 31 - 3 + 48 = 76. Slots 3 and 0
    #    are hits; keys of 1 and 2: 35 + 78 and 44 + 168. 6 takes slot 1: 77 and 31.
    # 3: slot 1 is a hit. The others have 46 // 4 + 5 = 16, 28 // 4 + 13 = 20, 67 // 4 + 23 = 39
    #    and 76 - 9 + 5 = 72, 44 - 5 + 13 = 52, 76 - 9 + 23 = 90: keys 168, 172 and 324. 7 takes
    #    slot 0 and 3 takes slot 2.
    found = replay_part(of, FAST_SLOW, 4, victims=True)
    assert found.victims is not None
    assert (found.misses.tolist(), found.victims.tolist()) == ([1, 1, 2], [3, 1, 0, 2])


def test_of_what_is_forgotten_the_longest_unranked_goes() -> None:
    # A sum of 62 is 7 after 20 steps. Position 1 is ranked when 1000 is the newest: its sum is 7 at
    # 1020, 6 at 1024 and 5 at 1040, multiples of 16. Position 0 is ranked at 1017: 7 at 1037, 6 at
    # 1040. So slot 1 goes at 1041, where both would be 7 without that, and slot 0 would go.
    selected = {1000: 1, 1017: 0, 1041: 5}
    newest = range(1000, 1042)
    of = demand([[selected.get(each, each)] for each in newest], [each + 1 for each in newest])
    nothing = Ragged(np.zeros(of.rows + 1, np.int64), np.empty(0, np.int32))
    found = replay_part(replace(of, next_positions=nothing), FAST_SLOW, 2, victims=True)
    assert found.victims is not None
    assert (found.misses.sum(), found.victims.tolist()) == (1, [1])


def test_golden_counts_on_captured_ranks() -> None:
    """Three layers of three documents, 96 steps each, from docs/policy-study.md."""
    path = Path(__file__).with_name("data") / "scored.parquet"
    rows = hs.sweep(path, ["lru", "fast-slow", "belady"], [2560, 4096, 6144], jobs=1).rows
    misses = rows.pivot(index="policy", columns="buffer", values="misses")
    assert misses.loc[["lru", "fast-slow", "belady"]].to_numpy().tolist() == [
        [89573, 33773, 21265],
        [84882, 31173, 21017],
        [65072, 23524, 20418],
    ]
