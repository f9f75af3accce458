"""Evict what is forecast to be ranked lowest, by Holt's linear smoothing of rank gains.

The series of a position in a slot is the gain of its rank in every step: 1 - rank / (reach K), 0
beyond. Its level and trend follow Holt; the forecast is their sum. A fetched position begins with
its gain as the level and no trend; those of the start begin with nothing.

Reference: Holt 1957 (reprinted 2004), equations for a trend without seasons.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.gains import Gains, fit, gains
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Floats, Policy, Setup, Step
from hisparse_sim.policies.valued import Values, evict_least, values


@dataclass(frozen=True)
class Parameters:
    level: float = parameter(0.2, "weight of a step in the level", least=0, most=1)
    trend: float = parameter(0.05, "weight of a step in the trend", least=0, most=1)
    reach: float = parameter(2.0, "ranks that count, in rows", least=1)


class State(NamedTuple):
    values: Values  # of the forecasts
    gains: Gains
    weights: Floats  # [2] of a step in level and trend
    seen: Floats  # [T] scratch: the gains of this step; 0 between steps
    level: Floats  # [T]
    trend: Floats  # [T]


def state(setup: Setup) -> State:
    chosen = setup.parameters
    return State(
        values(setup),
        gains(setup, chosen.reach),
        np.array([chosen.level, chosen.trend]),
        *np.zeros((3, setup.positions)),
    )


@hook
def step(state: State, step: Step, now: int) -> None:
    seen, level, trend = state.seen, state.level, state.trend
    row = len(step.row)
    behind = step.next_positions[: max(0, fit(state.gains, step) - row)]
    for i in range(row):
        seen[step.row[i]] = state.gains.of[step.ranks[i]]
    for i in range(len(behind)):
        seen[behind[i]] = state.gains.of[row + i]

    of_level, of_trend = state.weights
    for position in step.token[:-1]:
        if position == len(level):  # an empty slot
            continue
        before, slope = level[position], trend[position]
        after = of_level * seen[position] + (1.0 - of_level) * (before + slope)
        slope = of_trend * (after - before) + (1.0 - of_trend) * slope
        level[position], trend[position] = after, slope
        state.values.of[position] = after + slope
    evict_least(state.values, step)
    for position in step.missed:
        level[position], trend[position] = seen[position], 0.0

    seen[step.row] = 0.0
    seen[behind] = 0.0


HOLT = Policy(
    name="holt",
    summary="lowest forecast of rank gains by Holt's smoothing; ties: LRU",
    reference="Holt 2004, doi:10.1016/j.ijforecast.2003.09.015",
    state=state,
    step=step,
    needs_ranks=True,
    needs_next=True,
    parameters=Parameters(),
)
