"""Uniform over the slots that the step does not use: a baseline that keeps no history.

The generator is splitmix64, seeded for every (seed, request, layer, buffer size), so that a result
does not depend on what else was replayed. A step lists the slots that it does not use in slot order
and draws from that list without replacement (the last entry fills the gap). Empty slots come first,
without a draw.
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook, wrapping_add, wrapping_multiply
from hisparse_sim.policies.policy import Indices, Policy, Setup, Slots, Step, Words


class State(NamedTuple):
    random: Words  # [1] the generator
    filled: Indices  # [1] slots in use; the others are the highest
    last_use: Indices  # [B] the last step that used the slot
    free: Slots  # [B] scratch: the slots that the step does not use


def state(setup: Setup) -> State:
    size = setup.buffer_size
    return State(
        random=np.array([setup.seed], np.uint64),
        filled=np.array([size if setup.filled else 0], np.int32),
        last_use=np.zeros(size, np.int32),
        free=np.zeros(size, np.uint16),
    )


@hook
def draw(random: Words) -> np.uint64:
    """Return the next 64 bits (Steele, Lea and Flood 2014)."""
    bits = wrapping_add(random[0], np.uint64(0x9E3779B97F4A7C15))
    random[0] = bits
    bits = wrapping_multiply(bits ^ (bits >> np.uint64(30)), np.uint64(0xBF58476D1CE4E5B9))
    bits = wrapping_multiply(bits ^ (bits >> np.uint64(27)), np.uint64(0x94D049BB133111EB))
    return bits ^ (bits >> np.uint64(31))


@hook
def step(state: State, step: Step, now: int) -> None:
    misses = len(step.victims)
    if misses == 0:
        return
    size = len(state.last_use)
    taken = 0
    while taken < misses and state.filled[0] < size:
        step.victims[taken] = state.filled[0]
        state.last_use[state.filled[0]] = now
        state.filled[0] += 1
        taken += 1
    if taken == misses:
        return
    for slot in step.hits:
        state.last_use[slot] = now
    free = 0
    for slot in range(size):
        state.free[free] = slot
        free += state.last_use[slot] != now
    while taken < misses:
        drawn = draw(state.random) % np.uint64(free)
        free -= 1
        step.victims[taken] = state.free[drawn]
        state.free[drawn] = state.free[free]
        taken += 1


RANDOM = Policy(
    name="random",
    summary="uniform over the slots that the step does not use",
    reference="splitmix64: Steele, Lea and Flood 2014, doi:10.1145/2714064.2660195",
    state=state,
    step=step,
    seeded=True,
)
