"""Curves from a part of a trace, with 95 % intervals.

Two samples are sound. *Requests*, drawn at random without replacement, each with all its layers:
misses over accesses are a ratio of totals, with the variance of a ratio estimate and Student's
distribution of as many degrees of freedom as requests less one. *Steps*: windows of them, drawn in
every (request, layer) apart, so that layers, which differ far more than windows, are all counted;
the first window, the start-up burst, always is. An LRU stack forgets: what lies deeper than the
positions that the steps before a window demanded is missed in buffers of up to so many slots. So a
window needs only so many steps before it that these demand `largest` positions, and is exact.

Not sampled are layers (of a few, intervals at 95 % held the truth in 65 to 95 % of draws on real
traces), and positions by their hash (SHARDS: distances in a sample, over its rate, are those of the
whole but for chance. A step demands its positions at once, and chance makes the last row longer
than a buffer of top-k slots; the exact pass takes less time than reading a trace).

References: Cochran, Sampling Techniques, 3rd ed., chapters 2, 5, 6; Waldspurger et al., FAST 2015
(SHARDS).
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.mrc.counting import mrc, page_of, sizes_and_points
from hisparse_sim.simulator.mrc.names import TEXTBOOK_LRU
from hisparse_sim.simulator.mrc.one_pass import part_curves
from hisparse_sim.simulator.replay.replaying import check_arguments, check_top_k
from hisparse_sim.simulator.replay.sweeping import available_cores
from hisparse_sim.traces import Demand, OneTrace, Part, Trace, as_trace
from hisparse_sim.traces.demand import Longs

LEAST_REQUESTS = 8
LEAST_WINDOWS = 2  # of a (request, layer), the first one apart
STEPS = 16  # of a window

Floats = NDArray[np.float64]


class _Estimate(NamedTuple):
    """Totals of a stratum [S] by size, estimated from a sample, and the variance."""

    misses: Floats
    variance: Floats
    degrees: int


def student(degrees: float) -> float:
    """Return the 97.5th percentile of Student's distribution (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(0.975)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / degrees**power for power, term in enumerate(terms))


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
    rates, halves = [], []
    for curve in apart.of.values():
        found = _ratio(curve.misses, accesses, len(names), 1.0)
        rates.append(found.misses)
        halves.append(student(found.degrees) * np.sqrt(found.variance))
    return _bounded(rows.assign(miss_rate=np.concatenate(rates)), np.concatenate(halves))


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
    misses = np.sum([each[0].misses for each in found], axis=0)
    variances = np.array([each[0].variance for each in found])
    degrees = np.array([[each[0].degrees] for each in found])
    variance = variances.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):  # Satterthwaite
        freedom = np.nan_to_num(variance**2 / (variances**2 / degrees).sum(axis=0), nan=1.0)
    factor = np.array([student(each) for each in freedom])
    row_count = sum(part.rows for part in parts)
    rows = pd.DataFrame(
        {
            "trace": opened.name,
            "provenance": opened.metadata.provenance,
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
    return _bounded(rows, factor * np.sqrt(variance) / max(1, accesses))


def _bounded(rows: pd.DataFrame, half: Floats) -> pd.DataFrame:
    low, high = rows["miss_rate"] - half, rows["miss_rate"] + half
    return rows.assign(low=low.clip(0, 1), high=high.clip(0, 1), method="sample")


def _ratio(misses: Longs, accesses: Floats, units: int, total: float) -> _Estimate:
    """Estimate `total` accesses' misses from those [n, S] of n of so many units."""
    count = len(accesses)
    rate = misses.sum(axis=0) / accesses.sum()
    apart = misses - np.outer(accesses, rate)
    spread = (apart**2).sum(axis=0) / max(1, count - 1)
    variance = (1 - count / units) * count * spread / accesses.sum() ** 2
    return _Estimate(rate * total, variance * total**2, max(1, count - 1))


def _sampled(
    trace: Trace, share: float, sizes: Longs, start: str, steps: int, seed: int, part: Part
) -> tuple[_Estimate, int]:
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
    found = _ratio(misses, lengths[chosen].astype(float), windows, float(lengths[1:].sum()))
    return found._replace(misses=found.misses + first), int(lengths.sum())


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
