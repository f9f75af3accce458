"""LRU that evicts the first and the newest tokens last: attention returns to both.

The newest `recent` positions count from the newest token, which lies in the reserved page. When
only pinned slots are left, they go in the same order.

Reference: Xiao et al. 2024, StreamingLLM, which keeps four sinks and a window.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Longs, Policy, Setup, Step
from hisparse_sim.policies.valued import Values, evict_least, values


@dataclass(frozen=True)
class Parameters:
    sinks: int = parameter(4, "first tokens that are kept", least=0)
    recent: int = parameter(64, "newest tokens that are kept", least=0)


class State(NamedTuple):
    values: Values
    pinned: Longs  # [2] sinks, recent


def state(setup: Setup) -> State:
    return State(values(setup), np.array([setup.parameters.sinks, setup.parameters.recent]))


@hook
def step(state: State, step: Step, now: int) -> None:
    sinks, recent = state.pinned
    empty = len(step.slot) - 1
    for position in step.token[:-1]:
        if position != empty:
            pinned = position < sinks or position > step.newest - recent
            state.values.of[position] = 1.0 if pinned else 0.0
    evict_least(state.values, step)


SINK_RECENT = Policy(
    name="sink-recent",
    summary="LRU, but the first and the newest tokens go last",
    reference="Xiao et al. 2024, StreamingLLM, arXiv:2309.17453",
    state=state,
    step=step,
    parameters=Parameters(),
)
