"""The first queries of the steps of a trace with drafts, which a study replays."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from hisparse_sim.simulator.prefetch.kernel import Hints
from hisparse_sim.traces import Demand, Part, Trace
from hisparse_sim.traces.file.columns import QUERY


def has_drafts(trace: Trace) -> bool:
    """Return whether a step of the trace may have several queries."""
    return trace.metadata.draft_tokens > 1


def read_first_queries(trace: Trace, part: Part, steps: tuple[int, int] | None = None) -> Demand:
    """Read a part, of a trace with drafts the first query of every step."""
    if has_drafts(trace):
        return first_queries(trace.read(part, (QUERY,), steps))[0]
    return trace.read(part, (), steps)


def first_queries(demand: Demand) -> tuple[Demand, Hints]:
    """Return the rows of the first query of every step; what the others of the step before
    selected, each position once, are the hints."""
    heads = np.append(demand.first_rows, demand.rows)
    rows = [demand.row(head) for head in heads[:-1]]
    hints = [np.zeros(0, np.int32)]
    for head, end in pairwise(heads.tolist()):
        listed = demand.positions[demand.offsets[head + 1] : demand.offsets[end]]
        _, first = np.unique(listed, return_index=True)
        hints.append(listed[np.sort(first)])
    first_only = replace(
        demand,
        step=demand.step[heads[:-1]],
        seq_len=demand.seq_len[heads[:-1]],
        offsets=_edges(rows),
        positions=np.concatenate([np.zeros(0, np.int32), *rows]),
        scores=None,
        next_positions=None,
        query=None,
    )
    hints = hints[: len(rows)]
    known = np.concatenate([np.zeros(0, np.int32), *hints]).view(np.uint32)
    return first_only, Hints(_edges(hints), known)


def _edges(rows: Sequence[Any]) -> Any:
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)
