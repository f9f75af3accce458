"""W-TinyLFU: a small LRU window, and a segmented LRU that admits from it what was used more often.

A missed position enters the window. What the window has no room for, its oldest slot, is compared
with the oldest on probation in the main part: the one whose position was used less goes, of equal
ones that of the window, and the other is on probation, as the newest. A hit on probation moves a
slot to the protected part, whose overflow returns. Uses are counted to 15, of all positions, also
outside the buffer, and halved when more than `sample` accesses per slot have been counted.

The step's own slots cannot go. If they fill the window, its oldest enters the main part without
being compared; if the main part has no other slots on probation, the oldest protected one is
compared. While the buffer fills, and at a start that finds it filled, what the window has no room
for enters the main part; slots filled at the start were used once. Counts are exact where the paper
has a sketch of them: a request has few positions.

Reference: Einziger, Friedman and Manes 2017; window and protected share are Caffeine's defaults,
without its adaptation.
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

_WINDOW, _PROBATION, _PROTECTED = 0, 1, 2
_MOST_USES = 15


@dataclass(frozen=True)
class Parameters:
    window: float = parameter(0.01, "share of the buffer for what is new", least=0, most=1)
    protected: float = parameter(0.8, "share of the rest", least=0, most=1)
    sample: float = parameter(10.0, "accesses per slot until counts are halved", least=1)


class State(NamedTuple):
    slots: Lists
    uses: Bytes  # [T] of all positions
    counted: Longs  # [1] accesses
    most: Longs  # [3] slots of window and protected part, accesses that are counted
    filled: Longs  # [1] slots in use; the others are the highest


def state(setup: Setup) -> State:
    size, chosen = setup.buffer_size, setup.parameters
    window = max(1, int(chosen.window * size))
    filled = size if setup.filled else 0
    slots = lists(size, 3)
    for slot in range(filled):
        append(slots, slot, _PROBATION if slot < size - window else _WINDOW)
    uses = np.zeros(setup.positions, np.uint8)
    uses[:filled] = 1
    most = [window, int(chosen.protected * (size - window)), int(chosen.sample * size)]
    return State(slots, uses, np.array([filled]), np.array(most), np.array([filled]))


@hook
def _count(state: State, position: int) -> None:
    uses = state.uses
    if uses[position] < _MOST_USES:
        uses[position] += 1
    state.counted[0] += 1
    if state.counted[0] > state.most[2]:
        for each in range(len(uses)):
            uses[each] >>= 1
        state.counted[0] >>= 1


@hook
def _leave_window(state: State) -> None:
    """Move the oldest slot of the window to the main part."""
    slots = state.slots
    slot = oldest(slots, _WINDOW)
    if slots.passed[_WINDOW] == slot:
        slots.passed[_WINDOW] = slots.preceding[slot]
    move(slots, slot, _PROBATION)


@hook
def _victim(state: State, step: Step, now: int) -> int:
    slots, uses = state.slots, state.uses
    candidate = evictable(slots, _WINDOW, now)
    other = evictable(slots, _PROBATION, now)
    if other < 0:
        other = evictable(slots, _PROTECTED, now)
    if other < 0:
        return candidate
    if candidate < 0:
        _leave_window(state)
        return other
    if uses[step.token[candidate]] <= uses[step.token[other]]:
        return candidate
    move(slots, candidate, _PROBATION)
    return other


@hook
def step(state: State, step: Step, now: int) -> None:
    slots, filled = state.slots, state.filled
    for slot in step.hits:
        _count(state, step.token[slot])
        if slots.of[slot] == _WINDOW:
            move(slots, slot, _WINDOW)
        else:
            move(slots, slot, _PROTECTED)
            if slots.size[_PROTECTED] > state.most[1]:
                move(slots, oldest(slots, _PROTECTED), _PROBATION)
    use(slots, step, now)
    for i in range(len(step.victims)):
        if filled[0] < len(slots.of):
            victim = filled[0]
            filled[0] += 1
            if slots.size[_WINDOW] >= state.most[0]:
                _leave_window(state)
        else:
            victim = _victim(state, step, now)
            unlink(slots, victim)
        _count(state, step.missed[i])
        append(slots, victim, _WINDOW)
        slots.last_use[victim] = now
        step.victims[i] = victim


W_TINYLFU = Policy(
    name="w-tinylfu",
    summary="a window, and a segmented LRU that admits from it what was used more often",
    reference="Einziger, Friedman and Manes 2017, doi:10.1145/3149371",
    state=state,
    step=step,
    parameters=Parameters(),
)
