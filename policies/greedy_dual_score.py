"""GreedyDual with the score as the cost: a score protects, and wears off as others are evicted.

A position has H = L + its score when last selected, from 0 for the lowest of the step to 1 for the
highest. The lowest H go, and L, 0 at first, becomes the highest of those that went. Hits have the L
before the step and fetched positions the L after it, as if hits came first.

Reference: Young 1994 (GreedyDual); Cao and Irani 1997.
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Floats, Policy, Setup, Step
from hisparse_sim.policies.scored import span
from hisparse_sim.policies.valued import Values, evict_least, values


class State(NamedTuple):
    values: Values
    inflation: Floats  # [1] L


def state(setup: Setup) -> State:
    return State(values(setup), np.zeros(1))


@hook
def step(state: State, step: Step, now: int) -> None:
    of, inflation = state.values.of, state.inflation
    low, width = span(step)
    absent = len(step.token) - 1
    for i in range(len(step.row)):
        if step.slot[step.row[i]] != absent:
            of[step.row[i]] = inflation[0] + (float(step.scores[i]) - low) / width
    inflation[0] = max(inflation[0], evict_least(state.values, step))
    for i in range(len(step.missed)):
        score = float(step.scores[step.places[i]])
        of[step.missed[i]] = inflation[0] + (score - low) / width


GREEDY_DUAL_SCORE = Policy(
    name="greedy-dual-score",
    summary="GreedyDual with the indexer's score as the cost; ties: LRU",
    reference="Young 1994, doi:10.1007/BF01189992",
    state=state,
    step=step,
    needs_scores=True,
)
