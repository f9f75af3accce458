"""Evict what had the lowest score when it was last selected.

Scores count above the lowest of their step. A position that has not been selected since it came
into the buffer has 0.
"""

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Policy, Step
from hisparse_sim.policies.scored import span
from hisparse_sim.policies.valued import Values, evict_least, holds, values


@hook
def step(state: Values, step: Step, now: int) -> None:
    low, _ = span(step)
    for i in range(len(step.row)):
        position = step.row[i]
        if position != step.newest or holds(state, step, position):
            state.of[position] = float(step.scores[i]) - low
    evict_least(state, step)


LOWEST_SCORE = Policy(
    name="lowest-score",
    summary="lowest indexer score when last selected; ties: LRU",
    reference="of this package",
    state=values,
    step=step,
    needs_scores=True,
)
