"""The engine's LRU: hits become the most recent, then misses; the other slots keep their order.

The i-th miss takes the i-th slot that the step does not use, in the current order. The order
afterwards: the slots not used, the fetched ones (in row order), the hits (in their former order). A
textbook LRU would stamp every token in row order; here a reused token outranks one just fetched, so
a larger buffer need not contain a smaller one.

The order is a plain array that every step splits again, as the kernel does: 8 or 16 slots at a
time, without a branch. It lies in two pieces, each with a second array that the next order is
written to, so that nothing is copied but the slots that change hands. A linked list moves only the
slots in use, and takes several times as long.

Reference: SGLang 0.5.23, `kernels/jit/csrc/kvcacheio/hisparse.cuh`
(`load_cache_to_device_buffer`).
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import copy, hook
from hisparse_sim.policies.lanes import LANES, split
from hisparse_sim.policies.policy import Bytes, Longs, Policy, Setup, Slots, Step


class State(NamedTuple):
    """The order is `older[now][first:stop]`, then `newer[now][:hits]`; next victim first."""

    older: Slots  # [2, 2 B + LANES] slots that the step before did not use, then what it fetched
    newer: Slots  # [2, B + LANES] its hits
    place: Longs  # [4] now (0 or 1), first, stop, hits
    used: Bytes  # [B + LANES] 1 if this step uses the slot


def state(setup: Setup) -> State:
    size = setup.buffer_size
    older = np.zeros((2, 2 * size + LANES), np.uint16)
    older[0, :size] = np.arange(size)
    return State(
        older=older,
        newer=np.zeros((2, size + LANES), np.uint16),
        place=np.array([0, 0, size, 0]),
        used=np.zeros(size + LANES, np.uint8),
    )


@hook
def step(state: State, step: Step, now: int) -> None:
    before, first, stop, newest = state.place
    after = 1 - before
    state.used[:] = 0
    for slot in step.hits:
        state.used[slot] = 1
    older, hits = state.older[after], state.newer[after]
    end = split(state.older[before][first:stop], state.used, older, hits)
    found = stop - first - end
    end += split(state.newer[before][:newest], state.used, older[end:], hits[found:])
    misses = len(step.victims)
    copy(step.victims, older[:misses])
    copy(older[end:], step.victims)
    state.place[0] = after
    state.place[1] = misses
    state.place[2] = end + misses
    state.place[3] = len(step.hits)


LRU = Policy(
    name="lru",
    summary="least recently used, in the exact order of the engine's kernel",
    reference="SGLang 0.5.23, kernels/jit/csrc/kvcacheio/hisparse.cuh",
    state=state,
    step=step,
)
