"""How a trace reuses positions: the figures that decide what a hot buffer can save.

All definitions are per (request, layer), n rows S_1 .. S_n of selected positions:

- overlap at lag d: |S_t and S_(t+d)| / |S_(t+d)|, summed over t before dividing; lag 1 is the
  adjacent overlap. A buffer that holds just the last row has a miss rate of 1 - that.
- cross-layer overlap: the same for one step in two layers, over the steps that both have.
- working set of w steps: distinct positions of w consecutive steps, mean over the
  disjoint windows of a trace.
- reuse distance: number of other positions accessed since the last access to the position, without
  those of the current step. Rows count as accessed one position after another, so positions behind
  it in its former row count too. This is the LRU stack distance for steps of many positions: a
  buffer of B slots with that order misses just the first accesses and those with a distance of B or
  more. With another order within a step, like the engine's, a distance lies between the nearest
  (none of its row count) and the farthest (all of its row that were not accessed again). As in the
  engine, the newest token is not an access to the buffer: it counts for neither end of a distance.
- reuse interval: steps from one access to the next, also without the newest token.
- sink share, recent share, newest share: accesses to the first SINKS positions, to the last RECENT,
  and to the newest token. Sink and recent coverage: the share of these positions that a step
  selects; density: the same for all positions.
- drift: 1 - the share of the most selected positions of the first half (as many as the longest row
  holds) that are among the most selected of the second half. Ties go to the earlier position.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.traces.demand import Demand, Ints, Longs
from hisparse_sim.traces.drafts import first_queries
from hisparse_sim.traces.file.ahead import read_ahead
from hisparse_sim.traces.file.queries import query_column, read_first_queries
from hisparse_sim.traces.file.reader import Part, Trace
from hisparse_sim.traces.file.rules import stamp_keys
from hisparse_sim.traces.file.summary import FIRST_POSITIONS, RECENT_POSITIONS

SINKS = FIRST_POSITIONS  # the same as in the short description of a trace
RECENT = RECENT_POSITIONS
# Upper ends of the bins of a reuse distance, exclusive: four to a power of two.
EDGES = np.unique([max(1, (4 + part) << octave >> 2) for octave in range(31) for part in range(4)])
_TOGETHER = 1 << 25  # positions of all layers that are in memory to compare them


@dataclass(frozen=True)
class Locality:
    """The locality of one (request, layer). Shares are of all its accesses, 0 to 1."""

    request: str
    layer: int
    steps: int
    accesses: int  # selected positions, over all steps
    longest_row: int  # positions of one step: top_k, if the request has so many
    distinct: int  # positions selected at least once
    overlap: dict[int, float]  # lag in steps -> share of a row selected `lag` steps before
    working_set: dict[int, float]  # steps -> positions
    reuse_distance: dict[int, float]  # upper end of a bin (of EDGES, exclusive) -> share
    reuse_nearest: dict[int, float]  # the least that an order within a step could make of it
    reuse_farthest: dict[int, float]  # the most
    reuse_interval: dict[int, float]  # upper end of a bin in steps (power of two) -> share
    reuse_p50: float  # of the distances there are; nan for none
    reuse_p90: float
    first_accesses: float  # share of first accesses
    newest_share: float
    sink_share: float
    recent_share: float
    sink_coverage: float
    recent_coverage: float
    density: float
    drift: float | None  # None for a single step
    # Other layer of the same request -> share of our accesses that it has in the same step.
    # Layers that have no step in common are left out.
    cross_layer: dict[int, float] = field(default_factory=dict)

    @property
    def cross_layer_overlap(self) -> float | None:
        """The overlap with the layer before it in the file; None for the first."""
        before = max((layer for layer in self.cross_layer if layer < self.layer), default=None)
        return None if before is None else self.cross_layer[before]


def measure_locality(
    trace: Trace,
    requests: Iterable[str] | None = None,
    layers: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    executor: Executor | None = None,
) -> list[Locality]:
    """Measure every (request, layer), in file order; an `executor` takes a request at a time. With
    drafts, the first query of every step.

    Needs memory for one of them, and up to 300 MB to compare layers. Raises TraceError for an
    unknown request or layer, or rows that break a rule.
    """
    parts = trace.select(requests, layers)
    done = 0

    def measured(more: int = 1) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, len(parts))

    of_request: dict[str, list[Part]] = {}
    for part in parts:
        of_request.setdefault(part.request, []).append(part)
    groups = [*of_request.values()]
    if executor is None:
        return [each for own in groups for each in _measure_request(trace, own, steps, measured)]
    found: list[Locality] = []
    for own, each in zip(
        groups,
        executor.map(_measure_request, [trace] * len(groups), groups, [steps] * len(groups)),
        strict=True,
    ):
        found += each
        measured(len(own))
    return found


def _measure_request(
    trace: Trace,
    parts: Sequence[Part],
    steps: tuple[int, int] | None,
    measured: Callable[[], None] | None = None,
) -> list[Locality]:
    found: list[Locality] = []
    used: list[Part] = []
    kept: list[Demand] = []  # as long as there are few
    accesses = 0
    first, stop = 2**31 - 1, 0
    for part, read in read_ahead(trace, parts, query_column(trace), steps):
        demand = first_queries(read)
        if demand.rows:
            found.append(part_locality(demand))
            used.append(part)
            accesses += len(demand.positions)
            kept = [*kept, demand] if accesses <= _TOGETHER else []
            first = min(first, int(demand.step[0]))
            stop = max(stop, int(demand.step[-1]) + 1)
        if measured is not None:
            measured()
    if kept or not found:
        shared, listed = _shared_by_layers(kept)
    else:  # read again, so many steps at a time
        shared = listed = np.zeros((len(found), len(found)), np.int64)
        edges = np.linspace(first, stop, -(-accesses // _TOGETHER) + 1).astype(int).tolist()
        for block in pairwise(edges):
            more = _shared_by_layers([read_first_queries(trace, part, block) for part in used])
            shared, listed = shared + more[0], listed + more[1]
    return [
        replace(
            each,
            cross_layer={
                other.layer: int(shared[j, i]) / int(listed[j, i])
                for j, other in enumerate(found)
                if i != j and listed[j, i]
            },
        )
        for i, each in enumerate(found)
    ]


def part_locality(demand: Demand) -> Locality:
    """Measure one (request, layer) of at least one row, without the overlap with other layers."""
    from hisparse_sim.traces.locality import passes

    keys, stamp = stamp_keys(demand.positions)
    accesses = max(1, len(keys))
    distinct = int(np.count_nonzero(np.bincount(keys, minlength=1)))
    nearest, distances, farthest = np.zeros((3, distinct + 1), np.int64)
    intervals = np.zeros(demand.rows + 1, np.int64)
    first = passes.count_reuse(
        demand.offsets,
        keys,
        demand.positions == np.repeat(demand.seq_len - 1, np.diff(demand.offsets)),
        np.zeros(len(stamp), np.int64),
        stamp.copy(),
        nearest,
        distances,
        farthest,
        intervals,
    )
    sinks, recent, newest = passes.count_ends(
        demand.offsets, demand.positions, demand.seq_len, SINKS, RECENT
    ).tolist()
    sizes = [1 << bit for bit in range(demand.rows.bit_length())]
    lengths = demand.seq_len.astype(np.int64)
    powers = 1 << np.arange(32)
    return Locality(
        request=demand.request,
        layer=demand.layer,
        steps=demand.rows,
        accesses=len(keys),
        longest_row=int(np.diff(demand.offsets).max()),
        distinct=distinct,
        overlap={lag: _overlap(demand, keys, stamp, lag) for lag in sizes if lag < demand.rows},
        working_set={size: _working_set(demand.offsets, keys, size) for size in sizes},
        reuse_distance=_binned(distances, EDGES, accesses),
        reuse_nearest=_binned(nearest, EDGES, accesses),
        reuse_farthest=_binned(farthest, EDGES, accesses),
        reuse_interval=_binned(intervals, powers, accesses),
        reuse_p50=_quantile(distances, 0.5),
        reuse_p90=_quantile(distances, 0.9),
        first_accesses=first / accesses,
        newest_share=newest / accesses,
        sink_share=sinks / accesses,
        recent_share=recent / accesses,
        sink_coverage=sinks / int(np.minimum(lengths, SINKS).sum()),
        recent_coverage=recent / int(np.minimum(lengths, RECENT).sum()),
        density=len(keys) / int(lengths.sum()),
        drift=_drift(demand.offsets, keys, len(stamp)),
    )


def adjacent_overlap(demand: Demand) -> float:
    """Return the share of accesses that the previous step had, too, without the first step; nan for
    a single one."""
    return _overlap(demand, *stamp_keys(demand.positions), lag=1)


def _shared_by_layers(demands: Sequence[Demand]) -> tuple[Longs, Longs]:
    """Return (shared, listed) [i, j]: accesses of j that i has in the same step, too, and
    accesses of j in steps that i has."""
    from hisparse_sim.traces.locality import passes

    count = len(demands)
    shared = np.zeros((count, count), np.int64)
    if count < 2:
        return shared, shared
    present = [demand for demand in demands if demand.rows]
    first = min((int(demand.step[0]) for demand in present), default=0)
    stop = max((int(demand.step[-1]) + 1 for demand in present), default=0)
    starts, stops = np.zeros((2, count, stop - first), np.int64)
    has = np.zeros((count, stop - first), np.int64)
    begin = 0
    for i, demand in enumerate(demands):
        where = demand.step - first
        starts[i, where] = begin + demand.offsets[:-1]
        stops[i, where] = begin + demand.offsets[1:]
        has[i, where] = 1
        begin += len(demand.positions)
    keys, stamp = stamp_keys(np.concatenate([demand.positions for demand in demands]))
    passes.count_shared_layers(starts, stops, keys, stamp.astype(np.uint8), shared)
    return shared + shared.T, has @ (stops - starts).T


def _overlap(demand: Demand, keys: Ints, stamp: Ints, lag: int) -> float:
    from hisparse_sim.traces.locality import passes

    shared = np.zeros(max(0, demand.rows - lag), np.int64)
    passes.count_shared(demand.offsets, keys, lag, np.zeros_like(stamp), shared)
    return _ratio(
        int(shared.sum()), int(demand.offsets[-1] - demand.offsets[min(lag, demand.rows)])
    )


def _working_set(offsets: Longs, keys: Ints, size: int) -> float:
    from hisparse_sim.traces.locality import passes

    distinct = np.zeros((len(offsets) - 1) // size, np.int64)
    stamp = np.zeros(int(keys.max(initial=0)) + 1, np.int32)
    passes.count_distinct(offsets, keys, size, stamp, distinct)
    return float(distinct.mean())


def _binned(counts: Longs, edges: NDArray[np.int64], accesses: int) -> dict[int, float]:
    """Return the share of every bin that has one; `counts` [value] accesses."""
    values = np.flatnonzero(counts)
    sums = np.bincount(np.searchsorted(edges, values, side="right"), counts[values])
    return {int(edges[bin_]): float(sums[bin_]) / accesses for bin_ in np.flatnonzero(sums)}


def _quantile(counts: Longs, share: float) -> float:
    """Return the smallest value that at least `share` of the accesses do not exceed."""
    below = np.cumsum(counts)
    return float(np.searchsorted(below, share * below[-1])) if below[-1] else float("nan")


def _drift(offsets: Longs, keys: Ints, size: int) -> float | None:
    rows = len(offsets) - 1
    if rows < 2:
        return None
    middle = offsets[rows // 2]
    most = int(np.diff(offsets).max())
    halves = []
    for half in (keys[:middle], keys[middle:]):
        counts = np.bincount(half, minlength=size)
        popular = np.argsort(-counts, kind="stable")[:most]
        halves.append(popular[counts[popular] > 0])
    return 1 - _ratio(int(np.isin(halves[0], halves[1]).sum()), max(1, len(halves[0])))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
