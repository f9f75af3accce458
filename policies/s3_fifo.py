"""S3-FIFO: three queues, a small one that filters, a main one, and a ghost of what was filtered.

A missed position enters the small queue, or the main one if the ghost remembers it. A hit counts,
to 3 at most. If the small queue has reached its share, its oldest slot goes, unless it was hit
twice: then it moves on to the main queue, and the next is looked at; the ghost remembers the one
that went. Otherwise the oldest of the main queue goes, unless it has a count: then it returns to
the newest end with one less. Slots that the step uses are passed; a queue that holds only such
slots leaves the eviction to the other one. While the buffer fills, and at a start that finds it
filled, the main queue takes what the small one has no room for.

Reference: Yang et al., SOSP 2023, algorithm 1.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.lists import (
    Lists,
    append,
    evictable,
    lists,
    move,
    oldest,
    unlink,
    use,
)
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Bytes, Longs, Policy, Setup, Step

_SMALL, _MAIN = 0, 1


@dataclass(frozen=True)
class Parameters:
    small: float = parameter(0.1, "share of the buffer for what is new", least=0, most=1)
    ghost: float = parameter(0.9, "positions remembered, in buffers", least=0)


class State(NamedTuple):
    slots: Lists  # small and main
    ghost: Lists  # of positions
    hits: Bytes  # [B] to 3
    most: Longs  # [2] of the small queue and the ghost
    filled: Longs  # [1] slots in use; the others are the highest


def state(setup: Setup) -> State:
    size, chosen = setup.buffer_size, setup.parameters
    slots = lists(size, 2)
    small = max(1, int(chosen.small * size))
    for slot in range(size if setup.filled else 0):
        append(slots, slot, _SMALL if slot < small else _MAIN)
    return State(
        slots,
        lists(setup.positions, 1),
        np.zeros(size, np.uint8),
        np.array([small, int(chosen.ghost * size)]),
        np.array([size if setup.filled else 0]),
    )


@hook
def _from_small(state: State, step: Step, now: int) -> int:
    """Return the slot that leaves the small queue, -1 for none."""
    slots, ghost = state.slots, state.ghost
    while True:
        slot = evictable(slots, _SMALL, now)
        if slot < 0:
            return -1
        if state.hits[slot] < 2:
            break
        move(slots, slot, _MAIN)
        state.hits[slot] = 0
    unlink(slots, slot)
    append(ghost, step.token[slot], 0)
    if ghost.size[0] > state.most[1]:
        unlink(ghost, oldest(ghost, 0))
    return slot


@hook
def _from_main(state: State, now: int) -> int:
    """Return the slot that leaves the main queue, -1 for none."""
    slots = state.slots
    while True:
        slot = evictable(slots, _MAIN, now)
        if slot < 0:
            return -1
        if state.hits[slot] == 0:
            break
        state.hits[slot] -= 1
        move(slots, slot, _MAIN)
    unlink(slots, slot)
    return slot


@hook
def step(state: State, step: Step, now: int) -> None:
    slots, ghost, filled = state.slots, state.ghost, state.filled
    use(slots, step, now)
    for slot in step.hits:
        state.hits[slot] = min(state.hits[slot] + 1, 3)
    for i in range(len(step.victims)):
        to = _SMALL
        if ghost.of[step.missed[i]] == 0:
            unlink(ghost, step.missed[i])
            to = _MAIN
        if filled[0] < len(slots.of):
            victim = filled[0]
            filled[0] += 1
            to = _SMALL if slots.size[_SMALL] < state.most[0] else _MAIN
        elif slots.size[_SMALL] >= state.most[0]:
            victim = _from_small(state, step, now)
            if victim < 0:
                victim = _from_main(state, now)
        else:
            victim = _from_main(state, now)
            if victim < 0:
                victim = _from_small(state, step, now)
            if victim < 0:  # all that it could give have moved on
                victim = _from_main(state, now)
        append(slots, victim, to)
        state.hits[victim] = 0
        slots.last_use[victim] = now
        step.victims[i] = victim


S3_FIFO = Policy(
    name="s3-fifo",
    summary="a small queue that filters, a main one, and a ghost of what was filtered",
    reference="Yang et al. 2023, S3-FIFO, doi:10.1145/3600006.3613147",
    state=state,
    step=step,
    parameters=Parameters(),
)
