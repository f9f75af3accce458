"""The pools of a rank over time: admission, growth and retraction of requests.

Read from SGLang 0.5.23, files under sglang/srt: managers/schedule_policy.py (PrefillAdder),
managers/scheduler.py, managers/schedule_batch.py (retraction), mem_cache/prefill_budget.py,
mem_cache/allocator/hisparse.py, disaggregation/decode.py. In tokens:

- Free is the rest of the pool; with HiSparse the smaller rest of the device pool and the logical
  pool (P * R tokens: indexer keys on the GPU, KV entries on the host). The device pool holds
  the hot buffers, and a prompt until it is staged to the host.
- Requests of a fixed length (ignore_eos, what benchmarks send; without a prefix cache, as HiSparse
  requires): prompt and a page must fit beside up to 4096 future tokens of each running request
  (older engines: no page, and future tokens scaled as below; see engines.py), and all ends must
  fit: in the order in which requests end, the free tokens and those freed by earlier ones must
  cover the growth of all that still run. Growth counts as if it stayed on the device.
- Requests that may stop early: prompt, up to 4096 of its own future tokens and a page must fit
  beside the future tokens of the running requests, scaled by a ratio that starts at 0.7, falls to
  0.098 over 600 decode steps, and is reset by a retraction.
- Without HiSparse, a rank that refused a request looks at its queue again when a request has left;
  with it, at every step.
- Every request takes pages of 64 tokens as it grows. If a page is missing, requests with the fewest
  generated tokens (then the longest prompt) are retracted: they lose their KV, go to the end of the
  queue, and are prefilled again. A decode instance saves their KV and resumes them first.
- A decode instance reserves the memory of a request before its prompt is prefilled elsewhere, and
  keeps it while the prompt waits, is prefilled and transferred: its prompt in the logical pool, 512
  tokens more, as for every running request, and the space of a whole hot buffer.
- What a prefix cache holds of a prompt (see prefixes.py) is not prefilled, and takes its memory.
- An output that could not fit even an empty rank is cut at arrival, see lengths.py.

The rules are plain functions on arrays of records, which the compiled event loop calls. They are
one file, since the engine's scheduler applies them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.simulator.serving import memory
from hisparse_sim.simulator.serving.engines import NEWEST, Engine
from hisparse_sim.simulator.serving.lengths import REFUSED, Length, check_length
from hisparse_sim.simulator.serving.memory import PAGE_TOKENS
from hisparse_sim.traces.machine_code import rule

CLIP_NEW_TOKENS = 4096
INITIAL_RATIO, FINAL_SHARE, DECAY_STEPS = 0.7, 0.14, 600  # of the future tokens of those that run
FINAL_RATIO = INITIAL_RATIO * FINAL_SHARE
RETRACT_STEPS = 20  # decode steps that the ratio leaves room for after a retraction
TRANSFER_RESERVE_TOKENS = 512  # kept free for each request that a decode instance holds
NOBODY = -1

Records = np.recarray[Any, Any]
pages, device_tokens = rule(memory.pages), rule(memory.device_tokens)


@dataclass(frozen=True)
class Pool:
    """Capacity of one rank, in tokens. Without HiSparse logical_tokens equals device_tokens."""

    device_tokens: int  # P
    logical_tokens: int  # P * R
    device_buffer_size: int = 0  # 0: no HiSparse, every token stays in the device pool
    context: int = 1 << 62  # longest sequence of the model
    conservativeness: float = 1.0  # --schedule-conservativeness
    ignore_eos: bool = True  # requests fix their length
    engine: Engine = NEWEST
    scratch_tokens: int = 0  # beside every hot buffer, of speculative decoding

    @property
    def hierarchical(self) -> bool:
        return self.device_buffer_size > 0

    def length(self, prompt: int, output: int) -> Length:
        """Whether the engine refuses a request for its length, and how many tokens it may
        generate."""
        return check_length(prompt, output, self.device_tokens, self.context)

    @property
    def scaled(self) -> bool:
        """Whether future tokens of running requests are scaled by the scheduler's estimate."""
        return not (self.ignore_eos and self.engine.promises_whole_outputs)


