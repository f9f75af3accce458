"""Multi-Queue: LRU lists for how often a position was used, in powers of two.

A position used f times is in list floor(log2 f), or in the last. Time is counted in accesses, hits
before misses. With every access, each list but the first gives its oldest slot to the list below if
that was not accessed for longer than its life. The victim is the oldest slot of the lowest list
that has one. A ghost remembers how often evicted positions were used. Slots that the step uses are
passed, and while misses are served they do not sink. Slots filled at the start were used once.

The paper takes for the life the most frequent distance between two uses. Here that is a step, whose
accesses are fewer than slots.

Reference: Zhou, Philbin and Li, USENIX ATC 2001.
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
from hisparse_sim.policies.policy import Longs, Policy, Setup, Step


@dataclass(frozen=True)
class Parameters:
    queues: int = parameter(8, "lists", least=1, most=16)
    life: float = parameter(1.0, "of a place in a list, in accesses per slot", least=0)
    ghost: float = parameter(4.0, "positions remembered, in buffers", least=0)


class State(NamedTuple):
    slots: Lists
    ghost: Lists  # of positions
    uses: Longs  # [T] of positions in slots and in the ghost
    expiry: Longs  # [B] the time after which a slot sinks
    clock: Longs  # [1] accesses so far
    life: Longs  # [1]
    most: Longs  # [1] of the ghost
    filled: Longs  # [1] slots in use; the others are the highest


def state(setup: Setup) -> State:
    size, chosen = setup.buffer_size, setup.parameters
    filled = size if setup.filled else 0
    uses = np.zeros(setup.positions, np.int64)
    uses[:filled] = 1
    life = int(chosen.life * size)
    return State(
        lists(size, chosen.queues, filled),
        lists(setup.positions, 1),
        uses,
        np.arange(size) + life,
        np.array([filled]),
        np.array([life]),
        np.array([int(chosen.ghost * size)]),
        np.array([filled]),
    )


@hook
def _enter(state: State, slot: int, position: int) -> None:
    """Put a slot that is in no list where the uses of its position, with this one, say."""
    state.uses[position] += 1
    left, queue = state.uses[position] >> 1, 0
    while left > 0 and queue < len(state.slots.size) - 1:
        left >>= 1
        queue += 1
    append(state.slots, slot, queue)
    state.expiry[slot] = state.clock[0] + state.life[0]


@hook
def _sink(state: State, now: int) -> None:
    """Let time pass by one access."""
    slots = state.slots
    state.clock[0] += 1
    for queue in range(1, len(slots.size)):
        if slots.size[queue] > 0:
            slot = oldest(slots, queue)
            if state.expiry[slot] < state.clock[0] and slots.last_use[slot] != now:
                move(slots, slot, queue - 1)
                state.expiry[slot] = state.clock[0] + state.life[0]


@hook
def step(state: State, step: Step, now: int) -> None:
    slots, ghost, filled = state.slots, state.ghost, state.filled
    for slot in step.hits:
        unlink(slots, slot)
        _enter(state, slot, step.token[slot])
        _sink(state, now)
    use(slots, step, now)
    for i in range(len(step.victims)):
        position = step.missed[i]
        if ghost.of[position] == 0:
            unlink(ghost, position)
        if filled[0] < len(slots.of):
            victim = filled[0]
            filled[0] += 1
        else:
            victim = -1
            queue = 0
            while victim < 0:
                victim = evictable(slots, queue, now)
                queue += 1
            unlink(slots, victim)
            append(ghost, step.token[victim], 0)
            if ghost.size[0] > state.most[0]:
                forgotten = oldest(ghost, 0)
                unlink(ghost, forgotten)
                state.uses[forgotten] = 0
        _enter(state, victim, position)
        slots.last_use[victim] = now
        _sink(state, now)
        step.victims[i] = victim


MQ = Policy(
    name="mq",
    summary="LRU lists by powers of two of the uses; what is not used sinks",
    reference="Zhou, Philbin and Li 2001, USENIX ATC '01",
    state=state,
    step=step,
    parameters=Parameters(),
)
