"""Steps of speculative decoding made of steps with one query each.

An engine with `draft_tokens` n verifies n tokens a step: the last one accepted and n - 1 drafts. A
trace of ordinary decoding tells what the query of every token selects. So the n rows of a step are
taken from n neighbouring tokens, and the next step begins as many tokens later as were accepted.
The rows of drafts that are then rejected are those of the tokens that came instead: what the query
of a wrong draft would have selected is not in such a trace.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from hisparse_sim.traces.demand import Demand, Longs
from hisparse_sim.traces.errors import TraceError


def first_queries(demand: Demand) -> Demand:
    """Return the rows of the first query of every step; of several, without scores and ranks."""
    if demand.query is None:
        return demand
    rows = demand.first_rows
    offsets, entries = _of_rows(demand.offsets, rows)
    return replace(
        demand,
        step=demand.step[rows],
        seq_len=demand.seq_len[rows],
        offsets=offsets,
        positions=demand.positions[entries],
        scores=None,
        next_positions=None,
        query=None,
    )


def check_accepted(accepted: float, draft_tokens: int) -> None:
    """Raise ValueError for a mean that no step of so many tokens can accept."""
    if not 1 <= accepted <= draft_tokens:
        raise ValueError(
            f"{accepted:g} accepted tokens a step: of {draft_tokens} draft tokens 1 to"
            f" {draft_tokens} are accepted"
        )


def all_accepted(draft_tokens: int) -> str:
    """Return the sentence on drafts whose acceptance was not told."""
    return (
        f"all {draft_tokens} queries of a step are taken as accepted, the most that can be: an"
        f" engine accepts fewer, give `acceptance_length`"
    )


def drafted(demand: Demand, draft_tokens: int, accepted: float | None = None) -> Demand:
    """Return a demand of `draft_tokens` queries a step, made of one with a query a step.

    `accepted`: mean tokens that a step accepts, at most `draft_tokens`, which None stands for; the
    counts of the steps are as even as whole numbers can be. Steps count from the first of
    `demand`; at the end, tokens that do not fill a step are left out.

    Raises TraceError if `demand` has several queries a step already, adds other than one token a
    step, or is shorter than one step; ValueError for impossible numbers.
    """
    mean = float(draft_tokens if accepted is None else accepted)
    check_accepted(mean, draft_tokens)
    place = f"request {demand.request!r}, layer {demand.layer}"
    if demand.query is not None:
        raise TraceError(f"{place} has several queries a step already")
    if (np.diff(demand.seq_len) != 1).any():
        raise TraceError(
            f"{place} does not add one token a step, so its steps are not the queries of"
            f" neighbouring tokens"
        )
    heads = first_tokens(demand.rows, draft_tokens, mean)
    if len(heads) == 0:
        raise TraceError(f"{place} has {demand.rows:,} steps, too few for {draft_tokens} queries")
    query = np.tile(np.arange(draft_tokens, dtype=np.int32), len(heads))
    rows = np.repeat(heads, draft_tokens) + query
    offsets, entries = _of_rows(demand.offsets, rows)
    following = demand.next_positions
    if following is not None:
        edges, taken = _of_rows(following.offsets, rows)
        following = following._replace(offsets=edges, values=following.values[taken])
    steps = np.arange(len(heads), dtype=np.int32) + demand.step[0]
    return replace(
        demand,
        step=np.repeat(steps, draft_tokens),
        seq_len=demand.seq_len[rows],
        offsets=offsets,
        positions=demand.positions[entries],
        scores=None if demand.scores is None else demand.scores[entries],
        next_positions=following,
        query=query,
    )


def tokens_verified(steps: int, draft_tokens: int, accepted: float) -> int:
    """Return how many tokens so many steps need, see `drafted`."""
    return int((steps - 1) * accepted + 1e-9) + draft_tokens


def first_tokens(tokens: int, draft_tokens: int, accepted: float) -> Longs:
    """Return the first of the `tokens` that each step verifies, [steps]."""
    most = max(0, int((tokens - draft_tokens) / accepted) + 2)
    heads: Longs = np.floor(np.arange(most) * accepted + 1e-9).astype(np.int64)
    filled: Longs = heads[heads + draft_tokens <= tokens]
    return filled


def _of_rows(offsets: Longs, rows: Longs) -> tuple[Longs, Any]:
    """Return the offsets of these rows one after the other, and the entries that they hold."""
    lengths = offsets[rows + 1] - offsets[rows]
    edges: Longs = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=edges[1:])
    return edges, np.repeat(offsets[rows] - edges[:-1], lengths) + np.arange(edges[-1])
