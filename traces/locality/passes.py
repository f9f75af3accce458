"""The compiled passes of the locality report. Keys are small numbers, one per distinct position."""

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.traces.demand import Ints, Longs
from hisparse_sim.traces.machine_code import compiled, rule

BLOCK = 64  # accesses that are counted together


@compiled
def count_shared(offsets: Longs, keys: Ints, ahead: int, stamp: Ints, shared: Longs) -> None:
    """shared[i] = entries of row i + `ahead` that row i lists too; `stamp` is zero, one per key."""
    for row in range(len(shared)):
        for i in range(offsets[row], offsets[row + 1]):
            stamp[keys[i]] = row + 1
        count = 0
        for i in range(offsets[row + ahead], offsets[row + ahead + 1]):
            count += stamp[keys[i]] == row + 1
        shared[row] = count


@compiled
def count_shared_layers(
    starts: Longs,  # [layers, steps] where the row of a layer and step begins in `keys`
    stops: Longs,  # [layers, steps]
    keys: Ints,
    listed: NDArray[np.uint8],  # [largest key + 1], zero
    shared: Longs,  # output [layers, layers], zero
) -> None:
    """shared[i, j] += entries that layers i < j both list, over all steps."""
    layers, steps = starts.shape
    for step in range(steps):
        for one in range(layers - 1):
            for i in range(starts[one, step], stops[one, step]):
                listed[keys[i]] = 1
            for other in range(one + 1, layers):
                count = 0
                for i in range(starts[other, step], stops[other, step]):
                    count += listed[keys[i]]
                shared[one, other] += count
            for i in range(starts[one, step], stops[one, step]):
                listed[keys[i]] = 0


@compiled
def count_distinct(offsets: Longs, keys: Ints, window: int, stamp: Ints, distinct: Longs) -> None:
    """distinct[i] = distinct positions of the steps from i * `window` to the next such step."""
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
    newest: NDArray[np.bool_],  # per access: it is the newest token of its step
    last: Longs,  # [largest key + 1], zero; where the key was accessed last, counted from 1
    last_row: Ints,  # [largest key + 1]; in which row
    nearest: Longs,  # outputs [distinct keys + 1], zero: accesses by reuse distance
    distances: Longs,
    farthest: Longs,
    intervals: Longs,  # output [rows + 1], zero: accesses by steps since the last one
) -> int:
    """Count accesses by the distance from the last access to their position; return the first
    accesses.

    The distance of an access is the number of other positions accessed since, without the current
    step. Of those accessed in the same step as the last access, the ones listed behind it count; in
    `nearest` none, in `farthest` all that were not accessed again. Accesses to the newest token are
    left out.
    """
    rows = len(offsets) - 1
    # An access is alive until its position is accessed again: the alive ones are the LRU order.
    alive = np.zeros(len(keys), np.uint8)
    in_block = np.zeros(len(keys) // BLOCK + 1, np.int32)
    in_row = np.zeros(rows + 1, np.int64)
    after = np.zeros(rows + 1, np.int64)  # alive in later rows
    # Most accesses are to the row before, where all are alive: counted once, not for each.
    behind_in_row = np.zeros(len(keys), np.int64)
    first_accesses = 0
    for now in range(rows):
        running = 0
        for row in range(now - 1, -1, -1):
            after[row] = running
            running += in_row[row]
        for i in range(offsets[now], offsets[now + 1]):
            if newest[i]:
                continue
            at = last[keys[i]] - 1
            if at < 0:
                first_accesses += 1
                continue
            row = last_row[keys[i]]
            if row == now - 1:
                behind = behind_in_row[at]
            else:
                behind = _alive_between(at + 1, offsets[row + 1], alive, in_block)
            nearest[after[row]] += 1
            distances[after[row] + behind] += 1
            farthest[after[row] + in_row[row] - 1] += 1
            intervals[now - row] += 1
        for i in range(offsets[now], offsets[now + 1]):
            if newest[i]:
                continue
            at = last[keys[i]] - 1
            if at >= 0:
                alive[at] = 0
                in_block[at // BLOCK] -= 1
                in_row[last_row[keys[i]]] -= 1
            last[keys[i]] = i + 1
            last_row[keys[i]] = now
            alive[i] = 1
            in_block[i // BLOCK] += 1
            in_row[now] += 1
        running = 0
        for i in range(offsets[now + 1] - 1, offsets[now] - 1, -1):
            behind_in_row[i] = running
            running += alive[i]
    return first_accesses


@rule
def _alive_between(begin: int, end: int, alive: NDArray[np.uint8], in_block: Ints) -> int:
    count = 0
    while begin < end and begin % BLOCK:
        count += alive[begin]
        begin += 1
    while begin + BLOCK <= end:
        count += in_block[begin // BLOCK]
        begin += BLOCK
    while begin < end:
        count += alive[begin]
        begin += 1
    return count


@compiled
def count_ends(
    offsets: Longs, positions: Ints, seq_len: Ints, sinks: int, recent: int
) -> NDArray[np.int64]:
    """Count accesses to the first `sinks` positions, to the last `recent`, to the newest one."""
    counts = np.zeros(3, np.int64)
    for row in range(len(seq_len)):
        for i in range(offsets[row], offsets[row + 1]):
            age = seq_len[row] - 1 - positions[i]
            counts[0] += positions[i] < sinks
            counts[1] += age < recent
            counts[2] += age == 0
    return counts
