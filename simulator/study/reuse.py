"""When the positions of each step are accessed again: all that an optimum needs to know.

An optimum never asks which position a slot holds, only when it is accessed next. So the positions
of a (request, layer) are counted by (step, next step), once, and every optimum is then computed
from these counts without looking at a position again: `least.py`, `barrier.py`.

Letters: n steps of which all are longer than the buffer, T positions.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.policy import Indices
from hisparse_sim.simulator.replay.kernel import Rows
from hisparse_sim.simulator.replay.replaying import check_arguments, rows_of
from hisparse_sim.simulator.replay.starts import ALL_STARTS, WARM, counted
from hisparse_sim.traces import Demand, TraceError
from hisparse_sim.traces.machine_code import compiled

MOST_STEPS = 4096  # the counts of that many take 64 MiB
WINDOW = 8  # steps between the ones from which windows are counted

Counts = npt.NDArray[np.int32]


class Reuse(NamedTuple):
    """Steps are counted from the first that is longer than the buffer; step n means never."""

    buffer_size: int  # B
    accessed: Counts  # [n] positions of a step, without the newest token
    again: Counts  # [n, n + 1] those accessed in step i and next in step j
    resident: Counts  # [n + 1] positions in the buffer at the start, by their first step
    newest: Indices  # [n] step in which the newest token of step i is accessed; -1: it stays newest
    known: Counts  # [n / WINDOW, n + 1] all positions there are at step i * WINDOW, by next step

    @property
    def steps(self) -> int:
        return len(self.accessed)


def reuse_of(demand: Demand, buffer_size: int, start: str = "staged") -> Reuse:
    """Count the steps of a (request, layer) for a buffer of B slots; see docs/semantics-bounds.md.

    Raises TraceError for more steps than `MOST_STEPS`, ValueError for bad arguments.
    """
    check_arguments(buffer_size, start, ALL_STARTS)
    if start == WARM:
        return _warmed(demand, buffer_size)
    first = int(np.searchsorted(demand.seq_len, buffer_size, side="right"))
    steps = demand.rows - first
    if steps > MOST_STEPS:
        raise TraceError(
            f"request {demand.request!r} has {steps:,} steps, and an optimum is computed of at most"
            f" {MOST_STEPS:,}: select some with `steps`"
        )
    shape = (steps, steps + 1)
    found = Reuse(
        buffer_size,
        np.zeros(steps, np.int32),
        np.zeros(shape, np.int32),
        np.zeros(steps + 1, np.int32),
        np.full(steps, -1, np.int32),
        np.zeros((-(-steps // WINDOW), steps + 1), np.int32),
    )
    if steps:
        rows, positions = rows_of(demand, buffer_size)
        filled = start == "staged" or demand.prompt_len <= buffer_size or first > 0
        _count(rows, first, positions, buffer_size if filled else 0, found)
    return found


def _warmed(demand: Demand, buffer_size: int) -> Reuse:
    """Return the steps after the first, which leaves in the buffer what MIN would: contents that
    are best for all steps after it are best for any first few of them."""
    reuse = reuse_of(counted(demand, WARM), buffer_size)
    whole = reuse_of(demand, buffer_size)
    if whole.steps == reuse.steps:  # the first step fits into the buffer
        return reuse
    below = np.minimum(np.cumsum(whole.resident[1:]), buffer_size - whole.accessed[0])
    held = np.diff(below, prepend=0) + whole.again[0, 1:]
    return reuse._replace(resident=held.astype(np.int32))


@compiled
def _count(rows: Rows, first: int, positions: int, filled: int, reuse: Reuse) -> None:
    steps = len(reuse.accessed)
    following = np.full(positions + 1, steps, np.int32)  # step of the next access
    for step in range(steps - 1, -1, -1):
        row = first + step
        newest = rows.seq_len[row] - 1
        if step + 1 < steps and rows.seq_len[row + 1] > rows.seq_len[row]:
            reuse.newest[step] = following[newest]
        elif step + 1 == steps:
            reuse.newest[step] = steps
        for i in range(rows.offsets[row], rows.offsets[row + 1]):
            position = rows.positions[i]
            if position != newest:
                reuse.again[step, following[position]] += 1
                following[position] = step
                reuse.accessed[step] += 1
        if step % WINDOW == 0:
            for position in range(newest):
                reuse.known[step // WINDOW, following[position]] += 1
    for position in range(filled):
        reuse.resident[following[position]] += 1
