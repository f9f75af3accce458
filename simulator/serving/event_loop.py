"""What a serving instance does over time: a discrete-event model of continuous batching.

Ranks of data-parallel attention run in lock-step, because the experts need the tokens of all ranks.
A rank that can start or continue a prefill does so (prefill first, in chunks); the others decode
one token in that step, which lasts as long as the slowest. Between two events (a request ends or
arrives, a staging ends, a pool page is missing, a queue may move) the steps are alike and are taken
together. Admission, growth and retraction follow simulator/admission.py.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from hisparse_sim.simulator.serving.admission import Pool, Rank, Request
from hisparse_sim.simulator.serving.exposure import Exposure
from hisparse_sim.simulator.serving.lengths import CUT
from hisparse_sim.simulator.serving.steptimes import StepTimes
from hisparse_sim.traces.documents import LEAST_AMOUNT, MOST_AMOUNT

MOST_REQUESTS = 10_000_000
QUEUE_CHECK_STEPS = 64  # steps between looks at a queue that only the passing of tokens can move
CONTEXT_STEPS = 512  # steps over which a step's time is taken as constant, at the mean context


@dataclass(frozen=True)
class Workload:
    """Requests to serve: closed loop at `concurrency`, or open loop at `rate_per_s` (Poisson).

    Lengths are uniform in [range_ratio * length, length], as the engine's benchmark draws them;
    1.0 makes all alike.
    """

    prompt: int
    output: int
    requests: int
    concurrency: int | None = None
    rate_per_s: float | None = None
    range_ratio: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt", "output", "requests"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.requests <= MOST_REQUESTS:
            raise ValueError(f"requests must be at most {MOST_REQUESTS:,}")
        if (self.concurrency is None) == (self.rate_per_s is None):
            raise ValueError("give either a concurrency (closed loop) or a rate (open loop)")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.rate_per_s is not None and not LEAST_AMOUNT <= self.rate_per_s <= MOST_AMOUNT:
            raise ValueError(f"rate must be above 0 and finite, not {self.rate_per_s}")
        if not 0 < self.range_ratio <= 1:
            raise ValueError(f"range_ratio must be in (0, 1], not {self.range_ratio}")

    def draw(self) -> tuple[list[tuple[int, int]], list[float]]:
        """Lengths (prompt, output) of every request, and arrival times in s (open loop)."""
        stream = np.random.default_rng(self.seed)

        def lengths(longest: int) -> list[int]:
            shortest = max(1, round(longest * self.range_ratio))
            return [int(n) for n in stream.integers(shortest, longest + 1, self.requests)]

        pairs = list(zip(lengths(self.prompt), lengths(self.output), strict=True))
        if self.rate_per_s is None:
            return pairs, [0.0] * self.requests
        gaps = stream.exponential(1 / self.rate_per_s, self.requests)
        return pairs, [float(t) for t in np.cumsum(gaps)]


@dataclass(frozen=True)
class Server:
    """One decoding instance, with prefill on the same GPUs or on a second instance like it."""

    steps: StepTimes
    exposure: Exposure
    pool: Pool
    ranks: int
    chunk_tokens: int = 8192  # --chunked-prefill-size divided by the ranks
    max_running: int = 4096  # requests on one rank
    prefill_steps: StepTimes | None = None  # set: prefill on an instance of its own
    staging_bytes_per_s: float = 55.4e9  # device to host, one rank
    token_bytes: int = 0  # KV of one token over all layers, staged to the host after prefill


@dataclass
class Times:
    """Where the time went, in s. The parts add up to the makespan."""

    prefill: float = 0.0
    decode_attention: float = 0.0
    decode_rest: float = 0.0
    swap_in: float = 0.0
    idle: float = 0.0

    @property
    def total(self) -> float:
        return self.prefill + self.decode_attention + self.decode_rest + self.swap_in + self.idle


@dataclass(frozen=True)
class Served:
    """The outcome of one run. Times in s, rates per s."""

    makespan: float
    times: Times
    finished: tuple[Request, ...]
    running: float  # requests decoding, mean over time
    waiting: float  # all others in the system: queued, prefilling, staged
    retractions: int
    peak_device_tokens: int  # of any rank
    peak_logical_tokens: int
    refused: int  # prompts too long for an empty rank
    cut: int  # outputs shortened to what an empty rank can hold

    @property
    def output_tokens_per_s(self) -> float:
        tokens = sum(request.output for request in self.finished)
        return tokens / self.makespan if self.makespan else 0.0

    def ttft_s(self, percent: float) -> float:
        return _percentile((r.first_token_s - r.arrival_s for r in self.finished), percent)

    def tpot_ms(self, percent: float) -> float:
        """Time per output token after the first; requests of one token have none."""
        return 1000 * _percentile(
            ((r.end_s - r.first_token_s) / (r.output - 1) for r in self.finished if r.output > 1),
            percent,
        )


def _percentile(values: Iterable[float], percent: float) -> float:
    array = np.fromiter(values, np.float64)
    return float(np.percentile(array, percent)) if len(array) else float("nan")


class _Prefiller:
    """A second instance that only prefills: batches of one prompt a rank, first come first."""

    def __init__(self, steps: StepTimes, ranks: int) -> None:
        self.steps, self.ranks = steps, ranks
        self.queue: deque[Request] = deque()
        self.busy: list[Request] = []
        self.done_at = float("inf")

    def start(self, now: float) -> None:
        if self.busy or not self.queue:
            return
        self.busy = [self.queue.popleft() for _ in range(min(self.ranks, len(self.queue)))]
        longest = max(request.prompt for request in self.busy)
        mean = sum(request.prompt for request in self.busy) / self.ranks
        us = self.steps.prefill_attention_chunk_us(0, longest)
        self.done_at = now + (us + self.steps.prefill_rest_chunk_us(mean)) / 1e6

    def finish(self) -> list[Request]:
        done, self.busy, self.done_at = self.busy, [], float("inf")
        return done


@dataclass
class _Run:
    """One simulation. Requests move: due -> queue of a rank -> prefill -> staging -> running."""

    server: Server
    workload: Workload
    now: float = 0.0
    times: Times = field(default_factory=Times)
    finished: list[Request] = field(default_factory=list)
    refused: int = 0
    cut: int = 0
    running_seconds: float = 0.0
    system_seconds: float = 0.0
    peak_device: int = 0
    peak_logical: int = 0

    def __post_init__(self) -> None:
        server = self.server
        self.ranks = [Rank(server.pool, server.max_running) for _ in range(server.ranks)]
        self.turn = itertools.cycle(self.ranks)  # the engine's round-robin over ranks
        lengths, arrivals = self.workload.draw()
        self.due = deque(
            Request(i, prompt, output, arrival)
            for i, ((prompt, output), arrival) in enumerate(zip(lengths, arrivals, strict=True))
        )
        self.staging: list[tuple[float, int, Rank, Request]] = []  # heap by end of staging
        self.prefiller = (
            _Prefiller(server.prefill_steps, server.ranks) if server.prefill_steps else None
        )
        self.inside = 0

    # --- arrivals -------------------------------------------------------------------------------

    def arrive(self) -> None:
        """Let in what is due: by time in an open loop, by free clients in a closed one."""
        limit = self.workload.concurrency
        while self.due:
            if limit is not None:
                if self.inside >= limit:
                    return
                self.due[0].arrival_s = self.now
            elif self.due[0].arrival_s > self.now:
                return
            request = self.due.popleft()
            length = self.server.pool.length(request.prompt, request.output)
            if length.output < 1:
                self.refused += 1
                continue
            if length.outcome == CUT:
                request.output = length.output
                self.cut += 1
            self.inside += 1
            if self.prefiller:
                self.prefiller.queue.append(request)
            else:
                next(self.turn).queue.append(request)

    def next_outside_event(self) -> float:
        times = [self.staging[0][0]] if self.staging else []
        if self.due and self.workload.concurrency is None:
            times.append(self.due[0].arrival_s)
        if self.prefiller:
            times.append(self.prefiller.done_at)
        return min(times, default=float("inf"))

    def outside_events(self) -> None:
        """Arrivals, prefills of the other instance and stagings that have ended by now."""
        self.arrive()
        if self.prefiller:
            if self.prefiller.done_at <= self.now:
                for request in self.prefiller.finish():
                    request.first_token_s = self.now
                    request.generated = 1
                    if request.generated >= request.output:
                        self.end(request)
                    else:
                        next(self.turn).queue.append(request)
                self.arrive()
            self.prefiller.start(self.now)
        while self.staging and self.staging[0][0] <= self.now:
            _, _, rank, request = heapq.heappop(self.staging)
            rank.staged(request)

    def end(self, request: Request) -> None:
        request.end_s = self.now
        self.finished.append(request)
        self.inside -= 1

    # --- steps ----------------------------------------------------------------------------------

    def advance(self, seconds: float, **parts: float) -> None:
        running = sum(len(rank.running) for rank in self.ranks)
        self.now += seconds
        self.running_seconds += running * seconds
        self.system_seconds += self.inside * seconds
        for name, value in parts.items():
            setattr(self.times, name, getattr(self.times, name) + value)

    def note_peaks(self) -> None:
        for rank in self.ranks:
            self.peak_device = max(self.peak_device, rank.device_used())
            self.peak_logical = max(self.peak_logical, rank.logical_used())

    def prefill_step(self, chunks: list[list[tuple[Request, int, int]]]) -> None:
        """One step in which some ranks run prompt chunks and the others decode one token."""
        steps = self.server.steps
        slowest, tokens = 0.0, 0
        for rank, work in zip(self.ranks, chunks, strict=True):
            if work:
                attention = sum(
                    steps.prefill_attention_chunk_us(start, stop) for _, start, stop in work
                )
                tokens += sum(stop - start for _, start, stop in work)
            elif rank.running:
                attention = steps.decode_attention_us(len(rank.running), rank.mean_context())
                attention += self.wait_us(rank, attention, 0.0)
                tokens += len(rank.running)
            else:
                continue
            slowest = max(slowest, attention)
        seconds = (slowest + steps.prefill_rest_chunk_us(tokens / len(self.ranks))) / 1e6
        self.advance(seconds, prefill=seconds)
        for rank, work in zip(self.ranks, chunks, strict=True):
            if not work and rank.running:
                self.decoded(rank, 1)
            for request, _, stop in work:
                if stop == request.prompt + request.generated:
                    self.prefilled(rank, request)

    def prefilled(self, rank: Rank, request: Request) -> None:
        if request.generated == 0:
            request.first_token_s = self.now
        request.generated += 1
        if request.generated >= request.output:
            rank.drop(request)
            self.end(request)
        elif self.server.pool.hierarchical:
            bytes_ = (request.prompt + request.generated) * self.server.token_bytes
            ready = self.now + bytes_ / self.server.staging_bytes_per_s
            heapq.heappush(self.staging, (ready, request.number, rank, request))
        else:
            rank.staged(request)

    def wait_us(self, rank: Rank, attention: float, rest: float) -> float:
        exposure = self.server.exposure
        if not exposure.copies:
            return 0.0
        return exposure.step_us(len(rank.running), rank.mean_context(), attention + rest, attention)

    def decode_steps(self) -> None:
        """Decode on all ranks until the next event."""
        busy = [rank for rank in self.ranks if rank.running]
        count = min(min(rank.shortest_left() for rank in busy), CONTEXT_STEPS)
        if any(rank.waits for rank in self.ranks):
            count = min(count, QUEUE_CHECK_STEPS)
        count = min(count, min(rank.steps_until_full(count) for rank in busy))
        steps = self.server.steps
        half = count / 2
        rest = steps.decode_rest_us(sum(len(r.running) for r in busy) / len(self.ranks))
        slowest, attention, wait = 0.0, 0.0, 0.0
        for rank in busy:
            a = steps.decode_attention_us(len(rank.running), rank.mean_context() + half)
            w = self.wait_us(rank, a, rest)
            if a + w > slowest:
                slowest, attention, wait = a + w, a, w
        step = (slowest + rest) / 1e6
        until = self.next_outside_event()
        if until < self.now + count * step:  # round up: events are seen at the end of a step
            count = max(1, int(np.ceil((until - self.now) / step)))
        self.advance(
            count * step,
            decode_attention=count * attention / 1e6,
            decode_rest=count * rest / 1e6,
            swap_in=count * wait / 1e6,
        )
        for rank in busy:
            self.decoded(rank, count)

    def decoded(self, rank: Rank, count: int) -> None:
        for request in rank.decode(count):
            self.end(request)

    def run(self) -> Served:
        colocated = self.prefiller is None
        while True:
            self.outside_events()
            chunks: list[list[tuple[Request, int, int]]] = []
            for rank in self.ranks:
                if colocated:
                    chunks.append(rank.next_chunks(self.server.chunk_tokens))
                else:
                    rank.take_transferred()
                    chunks.append([])
                rank.make_room(resumed=not colocated)
            self.note_peaks()
            if any(chunks):
                self.prefill_step(chunks)
            elif any(rank.running for rank in self.ranks):
                self.decode_steps()
            elif (until := self.next_outside_event()) < float("inf"):
                self.advance(until - self.now, idle=until - self.now)
                self.now = until
            elif self.inside:
                raise RuntimeError("serving model stalled: requests wait and nothing can run")
            elif not self.due:
                break
        return Served(
            makespan=self.now,
            times=self.times,
            finished=tuple(self.finished),
            running=self.running_seconds / self.now if self.now else 0.0,
            waiting=(self.system_seconds - self.running_seconds) / self.now if self.now else 0.0,
            retractions=sum(rank.retractions for rank in self.ranks),
            peak_device_tokens=self.peak_device,
            peak_logical_tokens=self.peak_logical,
            refused=self.refused,
            cut=self.cut,
        )


def serve(server: Server, workload: Workload) -> Served:
    """Serve all requests of `workload` and say how it went.

    Prompts too long for the pool are refused and counted, and outputs are cut and counted, as the
    engine does. Deterministic: the same arguments give the same result.
    """
    return _Run(server, workload).run()
