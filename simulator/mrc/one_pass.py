"""The curves of one (request, layer) that is in memory."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from hisparse_sim.simulator.mrc import lru, optimum
from hisparse_sim.simulator.mrc.names import BELADY, COMPULSORY, ONE_PASS, TEXTBOOK_LRU
from hisparse_sim.simulator.replay.replaying import check_arguments, rows_of
from hisparse_sim.traces.demand import Demand, Longs


def part_curve(
    demand: Demand, policy: str, largest: int, start: str = "staged", edges: Longs | None = None
) -> Longs:
    """Return the misses of one of ONE_PASS in buffers of every size up to `largest`.

    int64 [largest + 1] by size; those below the longest row have no meaning. With `edges` [w + 1],
    ascending row numbers from 0 to the number of rows, [w, largest + 1]: of the rows between two of
    them. `demand` keeps the rules of the trace file. `start` is as for `replay`. "compulsory"
    stands for the misses that no policy avoids.

    Raises ValueError for a policy that is none of these, or bad arguments.
    """
    windows = np.array([0, demand.rows]) if edges is None else edges
    curve = part_curves(demand, [policy], largest, start, windows)[policy]
    return curve[0] if edges is None else curve


def part_curves(
    demand: Demand, policies: Iterable[str], largest: int, start: str, edges: Longs
) -> dict[str, Longs]:
    """Return the curves of several policies, as `part_curve` does with `edges`."""
    check_arguments(largest, start)
    policies = tuple(policies)
    for policy in policies:
        if policy not in ONE_PASS:
            known = ", ".join(ONE_PASS)
            raise ValueError(f"{policy!r} has no one-pass curve; {known} have")
    longest = int(np.diff(demand.offsets).max(initial=0))
    most = max(longest, largest)
    empty_below = min(demand.prompt_len, most + 1) if start == "direct" else 0
    changes = {policy: np.zeros((len(edges) - 1, most + 2), np.int64) for policy in ONE_PASS}
    if demand.rows and {TEXTBOOK_LRU, COMPULSORY} & set(policies):
        _lru(demand, most, empty_below, edges, changes[TEXTBOOK_LRU], changes[COMPULSORY])
    if demand.rows and BELADY in policies:
        _belady(demand, most, empty_below, edges, changes[BELADY])
    return {policy: np.cumsum(changes[policy], axis=1)[:, : largest + 1] for policy in policies}


def _lru(
    demand: Demand,
    largest: int,
    empty_below: int,
    edges: Longs,
    change: Longs,
    compulsory: Longs,
) -> None:
    rows, positions = rows_of(demand, largest)
    stack = lru.new_stack(rows, positions, largest)
    outgrown = lru.new_outgrown(rows, positions, largest)
    for number, (begin, end) in enumerate(pairwise(edges)):
        lru.count(
            rows,
            begin,
            end,
            empty_below,
            largest,
            stack,
            outgrown,
            change[number],
            compulsory[number],
        )


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
