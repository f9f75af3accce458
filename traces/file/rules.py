"""The rules for every (request, layer) of a trace."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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


def check_rows(
    step: Ints,
    seq_len: Ints,
    lists: Ragged,
    top_k: int,
    query: Ints | None = None,
    draft_tokens: int = 1,
) -> Tally:
    """Raise RowError for a row that breaks a rule; -1 in a row is skipped.

    Step numbers have no gaps, seq_len >= 1 never shrinks, positions are distinct, in
    [0, seq_len), and at most `top_k` a row. With `query`, those of a step count from 0, each
    has one token more than the one before, and the step after it has 1 to all of them more. There
    are at most `draft_tokens` a step.
    """
    if query is not None:
        _check_queries(step, seq_len, query, draft_tokens)
        _check_range(seq_len, lists)  # below, a row may list what the longest before it had
        step = np.arange(len(step), dtype=np.int32)
        seq_len = np.maximum.accumulate(seq_len)
    return _check_rows(step, seq_len, lists, top_k)


def _check_queries(step: Ints, seq_len: Ints, query: Ints, draft_tokens: int) -> None:
    same = np.diff(step) == 0
    expected = np.where(same, query[:-1] + 1, 0)
    first = np.concatenate([[0], expected])
    wrong = query != first
    if wrong.any():
        row = int(wrong.argmax())
        raise RowError(row, f"row is {query[row]}, expected {first[row]}: queries count from 0")
    if query.max(initial=0) >= draft_tokens:
        row = int(query.argmax())
        raise RowError(row, f"row is {query[row]}, and draft_tokens {draft_tokens}")
    gap = np.diff(step).astype(np.int64)
    wrong = (gap != 0) & (gap != 1)
    if wrong.any():
        row = int(wrong.argmax()) + 1
        raise RowError(row, f"the step before it is {step[row - 1]}, and steps may have no gaps")
    if len(seq_len) and seq_len.min() < 1:
        row = int(seq_len.argmin())
        raise RowError(row, f"seq_len is {seq_len[row]}, expected at least 1")
    grown = np.diff(seq_len.astype(np.int64))
    wrong = same & (grown != 1)
    if wrong.any():
        row = int(wrong.argmax()) + 1
        raise RowError(
            row,
            f"query {query[row]} has seq_len {seq_len[row]}, expected one more than the"
            f" {seq_len[row - 1]} of the query before it",
        )
    heads = np.flatnonzero(query == 0)
    accepted = np.diff(seq_len[heads].astype(np.int64))
    queries = np.diff(heads)
    wrong = (accepted < 1) | (accepted > queries)
    if wrong.any():
        place = int(wrong.argmax())
        raise RowError(
            int(heads[place + 1]),
            f"seq_len grew by {accepted[place]} since the step before, which had"
            f" {queries[place]} queries: a step accepts 1 to all of its tokens",
        )


def _check_range(seq_len: Ints, lists: Ragged) -> None:
    filled = np.flatnonzero(np.diff(lists.offsets))
    if len(filled) == 0:
        return
    highest = np.maximum.reduceat(lists.values, lists.offsets[filled])
    wrong = highest >= seq_len[filled]
    if wrong.any():
        place = int(wrong.argmax())
        row = int(filled[place])
        raise RowError(row, outside(int(highest[place]), int(seq_len[row])))


def _check_rows(step: Ints, seq_len: Ints, lists: Ragged, top_k: int) -> Tally:
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
        raise RowError(row, f"the row lists {value:,} positions, but top_k is {top_k:,}")
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


def finite(scores: NDArray[np.float16], offsets: Longs) -> NDArray[np.float16]:
    """Return the scores of rows, infinite ones as the largest of float16, as captures store them:
    policies subtract. Raises RowError for one that is not a number."""
    if np.isfinite(scores).all():
        return scores
    wrong = np.isnan(scores)
    if wrong.any():
        row = int(np.searchsorted(offsets, wrong.argmax(), "right")) - 1
        raise RowError(row, "a score is NaN, not a number")
    limits = np.finfo(np.float16)
    return np.clip(scores, limits.min, limits.max)
