"""An order of slots for policies that choose among those that a step does not use.

`begin` splits the order, `take_first` or `take_lowest` writes the victims, and `settle` puts the
slots of the step behind the others, as the engine does, or as the policy likes. LRU has an order of
its own (`policies.lru`), which is faster and knows one way only.
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import copy, hook
from hisparse_sim.policies.lanes import LANES, split
from hisparse_sim.policies.policy import Bytes, Floats, Setup, Slots, Step


class Order(NamedTuple):
    slots: Slots  # [B] next victim first
    used: Bytes  # [B + LANES] 1 if this step uses the slot
    others: Slots  # [B + LANES] the slots that the step does not use, in order
    hits: Slots  # [B + LANES] those that it hits, in order


def order(setup: Setup) -> Order:
    """Return the order of the start: that of the slots, empty or not."""
    size = setup.buffer_size
    room = np.zeros((2, size + LANES), np.uint16)
    return Order(np.arange(size, dtype=np.uint16), np.zeros(size + LANES, np.uint8), *room)


@hook
def begin(order: Order, step: Step) -> int:
    """Split the order; return how many slots the step does not use: they begin `others`."""
    order.used[:] = 0
    for slot in step.hits:
        order.used[slot] = 1
    return split(order.slots, order.used, order.others, order.hits)


@hook
def take_first(order: Order, step: Step, unused: int) -> None:
    """Take the first of the slots that the step does not use; the others keep their order."""
    misses = len(step.victims)
    copy(step.victims, order.others[:misses])
    copy(order.slots, order.others[misses:unused])


@hook
def take_lowest(order: Order, step: Step, unused: int, keys: Floats) -> float:
    """Take the slots with the lowest of `keys`, one for each that the step does not use; of equal
    ones the first in order. Return the highest key taken, -inf if none.

    The i-th miss takes the i-th of these slots in order, whatever their keys.
    """
    misses = len(step.victims)
    if misses == 0:
        take_first(order, step, unused)
        return -np.inf
    limit = np.partition(keys[:unused], misses - 1)[misses - 1]
    unordered = limit != limit  # too few keys are numbers: all are equal
    ties = misses  # slots with the highest key that are taken
    for i in range(unused):
        ties -= keys[i] < limit
    taken = 0
    for i in range(unused):
        slot, tie = order.others[i], keys[i] == limit or unordered
        if keys[i] < limit or (tie and ties > 0):
            ties -= tie
            step.victims[taken] = slot
            taken += 1
        else:
            order.slots[i - taken] = slot
    return float(limit)


@hook
def settle(order: Order, step: Step, unused: int) -> None:
    """Put the fetched slots (in row order), then the hits (in their former order) behind the
    others: the engine's order."""
    copy(order.slots[unused - len(step.victims) :], step.victims)
    copy(order.slots[unused:], order.hits[: len(order.slots) - unused])
