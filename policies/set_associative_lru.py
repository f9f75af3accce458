"""LRU within sets, as in a processor's cache: a kernel that keeps order in a few slots only.

Slot i and position p are of set i mod S and p mod S, S = B // `ways`. A miss takes the slot of its
set that was used longest ago, of equal ones the lowest. If a step uses up a set, the next set that
has a slot to spare gives one, so what a step selects always fits. Empty slots are filled in their
order, of whatever set.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Indices, Longs, Policy, Setup, Step


@dataclass(frozen=True)
class Parameters:
    ways: int = parameter(16, "slots in a set, at least", least=1)


class State(NamedTuple):
    last_use: Indices  # [B] the last step that used the slot
    sets: Longs  # [1] S
    filled: Longs  # [1] slots in use; the others are the highest


def state(setup: Setup) -> State:
    size = setup.buffer_size
    sets = np.array([max(1, size // setup.parameters.ways)])
    return State(np.zeros(size, np.int32), sets, np.array([size if setup.filled else 0]))


@hook
def step(state: State, step: Step, now: int) -> None:
    last_use, sets = state.last_use, state.sets[0]
    for slot in step.hits:
        last_use[slot] = now
    for i in range(len(step.victims)):
        home = step.missed[i] % sets
        victim = -1
        if state.filled[0] < len(last_use):
            victim = state.filled[0]
            state.filled[0] += 1
        while victim < 0:
            for slot in range(home, len(last_use), sets):
                if last_use[slot] < now and (victim < 0 or last_use[slot] < last_use[victim]):
                    victim = slot
            home = home + 1 if home + 1 < sets else 0
        last_use[victim] = now
        step.victims[i] = victim


SET_ASSOCIATIVE_LRU = Policy(
    name="set-associative-lru",
    summary="least recently used within a set of slots",
    reference="Smith 1982, doi:10.1145/356887.356892",
    state=state,
    step=step,
    parameters=Parameters(),
)
