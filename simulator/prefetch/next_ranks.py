"""The positions that the indexer ranked right behind the selected ones in the step before, best
first: the nearest to being selected now."""

from typing import Any

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Positions
from hisparse_sim.simulator.prefetch.prefetcher import Prefetcher, View, nothing, take


@hook
def propose(state: Any, view: View, out: Positions) -> int:
    return take(view.next_positions, view, out)


NEXT_RANKS = Prefetcher(
    name="next-ranks",
    summary="what the step before ranked right behind the selected positions",
    reference="-",
    state=nothing,
    propose=propose,
    needs_next=True,
)
