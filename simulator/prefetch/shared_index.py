"""What an anchor layer selected in the same step: every so many layers compute an index, and those
between them take it for a guess of their own.

A model whose layers share an index selects just that (GLM-5.2: one anchor, three that repeat it),
and fetches it ahead without an error. Elsewhere it is a trial of how near they are to that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hisparse_sim.policies import parameter
from hisparse_sim.simulator.prefetch import previous_layer
from hisparse_sim.simulator.prefetch.prefetcher import Prefetcher


@dataclass(frozen=True)
class Parameters:
    every: int = parameter(4, "layers of the trace to an anchor", least=2, most=1000)
    recent: bool = parameter(True, "what this layer selected last comes first")


def anchor(layers: Sequence[int], layer: int, parameters: Parameters) -> int | None:
    """Return the anchor of a layer; an anchor has none."""
    place = layers.index(layer)
    behind = place % parameters.every
    return layers[place - behind] if behind else None


SHARED_INDEX = Prefetcher(
    name="shared-index",
    summary="what the last anchor layer selected in the same step",
    reference="-",
    state=previous_layer.state,
    propose=previous_layer.propose,
    layer=anchor,
    parameters=Parameters(),
)
