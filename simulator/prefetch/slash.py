"""The row of the step before, moved by one: attention to a fixed distance moves with the token.

Such diagonals in the attention matrix are the slashes of MInference (Jiang et al. 2024,
arXiv 2407.02490)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies import parameter
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Indices, Positions
from hisparse_sim.simulator.prefetch.prefetcher import Prefetcher, Setup, View, take


@dataclass(frozen=True)
class Parameters:
    shift: int = parameter(1, "positions by which the row moves", least=1, most=64)


class State(NamedTuple):
    shift: Indices  # [1]


def state(setup: Setup) -> State:
    return State(np.full(1, setup.parameters.shift, np.int32))


@hook
def propose(state: State, view: View, out: Positions) -> int:
    return take(view.row + np.uint32(state.shift[0]), view, out)


SLASH = Prefetcher(
    name="slash",
    summary="the row of the step before, moved by one position",
    reference="Jiang et al. 2024, arXiv 2407.02490 (slashes)",
    state=state,
    propose=propose,
    parameters=Parameters(),
)
