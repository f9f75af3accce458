"""LRU among a few slots drawn at random, as in caches that keep no order.

For every miss, `candidates` of the slots that the step does not use are drawn with replacement, and
the one used longest ago goes, of equal ones the first drawn. The generator is that of `random`,
which is this policy with one candidate. Empty slots come first, without a draw.

Reference: Redis, `maxmemory-samples`, 5 by default; Psounis and Prabhakar 2001 for the idea.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook, signed
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Indices, Longs, Policy, Setup, Slots, Step, Words
from hisparse_sim.policies.random import draw


@dataclass(frozen=True)
class Parameters:
    candidates: int = parameter(5, "slots that are drawn", least=1, most=64)


class State(NamedTuple):
    random: Words  # [1] the generator
    filled: Longs  # [1] slots in use; the others are the highest
    last_use: Indices  # [B] the last step that used the slot
    free: Slots  # [B] scratch: the slots that the step does not use
    candidates: Longs  # [1]


def state(setup: Setup) -> State:
    size = setup.buffer_size
    return State(
        np.array([setup.seed], np.uint64),
        np.array([size if setup.filled else 0]),
        np.zeros(size, np.int32),
        np.zeros(size + 1, np.uint16),
        np.array([setup.parameters.candidates]),
    )


@hook
def step(state: State, step: Step, now: int) -> None:
    last_use, free, filled = state.last_use, state.free, state.filled
    size = len(last_use)
    for slot in step.hits:
        last_use[slot] = now
    count = 0
    for slot in range(size):
        free[count] = slot
        count += last_use[slot] != now
    for i in range(len(step.victims)):
        if filled[0] < size:
            victim = filled[0]
            filled[0] += 1
            if filled[0] == size:  # what follows draws from the slots that are still free
                count = 0
                for slot in range(size - 1):
                    free[count] = slot
                    count += last_use[slot] != now
        else:
            chosen = 0
            for each in range(state.candidates[0]):
                drawn = signed(draw(state.random) % np.uint64(count))
                if each == 0 or last_use[free[drawn]] < last_use[free[chosen]]:
                    chosen = drawn
            victim = signed(free[chosen])
            count -= 1
            free[chosen] = free[count]
        last_use[victim] = now
        step.victims[i] = victim


SAMPLED_LRU = Policy(
    name="sampled-lru",
    summary="least recently used of a few slots drawn at random",
    reference="Redis, maxmemory-samples; Psounis and Prabhakar 2001",
    state=state,
    step=step,
    seeded=True,
    parameters=Parameters(),
)