def length_on(pool: Pool, prefill_pool: Pool | None, prompt: int, output: int) -> Length:
    """The outcome for a request on an empty deployment, prefilled on a rank of its own or not."""
    if prefill_pool and (first := prefill_pool.length(prompt, 1)).outcome == REFUSED:
        return first
    return pool.length(prompt, output)


# What a rank does: prefill and decode, or one of them with the other on another instance.
TOGETHER, PREFILL, DECODE = range(3)
# Why a request waits for memory.
ADMITTED, SLOTS, DEVICE_POOL, LOGICAL_POOL = range(4)

REQUEST = np.dtype(
    [
        ("prompt", "i8"),
        ("output", "i8"),  # tokens
        ("arrival_s", "f8"),
        ("admitted_s", "f8"),  # when it got memory
        ("first_token_s", "f8"),
        ("end_s", "f8"),
        ("ready_s", "f8"),  # when a pending request may decode: staged or transferred
        ("generated", "i8"),
        ("cached", "i8"),  # tokens of its prompt that need no prefill
        ("prefilled", "i8"),  # tokens that prefill has done, and will have at the end of this step
        ("planned", "i8"),
        ("birth", "i8"),  # its rank's clock when the request had no tokens yet
        ("rank", "i8"),  # where it decodes
        ("source", "i8"),  # where it is prefilled
        ("next", "i8"),  # next in the queue
    ]
)
RANK = np.dtype(
    [
        ("role", "i8"),
        ("instance", "i8"),
        # The pool, see there.
        ("device_tokens", "i8"),
        ("logical_tokens", "i8"),
        ("device_buffer_size", "i8"),
        ("scratch_tokens", "i8"),
        ("ignore_eos", "?"),
        ("scaled", "?"),
        ("admits_with_page", "?"),
        ("first_ratio", "f8"),
        ("ratio", "f8"),
        ("max_running", "i8"),
        ("slots", "i8"),  # requests that run or are pending
        ("chunk_tokens", "i8"),
        ("clock", "i8"),  # decode steps: a running request's length is clock - birth
        ("births", "i8"),  # sum over those that run
        ("running", "i8"),
        ("pending", "i8"),  # hold memory and do not decode yet
        ("head", "i8"),  # of the queue
        ("tail", "i8"),
        ("queued", "i8"),
        ("chunked", "i8"),  # whose prompt is prefilled in part
        ("full", "?"),  # refused a request, and none has left since
        ("refused", "i8"),  # why
        ("retractions", "i8"),
        ("link_free_s", "f8"),  # when the link that takes prompts away or brings them is free
    ]
)


class State(NamedTuple):
    """The state that changes. Rows of `running` and `pending` belong to the rank of that number."""

    requests: Records  # [n] of REQUEST
    ranks: Records  # [r] of RANK
    running: npt.NDArray[np.int64]  # [r, most] numbers of requests, in order of joining
    pending: npt.NDArray[np.int64]  # [r, most]
    instances: Records
    totals: Records


def blank(count: int, kind: np.dtype[np.void]) -> Records:
    """Return so many records of zeros."""
    return np.zeros(count, kind).view(np.recarray)


def make_ranks(count: int, pool: Pool, role: int, max_running: int, chunk_tokens: int) -> Records:
    """Empty ranks, as an array of RANK."""
    ranks = blank(count, RANK)
    first_ratio = min(INITIAL_RATIO * pool.conservativeness, 1.0)
    # A decode instance of few requests takes up to twice as many that are on their way.
    on_the_way = 2 * max_running if role == DECODE and max_running <= 32 else 0
    values = {
        "role": role,
        "device_tokens": pool.device_tokens,
        "logical_tokens": pool.logical_tokens,
        "device_buffer_size": pool.device_buffer_size,
        "scratch_tokens": pool.scratch_tokens,
        "ignore_eos": pool.ignore_eos,
        "scaled": pool.scaled,
        "admits_with_page": pool.engine.admits_with_page,
        "first_ratio": first_ratio,
        "ratio": first_ratio,
        "max_running": max_running,
        "slots": max_running + on_the_way,
        "chunk_tokens": chunk_tokens,
        "head": NOBODY,
        "tail": NOBODY,
        "chunked": NOBODY,
    }
    for name, value in values.items():
        ranks[name] = value
    return ranks


