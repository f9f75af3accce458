"""What is wrong with the rows that an engine returned, from evidence in the rows.

A row is what one layer selected in one decode step: [top_k] positions, distinct, of the query's own
past, -1 as padding. Most faults are in single rows. If the engine reported locations in its memory
instead of positions, or the rows of other tokens, nearly all rows show it.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.traces.demand import Longs

Flags = npt.NDArray[np.bool_]

_ROWS_TRUSTED = 8  # so many that agree are no chance
_MOST_LAYERS, _MOST_ROWS = 64, 2048  # that are looked at to say how many rows are alike


@dataclass(frozen=True)
class Fault:
    """Why a request cannot be part of a trace."""

    row: int  # the first that is unusable in its layer
    what: str  # a clause behind "layer L, step S"
    common: bool  # most rows are unusable: those of other requests will be, too
    slots: bool = False  # most rows look like places in the engine's memory
    shift: int = 0  # tokens that most rows stand above their queries


def unusable(listed: Any, seq_len: Longs) -> Flags:
    """Return [rows] which rows no trace can hold. Short ones can, and those without a position.

    listed: [rows, top_k] of one layer; seq_len: [rows] positions that the query could choose from.
    """
    signs = _signs(listed, seq_len)
    return (signs.above > 0) | signs.negative | signs.repeated


def diagnose(array: Any, seq_len: Longs, layer: int, tokens: int = 1) -> Fault:
    """Return what is wrong with the first unusable row of a layer, seen beside the other rows.

    array: [rows, layers, top_k] decode rows of one request; seq_len: [rows]; layer: place in the
    array of one that has an unusable row; tokens: of a position.
    """
    listed = np.asarray(array[:, layer, :])
    row = int(unusable(listed, seq_len).argmax())
    seen = _look(array, seq_len)
    what = _row_fault(listed[row], int(seq_len[row]))
    share = f"{seen.bad:,} of {seen.rows:,} rows looked at are unusable"
    common = 2 * seen.bad > seen.rows
    if seen.shift > 0 and tokens == 1:
        # In one block of memory even the first positions of the text have moved.
        if seen.least >= seen.shift or seen.shift >= seq_len[-1]:
            return Fault(row, f"{what} ({share})", common, slots=True)
        what += f", and the newest position of most rows is {seen.shift} above their query"
        return Fault(row, what, common, shift=seen.shift)
    if 2 * seen.scattered > seen.rows:
        return Fault(row, f"{what} ({share})", common, slots=True)
    what += _out_of_order(listed, seq_len, row)
    return Fault(row, what if seen.bad == 1 else f"{what} ({share})", common)


class _Signs(NamedTuple):
    """[rows] each."""

    above: Longs  # positions at or above seq_len
    negative: Flags  # lists a number below -1
    repeated: Flags  # lists a position twice


def _signs(listed: Any, seq_len: Longs) -> _Signs:
    ordered = np.sort(listed, axis=1)
    same = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    above = (listed >= seq_len[:, None]).sum(axis=1)
    return _Signs(above, (listed < -1).any(axis=1), same.any(axis=1))


class _Seen(NamedTuple):
    """What the rows of a request show together."""

    rows: int
    bad: int
    scattered: int  # rows of distinct positions, several of them behind the query
    least: int  # position of the rows that have the shift
    shift: int  # from the query to the newest position of most rows; 0 where it varies


def _look(array: Any, seq_len: Longs) -> _Seen:
    rows = slice(None, None, -(-len(array) // _MOST_ROWS))
    seq_len = seq_len[rows]
    bad = scattered = 0
    lowest, shifts = [], []
    for layer in range(0, array.shape[1], -(-array.shape[1] // _MOST_LAYERS)):
        listed = np.asarray(array[rows, layer, :])
        above, negative, repeated = _signs(listed, seq_len)
        bad += int(((above > 0) | negative | repeated).sum())
        scattered += int(((above > 1) & ~negative & ~repeated).sum())
        lowest.append(np.where(listed < 0, np.iinfo(listed.dtype).max, listed).min(axis=1))
        shifts.append(listed.max(axis=1).astype(np.int64) - (seq_len - 1))
    every = np.concatenate(shifts)
    usual = int(np.median(every))
    alike = every == usual
    trusted = len(every) >= _ROWS_TRUSTED and 2 * int(alike.sum()) > len(every)
    least = int(np.concatenate(lowest)[alike].min()) if trusted else 0
    return _Seen(len(every), bad, scattered, least, usual if trusted else 0)


def _row_fault(row: Any, seq_len: int) -> str:
    """Return what is wrong with one unusable row, as a clause."""
    query = seq_len - 1
    if len(row) > 1 and (row == row[0]).all():
        return f"lists {int(row[0])} {len(row):,} times, as if it had never been written"
    for wrong, why in (
        (row[row < -1], "and only -1 is padding"),
        (row[row > query], f"and the query stands at {query}"),
    ):
        if len(wrong):
            extreme = int(wrong[np.argmax(np.abs(wrong.astype(np.float64)))])
            more = f" and {len(wrong) - 1:,} more such" if len(wrong) > 1 else ""
            return f"lists {extreme}{more}, {why}"
    values, counts = np.unique(row[row >= 0], return_counts=True)
    values, counts = values[counts > 1], counts[counts > 1]
    times = "twice" if counts[0] == 2 else f"{counts[0]:,} times"
    more = f", and {len(values) - 1:,} more positions repeatedly" if len(values) > 1 else ""
    return f"lists {int(values[0])} {times}{more}"


def _out_of_order(listed: Any, seq_len: Longs, row: int) -> str:
    """Return a clause on whose place the row has, if its newest position tells; else nothing."""
    newest, query = listed.max(axis=1), seq_len - 1
    (places,) = np.nonzero(query == newest[row])
    if len(places) != 1 or unusable(listed[row : row + 1], seq_len[places]).any():
        return ""
    place = int(places[0])
    if newest[place] == query[row]:
        return f": it and step {place} are swapped, each lists what the other could"
    if (np.sort(newest) == query).all():
        return f": it is the row of step {place}, and those of its layer are out of order"
    return ""
