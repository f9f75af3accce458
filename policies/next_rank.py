"""Keep what the indexer ranks just behind the row: LRU among the slots that came nowhere near.

A slot whose position is among the first `reach` K ranks of this step is evicted only when no other
is left. It remembers nothing but the order: `decayed-rank` with decay 0 and equal gains.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Floats, Policy, Setup, Step
from hisparse_sim.policies.valued import Values, decay, evict_least, values


@dataclass(frozen=True)
class Parameters:
    reach: float = parameter(2.0, "ranks that are kept, in rows", least=1)


class State(NamedTuple):
    values: Values
    reach: Floats  # [1]


def state(setup: Setup) -> State:
    return State(values(setup), np.array([setup.parameters.reach]))


@hook
def step(state: State, step: Step, now: int) -> None:
    of, absent = state.values.of, len(step.token) - 1
    decay(of, 0.0)
    behind = int(np.ceil((state.reach[0] - 1.0) * len(step.row)))
    for position in step.next_positions[:behind]:
        if step.slot[position] != absent:
            of[position] = 1.0
    evict_least(state.values, step)


NEXT_RANK = Policy(
    name="next-rank",
    summary="LRU, but what is ranked just behind the row goes last",
    reference="of this package",
    state=state,
    step=step,
    needs_next=True,
    parameters=Parameters(),
)