# --- queue --------------------------------------------------------------------------------------


@rule
def push(state: State, r: int, number: int, first: bool = False) -> None:
    """Put a request at the end of the queue, or at its head."""
    rank, request = state.ranks[r], state.requests[number]
    request.next = rank.head if first else NOBODY
    if rank.queued == 0:
        rank.head = rank.tail = number
    elif first:
        rank.head = number
    else:
        state.requests[rank.tail].next = number
        rank.tail = number
    rank.queued += 1


@rule
def pop(state: State, r: int) -> int:
    """Take the head of the queue."""
    rank = state.ranks[r]
    number = int(rank.head)
    rank.head = state.requests[number].next
    rank.queued -= 1
    return number


# --- what is used -------------------------------------------------------------------------------


@rule
def mean_context(rank: Any) -> float:
    """Mean length of the running requests."""
    return float(rank.clock - rank.births / rank.running)


@rule
def missing_context(state: State, r: int, after: float) -> float:
    """The length of equal requests that miss as many positions as those that run do on average,
    `after` steps from now: misses grow with 1 - B / length (see exposure.py), beyond B."""
    rank, inverse = state.ranks[r], 0.0
    for i in range(rank.running):
        length = rank.clock + after - state.requests[state.running[r, i]].birth
        inverse += 1.0 / max(length, float(rank.device_buffer_size), 1.0)
    return float(rank.running / inverse)


@rule
def used(state: State, r: int, after: int) -> tuple[int, int]:
    """Tokens in pages, `after` steps from now: in the logical pool, and in the device pool."""
    rank, logical, device = state.ranks[r], 0, 0
    buffer, scratch = rank.device_buffer_size, rank.scratch_tokens
    for i in range(rank.running):
        length = rank.clock + after - state.requests[state.running[r, i]].birth
        logical += pages(length)
        device += device_tokens(length, buffer, scratch)
    for i in range(rank.pending):
        request = state.requests[state.pending[r, i]]
        held = pages(request.prompt + request.generated)
        logical += held
        if rank.role != DECODE:  # where a buffer is made when its request joins
            device += held + scratch
    return logical, (device if buffer > 0 else logical)


@rule
def fits(state: State, r: int, after: int) -> bool:
    rank = state.ranks[r]
    logical, device = used(state, r, after)
    return bool(logical <= rank.logical_tokens and device <= rank.device_tokens)


@rule
def steps_until_full(state: State, r: int, steps: int) -> int:
    """Largest count up to `steps` after which everything still fits; at least 1."""
    if fits(state, r, steps):
        return steps
    low, high = 1, steps
    while high - low > 1:
        middle = (low + high) // 2
        if fits(state, r, middle):
            low = middle
        else:
            high = middle
    return low


# --- admission ----------------------------------------------------------------------------------


@rule
def waits(rank: Any) -> bool:
    """Whether a queue may move although no request leaves."""
    return bool(rank.queued > 0 and (rank.device_buffer_size > 0 or not rank.full))


