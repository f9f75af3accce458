"""The steps of a demand as a buffer sees them: what is resident left out, queries put together."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.traces import Demand
from hisparse_sim.traces.demand import Ints, Longs
from hisparse_sim.traces.file.rules import stamp_keys
from hisparse_sim.traces.machine_code import compiled


class Steps(NamedTuple):
    """What asks for the hot buffer in every step, query after query."""

    heads: Longs  # [steps + 1] the first row of each step
    committed: Longs  # [steps] S: tokens before the first query
    offsets: Longs  # [rows + 1]
    positions: Ints  # [offsets[rows]] in the order of the rows
    left_out: int  # positions that are read elsewhere


def steps_of(demand: Demand, lower: npt.NDArray[np.int64], upper: npt.NDArray[np.int64]) -> Steps:
    """Return the steps with the positions in [lower, upper) alone; both are [steps]."""
    heads = np.append(demand.first_rows, demand.rows)
    queries = np.diff(heads)
    offsets, positions = _within(
        demand.offsets, demand.positions, np.repeat(lower, queries), np.repeat(upper, queries)
    )
    return Steps(
        heads,
        demand.seq_len[heads[:-1]].astype(np.int64) - 1,
        offsets,
        positions,
        len(demand.positions) - len(positions),
    )


def union_of(steps: Steps) -> tuple[Longs, Ints]:
    """Return (offsets [steps + 1], positions): those of all queries of a step, each once, in the
    order in which they are first listed."""
    keys, stamp = stamp_keys(steps.positions)
    return _unions(steps.heads, steps.offsets, steps.positions, keys, stamp)


@compiled
def _within(offsets: Longs, positions: Ints, lower: Longs, upper: Longs) -> tuple[Longs, Ints]:
    kept = np.empty(len(positions) + 1, np.int32)
    edges = np.zeros(len(offsets), np.int64)
    count = 0
    for row in range(len(offsets) - 1):
        low, high = lower[row], upper[row]
        for i in range(offsets[row], offsets[row + 1]):
            position = positions[i]
            kept[count] = position
            count += (position >= low) & (position < high)
        edges[row + 1] = count
    return edges, kept[:count]


@compiled
def _unions(
    heads: Longs, offsets: Longs, positions: Ints, keys: Ints, stamp: Ints
) -> tuple[Longs, Ints]:
    found = np.empty(len(positions) + 1, np.int32)
    edges = np.zeros(len(heads), np.int64)
    count = 0
    for step in range(len(heads) - 1):
        for i in range(offsets[heads[step]], offsets[heads[step + 1]]):
            found[count] = positions[i]
            count += stamp[keys[i]] != step + 1
            stamp[keys[i]] = step + 1
        edges[step + 1] = count
    return edges, found[:count]
