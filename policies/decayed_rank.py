"""Evict what the indexer has ranked low: a decayed sum of rank gains, ranks behind top-k included.

Every step, the value of a position in a slot becomes `decay` times itself, plus the gain of its
rank in that step: (1 - rank / (reach K)) ** power among the first `reach` K ranks, else nothing.
With reach 1 a position counts while it is selected only; beyond, one that came close counts too.
A fetched position starts from the gain of its rank. With `remember` positions outside the buffer
keep their sums, which no kernel has room for.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.gains import Gains, fit, gains
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Floats, Policy, Setup, Step
from hisparse_sim.policies.valued import Values, decay, evict_least, holds, values


@dataclass(frozen=True)
class Parameters:
    decay: float = parameter(0.8, "what a step leaves of a value", least=0, most=1)
    reach: float = parameter(2.0, "ranks that count, in rows", least=1)
    power: float = parameter(1.0, "of the gain", least=0, above=True)
    levels: int = parameter(0, "values that a gain may have, 0 for any", least=0)
    remember: bool = parameter(False, "keep the values of positions that are in no slot")


class State(NamedTuple):
    values: Values
    gains: Gains
    decay: Floats  # [1]


def state(setup: Setup) -> State:
    chosen = setup.parameters
    return State(
        values=values(setup, chosen.remember),
        gains=gains(setup, chosen.reach, chosen.power, chosen.levels),
        decay=np.array([chosen.decay]),
    )


@hook
def add_gains(of: Floats, values: Values, gains: Gains, step: Step) -> None:
    """Add the gains of a step to what positions have in `of` [T + 1], if they are kept there or are
    being fetched."""
    end = fit(gains, step)
    for i in range(len(step.row)):
        position = step.row[i]
        # The newest token is in no slot, unless it has been the newest before.
        if position != step.newest or holds(values, step, position):
            of[position] += gains.of[step.ranks[i]]
    for i in range(min(end - len(step.row), len(step.next_positions))):
        position = step.next_positions[i]
        if holds(values, step, position):
            of[position] += gains.of[len(step.row) + i]


@hook
def step(state: State, step: Step, now: int) -> None:
    decay(state.values.of, state.decay[0])
    add_gains(state.values.of, state.values, state.gains, step)
    evict_least(state.values, step)


DECAYED_RANK = Policy(
    name="decayed-rank",
    summary="lowest decayed sum of rank gains, ranks behind top-k included; ties: LRU",
    reference="of this package",
    state=state,
    step=step,
    needs_ranks=True,
    needs_next=True,
    parameters=Parameters(),
)
