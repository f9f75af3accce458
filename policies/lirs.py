"""LIRS: keep what came back after few other positions, and give the rest a small queue.

Every slot is low or high, for the positions accessed between two uses of its own. The queue holds
the high slots; its oldest is the victim, and what is fetched becomes high. The stack holds
positions by their last use, down to the low slot used longest ago, and evicted ones among them.
What is used while it is in the stack, or fetched, becomes low; for it the lowest low slot becomes
high, as the newest of the queue. A high slot used when it is in the stack no more moves to the
newest end of the queue.

A step may miss more than the queue has: once the queue holds only slots of the step, the lowest low
slot goes, and the queue is longer, until slots become low with room for them. Slots filled at the
start, and empty slots, are low as long as there is room. Without low slots the stack is not cut.
The paper has no limit to the evicted positions in the stack; here those evicted first leave it when
it is longer than `stack`. libCacheSim has that limit, too, but makes a low slot high for a hit that
changes none, and so counts otherwise.

Reference: Jiang and Zhang, SIGMETRICS 2002.
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
from hisparse_sim.policies.policy import Bytes, Indices, Longs, Policy, Setup, Step


@dataclass(frozen=True)
class Parameters:
    queue: float = parameter(0.01, "share of the buffer for high slots", least=0, most=1)
    stack: float = parameter(2.0, "positions in the stack, in buffers", least=1)


class State(NamedTuple):
    stack: Lists  # of positions
    queue: Lists  # of high slots
    ghost: Lists  # of positions in the stack that are in no slot, as they were evicted
    low: Bytes  # [T] 1 for the positions of low slots
    slot: Indices  # [T] of the positions that are in one
    lows: Longs  # [1] low slots
    most: Longs  # [2] low slots, positions in the stack
    filled: Longs  # [1] slots in use; the others are the highest


def state(setup: Setup) -> State:
    size, chosen = setup.buffer_size, setup.parameters
    filled = size if setup.filled else 0
    most = size - max(1, int(chosen.queue * size))
    low = np.zeros(setup.positions, np.uint8)
    low[: min(most, filled)] = 1
    queue = lists(size, 1)
    for slot in range(most, filled):
        append(queue, slot, 0)
    return State(
        lists(setup.positions, 1, filled),
        queue,
        lists(setup.positions, 1),
        low,
        np.arange(setup.positions, dtype=np.int32),
        np.array([min(most, filled)]),
        np.array([most, int(chosen.stack * size)]),
        np.array([filled]),
    )


@hook
def _cut(state: State) -> None:
    """Let the stack end with a low slot."""
    while state.lows[0] > 0 and state.low[oldest(state.stack, 0)] == 0:
        position = oldest(state.stack, 0)
        unlink(state.stack, position)
        if state.ghost.of[position] == 0:
            unlink(state.ghost, position)


@hook
def _lower(state: State, position: int) -> None:
    """Make a slot low whose position is in the stack; then the lowest is high if they are many."""
    state.low[position] = 1
    state.lows[0] += 1
    _cut(state)
    if state.lows[0] > state.most[0]:
        lowest = oldest(state.stack, 0)
        unlink(state.stack, lowest)
        state.low[lowest] = 0
        state.lows[0] -= 1
        append(state.queue, state.slot[lowest], 0)
        _cut(state)


@hook
def _raise(state: State, position: int) -> bool:
    """Put a position on the stack, and return whether it was in it."""
    known = bool(state.stack.of[position] == 0)
    if known:
        unlink(state.stack, position)
    append(state.stack, position, 0)
    return known


@hook
def _limit(state: State) -> None:
    while state.stack.size[0] > state.most[1] and state.ghost.size[0] > 0:
        forgotten = oldest(state.ghost, 0)
        unlink(state.ghost, forgotten)
        unlink(state.stack, forgotten)


@hook
def _hit(state: State, slot: int, position: int) -> None:
    known = _raise(state, position)
    if state.low[position] == 1:
        _cut(state)
    elif known:
        unlink(state.queue, slot)
        _lower(state, position)
    else:
        move(state.queue, slot, 0)
    _limit(state)


@hook
def _fetch(state: State, slot: int, position: int, was_empty: bool) -> None:
    state.slot[position] = slot
    if _raise(state, position):
        unlink(state.ghost, position)
        _lower(state, position)
    elif was_empty and state.lows[0] < state.most[0]:
        _lower(state, position)
    else:
        append(state.queue, slot, 0)
    _limit(state)


@hook
def _evict(state: State, step: Step, now: int) -> int:
    slot = evictable(state.queue, 0, now)
    if slot >= 0:
        unlink(state.queue, slot)
        position = step.token[slot]
        if state.stack.of[position] == 0:
            append(state.ghost, position, 0)
        return slot
    lowest = oldest(state.stack, 0)
    unlink(state.stack, lowest)
    state.low[lowest] = 0
    state.lows[0] -= 1
    _cut(state)
    return int(state.slot[lowest])


@hook
def step(state: State, step: Step, now: int) -> None:
    queue, filled = state.queue, state.filled
    for slot in step.hits:
        _hit(state, slot, step.token[slot])
    use(queue, step, now)
    for i in range(len(step.victims)):
        was_empty = filled[0] < len(queue.of)
        if was_empty:
            victim = filled[0]
            filled[0] += 1
        else:
            victim = _evict(state, step, now)
        _fetch(state, victim, step.missed[i], was_empty)
        queue.last_use[victim] = now
        step.victims[i] = victim


LIRS = Policy(
    name="lirs",
    summary="low and high reuse distances: a stack that finds them, a queue for high ones",
    reference="Jiang and Zhang 2002, doi:10.1145/511334.511340",
    state=state,
    step=step,
    parameters=Parameters(),
)
