"""What the drafts of a step tell about the next, whose first query a study replays."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hisparse_sim.simulator.prefetch.kernel import Hints
from hisparse_sim.traces import Demand
from hisparse_sim.traces.drafts import first_queries


def with_hints(demand: Demand) -> tuple[Demand, Hints]:
    """Return the rows of the first query of every step; what the others of the step before
    selected, each position once, are the hints."""
    heads = np.append(demand.first_rows, demand.rows)
    hints = [np.zeros(0, np.int32)]
    for head, end in pairwise(heads.tolist()):
        listed = demand.positions[demand.offsets[head + 1] : demand.offsets[end]]
        _, first = np.unique(listed, return_index=True)
        hints.append(listed[np.sort(first)])
    hints = hints[: len(heads) - 1]
    known = np.concatenate([np.zeros(0, np.int32), *hints]).view(np.uint32)
    return first_queries(demand), Hints(_edges(hints), known)


def _edges(rows: Sequence[Any]) -> Any:
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)
