"""Evict what is lowest in a weighted sum of rank, frequency and recency, each from 0 to 1.

For a position in a slot: the decayed mean of the gains of its ranks (see `decayed-rank`), the
decayed share of the steps that selected it (see `decayed-frequency`), and 1 / (1 + a), if it was
last selected a steps ago or the request is a steps old. All is forgotten at eviction.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.decayed_rank import add_gains
from hisparse_sim.policies.gains import Gains, gains
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Floats, Policy, Setup, Step
from hisparse_sim.policies.valued import Values, decay, evict_least, values


@dataclass(frozen=True)
class Parameters:
    rank: float = parameter(1.0, "weight of the ranks", least=0)
    frequency: float = parameter(0.25, "weight of the frequency", least=0)
    recency: float = parameter(0.25, "weight of the recency", least=0)
    rank_decay: float = parameter(0.8, "what a step leaves of the ranks", least=0, most=1)
    frequency_decay: float = parameter(0.97, "what a step leaves of the rest", least=0, most=1)
    reach: float = parameter(2.0, "ranks that count, in rows", least=1)


class State(NamedTuple):
    values: Values  # the weighted sums
    ranks: Floats  # [T + 1] decayed sums of the gains
    selected: Floats  # [T + 1] decayed counts
    last_use: Floats  # [T + 1] the last step that selected it
    gains: Gains
    weights: Floats  # [3] of the three above
    decays: Floats  # [2] of the first two


def state(setup: Setup) -> State:
    chosen = setup.parameters
    decays = np.array([chosen.rank_decay, chosen.frequency_decay])
    weights = np.array([chosen.rank, chosen.frequency, chosen.recency])
    weights[:2] *= 1.0 - decays  # of sums, to those of means
    ranks, selected, last_use = np.zeros((3, setup.positions + 1))
    made = gains(setup, chosen.reach)
    return State(values(setup), ranks, selected, last_use, made, weights, decays)


@hook
def step(state: State, step: Step, now: int) -> None:
    values, ranks, selected, last_use = state.values, state.ranks, state.selected, state.last_use
    decay(ranks, state.decays[0])
    decay(selected, state.decays[1])
    add_gains(ranks, values, state.gains, step)
    empty = len(ranks) - 1
    for slot in step.hits:
        selected[step.token[slot]] += 1.0
        last_use[step.token[slot]] = now
    for position in step.token[:-1]:
        if position != empty:
            values.of[position] = (
                state.weights[0] * ranks[position]
                + state.weights[1] * selected[position]
                + state.weights[2] / (1.0 + now - last_use[position])
            )
    evict_least(values, step)
    for slot in step.victims:
        ranks[step.token[slot]] = 0.0
    for position in step.missed:
        selected[position] = 1.0
        last_use[position] = now


BLEND = Policy(
    name="blend",
    summary="lowest weighted sum of rank, frequency and recency; ties: LRU",
    reference="of this package",
    state=state,
    step=step,
    needs_ranks=True,
    needs_next=True,
    parameters=Parameters(),
)
