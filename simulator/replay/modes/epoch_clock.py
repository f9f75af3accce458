"""SGLang's eviction for steps with drafts, in compiled code: CLOCK with epochs and sampled victims.

The rules are numbered as in docs/semantics-modes.md, "Speculative decoding".
"""

import numpy as np

from hisparse_sim.policies.policy import Positions, Slots
from hisparse_sim.simulator.replay.modes.mode import ModeReplay
from hisparse_sim.simulator.replay.modes.steps import Steps
from hisparse_sim.traces.demand import Ints, Longs
from hisparse_sim.traces.file.rules import LARGEST_STAMP
from hisparse_sim.traces.machine_code import compiled, rule

_HASH = 2654435761  # of Knuth, modulo 2^32
_WORD = 0xFFFFFFFF
_SAMPLES = 6  # slots that a miss looks at
_GROUP = 512  # misses that choose before any of them probes: threads of a block
_NONE, _LEFT = -1, -2  # in place of a victim: none found; served from scratch, not kept


def replay_epoch_clock(
    steps: Steps, buffer_size: int, scratch_size: int, *, filled: bool, victims: bool = False
) -> ModeReplay:
    """Replay one (request, layer) that starts with the first tokens (`filled`) or empty.

    With `victims` the result holds for every miss its slot, -1 where none was found and -2 where
    the position was served from the scratch area and not kept.
    """
    positions = steps.positions
    total = max(int(positions.max(initial=0)) + 1, buffer_size)
    if total > LARGEST_STAMP:  # a table of that size would not fit: number positions anew
        known = np.union1d(np.arange(buffer_size, dtype=np.int32), positions)
        positions, total = np.searchsorted(known, positions).astype(np.int32), len(known)
    slot = np.full(total + 1, buffer_size, np.uint16)
    token = np.full(buffer_size, total, np.uint32)
    if filled:
        slot[:buffer_size] = np.arange(buffer_size)
        token[:] = np.arange(buffer_size)
    misses = np.zeros(len(steps.heads) - 1, np.int32)
    taken = np.empty(len(positions) if victims else 0, np.int32)
    unloaded = _run(steps.heads, steps.offsets, positions, scratch_size, slot, token, misses, taken)
    return ModeReplay(misses, steps.left_out, unloaded, taken[: misses.sum() if victims else 0])


