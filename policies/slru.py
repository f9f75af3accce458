"""Segmented LRU: what is hit again moves to a protected list, whose overflow gets a second chance.

Fetched slots, and all at the start, are on probation. A hit moves a slot to the newest end of the
protected list; if that holds more than its share of the buffer, its oldest slot returns to the
newest end of probation. The victim is the oldest on probation that the step does not use, else the
oldest such in the protected list.

libCacheSim's SLRU has four equal segments, and a hit moves a slot up by one.

Reference: Karedla, Love and Wherry 1994; the share of 80 % is Caffeine's.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.lists import Lists, append, evictable, lists, move, oldest, unlink, use
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Longs, Policy, Setup, Step

_PROBATION, _PROTECTED = 0, 1


@dataclass(frozen=True)
class Parameters:
    protected: float = parameter(0.8, "share of the buffer", least=0, most=1)


class State(NamedTuple):
    slots: Lists
    most: Longs  # [1] protected slots


def state(setup: Setup) -> State:
    size = setup.buffer_size
    most = int(setup.parameters.protected * size)
    # Empty slots are the oldest on probation, so they go first.
    return State(lists(size, 2, size), np.array([most]))


@hook
def step(state: State, step: Step, now: int) -> None:
    slots = state.slots
    for slot in step.hits:
        move(slots, slot, _PROTECTED)
        if slots.size[_PROTECTED] > state.most[0]:
            move(slots, oldest(slots, _PROTECTED), _PROBATION)
    use(slots, step, now)
    for i in range(len(step.victims)):
        victim = evictable(slots, _PROBATION, now)
        if victim < 0:
            victim = evictable(slots, _PROTECTED, now)
        unlink(slots, victim)
        append(slots, victim, _PROBATION)
        slots.last_use[victim] = now
        step.victims[i] = victim


SLRU = Policy(
    name="slru",
    summary="LRU in two segments: what is hit again is protected",
    reference="Karedla, Love and Wherry 1994, doi:10.1109/2.268884",
    state=state,
    step=step,
    parameters=Parameters(),
)
