"""Evict what has scored low: a decayed sum of the scores with which a position was selected.

Every step, the value of a position in a slot becomes `decay` times itself, plus its score, from 0
for the lowest of the step to 1 for the highest, if it is selected. With `remember` positions
outside the buffer keep their values.
"""

from dataclasses import dataclass

from hisparse_sim.policies.decayed_frequency import State, state
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Policy, Step
from hisparse_sim.policies.scored import span
from hisparse_sim.policies.valued import decay, evict_least, holds


@dataclass(frozen=True)
class Parameters:
    decay: float = parameter(0.8, "what a step leaves of a value", least=0, most=1)
    remember: bool = parameter(False, "keep the values of positions that are in no slot")


@hook
def step(state: State, step: Step, now: int) -> None:
    decay(state.values.of, state.decay[0])
    low, width = span(step)
    for i in range(len(step.row)):
        position = step.row[i]
        if position != step.newest or holds(state.values, step, position):
            state.values.of[position] += (float(step.scores[i]) - low) / width
    evict_least(state.values, step)


DECAYED_SCORE = Policy(
    name="decayed-score",
    summary="lowest decayed sum of indexer scores when selected; ties: LRU",
    reference="of this package",
    state=state,
    step=step,
    needs_scores=True,
    parameters=Parameters(),
)
