"""The pools of one rank in time: who is let in, who grows, who is thrown out again.

Rules of the engine's scheduler (SGLang, schedule_policy.py and schedule_batch.py), in tokens:

- A request is admitted if its prompt, up to 4096 of its future tokens and a page fit beside what is
  used and beside the future tokens of those that run, the latter scaled by a ratio that starts at
  0.7, falls to 0.098 over 600 decode steps and is raised again by a retraction.
- Every request takes pages of 64 tokens as it grows. If a page is missing, requests with the fewest
  generated tokens are retracted: they lose their KV, queue first, and are prefilled again.
- Under HiSparse the device pool holds the hot buffers, and a prompt until it is staged to the host;
  the logical pool (P * R tokens: indexer keys on the GPU, items on the host) holds every token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hisparse_sim.simulator.memory import PAGE_TOKENS, device_tokens, pages

CLIP_NEW_TOKENS = 4096
INITIAL_RATIO, FINAL_RATIO, DECAY_STEPS = 0.7, 0.7 * 0.14, 600
TRANSFER_RESERVE_TOKENS = 512  # kept free for each request that arrives by transfer


@dataclass(frozen=True)
class Pool:
    """What one rank holds, in tokens. Without HiSparse logical_tokens equals device_tokens."""

    device_tokens: int  # P
    logical_tokens: int  # P * R
    device_buffer_size: int = 0  # 0: no HiSparse, every token stays in the device pool
    context: int = 1 << 62  # longest sequence of the model
    conservativeness: float = 1.0  # --schedule-conservativeness

    @property
    def hierarchical(self) -> bool:
        return self.device_buffer_size > 0

    def can_ever_hold(self, tokens: int) -> bool:
        """Whether a request of `tokens`, output included, can run to its end on an empty rank."""
        longest = min(self.context, self.device_tokens) - 1
        return tokens <= longest and pages(tokens) <= self.logical_tokens


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
        self.clock = 0
        self.retractions = 0
        self.ratio = INITIAL_RATIO * pool.conservativeness

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

    def shortest_left(self) -> int:
        return min(request.left for request in self.running) if self.running else 1 << 62

    # --- admission ------------------------------------------------------------------------------

    def _promised(self, clip: int) -> int:
        """Future tokens of those that run or are about to."""
        return sum(min(r.left, clip) for r in self.running) + sum(
            min(r.left, clip) for r in self.pending
        )

    def _admissible(self, request: Request) -> bool:
        if len(self.running) + len(self.pending) >= self.max_running:
            return False
        tokens = request.prompt + request.generated
        if not self.running and not self.pending:
            return True  # can_ever_hold was asked on arrival
        need = tokens + min(request.left, CLIP_NEW_TOKENS) + PAGE_TOKENS
        promised = self._promised(CLIP_NEW_TOKENS) * self.ratio
        if need >= self.pool.device_tokens - self.device_used() - promised:
            return False
        free = self.pool.logical_tokens - self.logical_used()
        return pages(tokens + 1) <= free

    def next_chunks(self, budget: int) -> list[tuple[Request, int, int]]:
        """Prompt pieces (request, from, to) of the next step; admits while the budget lasts."""
        work: list[tuple[Request, int, int]] = []
        while budget > 0:
            if self.chunked is None:
                if not self.queue or not self._admissible(self.queue[0]):
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
            tokens = request.prompt + request.generated
            reserved = self._promised(TRANSFER_RESERVE_TOKENS)
            need = pages(tokens) + min(request.left, TRANSFER_RESERVE_TOKENS)
            free = pool.logical_tokens - self.logical_used() - reserved
            if self.running and need > free:
                return
            held = device_tokens(tokens + 1, pool.device_buffer_size)
            if pool.hierarchical and held > pool.device_tokens - self.device_used():
                return
            self._start(self.queue.popleft())

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

    # --- decode ---------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Retract until the next step fits: fewest generated tokens first, later ones first."""
        retracted = False
        while len(self.running) > 1 and not self.fits(1):
            victim = min(self.running, key=lambda r: (r.generated, -r.number))
            self.running.remove(victim)
            self.queue.appendleft(victim)
            self.retractions += 1
            retracted = True
        if retracted:
            done = sum(r.generated for r in self.running)
            wanted = sum(r.output for r in self.running)
            self.ratio = min((done + 20 * len(self.running)) / max(wanted, 1), 1.0)

    def decode(self, count: int) -> list[Request]:
        """Take `count` steps, none beyond the end of a request; returns those that end."""
        self.clock += count
        step = (INITIAL_RATIO - FINAL_RATIO) / DECAY_STEPS * self.pool.conservativeness
        floor = FINAL_RATIO * self.pool.conservativeness
        self.ratio = max(self.ratio - count * step, floor)
        ended = []
        for request in self.running:
            request.generated += count
            if request.generated >= request.output:
                ended.append(request)
        if ended:
            self.running = [r for r in self.running if r.generated < r.output]
        return ended
