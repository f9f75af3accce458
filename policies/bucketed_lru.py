"""LRU with coarse stamps, as a kernel may hold them in a few bits per slot.

A slot keeps the bucket of its last use, `width` steps each, and at most `buckets` are told apart:
what is older has the age of the oldest. Within a bucket the lowest slot goes first. Slots that were
never used are the oldest.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.ordered import Order, begin, order, take_lowest
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Floats, Longs, Policy, Setup, Step


@dataclass(frozen=True)
class Parameters:
    width: int = parameter(1, "steps in a bucket", least=1)
    buckets: int = parameter(16, "ages that are told apart", least=1)


class State(NamedTuple):
    order: Order  # of slots: always by their number
    stamp: Longs  # [B] the bucket of the last use
    keys: Floats  # [B] scratch
    shape: Longs  # [2] width, buckets


def state(setup: Setup) -> State:
    chosen, size = setup.parameters, setup.buffer_size
    stamp = np.full(size, -chosen.buckets)
    return State(order(setup), stamp, np.zeros(size), np.array([chosen.width, chosen.buckets]))


@hook
def step(state: State, step: Step, now: int) -> None:
    width, buckets = state.shape
    bucket = now // width
    unused = begin(state.order, step)
    oldest, empty = bucket - buckets + 1, len(step.slot) - 1
    for i in range(unused):
        slot = state.order.others[i]
        filled = step.token[slot] != empty
        state.keys[i] = max(state.stamp[slot], oldest) if filled else -np.inf
    take_lowest(state.order, step, unused, state.keys)
    for slot in range(len(state.stamp)):
        state.order.slots[slot] = slot
    for slot in step.hits:
        state.stamp[slot] = bucket
    for slot in step.victims:
        state.stamp[slot] = bucket


BUCKETED_LRU = Policy(
    name="bucketed-lru",
    summary="least recently used by coarse stamps; ties: lowest slot",
    reference="of this package",
    state=state,
    step=step,
    parameters=Parameters(),
)
