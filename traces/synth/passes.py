"""The compiled pass of the generator: integer hashes and single-precision sums.

All randomness is a hash of a counter, so a row depends on its seed only, not on what was drawn
before; platforms agree but for the last bit of a logarithm. Scores have unit variance; numbers in
`select_rows` are in standard deviations of a score.
"""

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.traces.demand import Ints, Longs
from hisparse_sim.traces.machine_code import compiled, rule

Floats = NDArray[np.float32]

_STRIDE = np.uint32(0x9E3779B9)  # 2^32 / golden ratio: neighbouring counters end up far apart
_BINS = 512
_BIN_WIDTH = np.float32(1 / 2000)
_MARGIN = np.float32(0.02)  # the cut moves by less from one step to the next, most of the time
_SINK = np.float32(100)


@rule
def mix(word: np.uint32) -> np.uint32:
    """Scramble 32 bits: the finaliser of MurmurHash3 (Appleby, public domain)."""
    word = np.uint32(word ^ (word >> np.uint32(16)))
    word = np.uint32(word * np.uint32(0x85EBCA6B))
    word = np.uint32(word ^ (word >> np.uint32(13)))
    word = np.uint32(word * np.uint32(0xC2B2AE35))
    return np.uint32(word ^ (word >> np.uint32(16)))


@rule
def bell(word: np.uint32) -> np.float32:
    """Return a nearly normal number, mean 0 and variance 1, within 3.45: four bytes added up."""
    low = np.int32(word & np.uint32(255)) + np.int32((word >> np.uint32(8)) & np.uint32(255))
    high = np.int32((word >> np.uint32(16)) & np.uint32(255)) + np.int32(word >> np.uint32(24))
    return (np.float32(low + high) - np.float32(510)) * np.float32(1 / 147.80)


@compiled
def fill_bell(key: np.uint32, out: Floats) -> None:
    """Fill `out` [n] with independent nearly normal numbers."""
    for i in range(len(out)):
        out[i] = bell(mix(np.uint32(np.uint32(np.uint32(i) * _STRIDE) ^ key)))


@rule
def add_noise(key: np.uint32, noise: np.float32, level: Floats, scores: Floats) -> None:
    """scores = level + noise * bell, fresh for every position; vectorised."""
    for i in range(len(scores)):
        word = mix(np.uint32(np.uint32(np.uint32(i) * _STRIDE) ^ key))
        scores[i] = level[i] + noise * bell(word)


@compiled
def select_rows(
    key: np.uint32,
    lengths: Ints,  # [n] seq_len of each step
    top_k: int,
    level: Floats,  # [last seq_len] importance; changed: the drift is added to it
    lives: Floats,  # [segments] mean life of the drift of each segment, steps
    segment: int,  # positions that drift together
    drift: np.float32,
    noise: np.float32,
    sinks: int,
    recency: np.float32,
    window: int,
    positions: Ints,  # output [sum of min(top_k, seq_len) + 1]
    offsets: Longs,  # output [n + 1]
) -> None:
    """List, for every step, the `top_k` positions of the highest score, in order of position.

    Scores nearer to the cut than 1/2000 count as equal; of equals the later position is taken.
    """
    total = len(level)
    due = np.zeros(len(lives), np.int64)  # step at which a segment gets a new drift
    drifts = np.zeros(len(lives), np.float32)
    scores = np.empty(total, np.float32)
    found = np.empty(total + 1, np.int32)
    bins = np.empty(total + 1, np.int32)
    counts = np.zeros(_BINS, np.int64)
    low = np.float32(0)
    known = False  # whether `low` is a guess worth trying
    counter = mix(np.uint32(key ^ np.uint32(0x5EED)))
    for position in range(min(sinks, total)):
        level[position] += _SINK
    for now in range(len(lengths)):
        seq_len = lengths[now]
        for each in range(len(lives)):
            if due[each] <= now:
                counter = np.uint32(counter + _STRIDE)
                uniform = (np.float64(mix(counter)) + 0.5) / 4294967296.0
                due[each] = now + 1 + np.int64(-np.log(uniform) * lives[each])
                counter = np.uint32(counter + _STRIDE)
                value = drift * bell(mix(counter))
                change = value - drifts[each]
                drifts[each] = value
                for position in range(each * segment, min(total, (each + 1) * segment)):
                    level[position] += change
        begin = offsets[now]
        if seq_len <= top_k:
            for position in range(seq_len):
                positions[begin + position] = position
            offsets[now + 1] = begin + seq_len
            continue
        counter = np.uint32(counter + _STRIDE)
        add_noise(mix(counter), noise, level, scores[:seq_len])
        for age in range(min(window, seq_len)):
            scores[seq_len - 1 - age] += recency * np.float32(1 - age / window)

        if not known:
            low = np.sort(scores[:seq_len])[seq_len - top_k] - _MARGIN
            known = True
        candidates = 0
        while True:
            candidates = 0
            for position in range(seq_len):  # without a branch: which ones pass is hard to predict
                found[candidates] = position
                candidates += scores[position] >= low
            if candidates >= top_k:
                break
            low -= np.float32(2.5) * _MARGIN
        counts[:] = 0
        for i in range(candidates):
            above = (scores[found[i]] - low) / _BIN_WIDTH
            bins[i] = np.int32(min(above, np.float32(_BINS - 1)))
            counts[bins[i]] += 1
        excess = candidates - top_k
        cut = 0
        while excess >= counts[cut]:
            excess -= counts[cut]
            cut += 1
        end = begin
        for i in range(candidates):
            dropped = excess > 0 and bins[i] == cut
            excess -= dropped
            positions[end] = found[i]
            end += bins[i] >= cut and not dropped
        offsets[now + 1] = end
        low += np.float32(cut) * _BIN_WIDTH - _MARGIN


@compiled
def fill_uniform(key: np.uint32, out: Floats) -> None:
    """Fill `out` [n] with independent numbers in (0, 1)."""
    for i in range(len(out)):
        word = mix(np.uint32(np.uint32(np.uint32(i) * _STRIDE) ^ key))
        out[i] = np.float32((np.float64(word) + 0.5) / 4294967296.0)
