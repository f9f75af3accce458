"""Policies that give every position a value and evict the least valuable that a step does not use.

What such a policy writes is how values change in a step. Eviction is here: the lowest values go, of
equal ones the least recent in the engine's order (`policies.ordered`); empty slots come first.
Unless the policy remembers, the value of a position is 0 while it is in no slot: that is what a
kernel can hold, one number per slot.
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.ordered import Order, begin, order, settle, take_lowest
from hisparse_sim.policies.policy import Bytes, Floats, Setup, Step

_NOTHING = 1e-30  # values below it are 0: what has decayed so far would only slow the processor


class Values(NamedTuple):
    of: Floats  # [T + 1] the value of every position; the last stands for an empty slot
    remembers: Bytes  # [1]
    order: Order
    keys: Floats  # [B] scratch: the values of the slots that a step does not use


def values(setup: Setup, remembers: bool = False) -> Values:
    """Return the values of the start: 0 for all."""
    of = np.zeros(setup.positions + 1)
    of[-1] = -np.inf
    return Values(of, np.array([remembers], np.uint8), order(setup), np.zeros(setup.buffer_size))


@hook
def decay(of: Floats, factor: float) -> None:
    """Multiply the values [T + 1] of all positions by `factor`."""
    for position in range(len(of) - 1):
        value = of[position] * factor
        of[position] = value if value > _NOTHING else 0.0


@hook
def holds(values: Values, step: Step, position: int) -> bool:
    """Return whether the value of a position is to be kept: it is in a slot, or is remembered."""
    return bool(step.slot[position] != len(values.keys) or values.remembers[0] == 1)


@hook
def evict_least(values: Values, step: Step) -> float:
    """Write the victims, and forget their values; return the highest of these, -inf for none."""
    of, order, keys = values.of, values.order, values.keys
    unused = begin(order, step)
    for i in range(unused):
        keys[i] = of[step.token[order.others[i]]]
    highest = take_lowest(order, step, unused, keys)
    settle(order, step, unused)
    if values.remembers[0] == 0:
        for slot in step.victims:
            of[step.token[slot]] = 0.0
        of[len(of) - 1] = -np.inf
    return highest
