"""The curve of one (request, layer) that is in memory."""

import numpy as np

from hisparse_sim.simulator.mrc import lru, optimum
from hisparse_sim.simulator.replay.replaying import check_arguments, rows_of
from hisparse_sim.traces.demand import Demand, Longs

TEXTBOOK_LRU = "textbook-lru"
BELADY = "belady"
ONE_PASS = (TEXTBOOK_LRU, BELADY)


def part_curve(
    demand: Demand, policy: str, largest: int, start: str = "staged", edges: Longs | None = None
) -> Longs:
    """Return the misses of one of ONE_PASS in buffers of every size up to `largest`.

    int64 [largest + 1] by size; those below the longest row have no meaning. With `edges` [w + 1],
    ascending row numbers from 0 to the number of rows, [w, largest + 1]: of the rows between two of
    them. `demand` keeps the rules of the trace file. `start` is as for `replay`.

    Raises ValueError for a policy that is none of these, or bad arguments.
    """
    check_arguments(largest, start)
    if policy not in ONE_PASS:
        raise ValueError(f"{policy!r} has no one-pass curve; {' and '.join(ONE_PASS)} have")
    windows = np.array([0, demand.rows]) if edges is None else edges
    longest = int(np.diff(demand.offsets).max(initial=0))
    empty_below = min(demand.prompt_len, largest + 1) if start == "direct" else 0
    count = _lru if policy == TEXTBOOK_LRU else _belady
    change = np.zeros((len(windows) - 1, max(longest, largest) + 2), np.int64)
    if demand.rows:
        count(demand, max(longest, largest), empty_below, windows, change)
    curves: Longs = np.cumsum(change, axis=1, out=change)[:, : largest + 1]
    return curves[0] if edges is None else curves


def _lru(demand: Demand, largest: int, empty_below: int, edges: Longs, change: Longs) -> None:
    rows, positions = rows_of(demand, largest)
    stack = lru.new_stack(rows, positions, largest)
    outgrown = lru.new_outgrown(rows, positions, largest)
    for own, begin, end in zip(change, edges[:-1], edges[1:], strict=True):
        lru.count(rows, begin, end, empty_below, largest, stack, outgrown, own)


def _belady(demand: Demand, largest: int, empty_below: int, edges: Longs, change: Longs) -> None:
    rows, positions = rows_of(demand, largest)
    longest = int(np.diff(demand.offsets).max())

    def count(sizes: int, filled: bool) -> Longs:
        found = np.zeros((len(edges) - 1, sizes + 2), np.int64)
        levels = optimum.new_levels(rows, positions, sizes, filled)
        for own, begin, end in zip(found, edges[:-1], edges[1:], strict=True):
            optimum.count(rows, begin, end, levels, own)
        return found

    change[:] = count(largest, filled=True)
    if longest < empty_below:
        # Only these start empty: larger ones hold the whole prompt, as under the other start.
        smaller = count(empty_below - 1, filled=False)[:, :empty_below]
        change[:, empty_below] += change[:, :empty_below].sum(axis=1) - smaller.sum(axis=1)
        change[:, :empty_below] = smaller
