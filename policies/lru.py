"""The engine's LRU: hits become the most recent, then misses; the other slots keep their order.

The i-th miss takes the i-th slot that the step does not use, in the current order. The order
afterwards: the slots not used, the fetched ones (in row order), the hits (in their former order). A
textbook LRU would stamp every token in row order; here a reused token outranks one just fetched, so
a larger buffer need not contain a smaller one.

The order is a plain array that every step splits again, as the kernel does. That writes B slots per
step, but without a branch, and 16 at a time where the CPU can; a linked list moves only the slots
in use, and takes twice as long.

Reference: SGLang 0.5.23, `kernels/jit/csrc/kvcacheio/hisparse.cuh`
(`load_cache_to_device_buffer`).
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import LANES, copy, hook, split
from hisparse_sim.policies.policy import Indices, Policy, Setup, Slots, Step


class State(NamedTuple):
    order: Slots  # [B] next victim first, most recent last
    last_use: Indices  # [B] the last step that used the slot
    evictable: Slots  # [B + LANES] scratch: the slots that this step does not use, in order
    hits: Slots  # [B + LANES] scratch: those that it uses


def state(setup: Setup) -> State:
    size = setup.buffer_size
    return State(
        order=np.arange(size, dtype=np.uint16),
        last_use=np.zeros(size, np.int32),
        evictable=np.zeros(size + LANES, np.uint16),
        hits=np.zeros(size + LANES, np.uint16),
    )


@hook
def step(state: State, step: Step, now: int) -> None:
    order, evictable = state.order, state.evictable
    for slot in step.hits:
        state.last_use[slot] = now
    split(order, state.last_use, now, evictable, state.hits)
    misses, hits = len(step.victims), len(step.hits)
    untouched = len(order) - misses - hits
    copy(step.victims, evictable[:misses])
    copy(order, evictable[misses : misses + untouched])
    copy(order[untouched:], evictable[:misses])
    copy(order[untouched + misses :], state.hits[:hits])


LRU = Policy(
    name="lru",
    summary="least recently used, in the exact order of the engine's kernel",
    reference="SGLang 0.5.23, kernels/jit/csrc/kvcacheio/hisparse.cuh",
    state=state,
    step=step,
)