@rule
def refusal(state: State, r: int, number: int) -> int:
    """Why a request may not join a rank that prefills in this step, or ADMITTED."""
    rank, request = state.ranks[r], state.requests[number]
    if rank.running + rank.pending >= rank.slots:
        return SLOTS
    if rank.running + rank.pending == 0:
        return ADMITTED  # its output was cut on arrival
    tokens = request.prompt + request.generated
    logical, device = used(state, r, 0)
    free_logical = rank.logical_tokens - logical
    free, scarce = free_logical, DEVICE_POOL
    if rank.device_buffer_size > 0:
        free_device = rank.device_tokens - device
        if rank.scratch_tokens > 0:  # and the rest of a whole buffer
            missing = max(rank.device_buffer_size + PAGE_TOKENS - pages(tokens), 0)
            free_device -= rank.scratch_tokens + missing
        free = min(free_logical, free_device)
        scarce = LOGICAL_POOL if free == free_logical else DEVICE_POOL
    if rank.role == PREFILL:
        return ADMITTED if pages(tokens) + PAGE_TOKENS <= free else scarce
    promised = 0.0
    for i in range(rank.running):
        other = state.requests[state.running[r, i]]
        promised += min(other.output - other.generated, CLIP_NEW_TOKENS)
    if rank.scaled:
        promised *= rank.ratio
    for i in range(rank.pending):
        other = state.requests[state.pending[r, i]]
        if other.planned > other.prefilled:  # joined in this step, or goes on in it
            promised += min(other.output - other.generated, CLIP_NEW_TOKENS)
            free -= PAGE_TOKENS
    own = min(request.output - request.generated, CLIP_NEW_TOKENS)
    if not rank.ignore_eos:
        return ADMITTED if tokens + own + PAGE_TOKENS < free - promised else scarce
    needed = pages(tokens) + PAGE_TOKENS * rank.admits_with_page
    if needed <= free - promised and ends_fit(state, r, number, free - needed):
        return ADMITTED
    return scarce


@rule
def ends_fit(state: State, r: int, number: int, free: int) -> bool:
    """Whether all can grow to their ends, given the tokens that the first ones free."""
    rank = state.ranks[r]
    ends = np.empty(rank.running + rank.pending + 1, np.int64)  # tokens left, then tokens held
    count = 0
    for i in range(rank.running):
        ends[count] = state.running[r, i]
        count += 1
    for i in range(rank.pending):
        other = state.requests[state.pending[r, i]]
        if other.planned > other.prefilled:
            ends[count] = state.pending[r, i]
            count += 1
    ends[count] = number
    count += 1
    for i in range(count):
        request = state.requests[ends[i]]
        left = request.output - request.generated
        ends[i] = (left << 32) + request.prompt + request.generated
    for i in range(1, count):
        end, k = ends[i], i
        while k > 0 and ends[k - 1] > end:
            ends[k] = ends[k - 1]
            k -= 1
        ends[k] = end
    for i in range(count):
        growing = count - i
        if free - (ends[i] >> 32) * growing <= growing:
            return False
        free += ends[i] & 0xFFFFFFFF
    return True


@rule
def plan_chunks(state: State, r: int, now: float) -> bool:
    """Plan the prompt pieces of the next step, admitting while its budget lasts; false if none."""
    rank = state.ranks[r]
    budget = rank.chunk_tokens
    while budget > 0:
        if rank.chunked == NOBODY:
            if not waits(rank):
                break
            rank.refused = refusal(state, r, rank.head)
            if rank.refused != ADMITTED:
                rank.full = True
                break
            rank.chunked = pop(state, r)
            hold(state, r, rank.chunked, now)
        request = state.requests[rank.chunked]
        tokens = request.prompt + request.generated
        request.planned = min(tokens, request.prefilled + budget)
        budget -= request.planned - request.prefilled
        if request.planned < tokens:
            break
        rank.chunked = NOBODY
    return bool(budget < rank.chunk_tokens)


@rule
def hold(state: State, r: int, number: int, now: float) -> None:
    """Reserve memory for a request, before its prefill."""
    rank, request = state.ranks[r], state.requests[number]
    request.prefilled = request.planned = request.cached
    request.ready_s = np.inf
    if request.admitted_s < 0:
        request.admitted_s = now
    state.pending[r, rank.pending] = number
    rank.pending += 1


@rule
def reserve(state: State, r: int, now: float) -> int:
    """Reserve memory for the head of the queue of a decode instance, if it fits; its number or
    NOBODY.

    A retracted one runs again at once, with its saved KV.
    """
    while state.ranks[r].queued > 0:
        rank = state.ranks[r]
        rank.refused = reservation_refusal(state, r, rank.head)
        if rank.refused != ADMITTED:
            break
        number = pop(state, r)
        if state.requests[number].generated == 0:
            hold(state, r, number, now)
            return number
        start(state, r, number)
    return NOBODY


