"""The rules for every (request, layer) of a trace."""

from typing import NamedTuple

import numpy as np

from hisparse_sim.traces.demand import Ints, Longs, Ragged

# Above it positions are numbered anew before a pass that needs memory per position: a seq_len of
# 2^31 in a damaged file must not make us allocate 8 GB.
LARGEST_STAMP = 1 << 24


class RowError(Exception):
    """A rule broken in one row; the caller knows file, request and layer and adds them."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row
        self.what = what


class Tally(NamedTuple):
    """What the rules tolerate and careful users want to know."""

    padding: int = 0  # entries of -1, skipped
    unsorted_rows: int = 0


def check_rows(step: Ints, seq_len: Ints, lists: Ragged, top_k: int) -> Tally:
    """Raise RowError for the first row that breaks a rule; -1 in a row is skipped.

    Step numbers have no gaps, seq_len >= 1 never shrinks, positions are distinct, in
    [0, seq_len), and at most `top_k` a row.
    """
    from hisparse_sim.traces.file import passes

    start = passes.first_suspect(step, seq_len, lists.offsets, lists.values, top_k)
    if start == len(step):
        return Tally()
    keys, stamp = stamp_keys(lists.values)
    kind, row, value, padding, unsorted = passes.find_fault(
        step, seq_len, lists.offsets, lists.values, keys, stamp, top_k, start
    )
    if kind == passes.FINE:
        return Tally(padding, unsorted)
    if kind == passes.STEP and step[row] == value:
        raise RowError(row, "the step has more than one row")
    if kind == passes.STEP:
        raise RowError(row, f"the step before it is {value}, and steps may have no gaps")
    if kind == passes.SEQ_LEN:
        raise RowError(row, f"seq_len is {value}, expected at least 1")
    if kind == passes.SHRINKS:
        raise RowError(row, f"seq_len shrinks from {value} to {seq_len[row]}")
    if kind == passes.TOO_LONG:
        raise RowError(row, f"the row lists {value} positions, but top_k is {top_k}")
    if kind == passes.OUTSIDE:
        raise RowError(row, outside(value, int(seq_len[row])))
    raise RowError(row, f"position {value} is listed twice")


def outside(position: int, seq_len: int) -> str:
    """Return the sentence for a position that the request does not have."""
    return f"position {position} is outside [0, seq_len = {seq_len})"


def stamp_keys(positions: Ints) -> tuple[Ints, Ints]:
    """Return (keys, stamp): a small key per position, and a zeroed array with a place for each."""
    highest = int(positions.max(initial=-1))
    keys = positions
    if highest >= max(LARGEST_STAMP, len(positions)):
        distinct, inverse = np.unique(positions, return_inverse=True)
        keys, highest = inverse.astype(np.int32), len(distinct)
    return keys, np.zeros(highest + 1, dtype=np.int32)


def strip_padding(lists: Ragged) -> tuple[Ragged, np.ndarray]:
    """Return the lists without their entries of -1, and which entries were kept."""
    kept = lists.values != -1
    before: Longs = np.zeros(len(kept) + 1, dtype=np.int64)
    np.cumsum(kept, out=before[1:])
    return Ragged(before[lists.offsets], lists.values[kept]), kept
