"""The misses of the textbook LRU at every buffer size, in one pass over a (request, layer).

A step finds its positions on the stack as it was before the step, then moves them to the top in the
order of the row. A buffer of B slots holds the first B of the stack, so an access with d positions
above it hits in every buffer of more than d slots (Mattson et al. 1970, doi:10.1147/sj.92.0078,
with a row in place of a single reference). What is peculiar here is where a buffer starts
(docs/semantics.md):

- It is filled in slot order. Below what was accessed since the start lie the positions under B
  that are untouched, the highest first. Such a position x hits if no more positions of B and above
  were accessed than untouched ones lie below x, which go first. More slots leave fewer positions
  outside: one number, the least B that hits, tells all.
- A buffer larger than the request misses nothing, and starts with the row that outgrows it, however
  often a position was accessed before. So an access may hit below a size and again from a larger
  one on. `Outgrown` follows these sizes; a request longer than all buffers has none.

Misses are added to arrays of changes, whose running sum is the number of misses by buffer size.

How depths are found: accesses get ascending times, and a bit per time says that its position was
not accessed again. Most of a row was in the row before, where depths are places. For the others,
bits are counted: of the words after their own, summed up once a step, and in their own. Times are
given anew when they run out, so that memory grows with the positions and not with the steps.

One file, since a step passes through all of it: every function moves the same arrays.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.hook import count_ones, hook, signed
from hisparse_sim.policies.policy import Indices, Positions, Words
from hisparse_sim.simulator.replay.kernel import Rows
from hisparse_sim.traces.demand import Longs
from hisparse_sim.traces.machine_code import compiled

_WORD = 64  # bits


class Stack(NamedTuple):
    """K: positions of the longest row, and a word more. Time 0 stands for never."""

    row: Longs  # [3] times of the row before: first, end; end of the times to be given
    last: Positions  # [T] time at which a position was accessed last
    held: Positions  # [C] position accessed at a time
    top: Words  # [C / 64] bit: it was not accessed again; those of the row before are not yet set
    above: Positions  # [C / 64] bits in later words, and the length of the row before
    again: npt.NDArray[np.uint8]  # [K] scratch: this entry of the row before is accessed again
    older: Positions  # [K] scratch: times of accesses from before the row before
    entered: Positions  # [K] scratch: the times that they have now
    first: Positions  # [K] scratch: positions accessed for the first time
    seen: Words  # [W] bit: a position, of those that a buffer may start with, was accessed
    seen_below: Longs  # [W + 1] such positions in the words before
    seen_beyond: Longs  # [1] accessed positions that no buffer starts with


class Outgrown(NamedTuple):
    """Buffers of `least`, `least` + 1, ... slots: larger than the request at first, then not."""

    least: int
    row: Indices  # [M] that outgrew the buffer
    last_row: Indices  # [T] that accessed a position last; -1 for none
    kept: Indices  # [M] untouched positions are gone below this one
    gone: Indices  # [M] how many are
    fetched: Indices  # [M] positions outside 0..B-1 that were accessed
    misses: Indices  # [M + 1] scratch: untouched positions missed in a step; running sums
    outside: Indices  # [M + 1] scratch: the same for `fetched`


def new_stack(rows: Rows, positions: int, most: int) -> Stack:
    """Return an empty stack for T `positions` and buffers of up to `most` slots."""
    longest = int(np.diff(rows.offsets).max(initial=0)) + _WORD
    times = 3 * min(positions, len(rows.positions)) + 12 * longest
    return Stack(
        row=np.array([_WORD, _WORD, 12 * longest]),
        last=np.zeros(positions, np.uint32),
        held=np.zeros(times, np.uint32),
        top=np.zeros(times // _WORD + 1, np.uint64),
        above=np.zeros(times // _WORD + 1, np.uint32),
        again=np.zeros(longest, np.uint8),
        older=np.zeros(longest, np.uint32),
        entered=np.zeros(longest, np.uint32),
        first=np.zeros(longest, np.uint32),
        seen=np.zeros(most // _WORD + 1, np.uint64),
        seen_below=np.zeros(most // _WORD + 2, np.int64),
        seen_beyond=np.zeros(1, np.int64),
    )


def new_outgrown(rows: Rows, positions: int, most: int) -> Outgrown:
    """Return what follows the buffers of up to `most` slots that the request outgrows."""
    least = int(rows.seq_len[0])
    sizes = max(0, min(most + 1, int(rows.seq_len[-1])) - least)
    last_row = np.full(positions if sizes else 0, -1, np.int32)
    row, kept, gone, fetched = np.zeros((4, sizes), np.int32)
    misses, outside = np.zeros((2, sizes + 1), np.int32)
    return Outgrown(least, row, last_row, kept, gone, fetched, misses, outside)


@compiled
def count(
    rows: Rows,
    begin: int,
    end: int,
    filled_from: int,  # buffers of fewer slots start empty
    most: int,
    stack: Stack,
    outgrown: Outgrown,
    change: Longs,  # [max(most, K) + 2] output
    compulsory: Longs,  # [most + 2] output
) -> None:
    """Add the misses of the rows from `begin` to `end`, of which all before were counted.

    `compulsory` counts those that no policy avoids: positions accessed for the first time that were
    not in the buffer at the start.
    """
    for now in range(begin, end):
        row = rows.positions[rows.offsets[now] : rows.offsets[now + 1]]
        length = signed(rows.seq_len[now])
        larger = int(
            min(length, most + 1)
        )  # buffers from here on miss nothing, or are not asked for
        if len(outgrown.row) > 0 and now > 0:
            for size in range(rows.seq_len[now - 1], larger):
                outgrown.row[size - outgrown.least] = now
        if stack.row[1] + len(row) + _WORD > stack.row[2]:
            _give_new_times(stack)
        _sum_up(stack)
        demands, older = _enter(stack, row, np.uint32(length - 1))
        change[0] += demands
        _count_row_before(stack, change)
        firsts = _count_older(stack, older, larger, rows.seq_len, outgrown, change)
        if firsts > 0:
            _count_first(stack, firsts, filled_from, larger, outgrown, change, compulsory)
        stack.row[0] = (stack.row[1] + _WORD - 1) // _WORD * _WORD
        stack.row[1] = stack.row[0] + demands
        if len(outgrown.row) > 0:
            _evict_untouched(stack, outgrown, now, larger)


# --- depths ------------------------------------------------------------------------------------


@hook
def _sum_up(stack: Stack) -> None:
    total = np.uint32(stack.row[1] - stack.row[0])
    for word in range(stack.row[0] // _WORD - 1, 0, -1):
        stack.above[np.uint32(word)] = total
        total += np.uint32(count_ones(stack.top[np.uint32(word)]))


@hook
def _enter(stack: Stack, row: Positions, newest: np.uint32) -> tuple[int, int]:
    """Give the positions of a row their times. Return how many there are, and how many of them are
    not from the row before."""
    before = np.uint32(stack.row[0])
    start = np.uint32((stack.row[1] + _WORD - 1) // _WORD * _WORD)
    time, older = start, np.uint32(0)
    for i in range(len(row)):
        position = row[i]
        if position == newest:
            continue
        last = stack.last[position]
        stack.last[position] = time
        stack.held[time] = position
        stack.older[older] = last
        stack.entered[older] = time
        older += np.uint32(last < before)
        time += np.uint32(1)
    return signed(time) - signed(start), signed(older)


@hook
def _count_row_before(stack: Stack, change: Longs) -> None:
    """Count what the row before accessed too; of its entries the last has depth 0."""
    begin, length = stack.row[0], stack.row[1] - stack.row[0]
    for i in range(length):
        time = np.uint32(begin + i)
        stack.again[i] = stack.last[stack.held[time]] != time
    by_depth = change[1 : length + 1]
    for i in range(length):
        by_depth[np.uint32(length - 1 - i)] -= stack.again[i]
    for start in range(0, length, _WORD):
        bits = np.uint64(0)
        for i in range(_WORD):
            bits |= np.uint64(stack.again[np.uint32(start + i)]) << np.uint64(i)
        bits = ~bits
        if length - start < _WORD:
            bits &= (np.uint64(1) << np.uint64(length - start)) - np.uint64(1)
        stack.top[np.uint32((begin + start) // _WORD)] = bits


@hook
def _count_older(
    stack: Stack, older: int, larger: int, seq_len: Indices, outgrown: Outgrown, change: Longs
) -> int:
    """Count what rows before that accessed last; collect first accesses and return their number."""
    one = np.uint64(1)
    firsts = np.uint32(0)
    for i in range(older):
        time = stack.older[i]
        position = stack.held[stack.entered[i]]
        if time == 0:
            stack.first[firsts] = position
            firsts += np.uint32(1)
            continue
        word = time >> np.uint32(6)
        later = (stack.top[word] >> np.uint64(time & np.uint32(63))) >> one
        hits_from = signed(stack.above[word]) + count_ones(later) + 1
        hits_from = min(hits_from, len(change) - 1)
        if len(outgrown.row) > 0:
            started = signed(seq_len[outgrown.last_row[position]])  # larger ones started later
            hits_from = min(hits_from, started)
            again = _kept_from(outgrown, signed(position), started, larger)
            if started < again:
                change[started] += 1
                change[again] -= 1
                outgrown.misses[started - outgrown.least] += 1
                outgrown.misses[again - outgrown.least] -= 1
        change[np.uint32(hits_from)] -= 1
    for i in range(older):
        time = stack.older[i]
        stack.top[time >> np.uint32(6)] &= ~(one << np.uint64(time & np.uint32(63)))
    return signed(firsts)


@hook
def _give_new_times(stack: Stack) -> None:
    """Number the times of all positions from one word on, and the row before behind them."""
    one = np.uint64(1)
    begin, length = stack.row[0], stack.row[1] - stack.row[0]
    time = _WORD
    for word in range(1, begin // _WORD):
        bits = stack.top[word]
        stack.top[word] = np.uint64(0)
        while bits != 0:
            lowest = count_ones((bits & (~bits + one)) - one)
            bits &= bits - one
            position = stack.held[word * _WORD + lowest]
            stack.held[time] = position
            stack.last[position] = time
            time += 1
    for word in range(1, time // _WORD):
        stack.top[word] = ~np.uint64(0)
    if time % _WORD:
        stack.top[time // _WORD] = (one << np.uint64(time % _WORD)) - one
    stack.row[0] = (time + _WORD - 1) // _WORD * _WORD
    stack.row[1] = stack.row[0] + length
    for i in range(length):
        position = stack.held[begin + i]
        stack.held[stack.row[0] + i] = position
        stack.last[position] = stack.row[0] + i
    # Few words to sum up in every step, but not too few: this would be called too often.
    stack.row[2] = int(min(len(stack.held), 3 * time + 8 * len(stack.again)))


# --- starts ------------------------------------------------------------------------------------


@hook
def _count_first(
    stack: Stack,
    firsts: int,
    filled_from: int,
    larger: int,
    outgrown: Outgrown,
    change: Longs,
    compulsory: Longs,
) -> None:
    """Count positions accessed for the first time: hits where they are still there from the
    start."""
    one = np.uint64(1)
    total = 0
    for word in range(len(stack.seen)):
        stack.seen_below[word] = total
        total += count_ones(stack.seen[word])
    stack.seen_below[len(stack.seen)] = total
    seen = total + stack.seen_beyond[0]
    least, sizes = outgrown.least, len(outgrown.row)
    for i in range(firsts):
        position = signed(stack.first[i])
        hits_from = larger
        word = position // _WORD
        if word < len(stack.seen):
            below = stack.seen[word] & ((one << np.uint64(position % _WORD)) - one)
            lower = stack.seen_below[word] + count_ones(below)
            untouched = position - lower  # below it: they go first
            if seen - lower <= untouched:
                hits_from = min(hits_from, position + 1)
            elif stack.seen_beyond[0] <= untouched:  # so many positions may be outside
                hits_from = min(hits_from, _seen(stack, seen - untouched - 1) + 1)
        if hits_from > least:
            hits_from = _kept_from(outgrown, position, least, larger)
            inside = max(least, position + 1)
            if inside < hits_from:
                outgrown.misses[inside - least] += 1
                outgrown.misses[hits_from - least] -= 1
            if position >= least:
                outgrown.outside[0] += 1
                outgrown.outside[min(position + 1 - least, sizes)] -= 1
        change[max(hits_from, filled_from)] -= 1
        compulsory[0] += 1
        compulsory[max(filled_from, min(position + 1, larger))] -= 1
    for i in range(firsts):
        position = signed(stack.first[i])
        word = position // _WORD
        if word < len(stack.seen):
            stack.seen[word] |= one << np.uint64(position % _WORD)
        else:
            stack.seen_beyond[0] += 1


@hook
def _seen(stack: Stack, number: int) -> int:
    """Return the seen position that so many are below."""
    word = np.searchsorted(stack.seen_below, number, side="right") - 1
    bits = stack.seen[word]
    for _ in range(number - stack.seen_below[word]):
        bits &= bits - np.uint64(1)
    lowest = count_ones((bits & (~bits + np.uint64(1))) - np.uint64(1))
    return signed(word * _WORD + lowest)


@hook
def _kept_from(outgrown: Outgrown, position: int, first: int, end: int) -> int:
    """Return the least buffer from `first` on, or `end`, that holds a position untouched since its
    start."""
    low, high = max(first, position + 1), end
    while low < high:
        middle = (low + high) // 2
        if outgrown.kept[middle - outgrown.least] <= position:
            high = middle
        else:
            low = middle + 1
    return min(low, end)


@hook
def _evict_untouched(stack: Stack, outgrown: Outgrown, now: int, larger: int) -> None:
    """Bring the buffers up to date: each position fetched from outside has evicted one."""
    for time in range(stack.row[0], stack.row[1]):
        outgrown.last_row[stack.held[time]] = now
    misses, outside = 0, 0
    for i in range(larger - outgrown.least):
        misses += outgrown.misses[i]
        outside += outgrown.outside[i]
        outgrown.misses[i] = outgrown.outside[i] = 0
        gone, kept = outgrown.gone[i] - misses, outgrown.kept[i]
        outgrown.fetched[i] += outside
        while kept < outgrown.least + i and gone < outgrown.fetched[i]:
            gone += outgrown.last_row[kept] < outgrown.row[i]
            kept += 1
        outgrown.gone[i], outgrown.kept[i] = gone, kept
    outgrown.misses[max(0, larger - outgrown.least)] = 0
    outgrown.outside[max(0, larger - outgrown.least)] = 0
