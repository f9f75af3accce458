"""Least frequently used: counts of cached slots, no ageing; ties go to the least recently used.

A slot has count 1 when fetched (and at the start) and gains one with every step that hits it. Slots
of one count form a list, least recent first. Most positions of a step were also in the step before,
so a slot in use stays outside the lists until a step does not use it. A step unlinks the hits that
were linked, links the slots that it does not use (in the order in which the step before used them:
hits, then fetched slots) and takes its victims: by then no slot of the step is in a list, and what
is appended was used later than all that is linked.

Reference: Einziger, Friedman and Manes 2017 call this in-cache (or "perfect-free") LFU.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.hook import copy, hook
from hisparse_sim.policies.policy import Indices, Policy, Setup, Slots, Step

Nodes = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]


class State(NamedTuple):
    # Nodes 0..B-1 are the slots; node B + c is the sentinel of the circular list of count c.
    following: Nodes  # [B + steps + 2] towards the most recent
    preceding: Nodes  # likewise, towards the least recent
    counts: Nodes  # [B]
    last_use: Indices  # [B] the last step that used the slot
    waiting: Slots  # [B] slots of the last step, in the order in which it used them
    waits: Numbers  # [1] how many
    lowest: Numbers  # [1] the lists of lower counts are empty
    chosen: Slots  # [B + 1] scratch


def state(setup: Setup) -> State:
    size = setup.buffer_size
    nodes = np.arange(size + setup.steps + 2, dtype=np.uint32)
    made = State(
        following=nodes.copy(),
        preceding=nodes,
        counts=np.ones(size, np.uint32),
        last_use=np.full(size, -1, np.int32),
        waiting=np.zeros(size, np.uint16),
        waits=np.zeros(1, np.int64),
        lowest=np.ones(1, np.int64),
        chosen=np.zeros(size + 1, np.uint16),
    )
    circle = np.append(np.arange(size, dtype=np.uint32), np.uint32(size + 1))
    made.following[circle] = np.roll(circle, -1)
    made.preceding[circle] = np.roll(circle, 1)
    return made


@hook
def _link(state: State, slot: int) -> None:
    """Append `slot` to the list of its count."""
    sentinel = len(state.counts) + state.counts[slot]
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
def begin(state: State, step: Step, now: int) -> None:
    """Link the slots that a step does not use, and no others."""
    counts, last_use, chosen = state.counts, state.last_use, state.chosen
    linked = 0
    for slot in step.hits:  # without a branch, as below: which slots return is hard to predict
        chosen[linked] = slot
        linked += last_use[slot] != now - 1
        last_use[slot] = now
        counts[slot] += 1
    for slot in chosen[:linked]:
        _unlink(state, slot)

    passed = 0
    for slot in state.waiting[: state.waits[0]]:
        chosen[passed] = slot
        passed += last_use[slot] != now
    lowest = state.lowest[0]
    for slot in chosen[:passed]:
        _link(state, slot)
        lowest = min(lowest, counts[slot])
    state.lowest[0] = lowest


@hook
def least(state: State) -> int:
    """Return the slot with the lowest count that is linked, of equal ones the least recent."""
    size, lowest = len(state.counts), state.lowest[0]
    slot = state.following[size + lowest]
    while slot >= size:  # a sentinel: that list is empty
        lowest += 1
        slot = state.following[size + lowest]
    state.lowest[0] = lowest
    return int(slot)


@hook
def fetch(state: State, slot: int, now: int) -> None:
    """Let a step use a linked slot for what it fetches."""
    _unlink(state, slot)
    state.counts[slot] = 1
    state.last_use[slot] = now


@hook
def end(state: State, step: Step) -> None:
    """Remember what a step used, when it has its victims."""
    hits, misses = len(step.hits), len(step.victims)
    copy(state.waiting, step.hits)
    copy(state.waiting[hits:], step.victims)
    state.waits[0] = hits + misses


@hook
def step(state: State, step: Step, now: int) -> None:
    begin(state, step, now)
    for i in range(len(step.victims)):
        victim = least(state)
        fetch(state, victim, now)
        step.victims[i] = victim
    end(state, step)


LFU = Policy(
    name="lfu",
    summary="least frequently used, in-cache counts; ties: least recent",
    reference="Robinson and Devarakonda 1990, doi:10.1145/98460.98523",
    state=state,
    step=step,
)
