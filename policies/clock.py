"""CLOCK: a hand over the slots gives every slot hit since its last pass a second chance.

One bit per slot: 0 when fetched, 1 when hit. The hand clears it in passing and takes the first slot
whose bit is 0. A slot that the current step uses is passed and keeps its bit.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Indices, Policy, Setup, Step


class State(NamedTuple):
    # Bit and pin in one number: positive = bit set, hit last in that step; 0 = bit clear;
    # negative = bit clear, fetched in step -mark. Used in this step: |mark| == now.
    mark: Indices  # [B]
    hand: npt.NDArray[np.int64]  # [1] the slot that the hand looks at next


def state(setup: Setup) -> State:
    return State(mark=np.zeros(setup.buffer_size, np.int32), hand=np.zeros(1, np.int64))


@hook
def step(state: State, step: Step, now: int) -> None:
    mark = state.mark
    size = len(mark)
    for slot in step.hits:
        mark[slot] = now
    hand = state.hand[0]
    taken = 0
    while taken < len(step.victims):  # without a branch on the marks: they are hard to predict
        seen = mark[hand]
        evictable = abs(seen) != now
        takes = evictable & (seen <= 0)
        step.victims[taken] = hand  # overwritten unless taken
        taken += takes
        mark[hand] = seen if not evictable else (-now if takes else 0)
        hand = hand + 1 if hand + 1 < size else 0
    state.hand[0] = hand


CLOCK = Policy(
    name="clock",
    summary="second chance: a hand passes slots that were hit and clears their bits",
    reference="Corbato 1968, A paging experiment with the Multics system",
    state=state,
    step=step,
)
