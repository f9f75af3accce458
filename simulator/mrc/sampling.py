"""Curves from a part of a trace, with 95 % intervals.

Two samples are sound. *Requests*, drawn at random without replacement, each with all its layers.
*Steps*: windows of them, drawn in every (request, layer) apart, so that layers, which differ far
more than windows, are all counted; the first window, the start-up burst, always is. An LRU stack
forgets: what lies deeper than the positions that the steps before a window demanded is missed in
buffers of up to so many slots. So a window needs only so many steps before it that these demand
`largest` positions, and is exact.

Not sampled are layers, since one of them may have half of all misses, and positions by their
hash (SHARDS, Waldspurger et al., FAST 2015), since the places of the sampled ones on the stack err
together; docs/sampled-curves.md has what was measured.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.mrc.counting import mrc, page_of, sizes_and_points
from hisparse_sim.simulator.mrc.intervals import (
    LEAST_UNITS,
    Estimate,
    Floats,
    interval,
    ratio_estimate,
)
from hisparse_sim.simulator.mrc.names import TEXTBOOK_LRU
from hisparse_sim.simulator.mrc.one_pass import part_curves
from hisparse_sim.simulator.replay.metrics import without_tokens
from hisparse_sim.simulator.replay.replaying import check_arguments, check_top_k
from hisparse_sim.simulator.replay.workers import available_cores
from hisparse_sim.traces import Demand, OneTrace, Part, Trace, as_trace
from hisparse_sim.traces.demand import Longs

LEAST_REQUESTS = 8
LEAST_WINDOWS = LEAST_UNITS  # of a (request, layer), the first one apart
STEPS = 16  # of a window


def sampled_mrc(
    trace: OneTrace | None = None,
    policies: str | Policy | Iterable[str | Policy] | None = None,
    buffers: int | Iterable[int] | None = None,
    start: str = "staged",
    *,
    sample_requests: float | None = None,
    sample_steps: float | None = None,
    largest: int | None = None,
    requests: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    seed: int = 0,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Estimate miss-ratio curves from a share (0 to 1) of the requests or of the steps of a trace.

    `sample_requests` draws requests, each with all its layers, and estimates any policy.
    `sample_steps` draws windows of 16 steps, and estimates "textbook-lru". The other arguments are
    those of `mrc`.

    Returns the rows of `mrc` with `low` and `high`, between which the miss rate of the whole trace
    lies with 95 % confidence.

    Raises ValueError for a share that leaves too few for an interval.
    """
    if (sample_requests is None) == (sample_steps is None):
        raise ValueError("give one of `sample_requests` and `sample_steps`")
    if sample_requests is not None:
        if requests is not None:
            raise ValueError("`requests` does not apply to a sample of requests")
        return of_requests(
            trace, sample_requests, policies, buffers, start,
            largest=largest, layers=layers, seed=seed, jobs=jobs,
        )  # fmt: skip
    named = [policies] if isinstance(policies, str | Policy) else list(policies or [TEXTBOOK_LRU])
    if named != [TEXTBOOK_LRU] or buffers is not None:
        raise ValueError(
            f"a sample of steps is of {TEXTBOOK_LRU}, at all sizes: leave `policies` and `buffers`"
            " out, or give `sample_requests`"
        )
    return of_steps(
        trace, sample_steps or 0.0, start,
        largest=largest, requests=requests, layers=layers, seed=seed, jobs=jobs,
    )  # fmt: skip


