"""Least frequently used: in-cache counts without ageing; among equal counts the least recently used goes.

A slot counts 1 when fetched (and at the start), one more with every step that hits it. Slots of one
count form a list, least recent first. Most of what a step demands was demanded by the step before,
so slots wait outside the lists until a step passes them over: it links those (in the order in which
the step before touched them: hits, then fetched), unlinks the hits that had been linked, and takes
its victims, which leaves no demanded slot in any list.

Reference: Einziger, Friedman and Manes 2017 call this in-cache (or "perfect-free") LFU.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Indices, Policy, Setup, Slots, Step

Nodes = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]


class State(NamedTuple):
    # Nodes 0..B-1 are the slots; node B + c is the sentinel of the circular list of count c.
    following: Nodes  # [B + steps + 2] towards the most recent
    preceding: Nodes  # likewise, towards the least recent
    count: Nodes  # [B]
    demanded: Indices  # [B] the last step that demanded the slot
    recent: Slots  # [B] the slots that the last step demanded, as it touched them: not linked
    chosen: Slots  # [B] scratch
    sizes: Numbers  # [2] number of recent slots, the lowest count that may have linked slots


def state(setup: Setup) -> State:
    size = setup.buffer_size
    nodes = np.arange(size + setup.steps + 2, dtype=np.uint32)
    made = State(
        following=nodes.copy(),
        preceding=nodes,
        count=np.ones(size, np.uint32),
        demanded=np.zeros(size, np.int32),
        recent=np.zeros(size + 1, np.uint16),
        chosen=np.zeros(size + 1, np.uint16),
        sizes=np.array([0, 1, -1]),
    )
    for slot in range(size):
        _link(made, slot)
    return made


@hook
def _link(state: State, slot: int) -> None:
    """Append `slot` to the list of its count."""
    count = state.count[slot]
    sentinel = len(state.count) + count
    last = state.preceding[sentinel]
    state.following[last] = slot
    state.preceding[slot] = last
    state.following[slot] = sentinel
    state.preceding[sentinel] = slot


@hook
def _unlink(state: State, slot: int) -> None:
    after = state.following[slot]
    before = state.preceding[slot]
    state.following[before] = after
    state.preceding[after] = before


@hook
def step(state: State, step: Step, now: int) -> None:
    demanded, count, recent, chosen = state.demanded, state.count, state.recent, state.chosen
    last = state.sizes[2]
    joined = 0
    for slot in step.hits:
        chosen[joined] = slot
        joined += demanded[slot] != last
        demanded[slot] = now
        count[slot] += 1
    for slot in chosen[:joined]:
        _unlink(state, slot)
    left = 0
    for slot in recent[: state.sizes[0]]:
        chosen[left] = slot
        left += demanded[slot] != now
    lowest = state.sizes[1]
    for slot in chosen[:left]:
        _link(state, slot)
        lowest = min(lowest, count[slot])
    for i in range(len(step.victims)):
        victim = state.following[len(count) + lowest]
        while victim >= len(count):
            lowest += 1
            victim = state.following[len(count) + lowest]
        _unlink(state, victim)
        step.victims[i] = victim
        count[victim] = 1
        demanded[victim] = now
    n = len(step.hits)
    for i in range(n):
        recent[i] = step.hits[i]
    for i in range(len(step.victims)):
        recent[n + i] = step.victims[i]
    state.sizes[0] = n + len(step.victims)
    state.sizes[1] = lowest
    state.sizes[2] = now


LFU = Policy(
    name="lfu",
    summary="least frequently used, in-cache counts; ties: least recent",
    reference="Robinson and Devarakonda 1990, doi:10.1145/98460.98523",
    state=state,
    step=step,
)
