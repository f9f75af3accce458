"""Evict the lowest rate of use: uses since the fetch, that one included, over the steps since then.

The paper draws 64 candidates for each eviction; here all slots are candidates. Slots filled at the
start have one use and were filled one step before the first.

libCacheSim draws candidates, too, and so counts differently.

Reference: Blankstein, Sen and Freedman, USENIX ATC 2017.
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Floats, Policy, Setup, Step
from hisparse_sim.policies.valued import Values, evict_least, values


class State(NamedTuple):
    values: Values
    uses: Floats  # [T]
    fetched: Floats  # [T] the step that fetched it


def state(setup: Setup) -> State:
    return State(values(setup), np.ones(setup.positions), np.zeros(setup.positions))


@hook
def step(state: State, step: Step, now: int) -> None:
    uses, fetched = state.uses, state.fetched
    for slot in step.hits:
        uses[step.token[slot]] += 1.0
    for position in step.token[:-1]:
        if position != len(uses):  # else the slot is empty
            state.values.of[position] = uses[position] / (now - fetched[position])
    evict_least(state.values, step)
    for position in step.missed:
        uses[position] = 1.0
        fetched[position] = now


HYPERBOLIC = Policy(
    name="hyperbolic",
    summary="lowest uses per step since the fetch; ties: LRU",
    reference="Blankstein, Sen and Freedman 2017, USENIX ATC '17",
    state=state,
    step=step,
)
