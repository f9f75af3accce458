"""A forecast of indexer scores: level and trend of every position, smoothed exponentially where it
was selected (Holt 1957; the trend damped as by Gardner and McKenzie 1985).

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
    weights: Floats  # [3] level, trend, damp


def state(setup: Setup) -> State:
    size, chosen = setup.positions + 1, setup.parameters
    return State(
        np.zeros(size),
        np.zeros(size),
        np.zeros(size, np.int32),
        np.zeros(1, np.int32),
        np.array([chosen.level, chosen.trend, chosen.damp]),
    )


@hook
def _damped(damp: float, steps: int) -> float:
    """Return damp + damp^2 + ... to the given power."""
    return steps * 1.0 if damp >= 1 else damp * (1 - damp**steps) / (1 - damp)


@hook
def propose(state: State, view: View, out: Positions) -> int:
    state.call[0] += 1
    now = state.call[0]
    of_level, of_trend, damp = state.weights
    for i in range(len(view.row)):
        position, score = view.row[i], np.float64(view.scores[i])
        gap = now - state.last[position]
        if state.last[position] == 0:
            state.level[position] = score
        else:
            reach = _damped(damp, gap)
            expected = state.level[position] + state.trend[position] * reach
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
            reach = _damped(damp, now - state.last[position] + 1)
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
