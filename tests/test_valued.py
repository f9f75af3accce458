"""The policies that evict the lowest value against the plain reference, slot by slot."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import reference_valued as rules
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Stream
from streams import cases, demand_of
from test_policies import expected, records

from hisparse_sim.policies import POLICIES, Policy, Step, get_policy
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.valued import Values, evict_least, values
from hisparse_sim.simulator.replay import replay, replay_part
from hisparse_sim.traces import Demand, trace_from_array, trace_from_frame
from hisparse_sim.traces.demand import Ragged

# Decays of one half, and scores and gains in halves: sums in floating point are then exact.
HALF = {"decay": 0.5}
RULES: list[tuple[str, type[rules.Rule], dict[str, Any]]] = [
    ("decayed-rank", rules.DecayedRank, HALF),
    ("decayed-rank", rules.DecayedRank, HALF | {"reach": 1.0, "levels": 3, "power": 2.0}),
    ("decayed-rank", rules.DecayedRank, HALF | {"reach": 1.5, "remember": True}),
    ("decayed-frequency", rules.DecayedFrequency, HALF),
    ("decayed-frequency", rules.DecayedFrequency, {"decay": 1.0}),
    ("decayed-frequency", rules.DecayedFrequency, HALF | {"remember": True}),
    ("decayed-score", rules.DecayedScore, HALF),
    ("decayed-score", rules.DecayedScore, HALF | {"remember": True}),
    ("next-rank", rules.NextRank, {}),
    ("next-rank", rules.NextRank, {"reach": 1.25}),
    ("lowest-score", rules.LowestScore, {}),
    ("greedy-dual-score", rules.GreedyDualScore, {}),
    ("holt", rules.Holt, {"level": 0.5, "trend": 0.25}),
    ("blend", rules.Blend, {"rank_decay": 0.5, "frequency_decay": 0.5}),
    ("sink-recent", rules.SinkRecent, {"sinks": 2, "recent": 3}),
    ("lru-lfu", rules.LruLfu, {}),
    ("lru-k", rules.LruK, {}),
    ("lru-k", rules.LruK, {"k": 1}),
    ("lru-k", rules.LruK, {"k": 3}),
    ("lru-k", rules.LruK, {"remember": False}),
    ("lfuda", rules.Lfuda, {}),
    ("hyperbolic", rules.Hyperbolic, {}),
    ("textbook-lru", rules.TextbookLru, {}),
    ("lru-misses-last", rules.LruMissesLast, {}),
    ("bucketed-lru", rules.BucketedLru, {}),
    ("bucketed-lru", rules.BucketedLru, {"width": 2, "buckets": 3}),
    ("lhd", rules.Lhd, HALF | {"period": 1.5, "reach": 200.0, "explore": 0.5}),
    ("lhd", rules.Lhd, {"period": 0.8, "decay": 1.0, "ages": 6, "reach": 4.0, "explore": 0.3}),
    ("lhd", rules.Lhd, {"period": 0.0, "ages": 9, "reach": 0.0}),
    ("lru", rules.Lru, {}),
]
each_rule = pytest.mark.parametrize(
    ("policy", "rule", "parameters"), RULES, ids=[f"{name}-{given}" for name, _, given in RULES]
)


def told(stream: Stream, chance: Any) -> rules.Told:
    """Add scores, some of them equal, and positions behind each row, twice as many at most."""
    scores, behind = [], []
    for seq_len, positions in stream.rows:
        scores.append([chance.choice([-1.5, 0.0, 0.5, 1.0, 2.5, 4.0]) for _ in positions])
        others = [position for position in range(seq_len) if position not in positions]
        count = min(len(others), chance.randint(0, 2 * len(positions) + 1))
        behind.append(chance.sample(others, count))
    return rules.Told(stream, scores, behind)


def demand_told(of: rules.Told) -> Demand:
    offsets = np.cumsum([0, *map(len, of.behind)])
    flat = [position for row in of.behind for position in row]
    made: Demand = demand_of(of.stream)
    return replace(
        made,
        scores=np.array([score for row in of.scores for score in row], np.float16),
        next_positions=Ragged(offsets, np.array(flat, np.int32)),
    )


def assert_equals_reference(
    policy: str, rule: type[rules.Rule], parameters: dict[str, Any], of: rules.Told, size: int
) -> None:
    demand, chosen = demand_told(of), get_policy(policy, **parameters)
    for start in ("staged", "direct"):
        fast = replay_part(demand, chosen, size, start, victims=True)
        assert fast.victims is not None
        found = records(of.stream, size, start, fast.misses, fast.victims)
        slow = rules.replay_valued(rule(of, size, **parameters), start)
        assert found == expected(slow), start
        assert fast.misses.sum() >= replay_part(demand, "belady", size, start).misses.sum()


@each_rule
@settings(max_examples=25, deadline=None)
@given(case=cases(), chance=st.randoms(use_true_random=False))
def test_equals_reference(
    policy: str,
    rule: type[rules.Rule],
    parameters: dict[str, Any],
    case: tuple[Stream, int],
    chance: Any,
) -> None:
    stream, size = case
    assert_equals_reference(policy, rule, parameters, told(stream, chance), size)


@pytest.mark.parametrize("name", [name for name, each in POLICIES.items() if each.needs_scores])
def test_infinite_scores_are_the_largest_that_there_are(name: str) -> None:
    frame = pd.DataFrame(
        {
            "request": "a",
            "layer": 0,
            "step": range(40),
            "seq_len": 99,
            "positions": [[step % 7, 20 + step % 5, 40 + step % 3] for step in range(40)],
        }
    )

    def misses(largest: float) -> int:
        scores = [[largest, 1.0, -largest], [-largest, -largest, 2.0], [largest] * 3] * 13
        trace = trace_from_frame(frame.assign(scores=[*scores, [0.0, 1.0, 2.0]]))
        return int(replay(trace, name, 6).misses.sum())

    assert misses(np.inf) == misses(65504.0)


@hook
def _no_number(state: Values, step: Step, now: int) -> None:
    for position in step.row:
        state.of[position] = np.nan
    evict_least(state, step)


def test_values_that_are_no_numbers_are_equal() -> None:
    """Slots that were not written went to the replay, which wrote beyond its arrays."""
    mine = Policy("no-number", "", "", values, _no_number)
    trace = trace_from_array([[1, 2], [20, 21], [22, 23], [24, 25], [20, 1]], prompt_len=50)
    assert replay(trace, mine, 4).misses.tolist() == replay(trace, "lru", 4).misses.tolist()
