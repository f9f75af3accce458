"""What is fetched ahead of a step: one file per prefetcher, one line each below.

`prefetcher`: what one is. `kernel`: the compiled loop. `prefetching`: the rules of a sweep with it.
"""

from typing import TYPE_CHECKING, Any

from hisparse_sim.policies.parameters import configured, described, divided
from hisparse_sim.simulator.prefetch.drafts import DRAFTS
from hisparse_sim.simulator.prefetch.holt import HOLT
from hisparse_sim.simulator.prefetch.next_ranks import NEXT_RANKS
from hisparse_sim.simulator.prefetch.oracle import ORACLE
from hisparse_sim.simulator.prefetch.prefetcher import (
    Prefetcher,
    PrefetchError,
    Setup,
    View,
    take,
    take_best,
)
from hisparse_sim.simulator.prefetch.previous_layer import PREVIOUS_LAYER
from hisparse_sim.simulator.prefetch.rank_average import RANK_AVERAGE
from hisparse_sim.simulator.prefetch.shared_index import SHARED_INDEX
from hisparse_sim.simulator.prefetch.slash import SLASH

if TYPE_CHECKING:
    import pandas as pd

PREFETCHERS: dict[str, Prefetcher] = {
    prefetcher.name: prefetcher
    for prefetcher in (
        NEXT_RANKS,
        RANK_AVERAGE,
        HOLT,
        SLASH,
        PREVIOUS_LAYER,
        SHARED_INDEX,
        DRAFTS,
        ORACLE,
    )
}

__all__ = [
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
    """Return the prefetcher of this name, which may be `NAME:FIELD=VALUE,FIELD=VALUE`, or
    `prefetcher` itself, with these parameters.

    Raises PrefetchError, a ValueError, for an unknown name; PolicyError for a parameter.
    """
    if isinstance(prefetcher, Prefetcher):
        return configured(prefetcher, parameters)
    name, written = divided(prefetcher)
    if name.lower() not in PREFETCHERS:
        known = ", ".join(PREFETCHERS)
        raise PrefetchError(f"unknown prefetcher {name!r}; known are {known}")
    return configured(PREFETCHERS[name.lower()], written | parameters)


def table() -> "pd.DataFrame":
    """Return the prefetchers of the package, one row each: `prefetcher, summary, parameters,
    reference`."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "prefetcher": each.name,
                "summary": each.summary,
                "parameters": described(each),
                "reference": each.reference,
            }
            for each in PREFETCHERS.values()
        ]
    )
