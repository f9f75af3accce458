"""LFU with dynamic ageing: a count starts from what the evicted ones had reached.

A slot has the value F + L: F its uses since it was fetched, that one included, and L, at its last
use, the highest value evicted before. Hits have the L before the step and fetched slots the L after
it, as if hits came first. Slots filled at the start have one use.

libCacheSim's LFUDA adds the lowest value in the cache at every hit, not 1, and so counts
differently.

Reference: Arlitt et al. 2000 (GDSF and LFU-DA).
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Floats, Policy, Setup, Step
from hisparse_sim.policies.valued import Values, evict_least, values


class State(NamedTuple):
    values: Values
    uses: Floats  # [T] F
    reached: Floats  # [1] L


def state(setup: Setup) -> State:
    made = State(values(setup), np.ones(setup.positions), np.zeros(1))
    made.values.of[:-1] = 1.0
    return made


@hook
def step(state: State, step: Step, now: int) -> None:
    of, uses, reached = state.values.of, state.uses, state.reached
    for slot in step.hits:
        position = step.token[slot]
        uses[position] += 1.0
        of[position] = uses[position] + reached[0]
    reached[0] = max(reached[0], evict_least(state.values, step))
    for position in step.missed:
        uses[position] = 1.0
        of[position] = 1.0 + reached[0]


LFUDA = Policy(
    name="lfuda",
    summary="LFU with dynamic ageing; ties: LRU",
    reference="Arlitt et al. 2000, doi:10.1145/346000.346003",
    state=state,
    step=step,
)