def of_requests(
    trace: OneTrace | None,
    share: float,
    policies: str | Policy | Iterable[str | Policy] | None = None,
    buffers: int | Iterable[int] | None = None,
    start: str = "staged",
    *,
    largest: int | None = None,
    layers: int | Iterable[int] | None = None,
    seed: int = 0,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Estimate curves from a share (0 to 1) of the requests, all their layers.

    Returns the rows of `mrc`, for multiples of its page of slots, with `low` and `high`, between
    which the miss rate of all requests lies with 95 % confidence; `misses` are those of the sample.
    The other arguments are those of `mrc`.

    Raises ValueError for a share that leaves fewer than LEAST_REQUESTS of them.
    """
    opened = as_trace(trace)
    names = np.array(opened.requests, object)
    count = round(share * len(names))
    if not LEAST_REQUESTS <= count <= len(names):
        raise ValueError(
            f"a share of {share:g} of {len(names)} requests is {count}: an interval takes at least"
            f" {LEAST_REQUESTS}, and at most all"
        )
    chosen = np.random.default_rng(seed).choice(names, count, replace=False).tolist()
    curves = mrc(
        opened, policies, buffers, start, largest=largest, per_layer=True, requests=chosen,
        layers=layers, seed=seed, jobs=jobs,
    )  # fmt: skip
    apart = curves.summed(["request"])
    accesses = apart.lines["accesses"].to_numpy(float)
    rows = curves.summed().rows
    rows = rows[rows["method"] != "interpolated"].reset_index(drop=True)
    found = [
        interval([ratio_estimate(curve.misses, accesses, len(names), 1.0)])
        for curve in apart.of.values()
    ]
    rate, low, high = map(np.concatenate, zip(*found, strict=True))
    return _bounded(rows.assign(miss_rate=rate), low, high)


def of_steps(
    trace: OneTrace | None,
    share: float,
    start: str = "staged",
    *,
    largest: int | None = None,
    requests: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    steps: int = STEPS,
    seed: int = 0,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Estimate the curve of the textbook's LRU from a share (0 to 1) of windows of so many `steps`
    of every (request, layer).

    Returns rows as `of_requests` does; `misses` are estimates of all steps' here.

    Raises ValueError for a share that leaves fewer than LEAST_WINDOWS windows of a (request,
    layer), beside the first.
    """
    opened = as_trace(trace)
    top_k = opened.metadata.top_k
    sizes, _ = sizes_and_points(top_k, page_of(top_k), None, largest)
    check_arguments(int(sizes[-1]), start)
    check_top_k(opened, int(sizes[0]))
    parts = opened.select(requests, layers)
    with ThreadPoolExecutor(jobs or available_cores()) as threads:
        count = partial(_sampled, opened, share, sizes, start, steps, seed)
        found = list(threads.map(count, parts))
    accesses = sum(each[1] for each in found)
    misses, low, high = interval([each[0] for each in found])
    row_count = sum(part.rows for part in parts)
    rows = pd.DataFrame(
        {
            "trace": opened.name,
            "provenance": opened.metadata.provenance,
            "unit": opened.metadata.unit,
            "policy": TEXTBOOK_LRU,
            "buffer": sizes,
            "start": start,
            "steps": row_count,
            "accesses": accesses,
            "misses": misses,
            "miss_rate": misses / max(1, accesses),
            "misses_per_step": misses / max(1, row_count),
        }
    )
    return _bounded(without_tokens(rows), low / max(1, accesses), high / max(1, accesses))


def _bounded(rows: pd.DataFrame, low: Floats, high: Floats) -> pd.DataFrame:
    return rows.assign(low=low.clip(0, 1), high=high.clip(0, 1), method="sample")


def _sampled(
    trace: Trace, share: float, sizes: Longs, start: str, steps: int, seed: int, part: Part
) -> tuple[Estimate, int]:
    """Estimate the misses of one part; return the accesses, too."""
    demand = trace.read(part)
    edges = np.append(np.arange(0, demand.rows, steps), demand.rows)
    windows = len(edges) - 2  # apart from the first
    count = round(share * windows)
    if not LEAST_WINDOWS <= count <= windows:
        raise ValueError(
            f"a share of {share:g} of {windows} windows of {steps} steps (request {part.request!r},"
            f" layer {part.layer}) is {count}: an interval takes at least {LEAST_WINDOWS}"
        )
    stream = np.random.default_rng([seed, part.layer, *part.request.encode()])
    chosen = 1 + np.sort(stream.choice(windows, count, replace=False))
    first = _window(demand, 0, int(edges[1]), sizes, start)
    misses = np.array(
        [_window(demand, int(edges[at]), int(edges[at + 1]), sizes, start) for at in chosen]
    )
    lengths = np.diff(demand.offsets[edges])
    rest = float(lengths[1:].sum())
    found = ratio_estimate(misses, lengths[chosen].astype(float), windows, rest)
    return found._replace(total=found.total + first), int(lengths.sum())


def _window(demand: Demand, begin: int, end: int, sizes: Longs, start: str) -> Longs:
    """Return the misses [S] of rows `begin` to `end`, from no more rows before them than needed."""
    largest = int(sizes[-1])
    before = 1
    while before < begin and not _fills(demand, begin - before, begin, largest):
        before *= 2
    since = max(0, begin - before)
    if demand.seq_len[since] <= largest:
        since = 0  # buffers that it has not outgrown yet count from the beginning
    cut, offsets = slice(since, end), demand.offsets[since : end + 1]
    demand = replace(
        demand,
        # Buffers of a window that is cut out start empty: whatever lies deeper is missed.
        prompt_len=demand.prompt_len if since == 0 else largest + 1,
        step=demand.step[cut],
        seq_len=demand.seq_len[cut],
        offsets=offsets - offsets[0],
        positions=demand.positions[offsets[0] : offsets[-1]],
    )
    rows = np.array([0, begin - since, end - since])
    start = start if since == 0 else "direct"
    found = part_curves(demand, [TEXTBOOK_LRU], largest, start, rows)[TEXTBOOK_LRU]
    misses: Longs = found[1, sizes]
    return misses


def _fills(demand: Demand, begin: int, end: int, largest: int) -> bool:
    """Return whether the rows demand so many positions, the newest tokens apart, that whatever was
    demanded before them only is no longer in any buffer."""
    listed = demand.positions[demand.offsets[begin] : demand.offsets[end]]
    seen = np.zeros(int(demand.seq_len[end - 1]), bool)
    seen[listed] = True
    return int(np.count_nonzero(seen)) - (end - begin) >= largest
