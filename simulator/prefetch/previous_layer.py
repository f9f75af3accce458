"""What an earlier layer selected in the same step: the newest knowledge that there is.

Of the positions that are absent here, those that this layer itself selected last come first; the
others, never selected here, in the order of the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies import parameter
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Indices, Positions
from hisparse_sim.simulator.prefetch.prefetcher import Prefetcher, Setup, View, take_best


@dataclass(frozen=True)
class Parameters:
    distance: int = parameter(1, "layers of the trace between the two", least=1, most=1000)
    recent: bool = parameter(True, "what this layer selected last comes first")


class State(NamedTuple):
    last: Indices  # [T + 1] the call in which this layer was seen to select a position, from 1 on
    call: Indices  # [1]
    recent: Indices  # [1] 1 if that orders what is proposed


def state(setup: Setup) -> State:
    recent = np.full(1, setup.parameters.recent, np.int32)
    return State(np.zeros(setup.positions + 1, np.int32), np.zeros(1, np.int32), recent)


@hook
def propose(state: State, view: View, out: Positions) -> int:
    state.call[0] += 1
    for position in view.row:
        state.last[position] = state.call[0]
    candidates = np.empty(len(view.hint), np.uint32)
    last = np.empty(len(view.hint), np.int32)
    count = 0
    for position in view.hint:
        if position < view.newest and view.present[position] == 0:
            candidates[count] = position
            last[count] = state.last[position] * state.recent[0]
            count += 1
    return take_best(candidates, last, count, out)


def layer_before(layers: Sequence[int], layer: int, parameters: Parameters) -> int | None:
    """Return the layer of the trace so many places before this one."""
    place = layers.index(layer) - parameters.distance
    return layers[place] if place >= 0 else None


PREVIOUS_LAYER = Prefetcher(
    name="previous-layer",
    summary="what the layer before selected in the same step",
    reference="-",
    state=state,
    propose=propose,
    layer=layer_before,
    parameters=Parameters(),
)
