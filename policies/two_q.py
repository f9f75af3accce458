"""2Q: a queue for what is new, a memory of what it gave away, and LRU for what came back.

A missed position enters A1in, a queue that hits do not reorder; if A1out remembers it, it enters
Am, an LRU list. When the buffer is full and A1in holds more than its share, its oldest slot goes,
and A1out remembers the position, the oldest of which it forgets beyond its share; else the oldest
slot of Am goes. A list that holds only slots of the step leaves the eviction to the other. Slots
filled at the start are in A1in. A position that returns leaves A1out before an eviction adds to it.

Reference: Johnson and Shasha, VLDB 1994, "2Q, full version".
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

_IN, _MAIN = 0, 1


@dataclass(frozen=True)
class Parameters:
    a1in: float = parameter(0.25, "share of the buffer for what is new", least=0, most=1)
    a1out: float = parameter(0.5, "positions remembered, in buffers", least=0)


class State(NamedTuple):
    slots: Lists  # A1in and Am
    out: Lists  # A1out, of positions
    most: Longs  # [2] of A1in and A1out
    filled: Longs  # [1] slots in use; the others are the highest


def state(setup: Setup) -> State:
    size, chosen = setup.buffer_size, setup.parameters
    filled = size if setup.filled else 0
    return State(
        lists(size, 2, filled),
        lists(setup.positions, 1),
        np.array([int(chosen.a1in * size), int(chosen.a1out * size)]),
        np.array([filled]),
    )


@hook
def step(state: State, step: Step, now: int) -> None:
    slots, out, filled = state.slots, state.out, state.filled
    for slot in step.hits:
        if slots.of[slot] == _MAIN:
            move(slots, slot, _MAIN)
    use(slots, step, now)
    for i in range(len(step.victims)):
        known = out.of[step.missed[i]] == 0
        if known:
            unlink(out, step.missed[i])
        if filled[0] < len(slots.of):
            victim = filled[0]
            filled[0] += 1
        else:
            source = _IN if slots.size[_IN] > state.most[0] else _MAIN
            victim = evictable(slots, source, now)
            if victim < 0:
                source = 1 - source
                victim = evictable(slots, source, now)
            unlink(slots, victim)
            if source == _IN:
                append(out, step.token[victim], 0)
                if out.size[0] > state.most[1]:
                    unlink(out, oldest(out, 0))
        append(slots, victim, _MAIN if known else _IN)
        slots.last_use[victim] = now
        step.victims[i] = victim


TWO_Q = Policy(
    name="2q",
    summary="a queue for what is new, LRU for what was evicted from it and came back",
    reference="Johnson and Shasha 1994, VLDB '94",
    state=state,
    step=step,
    parameters=Parameters(),
)
