"""First in, first out: evict the slot that was filled longest ago.

A slot that the step uses keeps its place in the queue.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Indices, Policy, Setup, Slots, Step


class State(NamedTuple):
    queue: Slots  # [a power of two >= B] a ring that holds every slot once, next victim at `head`
    head: npt.NDArray[np.int64]  # [1] counts up; the ring index is its remainder
    last_use: Indices  # [B] the last step that used the slot
    passed: Slots  # [B + 1] scratch: slots of this step that the queue came to


def state(setup: Setup) -> State:
    size = setup.buffer_size
    queue = np.zeros(1 << (size - 1).bit_length(), np.uint16)
    queue[:size] = np.arange(size)
    return State(
        queue=queue,
        head=np.zeros(1, np.int64),
        last_use=np.zeros(size, np.int32),
        passed=np.zeros(size + 1, np.uint16),
    )


@hook
def step(state: State, step: Step, now: int) -> None:
    misses = len(step.victims)
    if misses == 0:
        return
    for slot in step.hits:
        state.last_use[slot] = now
    wrap = len(state.queue) - 1
    front = state.head[0]
    passed = 0
    taken = 0
    while taken < misses:
        # Without a branch: which slots the step uses is hard to predict.
        slot = state.queue[front & wrap]
        front += 1
        found = state.last_use[slot] == now
        state.passed[passed] = slot
        step.victims[taken] = slot
        passed += found
        taken += not found
    front -= passed
    for i in range(passed):
        state.queue[(front + i) & wrap] = state.passed[i]
    back = front + len(state.last_use) - misses
    for i in range(misses):
        state.queue[(back + i) & wrap] = step.victims[i]
    state.head[0] = front


FIFO = Policy(
    name="fifo",
    summary="first in, first out",
    reference="Belady 1966, doi:10.1147/sj.52.0078",
    state=state,
    step=step,
)
