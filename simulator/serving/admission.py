"""The pools of one rank in time: who is let in, who grows, who is thrown out again.

Read from SGLang 0.5.23, files under sglang/srt: managers/schedule_policy.py (PrefillAdder),
managers/scheduler.py, managers/schedule_batch.py (retraction), mem_cache/prefill_budget.py,
mem_cache/allocator/hisparse.py, disaggregation/decode.py. In tokens:

- Free is what the pool has left; under HiSparse the smaller of what the device pool and the logical
  pool (P * R tokens: indexer keys on the GPU, items on the host) have left. The device pool holds
  the hot buffers, and a prompt until it is staged to the host.
- Requests of a fixed length (ignore_eos, what benchmarks send; without a prefix cache, as HiSparse
  demands): prompt and a page must fit beside up to 4096 future tokens of each that runs (older
  engines: no page, and future tokens scaled as below; see engines.py), and all
  ends must fit: in the order in which requests end, what is free and what those before have freed
  must cover the growth of all that still run. Their growth counts as if it stayed on the device.
- Requests that may stop early: prompt, up to 4096 of its own future tokens and a page must fit
  beside the future tokens of those that run, scaled by a ratio that starts at 0.7, falls to 0.098
  over 600 decode steps, and is set anew by a retraction.
- Without HiSparse a rank that refused a request looks at its queue again when a request has left;
  with it, at every step.
- Every request takes pages of 64 tokens as it grows. If a page is missing, requests with the fewest
  generated tokens (then the longest prompt) are retracted: they lose their KV, go to the end of the
  queue, and are prefilled again. A decode instance saves their KV and resumes them first.
- An output that could not fit even an empty rank is cut at arrival, see lengths.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hisparse_sim.simulator.serving.engines import NEWEST, Engine
from hisparse_sim.simulator.serving.lengths import Length, check_length
from hisparse_sim.simulator.serving.memory import PAGE_TOKENS, device_tokens, pages

CLIP_NEW_TOKENS = 4096
INITIAL_RATIO, FINAL_SHARE, DECAY_STEPS = 0.7, 0.14, 600  # of the future tokens of those that run
FINAL_RATIO = INITIAL_RATIO * FINAL_SHARE
RETRACT_STEPS = 20  # decode steps that the ratio leaves room for after a retraction
TRANSFER_RESERVE_TOKENS = 512  # kept free for each request that arrives by transfer


@dataclass(frozen=True)
class Pool:
    """What one rank holds, in tokens. Without HiSparse logical_tokens equals device_tokens."""

    device_tokens: int  # P
    logical_tokens: int  # P * R
    device_buffer_size: int = 0  # 0: no HiSparse, every token stays in the device pool
    context: int = 1 << 62  # longest sequence of the model
    conservativeness: float = 1.0  # --schedule-conservativeness
    ignore_eos: bool = True  # requests fix their length
    engine: Engine = NEWEST

    @property
    def hierarchical(self) -> bool:
        return self.device_buffer_size > 0

    def length(self, prompt: int, output: int) -> Length:
        """Whether the engine refuses a request for its length, and how much it lets it generate."""
        return check_length(prompt, output, self.device_tokens, self.context)

    @property
    def scaled(self) -> bool:
        """Whether the future tokens of those that run count by the scheduler's estimate."""
        return not (self.ignore_eos and self.engine.promises_whole_outputs)


@dataclass
class Request:
    """One request on its way. Times in s, -1 before they are known."""

    number: int
    prompt: int
    output: int
    arrival_s: float
    generated: int = 0
    first_token_s: float = -1.0
    end_s: float = -1.0
    _birth: int = field(default=0, repr=False)  # rank's clock when the request had no tokens yet

    @property
    def left(self) -> int:
        return self.output - self.generated


