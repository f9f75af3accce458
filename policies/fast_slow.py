"""Evict what the indexer has ranked low, now and for a while: two decayed sums of ranks per slot.

The worth of a position in a step is 62 for the best rank and falls to 0 for the last that is known,
those behind the row included: x (x + 64) / 128 with x = 63 - 64 rank / ranks, rounded down both
times. What is not ranked is worth 0. Every slot holds two sums of what its position was worth: one
forgets three quarters a step and tells what is asked for now, the other forgets an eighth and tells
what returns. Below 8, where an eighth is nothing, that sum falls by one in steps whose newest
position is a multiple of 16: it tells how long ago a position was ranked when all else is
forgotten. The victims are the slots with the lowest slow + 6 fast that the step does not use; of
equal ones the lowest numbers; empty slots first. They are handed out by number. A fetched position
starts with sums of 5/4 and 1/2 of its worth.

All numbers are whole, and the two sums of a slot fit into 16 bits: this is the rule that the native
kernel runs (`gpu_replay/kernels/swap_in.cuh`), slot for slot. The constants were chosen on layers
3, 9, 15, 21 and 27 of two documents (the 16 on two others, at 8k), see docs/policy-study.md.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Bytes, Policy, Setup, Step

_KEYS = 1024  # above every slow + 6 fast

Sums = npt.NDArray[np.int32]


class State(NamedTuple):
    fast: Sums  # [B]
    slow: Sums  # [B]
    used: Bytes  # [B] scratch: 1 if this step uses the slot, or has just taken it
    slots_of: Sums  # [_KEYS] scratch: slots that a step does not use, by their key


def state(setup: Setup) -> State:
    size = setup.buffer_size
    return State(
        fast=np.zeros(size, np.int32),
        slow=np.zeros(size, np.int32),
        used=np.zeros(size, np.uint8),
        slots_of=np.zeros(_KEYS, np.int32),
    )


@hook
def worth(rank: int, ranks: int) -> int:
    """Return the worth of a rank, 0 the best, among so many."""
    left = 63 - 64 * rank // ranks
    return left * (left + 64) >> 7


@hook
def step(state: State, step: Step, now: int) -> None:
    fast, slow, used, slots_of = state.fast, state.slow, state.used, state.slots_of
    size = len(fast)
    row = len(step.row)
    ranks = row + len(step.next_positions)
    tick = int(step.newest % 16 == 0)
    for slot in range(size):
        fast[slot] >>= 2
        slow[slot] = max(slow[slot] - max(slow[slot] >> 3, tick), 0)
        used[slot] = 0
    for i in range(row):
        slot = step.slot[step.row[i]]
        if slot != size:
            fast[slot] += worth(step.ranks[i], ranks)
            slow[slot] += worth(step.ranks[i], ranks)
    for i in range(len(step.next_positions)):
        slot = step.slot[step.next_positions[i]]
        if slot != size:
            fast[slot] += worth(row + i, ranks)
            slow[slot] += worth(row + i, ranks)
    misses = len(step.victims)
    if misses == 0:
        return

    for slot in step.hits:
        used[slot] = 1
    taken = 0
    empty = len(step.slot) - 1
    slots_of[:] = 0
    for slot in range(size):
        if step.token[slot] == empty:
            if taken < misses:
                step.victims[taken] = slot
                taken += 1
            used[slot] = 1
        elif used[slot] == 0:
            slots_of[slow[slot] + 6 * fast[slot]] += 1
    # All slots of lower keys go, and the first `ties` of this one.
    key, ties = 0, misses - taken
    while ties > slots_of[key]:
        ties -= slots_of[key]
        key += 1
    for slot in range(size):
        if taken == misses:
            break
        if used[slot] == 0:
            mine = slow[slot] + 6 * fast[slot]
            if mine < key or (mine == key and ties > 0):
                ties -= mine == key
                step.victims[taken] = slot
                taken += 1
    for i in range(misses):
        start = worth(step.ranks[step.places[i]], ranks)
        fast[step.victims[i]] = 5 * start >> 2
        slow[step.victims[i]] = start >> 1


FAST_SLOW = Policy(
    name="fast-slow",
    summary="lowest blend of a fast and a slow decayed sum of ranks; whole numbers, for a kernel",
    reference="of this package",
    state=state,
    step=step,
    needs_ranks=True,
    needs_next=True,
)
