"""The passes over positions.

Others import this inside the function that needs it, so that listing or opening a trace does not
load Numba. All arrays are C-contiguous; positions int32, offsets int64.
"""

from hisparse_sim.traces.demand import Ints, Longs
from hisparse_sim.traces.machine_code import compiled

# What `find_fault` returns as the kind.
FINE, STEP, SEQ_LEN, SHRINKS, TOO_LONG, OUTSIDE, REPEATED = range(7)


@compiled
def first_suspect(step: Ints, seq_len: Ints, offsets: Longs, positions: Ints, top_k: int) -> int:
    """Return the first row that is not plainly fine, or the number of rows.

    A strictly ascending row is distinct, and in range if its ends are: this pass needs no memory
    and is all that a sound trace in position order costs.
    """
    rows = len(step)
    for row in range(rows):
        begin, end = offsets[row], offsets[row + 1]
        if row > 0 and (step[row] - 1 != step[row - 1] or seq_len[row] < seq_len[row - 1]):
            return row
        if seq_len[row] < 1 or end - begin > top_k:
            return row
        if end == begin:
            continue
        if positions[begin] < 0 or positions[end - 1] >= seq_len[row]:
            return row
        listed = positions[begin:end]
        unordered = 0
        for i in range(1, len(listed)):  # no early exit: this way it is vectorised
            unordered += listed[i] <= listed[i - 1]
        if unordered > 0:
            return row
    return rows


@compiled
def find_fault(
    step: Ints,
    seq_len: Ints,
    offsets: Longs,
    positions: Ints,
    keys: Ints,  # one small number >= 0 per distinct position, or the positions themselves
    stamp: Ints,  # [largest key + 1], zero; stamp[key] = last row that listed it, plus one
    top_k: int,
    start: int,
) -> tuple[int, int, int, int, int]:
    """Judge rows in any order from `start` on: (kind, row, value, padding, unsorted rows)."""
    padding = 0
    unsorted = 0
    for row in range(start, len(step)):
        if row > 0 and step[row] - 1 != step[row - 1]:
            return STEP, row, step[row - 1], padding, unsorted
        if seq_len[row] < 1:
            return SEQ_LEN, row, seq_len[row], padding, unsorted
        if row > 0 and seq_len[row] < seq_len[row - 1]:
            return SHRINKS, row, seq_len[row - 1], padding, unsorted
        last = -1
        falls = 0
        listed = 0
        for i in range(offsets[row], offsets[row + 1]):
            position = positions[i]
            if position == -1:
                padding += 1
                continue
            if position < 0 or position >= seq_len[row]:
                return OUTSIDE, row, position, padding, unsorted
            if stamp[keys[i]] == row + 1:
                return REPEATED, row, position, padding, unsorted
            stamp[keys[i]] = row + 1
            falls += position < last
            last = position
            listed += 1
        if listed > top_k:
            return TOO_LONG, row, listed, padding, unsorted
        unsorted += falls > 0
    return FINE, 0, 0, padding, unsorted


@compiled
def longest_row(offsets: Longs, positions: Ints) -> int:
    """Return the largest number of positions in a row, padding apart."""
    longest = 0
    for row in range(len(offsets) - 1):
        listed = 0
        for i in range(offsets[row], offsets[row + 1]):
            listed += positions[i] != -1
        longest = max(longest, listed)
    return longest


@compiled
def describe(
    seq_len: Ints,
    offsets: Longs,
    positions: Ints,
    keys: Ints,  # as in `find_fault`
    stamp: Ints,
    first: int,
    recent: int,
) -> tuple[float, int, int, int]:
    """Return what a summary adds up.

    (sum over rows of |S_t and S_(t-1)| / |S_t|, rows in that sum, entries below `first`, entries
    among the `recent` last tokens); S_t are the positions of row t, an empty one has no overlap.
    """
    overlap, pairs, early, late = 0.0, 0, 0, 0
    for row in range(len(seq_len)):
        begin, end = offsets[row], offsets[row + 1]
        common = 0
        for i in range(begin, end):
            common += stamp[keys[i]] == row  # what the row before left; 0 for the first
            stamp[keys[i]] = row + 1
            early += positions[i] < first
            late += positions[i] >= seq_len[row] - recent
        if row > 0 and end > begin:
            overlap += common / (end - begin)
            pairs += 1
    return overlap, pairs, early, late
