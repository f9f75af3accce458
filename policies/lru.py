"""The engine's LRU: a step's hits end up safest, its misses next, and nothing else moves.

The i-th miss takes the i-th slot that the step does not demand, in the present order. Afterwards the order
is: the untouched slots, the fetched ones (order of the row), the hits (present order kept). A textbook LRU
would stamp every token in row order; here a re-used token outranks one just fetched, so buffers of
different sizes need not contain each other.

The order is kept as a log of slots, oldest first. A slot that moves is written again at the end and its
old entry dies; one bit per entry tells which live. A step marks the entries of its hits in a second
bitmap, so that both "the first M live entries that are not hit" and "the hits in present order" are scans
over 64 entries at a time.

Reference: SGLang 0.5.23, `kernels/jit/csrc/kvcacheio/hisparse.cuh` (`load_cache_to_device_buffer`).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.hook import hook, trailing_zeros
from hisparse_sim.policies.policy import Policy, Setup, Slots, Step, Words

_BUFFERS_PER_LOG = 16  # the log is compacted when full: rarely, at 16 times the live entries


class State(NamedTuple):
    log: Slots  # [16 * B, rounded to 64] slots, oldest first; dead entries in between
    where: npt.NDArray[np.uint32]  # [B] index of the live entry of each slot
    live: Words  # one bit per entry: it is the place of its slot
    hit: Words  # one bit per entry: hit in the present step; all 0 between steps
    ends: npt.NDArray[np.int64]  # [2] first word with a live entry, end of the log


def state(setup: Setup) -> State:
    size = setup.buffer_size
    words = (_BUFFERS_PER_LOG * size + 63) // 64
    made = State(
        log=np.zeros(64 * words, np.uint16),
        where=np.arange(size, dtype=np.uint32),
        live=np.zeros(words, np.uint64),
        hit=np.zeros(words, np.uint64),
        ends=np.array([0, size]),
    )
    made.log[:size] = np.arange(size)
    _set_bits(made.live, 0, size)
    return made


@hook
def _set_bits(words: Words, start: int, stop: int) -> None:
    """Set the bits start..stop-1."""
    full = ~np.uint64(0)
    for word in range(start >> 6, (stop + 63) >> 6):
        bits = full
        if word == start >> 6:
            bits &= full << np.uint64(start & 63)
        if word == stop >> 6:
            bits &= ~(full << np.uint64(stop & 63))
        words[word] |= bits


@hook
def _compact(state: State) -> None:
    """Drop the dead entries, so that the log is the order itself."""
    end = 0
    for word in range(state.ends[0], (state.ends[1] + 63) >> 6):
        bits = state.live[word]
        state.live[word] = np.uint64(0)
        while bits:
            slot = state.log[64 * word + np.int64(trailing_zeros(bits))]
            bits &= bits - np.uint64(1)
            state.log[end] = slot
            state.where[slot] = end
            end += 1
    _set_bits(state.live, 0, end)
    state.ends[0] = 0
    state.ends[1] = end


@hook
def step(state: State, step: Step, now: int) -> None:
    misses = len(step.victims)
    if state.ends[1] + len(step.hits) + misses > len(state.log):
        _compact(state)
    log, where, live, hit = state.log, state.where, state.live, state.hit
    start = end = state.ends[1]

    for slot in step.hits:
        entry = where[slot]
        hit[entry >> np.uint32(6)] |= np.uint64(1) << np.uint64(entry & np.uint32(63))

    word = state.ends[0]
    taken = 0
    while taken < misses:
        bits = live[word] & ~hit[word]
        while bits and taken < misses:
            lowest = bits & (~bits + np.uint64(1))
            step.victims[taken] = log[64 * word + np.int64(trailing_zeros(bits))]
            live[word] ^= lowest
            bits ^= lowest
            taken += 1
        word += 1

    for slot in step.victims:  # fetched before the hits: they are evicted first
        log[end] = slot
        where[slot] = end
        end += 1
    word = state.ends[0]
    while live[word] == 0 and word < start >> 6:
        word += 1
    state.ends[0] = word
    for word in range(state.ends[0], (start + 63) >> 6):
        bits = hit[word]
        if bits:
            live[word] ^= bits
            hit[word] = np.uint64(0)
            while bits:
                slot = log[64 * word + np.int64(trailing_zeros(bits))]
                bits &= bits - np.uint64(1)
                log[end] = slot
                where[slot] = end
                end += 1
    _set_bits(live, start, end)
    state.ends[1] = end


LRU = Policy(
    name="lru",
    summary="least recently used, in the exact order of the engine's kernel",
    reference="SGLang 0.5.23, kernels/jit/csrc/kvcacheio/hisparse.cuh",
    state=state,
    step=step,
)
