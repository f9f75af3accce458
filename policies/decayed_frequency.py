"""Evict what was selected least, where old selections count less: LFU that forgets.

Every step, the value of a position in a slot becomes `decay` times itself, plus 1 if the step
selects it; with decay 1 this is LFU with in-cache counts. With `remember` positions outside the
buffer keep their values, which no kernel has room for.

Reference: Lee et al. 2001, LRFU: the value is its CRF with F(x) = decay ** x, in steps.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Floats, Policy, Setup, Step
from hisparse_sim.policies.valued import Values, decay, evict_least, holds, values


@dataclass(frozen=True)
class Parameters:
    decay: float = parameter(0.97, "what a step leaves of a value", least=0, most=1)
    remember: bool = parameter(False, "keep the values of positions that are in no slot")


class State(NamedTuple):
    values: Values
    decay: Floats  # [1]


def state(setup: Setup) -> State:
    return State(values(setup, setup.parameters.remember), np.array([setup.parameters.decay]))


@hook
def step(state: State, step: Step, now: int) -> None:
    decay(state.values.of, state.decay[0])
    for position in step.row:
        if position != step.newest or holds(state.values, step, position):
            state.values.of[position] += 1.0
    evict_least(state.values, step)


DECAYED_FREQUENCY = Policy(
    name="decayed-frequency",
    summary="lowest decayed count of selections (LRFU in steps); ties: LRU",
    reference="Lee et al. 2001, doi:10.1109/TC.2001.970573",
    state=state,
    step=step,
    parameters=Parameters(),
)