class Rank:
    """Queue, running batch and pools of one rank.

    The clock counts decode steps. A running request's length is clock - birth, so that many steps
    cost nothing until an event asks.
    """

    def __init__(self, pool: Pool, max_running: int) -> None:
        self.pool, self.max_running = pool, max_running
        self.queue: deque[Request] = deque()
        self.running: list[Request] = []
        self.pending: list[Request] = []  # prefilling or being staged: whole length on the device
        self.chunked: Request | None = None
        self.chunked_done = 0
        self.full = False  # refused a request, none has left since
        self.clock = 0
        self.retractions = 0
        self.first_ratio = min(INITIAL_RATIO * pool.conservativeness, 1.0)
        self.ratio = self.first_ratio

    # --- what is used ---------------------------------------------------------------------------

    def length(self, request: Request) -> int:
        return self.clock - request._birth

    def mean_context(self) -> float:
        births = sum(request._birth for request in self.running)
        return self.clock - births / len(self.running)

    def logical_used(self, after: int = 0) -> int:
        """Tokens in pages, `after` steps from now."""
        clock = self.clock + after
        used = sum(pages(clock - request._birth) for request in self.running)
        return used + sum(pages(r.prompt + r.generated) for r in self.pending)

    def device_used(self, after: int = 0) -> int:
        buffer = self.pool.device_buffer_size
        if not buffer:
            return self.logical_used(after)
        clock = self.clock + after
        used = sum(device_tokens(clock - request._birth, buffer) for request in self.running)
        return used + sum(pages(r.prompt + r.generated) for r in self.pending)

    def fits(self, after: int) -> bool:
        pool = self.pool
        if self.logical_used(after) > pool.logical_tokens:
            return False
        return not pool.hierarchical or self.device_used(after) <= pool.device_tokens

    def steps_until_full(self, steps: int) -> int:
        """Largest count up to `steps` after which everything still fits; at least 1."""
        if self.fits(steps):
            return steps
        low, high = 1, steps
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(middle) else (low, middle)
        return low

    @property
    def waits(self) -> bool:
        """Whether a queue may move although nobody leaves."""
        return bool(self.queue) and (self.pool.hierarchical or not self.full)

    def shortest_left(self) -> int:
        return min(request.left for request in self.running) if self.running else 1 << 62

    # --- admission ------------------------------------------------------------------------------

    def free(self) -> int:
        """Tokens that the scheduler sees as free."""
        free = self.pool.logical_tokens - self.logical_used()
        if self.pool.hierarchical:
            free = min(free, self.pool.device_tokens - self.device_used())
        return free

    def _admissible(self, request: Request, taken: list[Request]) -> bool:
        """Whether `request` may join those `taken` in this step."""
        if len(self.running) + len(self.pending) >= self.max_running:
            return False
        if not self.running and not self.pending:
            return True  # its output was cut on arrival
        pool, tokens = self.pool, request.prompt + request.generated
        scale = self.ratio if pool.scaled else 1.0
        promised = sum(min(r.left, CLIP_NEW_TOKENS) for r in self.running) * scale
        promised += sum(min(r.left, CLIP_NEW_TOKENS) for r in taken)
        free = self.free() - PAGE_TOKENS * len(taken)
        if not pool.ignore_eos:
            return tokens + min(request.left, CLIP_NEW_TOKENS) + PAGE_TOKENS < free - promised
        needed = pages(tokens) + PAGE_TOKENS * pool.engine.admits_with_page
        return needed <= free - promised and self._ends_fit([request, *taken], free - needed)

    def _ends_fit(self, joining: list[Request], free: float) -> bool:
        """Whether all can grow to their ends, the first to end making room for the others."""
        ends = sorted((r.left, r.prompt + r.generated) for r in (*joining, *self.running))
        for i, (left, held) in enumerate(ends):
            growing = len(ends) - i
            if free - left * growing <= growing:
                return False
            free += held
        return True

    def next_chunks(self, budget: int) -> list[tuple[Request, int, int]]:
        """Prompt pieces (request, from, to) of the next step; admits while the budget lasts."""
        work: list[tuple[Request, int, int]] = []
        while budget > 0:
            if self.chunked is None:
                if not self.waits:
                    break
                if not self._admissible(self.queue[0], [request for request, _, _ in work]):
                    self.full = True
                    break
                self.chunked, self.chunked_done = self.queue.popleft(), 0
                self.pending.append(self.chunked)
            request = self.chunked
            tokens = request.prompt + request.generated
            stop = min(tokens, self.chunked_done + budget)
            work.append((request, self.chunked_done, stop))
            budget -= stop - self.chunked_done
            self.chunked_done = stop
            if stop < tokens:
                break
            self.chunked = None
        return work

    def take_transferred(self) -> None:
        """Admit requests whose KV arrives from a prefill instance, straight into its place."""
        pool = self.pool
        while self.queue and len(self.running) < self.max_running:
            request = self.queue[0]
            if self.running and not self._transferable(request):
                return
            whole = pool.device_buffer_size + PAGE_TOKENS  # asked for also by a short request
            if pool.hierarchical and whole > pool.device_tokens - self.device_used():
                return
            self._start(self.queue.popleft())

    def _transferable(self, request: Request) -> bool:
        """Whether the logical pool takes `request` and leaves the reserve of those that run."""
        held = sum(r.prompt + r.generated for r in self.running)
        longest = max(r.prompt + min(r.output, CLIP_NEW_TOKENS) for r in self.running)
        reserve = max(TRANSFER_RESERVE_TOKENS * len(self.running), longest - held)
        tokens = request.prompt + request.generated
        needed = max(
            pages(tokens) + TRANSFER_RESERVE_TOKENS,
            tokens + min(request.output, CLIP_NEW_TOKENS) - held,
        )
        return needed <= self.pool.logical_tokens - self.logical_used() - reserve

    def _start(self, request: Request) -> None:
        request._birth = self.clock - (request.prompt + request.generated)
        self.running.append(request)

    def staged(self, request: Request) -> None:
        """The prompt has left the device pool (or never had to): decode starts."""
        self.pending.remove(request)
        self._start(request)

    def drop(self, request: Request) -> None:
        """A request that ended with its first token."""
        self.pending.remove(request)
        self.full = False

    # --- decode ---------------------------------------------------------------------------------

    def make_room(self, resumed: bool = False) -> None:
        """Retract until the next step fits, but never the last request.

        `resumed`: prefill runs elsewhere, so that the KV is saved and comes back before others.
        """
        retracted = False
        while len(self.running) > 1 and not self.fits(1):
            last = max(
                range(len(self.running)),
                key=lambda i: (-self.running[i].generated, self.running[i].prompt, i),
            )
            put = self.queue.appendleft if resumed else self.queue.append
            put(self.running.pop(last))
            self.retractions += 1
            retracted = True
        if retracted:
            self.full = False
            done = sum(r.generated for r in self.running) + RETRACT_STEPS * len(self.running)
            self.ratio = min(done / (sum(r.output for r in self.running) + 1), 1.0)

    def decode(self, count: int) -> list[Request]:
        """Take `count` steps, none beyond the end of a request; returns those that end."""
        self.clock += count
        floor = self.first_ratio * FINAL_SHARE
        step = (self.first_ratio - floor) / DECAY_STEPS
        self.ratio = max(self.ratio - count * step, floor)
        ended = []
        for request in self.running:
            request.generated += count
            if request.generated >= request.output:
                ended.append(request)
        if ended:
            self.running = [r for r in self.running if r.generated < r.output]
            self.full = False
        return ended