@rule
def reservation_refusal(state: State, r: int, number: int) -> int:
    """Why a decode instance cannot reserve memory for a request, or ADMITTED."""
    rank, request = state.ranks[r], state.requests[number]
    resumed = request.generated > 0
    if rank.running + rank.pending >= rank.slots or (resumed and rank.running >= rank.max_running):
        return SLOTS
    if rank.running + rank.pending == 0:
        return ADMITTED
    buffer = rank.device_buffer_size
    buffers = (rank.pending + 1) * (buffer + PAGE_TOKENS + rank.scratch_tokens)
    logical, device = used(state, r, 0)
    if buffer > 0 and buffers > rank.device_tokens - device:
        return DEVICE_POOL
    held, longest = 0, 0
    for i in range(rank.running):
        other = state.requests[state.running[r, i]]
        held += other.prompt + other.generated
        longest = max(longest, other.prompt + min(other.output, CLIP_NEW_TOKENS))
    tokens = request.prompt + request.generated
    needed = pages(tokens) + TRANSFER_RESERVE_TOKENS
    kept = TRANSFER_RESERVE_TOKENS * (rank.running + rank.pending)
    if not resumed:
        needed = max(needed, tokens + min(request.output, CLIP_NEW_TOKENS) - held)
        kept = max(kept, longest - held)
    if needed <= rank.logical_tokens - logical - kept:
        return ADMITTED
    return LOGICAL_POOL if buffer > 0 else DEVICE_POOL


@rule
def start(state: State, r: int, number: int) -> None:
    """Start to decode a request that has its memory."""
    rank, request = state.ranks[r], state.requests[number]
    request.birth = rank.clock - (request.prompt + request.generated)
    rank.births += request.birth
    state.running[r, rank.running] = number
    rank.running += 1


@rule
def let_go(state: State, r: int, i: int) -> None:
    """Remove the i-th of those pending, keeping the order of the others."""
    rank = state.ranks[r]
    rank.pending -= 1
    for k in range(i, rank.pending):
        state.pending[r, k] = state.pending[r, k + 1]


# --- decode -------------------------------------------------------------------------------------


@rule
def make_room(state: State, r: int) -> None:
    """Retract until the next step fits, but never the last request."""
    rank = state.ranks[r]
    retracted = False
    while rank.running > 1 and not fits(state, r, 1):
        last = 0
        for i in range(1, rank.running):
            a, b = state.requests[state.running[r, i]], state.requests[state.running[r, last]]
            if a.generated < b.generated or (a.generated == b.generated and a.prompt >= b.prompt):
                last = i
        number = state.running[r, last]
        rank.births -= state.requests[number].birth
        rank.running -= 1
        for i in range(last, rank.running):
            state.running[r, i] = state.running[r, i + 1]
        push(state, r, number, rank.role == DECODE)
        rank.retractions += 1
        retracted = True
    if retracted:
        rank.full = False
        done, whole = RETRACT_STEPS * rank.running, 1
        for i in range(rank.running):
            request = state.requests[state.running[r, i]]
            done += request.generated
            whole += request.output
        rank.ratio = min(done / whole, 1.0)


@rule
def decode(state: State, r: int, count: int, now: float) -> int:
    """Take `count` steps, none beyond the end of a request; returns how many end `now`."""
    rank = state.ranks[r]
    rank.clock += count
    floor = rank.first_ratio * FINAL_SHARE
    rank.ratio = max(rank.ratio - count * (rank.first_ratio - floor) / DECAY_STEPS, floor)
    kept = 0
    for i in range(rank.running):
        number = state.running[r, i]
        request = state.requests[number]
        request.generated += count
        if request.generated < request.output:
            state.running[r, kept] = number
            kept += 1
        else:
            request.end_s = now
            rank.births -= request.birth
    ended = rank.running - kept
    rank.running = kept
    if ended > 0:
        rank.full = False
    return int(ended)
