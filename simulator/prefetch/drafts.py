"""What the drafts of the step before selected: with speculative decoding (MTP) the queries of
tokens still to come have been through the indexer already."""

from typing import Any

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Positions
from hisparse_sim.simulator.prefetch.prefetcher import Prefetcher, View, nothing, take


@hook
def propose(state: Any, view: View, out: Positions) -> int:
    return take(view.hint, view, out)


DRAFTS = Prefetcher(
    name="drafts",
    summary="what the drafted tokens of the step before selected",
    reference="-",
    state=nothing,
    propose=propose,
    needs_drafts=True,
)
