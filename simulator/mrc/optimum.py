"""The misses of Belady's optimum at every buffer size, in one pass over a (request, layer).

The optimum keeps what is accessed again soonest, so the buffers of all sizes can be chosen to
contain each other: level B of a stack holds what a buffer of B slots has and one of B - 1 has not
(Mattson et al. 1970, doi:10.1147/sj.92.0078). A step accesses a whole row S at once. Every buffer
of B >= |S| slots keeps S and, of the others that it held, the B - |S| that are accessed soonest.
Going down the stack, a pool collects the others; each level adds the one it held, unless that is in
S, and takes the soonest from the pool. The pool holds as many positions as a buffer of that size
misses, and its soonest access only moves back: an access before it never waits in the pool. So
lists by step of access do for a queue, and one pass takes a few operations a level.

Up to the longest row the order does not matter, as no buffer is smaller.

A start that fills slot i with position i puts position B - 1 on level B. A buffer larger than the
request needs no care: its level still holds the position that it started with, and whatever the
request has accessed lies above. Ties between equal accesses cannot change a count
(policies/belady.py).
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import WORD, lowest_one, outside, signed
from hisparse_sim.policies.policy import Indices, Positions
from hisparse_sim.simulator.replay.kernel import Rows, next_accesses
from hisparse_sim.traces.demand import Longs
from hisparse_sim.traces.machine_code import compiled


class Levels(NamedTuple):
    """Position b of the arrays [most] is the level of a buffer with b + 1 slots."""

    next_access: Indices  # [N] see `policies.policy.Policy`
    held: Positions  # [most] identity: a position, or T and above for an empty slot
    due: Indices  # [most + WORD] number of the step that accesses it next, counted from 1
    inside: Positions  # [T + most] 1 if a level holds it, else 0
    longest_row: int
    first: Positions  # [n + 3] scratch: pool: first position due in a step
    following: Positions  # [T + most] scratch: pool: the next one due in the same step


def new_levels(rows: Rows, positions: int, most: int, filled: bool) -> Levels:
    """Return the levels of buffers of up to `most` slots before the first row."""
    steps = len(rows.seq_len)
    next_access = np.empty(len(rows.positions), np.int32)
    first_access = np.empty(positions, np.int32)
    next_accesses(rows, 0, next_access, first_access)
    due = np.full(most + WORD, steps + 1, np.int32)
    if filled:
        due[:most] = first_access[:most]
    inside = np.zeros(positions + most, np.uint32)
    start = 0 if filled else positions
    inside[start : start + most] = 1
    return Levels(
        next_access=next_access,
        held=np.arange(start, start + most, dtype=np.uint32),
        due=due,
        inside=inside,
        longest_row=int(np.diff(rows.offsets).max(initial=0)),
        first=np.full(steps + 3, positions + most, np.uint32),
        following=np.zeros(positions + most, np.uint32),
    )


@compiled
def count(rows: Rows, begin: int, end: int, levels: Levels, change: Longs) -> None:
    """Add the misses of the rows from `begin` to `end`, of which all before were counted.

    The running sum of `change` [most + 2] is the number of misses by buffer size; sizes below the
    longest row have no meaning.
    """
    held, due, inside = levels.held, levels.due, levels.inside
    first, following = levels.first, levels.following
    one = np.uint64(1)
    none = np.uint32(len(following))
    never = np.uint32(len(first) - 2)  # the last number that an access can have
    for now in range(begin, end):
        row = rows.positions[rows.offsets[now] : rows.offsets[now + 1]]
        next_access = levels.next_access[rows.offsets[now] : rows.offsets[now + 1]]
        newest = np.uint32(rows.seq_len[now] - 1)
        this = np.uint32(now + 1)
        # A buffer of so many slots is the largest that the request does not fit into.
        deepest = np.uint32(min(len(held), signed(newest)))
        top = np.uint32(min(levels.longest_row, signed(deepest)))
        demands, missing = 0, 0  # missing from every level
        for i in range(len(row)):
            demands += row[i] != newest
            missing += (row[i] != newest) & (inside[row[i]] == 0)
        change[0] += demands
        change[deepest + np.uint32(1)] -= missing

        left = demands - missing  # to be found further down
        soonest = np.uint32(never + np.uint32(1))
        first[soonest] = np.uint32(0)  # not none: the search for the soonest ends here
        for near in range(top):
            found = due[near] == this
            change[np.uint32(near + 1)] -= found
            left -= found
        for word in range(0, top, WORD):
            others = outside(due, word, now + 1, now + 1)
            if top - word < WORD:
                others &= (one << np.uint64(top - word)) - one
            while others != 0:
                place = np.uint32(word) + lowest_one(others)
                others &= others - one
                step = np.uint32(due[place])
                following[held[place]] = first[step]
                first[step] = held[place]
                soonest = min(soonest, step)
        level = np.uint32(0)
        for i in range(len(row)):
            if row[i] != newest:
                held[level] = row[i]
                due[level] = next_access[i]
                inside[row[i]] = np.uint32(1)
                level += np.uint32(1)
        while True:
            while first[soonest] == none:
                soonest += np.uint32(1)
            if level >= top:
                break
            position = first[soonest]
            first[soonest] = following[position]
            held[level] = position
            due[level] = soonest
            level += np.uint32(1)
        # Further down nothing changes once all accesses are found and only positions that are never
        # accessed again are in the pool: one is as good as the other.
        while level < deepest and not (left == 0 and soonest >= never):
            # What was accessed or waits longer changes; `soonest` only grows, so no other does.
            changing = outside(due, signed(level), now + 2, signed(soonest))
            if deepest - level < WORD:
                changing &= (one << np.uint64(deepest - level)) - one
            while changing != 0:
                here = level + lowest_one(changing)
                changing &= changing - one
                step = np.uint32(due[here])
                if step == this or step > soonest:
                    leaves = held[here]
                    position = first[soonest]
                    first[soonest] = following[position]
                    held[here] = position
                    due[here] = soonest
                    if step == this:
                        change[here + np.uint32(1)] -= 1
                        left -= 1
                    else:
                        following[leaves] = first[step]
                        first[step] = leaves
                    while first[soonest] == none:
                        soonest += np.uint32(1)
            level += np.uint32(WORD)
        while soonest <= never:  # what no buffer keeps
            position = first[soonest]
            while position != none:
                inside[position] = np.uint32(0)
                position = following[position]
            first[soonest] = none
            while first[soonest] == none:
                soonest += np.uint32(1)
