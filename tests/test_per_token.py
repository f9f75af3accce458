"""Policies written token by token: one worked by hand, one against the plain reference."""

from inspect import cleandoc
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray
from reference import Stream, replay
from streams import cases, demand_of

from hisparse_sim.policies import Policy, Setup
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.per_token import lift
from hisparse_sim.policies.policy import Indices
from hisparse_sim.simulator.replay import replay_part


class State(NamedTuple):
    last_use: Indices
    used: NDArray[np.int64]  # [B + 1] when each slot was used; the last is the clock
    times: NDArray[np.int64]  # [B] how often


def state(setup: Setup) -> State:
    size = setup.buffer_size
    return State(
        np.zeros(size, np.int32), np.arange(size + 1, dtype=np.int64), np.ones(size, np.int64)
    )


@hook
def touch(state: State, slot: int, position: int) -> None:
    state.used[-1] += 1
    state.used[slot] = state.used[-1]
    state.times[slot] += 1


@hook
def insert(state: State, slot: int, position: int) -> None:
    state.used[-1] += 1
    state.used[slot] = state.used[-1]
    state.times[slot] = 1


@hook
def most_recent(state: State, now: int) -> int:
    chosen = -1
    for slot in range(len(state.last_use)):
        if state.last_use[slot] != now and (chosen < 0 or state.used[slot] > state.used[chosen]):
            chosen = slot
    return chosen


@hook
def least_frequent(state: State, now: int) -> int:
    chosen = -1
    for slot in range(len(state.last_use)):
        if state.last_use[slot] != now and (
            chosen < 0
            or state.times[slot] < state.times[chosen]
            or (state.times[slot] == state.times[chosen] and state.used[slot] < state.used[chosen])
        ):
            chosen = slot
    return chosen


MRU = Policy("mru", "most recently used", "-", state, lift(touch, most_recent, insert))
LFU = Policy("lfu-by-token", "as lfu", "-", state, lift(touch, least_frequent, insert))


@pytest.mark.parametrize(
    ("start", "misses", "victims"),
    [
        # 0 1 2 are held. 0 is hit, 5 takes the place of 2, used last of the others.
        # Then 2 is missed: of 0, 1, 5 the last used is 5 (slot 2). Then 1 and 5 are demanded:
        # 1 is hit, 5 takes the place of 2. Then 2 and 0: 0 is hit, the last used of 1 and 5 is 5.
        ("staged", [1, 1, 1, 1], [2, 2, 2, 2]),
        # Empty slots first: 0 and 5 fill slots 0 and 1, 2 fills slot 2. Then 1 and 5: 5 is hit,
        # 1 takes the place of 2 (slot 2). Then 2 and 0: 0 is hit, the last used is 1 (slot 2).
        ("direct", [2, 1, 1, 1], [0, 1, 2, 2, 2]),
    ],
)
def test_mru_by_hand(start: str, misses: list[int], victims: list[int]) -> None:
    rows = [(20, [0, 5]), (20, [2]), (20, [1, 5]), (20, [2, 0])]
    found = replay_part(demand_of(Stream("r", 0, 19, rows)), MRU, 3, start, victims=True)
    assert found.misses.tolist() == misses
    assert found.victims is not None
    assert found.victims.tolist() == victims


def test_the_example_in_the_help_of_lift_is_that_policy() -> None:
    assert lift.__doc__ is not None
    names: dict[str, object] = {}
    exec(cleandoc(lift.__doc__[lift.__doc__.index("    from typing") :]), names)
    rows = [(20, [0, 5]), (20, [2]), (20, [1, 5]), (20, [2, 0])]
    mru = names["mru"]
    assert isinstance(mru, Policy)
    found = replay_part(demand_of(Stream("r", 0, 19, rows)), mru, 3, victims=True)
    assert found.victims is not None
    assert found.victims.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("start", ["staged", "direct"])
@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_lifted_lfu_equals_the_reference(start: str, case: tuple[Stream, int]) -> None:
    stream, buffer_size = case
    found = replay_part(demand_of(stream), LFU, buffer_size, start, victims=True)
    expected = replay(stream, "lfu", buffer_size, start)
    assert found.misses.tolist() == [len(step.misses) for step in expected]
    assert found.victims is not None
    assert found.victims.tolist() == [slot for step in expected for slot in step.victims]
