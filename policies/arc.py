"""Adaptive replacement cache: a recency list T1 and a frequency list T2, balanced by ghost hits.

The four cases of the paper, applied to each miss in the order of the row after all hits of the step
have moved to the most recent end of T2. Deviations, all because a step accesses its positions at
once: the slots of the step are at the most recent ends, so the victim is the least recent of the
list that REPLACE names; if that list holds only slots of the step, the victim comes from the other
list (and joins its ghosts). Under a `staged` start every slot is in T1; empty slots of a `direct`
start are taken before anything is evicted.

All four lists are logs: an element that moves is appended again, and its former entry is skipped
when the old end of the log reaches it. So a hit costs two stores and follows no pointers.

Reference: Megiddo and Modha, FAST 2003, figure 4.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Policy, Positions, Setup, Step

_BUFFERS_PER_LOG = 8  # a log is compacted when full

# Rows of `log` and indices of `size`, `oldest` and `end`. T lists hold slots, B lists positions.
_T1, _T2, _B1, _B2 = 0, 1, 2, 3

Numbers = npt.NDArray[np.int64]


class State(NamedTuple):
    log: npt.NDArray[np.uint32]  # [4, 8 * B + 64]
    size: Numbers  # [4] elements of each list
    oldest: Numbers  # [4] index of the first entry that may still be valid
    end: Numbers  # [4]
    place: Positions  # [B] 2 * index + (0: T1, 1: T2): the valid entry of each slot
    ghost: Positions  # [T] 2 * index + 2 + (0: B1, 1: B2): the valid entry of a ghost, 0 if none
    p: npt.NDArray[np.float64]  # [1] target size of T1
    filled: Numbers  # [1] slots in use; the others are the highest


def state(setup: Setup) -> State:
    size = setup.buffer_size
    filled = size if setup.filled else 0
    made = State(
        log=np.zeros((4, _BUFFERS_PER_LOG * size + 64), np.uint32),
        size=np.array([filled, 0, 0, 0]),
        oldest=np.zeros(4, np.int64),
        end=np.array([filled, 0, 0, 0]),
        place=2 * np.arange(size, dtype=np.uint32),
        ghost=np.zeros(setup.positions, np.uint32),
        p=np.zeros(1),
        filled=np.array([filled]),
    )
    made.log[_T1, :size] = np.arange(size)
    return made


@hook
def _compact(state: State, kind: int) -> None:
    """Drop the invalid entries of one log."""
    end = 0
    log = state.log[kind]
    for i in range(state.oldest[kind], state.end[kind]):
        item = log[i]
        if kind <= _T2:
            if state.place[item] != 2 * i + kind:
                continue
            state.place[item] = 2 * end + kind
        else:
            if state.ghost[item] != 2 * i + kind:
                continue
            state.ghost[item] = 2 * end + kind
        log[end] = item
        end += 1
    state.oldest[kind] = 0
    state.end[kind] = end


@hook
def _forget(state: State, kind: int) -> None:
    """Delete the least recent ghost of B1 or B2."""
    i = state.oldest[kind]
    while state.ghost[state.log[kind, i]] != 2 * i + kind:
        i += 1
    state.ghost[state.log[kind, i]] = 0
    state.oldest[kind] = i + 1
    state.size[kind] -= 1


@hook
def _evict(state: State, step: Step, kind: int, start: Numbers, remember: bool) -> int:
    """Take the least recent slot of T1 or T2; of the other if that holds only slots of the step."""
    for _ in range(2):
        i = state.oldest[kind]
        while i < start[kind]:
            slot = state.log[kind, i]
            i += 1
            if state.place[slot] == 2 * (i - 1) + kind:
                state.oldest[kind] = i
                state.size[kind] -= 1
                if remember:
                    position = step.token[slot]
                    ghosts = kind + 2
                    state.log[ghosts, state.end[ghosts]] = position
                    state.ghost[position] = 2 * state.end[ghosts] + ghosts
                    state.end[ghosts] += 1
                    state.size[ghosts] += 1
                return int(slot)
        state.oldest[kind] = i
        kind = 1 - kind
    return 0  # not reached: a step has at most B positions, so every miss has a victim


@hook
def step(state: State, step: Step, now: int) -> None:
    size, end, place, ghost = state.size, state.end, state.place, state.ghost
    capacity = len(place)
    room = len(step.hits) + len(step.victims)
    for kind in range(4):
        if end[kind] + room > state.log.shape[1]:
            _compact(state, kind)
    start = end.copy()

    frequent = end[_T2]
    moved = 0
    for slot in step.hits:
        moved += 1 - (place[slot] & np.uint32(1))
        place[slot] = 2 * frequent + _T2
        state.log[_T2, frequent] = slot
        frequent += 1
    end[_T2] = frequent
    size[_T1] -= moved
    size[_T2] += moved

    for i in range(len(step.missed)):
        position = step.missed[i]
        entry = ghost[position]
        target = _T1
        if entry != 0:
            # Cases II and III: the ghost tells which list was too small.
            ghosts = _B1 + (entry & np.uint32(1))
            other = _B1 + _B2 - ghosts
            change = max(size[other] / size[ghosts], 1.0)
            if ghosts == _B1:
                state.p[0] = min(float(capacity), state.p[0] + change)
            else:
                state.p[0] = max(0.0, state.p[0] - change)
            victim = _replace(state, step, start, ghosts == _B2)
            # The victim may have pushed ghosts behind this one, never over it.
            ghost[position] = 0
            size[ghosts] -= 1
            target = _T2
        elif state.filled[0] < capacity:
            victim = state.filled[0]
            state.filled[0] += 1
        elif size[_T1] + size[_B1] == capacity:  # case IV (i)
            if size[_T1] < capacity:
                _forget(state, _B1)
                victim = _replace(state, step, start, False)
            else:
                victim = _evict(state, step, _T1, start, False)
        else:  # case IV (ii); the buffer is full, so a victim is always needed
            if size[_T1] + size[_T2] + size[_B1] + size[_B2] == 2 * capacity:
                _forget(state, _B2)
            victim = _replace(state, step, start, False)
        step.victims[i] = victim
        state.log[target, end[target]] = victim
        place[victim] = 2 * end[target] + target
        end[target] += 1
        size[target] += 1


@hook
def _replace(state: State, step: Step, start: Numbers, in_b2: bool) -> int:
    recent = state.size[_T1]
    if recent >= 1 and (recent > state.p[0] or (in_b2 and recent == state.p[0])):
        return _evict(state, step, _T1, start, True)
    return _evict(state, step, _T2, start, True)


ARC = Policy(
    name="arc",
    summary="adaptive replacement: recency and frequency lists balanced by ghost hits",
    reference="Megiddo and Modha 2003, FAST '03",
    state=state,
    step=step,
)
