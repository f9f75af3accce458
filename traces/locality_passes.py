"""The compiled passes of the locality report. Keys are small numbers, one per distinct position."""

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.traces.demand import Ints, Longs
from hisparse_sim.traces.passes import compiled


@compiled
def count_shared(
    offsets: Longs,
    keys: Ints,
    other_offsets: Longs,
    other_keys: Ints,
    ahead: int,
    stamp: Ints,  # [largest key + 1], zero
    shared: Longs,  # output [pairs]
) -> None:
    """shared[i] = entries of row i + `ahead` of the other rows that row i lists too."""
    for row in range(len(shared)):
        for i in range(offsets[row], offsets[row + 1]):
            stamp[keys[i]] = row + 1
        count = 0
        for i in range(other_offsets[row + ahead], other_offsets[row + ahead + 1]):
            count += stamp[other_keys[i]] == row + 1
        shared[row] = count


@compiled
def count_distinct(offsets: Longs, keys: Ints, window: int, stamp: Ints, distinct: Longs) -> None:
    """distinct[i] = positions that the steps from i * `window` to the next such step demand."""
    for each in range(len(distinct)):
        count = 0
        for i in range(offsets[each * window], offsets[(each + 1) * window]):
            count += stamp[keys[i]] != each + 1
            stamp[keys[i]] = each + 1
        distinct[each] = count


@compiled
def count_reuse(
    offsets: Longs,
    keys: Ints,
    last: Ints,  # [largest key + 1], zero; step of the last demand, counted from 1
    distances: Longs,  # output [bins], zero
    intervals: Longs,  # output [bins], zero
) -> int:
    """Histogram both distances since the last demand of a position; return the first demands.

    Bin b counts values v with 2^(b-1) <= v < 2^b, bin 0 the value 0. The distance is the number of
    distinct positions demanded in the steps between the two demands, the interval the number of
    steps from one to the other.
    """
    rows = len(offsets) - 1
    held = np.zeros(rows + 2, np.int64)  # positions whose last demand was in step s
    later = np.zeros(rows + 2, np.int64)  # ... in a step after s
    first_demands = 0
    for now in range(1, rows + 1):
        running = 0
        for step in range(now - 1, -1, -1):
            later[step] = running
            running += held[step]
        for i in range(offsets[now - 1], offsets[now]):
            step = last[keys[i]]
            if step == 0:
                first_demands += 1
            else:
                distances[_bin_of(later[step])] += 1
                intervals[_bin_of(now - step)] += 1
        for i in range(offsets[now - 1], offsets[now]):
            step = last[keys[i]]
            if step > 0:
                held[step] -= 1
            last[keys[i]] = now
            held[now] += 1
    return first_demands


@compiled
def _bin_of(value: int) -> int:
    bits = 0
    while value > 0:
        value >>= 1
        bits += 1
    return bits


@compiled
def count_ends(
    offsets: Longs, positions: Ints, seq_len: Ints, sinks: int, recent: int
) -> NDArray[np.int64]:
    """Count demands of the first `sinks` positions, of the last `recent`, of the newest one."""
    counts = np.zeros(3, np.int64)
    for row in range(len(seq_len)):
        for i in range(offsets[row], offsets[row + 1]):
            age = seq_len[row] - 1 - positions[i]
            counts[0] += positions[i] < sinks
            counts[1] += age < recent
            counts[2] += age == 0
    return counts
