"""The textbook's LRU as a policy that is replayed, for comparison with the one-pass curve."""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies import Policy, Setup
from hisparse_sim.policies.hook import copy, hook
from hisparse_sim.policies.lanes import LANES, split
from hisparse_sim.policies.policy import Bytes, Slots, Step


class OrderState(NamedTuple):
    order: Slots  # [B] next victim first
    demanded: Bytes  # [B + LANES] 1 if the step does
    others: Slots
    hits: Slots


def order_state(setup: Setup) -> OrderState:
    size = setup.buffer_size
    room = np.zeros((2, size + LANES), np.uint16)
    return OrderState(np.arange(size, dtype=np.uint16), np.zeros(size + LANES, np.uint8), *room)


@hook
def order_step(state: OrderState, step: Step, now: int) -> None:
    state.demanded[:] = 0
    for slot in step.hits:
        state.demanded[slot] = 1
    others = split(state.order, state.demanded, state.others, state.hits)
    misses = len(step.victims)
    copy(step.victims, state.others[:misses])
    copy(state.order, state.others[misses:others])
    place, miss = others - misses, 0
    for position in step.row:
        if miss < misses and step.missed[miss] == position:
            state.order[place] = step.victims[miss]
            miss += 1
            place += 1
        elif step.slot[position] != len(state.order):
            state.order[place] = step.slot[position]
            place += 1


TEXTBOOK = Policy(
    "textbook", "moves a step up in the order of its row", "-", order_state, order_step
)