@compiled
def _run(
    heads: Longs,
    offsets: Longs,
    positions: Ints,
    scratch: int,  # c
    slot: Slots,  # [T + 1] of every position; B absent, B + 1 missed in this step
    token: Positions,  # [B] position of every slot; T empty
    misses: Ints,  # [steps] output
    taken: Ints,  # [misses] output, or empty
) -> int:
    size = len(token)
    absent, missing = np.uint16(size), np.uint16(size + 1)
    cursor_bits = 0
    while (1 << cursor_bits) < size:
        cursor_bits += 1
    mask = (1 << min(23, 32 - cursor_bits)) - 1  # rule 4
    marks = np.zeros(size + 1, np.int32)  # step of the last use of a slot; the last is of no slot
    ref = marks[:size]
    ordinal = np.zeros(len(slot), np.int32)
    missed = np.empty(len(positions) + 1, np.int32)
    victim = np.empty(len(positions) + 1, np.int32)
    epoch = cursor = written = unloaded = 0
    for step in range(len(misses)):
        epoch = (epoch + 1) & mask
        if epoch == 0:
            epoch = 1
        begin, end = offsets[heads[step]], offsets[heads[step + 1]]
        count = hits = others = 0
        marks[size] = epoch
        for i in range(begin, end):  # without a branch: hits and misses are hard to predict
            found = slot[positions[i]]
            missed[others] = positions[i]
            others += found >= absent
            hits += marks[found] != epoch  # rules 5 and 6
            marks[found] = epoch
        for i in range(others):  # listed by several queries, some of them
            position = missed[i]
            first_time = slot[position] == absent
            slot[position] = missing
            missed[count] = position
            count += first_time
        misses[step] = count
        if count == 0:
            continue
        fits = count + hits <= size
        victim[:count] = _NONE
        if not fits:  # rules 10, 11
            for i in range(count):
                ordinal[missed[i]] = i
            overflow = max(0, count - scratch)
            victim[: min(count, scratch)] = _LEFT
            if overflow == 0:
                ref[:] = 0
            budget = size if overflow == 0 else max(0, size - hits - overflow)
            for i in range(offsets[heads[step + 1] - 1], end):
                found = slot[positions[i]]
                if found < absent:
                    ref[found] = epoch
                elif ordinal[positions[i]] < scratch and budget > 0:
                    victim[ordinal[positions[i]]] = _NONE  # admitted
                    budget -= 1
        most, longer = (size - 1) // count + 1, (size - 1) % count
        for first in range(0, count, _GROUP):
            last = min(count, first + _GROUP)
            for i in range(first, last):
                if victim[i] == _LEFT:
                    continue
                if fits:
                    own = most - (i > longer)  # slots of this miss
                    victim[i] = _sampled(ref, epoch, mask, cursor + i, count, own)
                elif i < scratch:
                    victim[i] = _hashed(ref, epoch, i, count)
                else:
                    victim[i] = _hashed(ref, epoch, i - scratch, count - scratch)
                if victim[i] >= 0:
                    ref[victim[i]] = epoch
            for i in range(first, last):
                if victim[i] == _NONE:  # rule 9
                    victim[i] = _probed(ref, epoch, cursor, i)
                    if victim[i] >= 0:
                        ref[victim[i]] = epoch
            for i in range(first, last):  # rule 14
                chosen = victim[i]
                if chosen < 0:  # rules 13, 15
                    slot[missed[i]] = absent
                    unloaded += chosen == _NONE and i >= scratch
                    continue
                slot[token[chosen]] = absent
                token[chosen] = missed[i]
                slot[missed[i]] = chosen
        if len(taken) > 0:
            taken[written : written + count] = victim[:count]
            written += count
        cursor = (cursor + min(count, size)) % size  # rule 16
    return unloaded


@rule
def _sampled(ref: Ints, epoch: int, mask: int, start: int, count: int, own: int) -> int:
    """Rule 8: of the `own` slots start, start + count, ... the longest unused of those sampled."""
    size = len(ref)
    chosen, oldest = -1, 0
    for sample in range(min(own, _SAMPLES)):
        offset = sample if own < _SAMPLES else sample * own // _SAMPLES
        place = start + offset * count
        candidate = place - size if place >= size else place
        age = (epoch - ref[candidate]) & mask  # 0: used in this step
        older = age > oldest  # without a branch: ages are hard to predict
        chosen = candidate if older else chosen
        oldest = age if older else oldest
    return chosen


@rule
def _hashed(ref: Ints, epoch: int, number: int, stride: int) -> int:
    """Rule 12: the first slot not used in this step, over hashed places number, + stride, ..."""
    places = (len(ref) - number + stride - 1) // stride
    return _first_free(ref, epoch, number * _HASH + epoch, stride * _HASH, places)


@rule
def _probed(ref: Ints, epoch: int, cursor: int, number: int) -> int:
    """Rule 9: the first slot not used in this step, from a place of the miss's own on. Unless B is
    a power of two the places repeat, and there may be none."""
    start = ((cursor + number * _HASH) & _WORD) % len(ref)
    return _first_free(ref, epoch, start, _HASH, len(ref))


@rule
def _first_free(ref: Ints, epoch: int, word: int, stride: int, places: int) -> int:
    """Return the first slot not used in this step at word, word + stride, ... modulo 2^32."""
    size = len(ref)
    if size & (size - 1) == 0:  # a division takes longer than all the rest
        for _ in range(places):
            if ref[word & (size - 1)] != epoch:
                return word & (size - 1)
            word += stride
        return -1
    for _ in range(places):
        candidate = (word & _WORD) % size
        if ref[candidate] != epoch:
            return candidate
        word = (word + stride) & _WORD
    return -1
