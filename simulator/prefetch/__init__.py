"""What is fetched ahead of a step: one file per prefetcher, and one line per prefetcher below.

`prefetcher`: what one is. `kernel`: the compiled loop. `prefetching`: the rules of a sweep with it.
"""

from typing import TYPE_CHECKING, Any

from hisparse_sim.policies.registry import find, table_of
from hisparse_sim.simulator.prefetch.prefetcher import (
    Prefetcher,
    PrefetchError,
    Setup,
    View,
    take,
    take_best,
)

# The registry: a line adds a prefetcher. Listings keep this order.
# isort: off
# ruff: noqa: F401
from hisparse_sim.simulator.prefetch.next_ranks import NEXT_RANKS
from hisparse_sim.simulator.prefetch.rank_average import RANK_AVERAGE
from hisparse_sim.simulator.prefetch.holt import HOLT
from hisparse_sim.simulator.prefetch.slash import SLASH
from hisparse_sim.simulator.prefetch.previous_layer import PREVIOUS_LAYER
from hisparse_sim.simulator.prefetch.shared_index import SHARED_INDEX
from hisparse_sim.simulator.prefetch.drafts import DRAFTS
from hisparse_sim.simulator.prefetch.oracle import ORACLE
# isort: on

if TYPE_CHECKING:
    import pandas as pd

PREFETCHERS: dict[str, Prefetcher] = {
    each.name: each for each in tuple(globals().values()) if isinstance(each, Prefetcher)
}
NO_PREFETCH = "none"  # what a study calls it

__all__ = [
    "NO_PREFETCH",
    "PREFETCHERS",
    "PrefetchError",
    "Prefetcher",
    "Setup",
    "View",
    "get_prefetcher",
    "table",
    "take",
    "take_best",
]


def get_prefetcher(prefetcher: str | Prefetcher, **parameters: Any) -> Prefetcher:
    """Return the prefetcher of this name, that of a file given as `FILE.py:NAME`, or `prefetcher`
    itself, with these parameters; a name may have them, too: `NAME:FIELD=VALUE,FIELD=VALUE`.

    Raises PolicyError, a ValueError: it names the known prefetchers or parameters, or says what is
    wrong with the file.
    """
    return find(prefetcher, Prefetcher, PREFETCHERS, parameters, reserved=(NO_PREFETCH, "bounds"))


def table() -> "pd.DataFrame":
    """Return the prefetchers of the package, one row each: `prefetcher, summary, parameters,
    reference`."""
    return table_of(PREFETCHERS, Prefetcher.kind)
