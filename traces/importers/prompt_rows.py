"""Rows of the prompt among decode rows: how all importers recognise them.

A prompt is prefilled in passes of its own, mostly dense and without a buffer: taken for decode
steps, its rows change every figure of a replay.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hisparse_sim.traces.demand import Longs
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.diagnosis import unusable

ROWS_READ = 64  # to see where rows begin
ROWS_TRUSTED = 8  # so many that agree are not by chance

LEFT_OUT = "prompt_rows_left_out"  # in the notes of a trace: (request, layer, step) rows


class Sign(NamedTuple):
    """Evidence for rows of the prompt."""

    certain: bool
    what: str  # a clause that begins with the row
    query: int  # position of the query in row 0, as the rows tell it


def sign_of_prompt(
    rows: Sequence[Any],  # of integers, the first of one layer; -1 is padding
    seq_len: Longs,  # [rows] positions, by what the file or the user says
    width: int,  # most positions that a row lists
    tokens: int = 1,  # of a position
) -> Sign | None:
    """Return what speaks against the rows as decode steps of that length, None if nothing does."""
    if len(rows) == 0:
        return None
    expected = np.minimum(width, seq_len)
    newest = np.array([int(max(row, default=-1)) for row in rows])
    counts = np.array([int((row >= 0).sum()) for row in rows])
    numbers = np.arange(len(rows))
    if 0 < counts[0] < expected[0] and newest[0] == counts[0] - 1:
        # A query within top_k lists its whole past.
        why = f"row 0 lists nothing but the positions up to {newest[0]}"
        return Sign(True, why, int(newest[0]))
    if len(rows) >= ROWS_TRUSTED and (newest <= numbers // tokens).all():
        why = f"of its first {len(rows)} none lists a position above its own number"
        return Sign(True, why, 0)
    # The newest token is nearly always listed: so it tells the position of the query.
    before = newest - numbers
    rising = len(rows) >= ROWS_TRUSTED and tokens == 1 and bool((before == before[0]).all())
    if rising and before[0] < seq_len[0] - 2:
        return Sign(
            False,
            f"the newest position of row 0 is {before[0]}, rising by 1 per row",
            int(before[0]),
        )
    return None


def doubt_of_tokens(rows: Any, seq_len: Longs, place: str, tokens: int = 1) -> str | None:
    """Return a sentence if the decode rows of an answer seem to be those of other tokens.

    rows: [rows, top_k] of one layer; seq_len: [rows] by what the answer counts.
    Raises TraceError, beginning with `place`, if they can only be rows of the prompt.
    """
    count = min(ROWS_READ, len(rows))
    first = np.asarray(rows[:count]).astype(np.int64)
    if unusable(first, seq_len[:count]).any():
        return None  # `captured.demands` says what is wrong with them
    sign = sign_of_prompt(list(first), seq_len[:count], rows.shape[1], tokens)
    if sign is None:
        return None
    what = (
        f"{place}: {sign.what}, and the query of the first decode step stands at {seq_len[0] - 1}"
    )
    if sign.certain:
        raise TraceError(f"{what}: these are rows of the prompt")
    return f"{what}: the rows may be those of other tokens"


def first_of(doubts: Sequence[str], of: str = "requests") -> tuple[str, ...]:
    """Return the first, and how many other requests, or what `of` says, have one: there may be
    thousands."""
    if len(doubts) < 2:
        return tuple(doubts)
    return (f"{doubts[0]} (the same of {len(doubts) - 1} other {of})",)


def prompt_len_of_answer(given: int | None, counted: Any, place: str, key: str) -> int:
    """Return the prompt of an answer: `given` by the user, else what the answer itself counts.

    Raises TraceError if there is neither, or if rows of the prompt would become decode steps.
    """
    known = type(counted) is int and counted >= 0
    if given is None:
        if not known:
            raise TraceError(f"{place} has no {key}: give `prompt_len`")
        return int(counted)
    if known and given < counted:
        raise TraceError(
            f"{place} counts {counted:,} tokens of its prompt, and with `prompt_len` {given} the "
            f"last {counted - given:,} would become decode steps: leave it out"
        )
    return given
