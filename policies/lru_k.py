"""LRU-K: evict what was used K times ago longest, K = 2 by default.

The backward K-distance of a position that was used fewer than K times is infinite: such go first,
in the engine's order. Uses are remembered beyond eviction, as long as the request lasts, unless
`remember` is off. A step is one use, and there is no correlated reference period: all accesses of a
step are at one time.

libCacheSim forgets the uses of what it evicts: with `remember=False`, an empty start and one
position a step both miss equally often. (At a start that finds the buffer filled it counts the
filling as a use.)

Reference: O'Neil, O'Neil and Weikum, SIGMOD 1993.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Floats, Policy, Setup, Step
from hisparse_sim.policies.valued import Values, evict_least, values


@dataclass(frozen=True)
class Parameters:
    k: int = parameter(2, "uses", least=1, most=8)
    remember: bool = parameter(True, "keep the uses of positions that are in no slot")


class State(NamedTuple):
    values: Values  # the step of the K-th last use, 0 for none
    uses: Floats  # [K, T + 1] the steps of the last uses, the latest first, 0 for none


def state(setup: Setup) -> State:
    chosen = setup.parameters
    return State(values(setup, chosen.remember), np.zeros((chosen.k, setup.positions + 1)))


@hook
def step(state: State, step: Step, now: int) -> None:
    uses = state.uses
    last = len(uses) - 1
    for position in step.row:
        if position == step.newest and step.slot[position] == len(step.token) - 1:
            continue  # in the reserved page
        for i in range(last):
            uses[last - i, position] = uses[last - i - 1, position]
        uses[0, position] = now
        state.values.of[position] = uses[last, position]
    evict_least(state.values, step)
    if state.values.remembers[0] == 0:
        for slot in step.victims:
            uses[:, step.token[slot]] = 0.0


LRU_K = Policy(
    name="lru-k",
    summary="least recent K-th last use, K = 2; ties: LRU",
    reference="O'Neil, O'Neil and Weikum 1993, doi:10.1145/170035.170081",
    state=state,
    step=step,
    parameters=Parameters(),
)
