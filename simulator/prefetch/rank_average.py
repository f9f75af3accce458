"""A decayed sum of ranks: each step adds (1 - rank / R)^power to every position that it lists, the
selected and those ranked behind them, R in all, and what was there before shrinks by `decay`.

Sums are kept in units that grow by 1 / decay a step, so that only what is listed changes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies import parameter
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Floats, Positions
from hisparse_sim.simulator.prefetch.prefetcher import Prefetcher, Setup, View, take_best

_LARGEST = 1e200  # sums are scaled down before the unit exceeds it


@dataclass(frozen=True)
class Parameters:
    decay: float = parameter(0.8, "what is left of a sum after a step", least=0, most=1, above=True)
    power: float = parameter(1.0, "of 1 - rank / R", least=0, above=True)


class State(NamedTuple):
    value: Floats  # [T + 1]
    unit: Floats  # [1]
    decay: Floats  # [1]
    power: Floats  # [1]


def state(setup: Setup) -> State:
    decay, power = setup.parameters.decay, setup.parameters.power
    return State(
        np.zeros(setup.positions + 1), np.ones(1), np.full(1, decay), np.full(1, float(power))
    )


@hook
def propose(state: State, view: View, out: Positions) -> int:
    selected, behind = len(view.row), len(view.next_positions)
    state.unit[0] /= state.decay[0]
    if state.unit[0] > _LARGEST:
        state.value[:] /= state.unit[0]
        state.unit[0] = 1.0
    for i in range(selected + behind):
        rank = view.ranks[i] if i < selected else i
        position = view.row[i] if i < selected else view.next_positions[i - selected]
        share = (1 - rank / (selected + behind)) ** state.power[0]
        state.value[position] += state.unit[0] * share
    return best_absent(state.value, view, out)


@hook
def best_absent(value: Floats, view: View, out: Positions) -> int:
    """Write the absent positions of the largest values above 0, and return how many."""
    candidates = np.empty(view.newest, np.uint32)
    values = np.empty(view.newest)
    count = 0
    for position in range(view.newest):
        candidates[count] = position
        values[count] = value[position]
        count += (view.present[position] == 0) & (value[position] > 0)
    return take_best(candidates, values, count, out)


RANK_AVERAGE = Prefetcher(
    name="rank-average",
    summary="the highest decayed sums of ranks, selected or not",
    reference="-",
    state=state,
    propose=propose,
    needs_ranks=True,
    needs_next=True,
    parameters=Parameters(),
)
