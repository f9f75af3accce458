"""A forecast of indexer scores: level and trend of every position, smoothed exponentially where it
was selected (Holt 1957). Forecasts are damped as by Gardner and McKenzie 1985; their trend itself
shrinks from step to step, too, which it does not here.

A position that was last selected g steps ago is taken to score level + trend (damp + damp^2 + ... +
damp^g) now.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies import parameter
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Floats, Indices, Positions
from hisparse_sim.simulator.prefetch.prefetcher import Prefetcher, Setup, View, take_best


@dataclass(frozen=True)
class Parameters:
    level: float = parameter(0.5, "weight of a new score", least=0, most=1, above=True)
    trend: float = parameter(0.1, "weight of a new trend", least=0, most=1)
    damp: float = parameter(0.8, "what is left of a trend after a step", least=0, most=1)


class State(NamedTuple):
    level: Floats  # [T + 1]
    trend: Floats  # [T + 1]
    last: Indices  # [T + 1] the call in which the position was seen selected; 0: never
    call: Indices  # [1]
    weights: Floats  # [2] level, trend
    reach: Floats  # [steps + 2] damp + damp^2 + ... of so many steps


def state(setup: Setup) -> State:
    size, chosen = setup.positions + 1, setup.parameters
    return State(
        np.zeros(size),
        np.zeros(size),
        np.zeros(size, np.int32),
        np.zeros(1, np.int32),
        np.array([chosen.level, chosen.trend]),
        np.append(0.0, np.cumsum(float(chosen.damp) ** np.arange(1, setup.steps + 2))),
    )


@hook
def propose(state: State, view: View, out: Positions) -> int:
    state.call[0] += 1
    now = state.call[0]
    of_level, of_trend = state.weights
    for i in range(len(view.row)):
        position, score = view.row[i], np.float64(view.scores[i])
        gap = now - state.last[position]
        if state.last[position] == 0:
            state.level[position] = score
        else:
            expected = state.level[position] + state.trend[position] * state.reach[gap]
            level = of_level * score + (1 - of_level) * expected
            moved = (level - state.level[position]) / gap
            state.trend[position] += of_trend * (moved - state.trend[position])
            state.level[position] = level
        state.last[position] = now
    candidates = np.empty(view.newest, np.uint32)
    values = np.empty(view.newest)
    count = 0
    for position in range(view.newest):
        if view.present[position] == 0 and state.last[position] > 0:
            reach = state.reach[now - state.last[position] + 1]
            candidates[count] = position
            values[count] = state.level[position] + state.trend[position] * reach
            count += 1
    return take_best(candidates, values, count, out)


HOLT = Prefetcher(
    name="holt",
    summary="the highest forecasts of scores by level and trend",
    reference="Holt 1957, doi:10.1016/j.ijforecast.2003.09.015",
    state=state,
    propose=propose,
    needs_scores=True,
    parameters=Parameters(),
)
