"""Decode rows of one layer that no indexer lists so: frozen ones, and those of other tokens."""

from typing import Any

import numpy as np

from hisparse_sim.traces.demand import Longs
from hisparse_sim.traces.importers.prompt_rows import ROWS_TRUSTED

_MOST_OF = 0.75  # of the rows: so many that agree are not by chance


def doubt_of_layer(listed: Any, newest: Longs, tokens: int = 1) -> str | None:
    """Return a clause on what speaks against the decode rows of a layer, to follow its name.

    listed: [rows, top_k], -1 is padding; newest: [rows], the position of the query. An indexer
    lists the newest token in nearly every step, so the newest that it lists tells the query.
    """
    if len(listed) < ROWS_TRUSTED or listed.shape[1] < 2:
        return None
    top = listed.max(axis=1)
    if top[0] >= 0 and (listed[-1] == listed[0]).all() and (listed == listed[0]).all():
        return (
            f"lists the same positions in all of its {len(listed):,} rows: they seem to be frozen"
        )
    if tokens > 1:
        return None
    behind, counts = np.unique((newest - top)[top >= 0], return_counts=True)
    if not len(counts) or counts.max() < _MOST_OF * len(listed):
        return None
    lag = int(behind[counts.argmax()])
    if lag <= 0:
        return None
    return (
        f"lists in {int(counts.max()):,} of {len(listed):,} rows as its newest the position {lag} "
        f"before its query: they may be the rows of other tokens"
    )
