"""How a trace re-uses positions: the numbers that decide what a hot buffer can save.

All definitions are per (request, layer), n rows S_1 .. S_n of demanded positions:

- overlap at lag d: |S_t and S_(t+d)| / |S_(t+d)|, summed over t before dividing; lag 1 is the
  adjacent overlap. A buffer of one row, filled with it, misses 1 - that.
- cross-layer overlap: the same for one step in two layers, the previous layer of the file first.
- working set of w steps: distinct positions that w consecutive steps demand, mean over the
  disjoint windows of a trace.
- reuse distance: distinct positions demanded in the steps between two demands of a position
  (0 when they are in adjacent steps). An LRU cache that kept whole steps would hit iff it is small
  enough. Reuse interval: steps from one demand to the next. Both are binned by powers of two.
- sink share, recent share, newest share: demands of the first SINKS positions, of the last RECENT,
  and of the newest token.
- drift: 1 - the share of the most demanded positions of the first half (as many as the longest row
  holds) that are among the most demanded of the second half. Of equals the earlier position counts.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hisparse_sim.traces.demand import Demand, Ints, Longs
from hisparse_sim.traces.reader import Trace
from hisparse_sim.traces.rules import stamp_keys

SINKS = 4  # positions
RECENT = 128  # tokens


@dataclass(frozen=True)
class Locality:
    """The locality of one (request, layer). Shares are of all its demands, 0 to 1."""

    request: str
    layer: int
    steps: int
    accesses: int  # demanded positions, over all steps
    distinct: int  # positions demanded at least once
    overlap: dict[int, float]  # lag in steps -> share of a row demanded `lag` steps before
    cross_layer_overlap: float | None  # with the layer before it in the file; None for the first
    working_set: dict[int, float]  # steps -> positions
    reuse_distance: dict[int, float]  # upper bound (power of two, exclusive) -> share of accesses
    reuse_interval: dict[int, float]  # likewise, in steps
    first_demands: float  # share of accesses that no earlier step demanded
    sink_share: float
    recent_share: float
    newest_share: float
    drift: float | None  # None for a single step


def measure_locality(
    trace: Trace,
    requests: Iterable[str] | None = None,
    layers: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Locality]:
    """Measure every (request, layer), in file order; two of them are in memory at a time.

    Raises TraceError for an unknown request or layer, or rows that break a rule.
    """
    parts = trace.select(requests, layers)
    found = []
    before: Demand | None = None
    for done, part in enumerate(parts, 1):
        demand = trace.read(part, steps=steps)
        if demand.rows:
            same = before is not None and before.request == demand.request
            found.append(part_locality(demand, before if same else None))
        before = demand
        if progress is not None:
            progress(done, len(parts))
    return found


def part_locality(demand: Demand, layer_before: Demand | None = None) -> Locality:
    """Measure one (request, layer); `layer_before` is another layer of the same request."""
    from hisparse_sim.traces import locality_passes as passes

    keys, stamp = stamp_keys(demand.positions)
    accesses = max(1, len(keys))
    distances, intervals = np.zeros(64, np.int64), np.zeros(64, np.int64)
    first = passes.count_reuse(demand.offsets, keys, stamp.copy(), distances, intervals)
    ends = passes.count_ends(demand.offsets, demand.positions, demand.seq_len, SINKS, RECENT)
    sizes = [1 << bit for bit in range(demand.rows.bit_length())]
    return Locality(
        request=demand.request,
        layer=demand.layer,
        steps=demand.rows,
        accesses=len(keys),
        distinct=first,
        overlap={lag: _overlap(demand, keys, stamp, lag) for lag in sizes if lag < demand.rows},
        cross_layer_overlap=None if layer_before is None else cross_overlap(layer_before, demand),
        working_set={size: _working_set(demand.offsets, keys, size) for size in sizes},
        reuse_distance=_histogram(distances, accesses),
        reuse_interval=_histogram(intervals, accesses),
        first_demands=first / accesses,
        sink_share=ends[0] / accesses,
        recent_share=ends[1] / accesses,
        newest_share=ends[2] / accesses,
        drift=_drift(demand.offsets, keys, len(stamp)),
    )


def adjacent_overlap(demand: Demand) -> float:
    """Return the share of demands that the step before had too, first step apart; nan for one."""
    return _overlap(demand, *stamp_keys(demand.positions), lag=1)


def cross_overlap(first: Demand, second: Demand) -> float:
    """Return the share of the second layer's demands that the first one has in the same step."""
    from hisparse_sim.traces import locality_passes as passes

    low = max(int(first.step[0]), int(second.step[0]))
    stop = min(int(first.step[-1]), int(second.step[-1])) + 1
    if stop <= low:
        return float("nan")
    begins = low - int(first.step[0]), low - int(second.step[0])
    keys, stamp = stamp_keys(np.concatenate([first.positions, second.positions]))
    shared = np.zeros(stop - low, np.int64)
    offsets = second.offsets[begins[1] :]
    passes.count_shared(
        first.offsets[begins[0] :],
        keys[: len(first.positions)],
        offsets,
        keys[len(first.positions) :],
        0,
        stamp,
        shared,
    )
    return _ratio(int(shared.sum()), int(offsets[len(shared)] - offsets[0]))


def summary(found: list[Locality]) -> dict[str, Any]:
    """Return the mean over (request, layer) of every number, with the range of the overlap.

    Lags, window sizes and bins that not every one has are left out (bins count as 0).
    """
    if not found:
        return {}
    columns = {
        name: float(np.mean([getattr(each, name) for each in found]))
        for name in ("distinct", "first_demands", "sink_share", "recent_share", "newest_share")
    }
    for name in ("cross_layer_overlap", "drift"):
        known = [getattr(each, name) for each in found if getattr(each, name) is not None]
        columns[name] = float(np.mean(known)) if known else float("nan")
    tables: dict[str, Any] = {}
    for name in ("overlap", "working_set"):
        common = set.intersection(*(set(getattr(each, name)) for each in found))
        tables[name] = {
            key: float(np.mean([getattr(each, name)[key] for each in found]))
            for key in sorted(common)
        }
    for name in ("reuse_distance", "reuse_interval"):
        every = set.union(*(set(getattr(each, name)) for each in found))
        tables[name] = {
            key: float(np.mean([getattr(each, name).get(key, 0.0) for each in found]))
            for key in sorted(every)
        }
    adjacent = [each.overlap[1] for each in found if 1 in each.overlap]
    extremes = (
        {"lowest_overlap": min(adjacent), "highest_overlap": max(adjacent)} if adjacent else {}
    )
    return {**columns, **extremes, **tables}


def _overlap(demand: Demand, keys: Ints, stamp: Ints, lag: int) -> float:
    from hisparse_sim.traces import locality_passes as passes

    shared = np.zeros(max(0, demand.rows - lag), np.int64)
    offsets = demand.offsets
    passes.count_shared(offsets, keys, offsets, keys, lag, np.zeros_like(stamp), shared)
    return _ratio(int(shared.sum()), int(offsets[-1] - offsets[min(lag, demand.rows)]))


def _working_set(offsets: Longs, keys: Ints, size: int) -> float:
    from hisparse_sim.traces import locality_passes as passes

    distinct = np.zeros((len(offsets) - 1) // size, np.int64)
    stamp = np.zeros(int(keys.max(initial=0)) + 1, np.int32)
    passes.count_distinct(offsets, keys, size, stamp, distinct)
    return float(distinct.mean())


def _histogram(counts: Longs, accesses: int) -> dict[int, float]:
    used = np.flatnonzero(counts)
    return {1 << int(each): int(counts[each]) / accesses for each in used}


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
