"""The engine's LRU: a step's hits end up safest, its misses next, and nothing else moves.

The i-th miss takes the i-th slot that the step does not demand, in the present order. Afterwards
the order is: the untouched slots, the fetched ones (order of the row), the hits (present order
kept). A textbook LRU would stamp every token in row order; here a re-used token outranks one just
fetched, so buffers of different sizes need not contain each other.

The order is a plain array that every step divides anew, as the kernel does. That writes B slots a
step, but without a branch, and 16 at a time where the machine can; a linked list moves only what
is demanded, in twice the time.

Reference: SGLang 0.5.23, `kernels/jit/csrc/kvcacheio/hisparse.cuh`
(`load_cache_to_device_buffer`).
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import LANES, copy, hook, split
from hisparse_sim.policies.policy import Indices, Policy, Setup, Slots, Step


class State(NamedTuple):
    order: Slots  # [B] next victim first, safest last
    last_use: Indices  # [B] the last step that used the slot
    evictable: Slots  # [B + LANES] scratch: the slots that this step does not demand, in order
    hits: Slots  # [B + LANES] scratch: those that it does


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
