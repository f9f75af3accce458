"""Least frequently used: in-cache counts without ageing; among equal counts the least recently used goes.

A slot counts 1 when fetched (and at the start), one more with every step that hits it. Slots of one count
form a list, least recent first. A step first unlinks its hits, so that no search ever meets a demanded
slot, then takes the victims, then links hits and fetched slots behind the others of their count.

Reference: Einziger, Friedman and Manes 2017 call this in-cache (or "perfect-free") LFU.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.hook import hook, trailing_zeros
from hisparse_sim.policies.policy import Policy, Setup, Step, Words

Nodes = npt.NDArray[np.uint32]


class State(NamedTuple):
    # Nodes 0..B-1 are the slots; node B + c is the sentinel of the circular list of count c.
    following: Nodes  # [B + steps + 2] towards the most recent
    preceding: Nodes  # likewise, towards the least recent
    count: Nodes  # [B]
    used: Words  # one bit a count: set while its list may hold a slot


def state(setup: Setup) -> State:
    size = setup.buffer_size
    counts = setup.steps + 2
    nodes = np.arange(size + counts, dtype=np.uint32)
    made = State(
        following=nodes.copy(),
        preceding=nodes,
        count=np.ones(size, np.uint32),
        used=np.zeros((counts + 63) // 64, np.uint64),
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
    state.used[count >> np.uint32(6)] |= np.uint64(1) << np.uint64(count & np.uint32(63))


@hook
def _unlink(state: State, slot: int) -> None:
    after = state.following[slot]
    before = state.preceding[slot]
    state.following[before] = after
    state.preceding[after] = before


@hook
def step(state: State, step: Step, now: int) -> None:
    for slot in step.hits:
        _unlink(state, slot)
    word = 0
    for i in range(len(step.victims)):
        while True:
            while state.used[word] == 0:
                word += 1
            lowest = 64 * word + np.int64(trailing_zeros(state.used[word]))
            victim = state.following[len(state.count) + lowest]
            if victim < len(state.count):
                break
            state.used[word] &= state.used[word] - np.uint64(1)
        _unlink(state, victim)
        step.victims[i] = victim
    for slot in step.hits:
        state.count[slot] += 1
        _link(state, slot)
    for slot in step.victims:
        state.count[slot] = 1
        _link(state, slot)


LFU = Policy(
    name="lfu",
    summary="least frequently used, in-cache counts; ties: least recent",
    reference="Robinson and Devarakonda 1990, doi:10.1145/98460.98523",
    state=state,
    step=step,
)
