"""The serving model again, one step at a time, on plain objects: slow, for comparison only."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from hisparse_sim.simulator.serving.admission import Pool
from hisparse_sim.simulator.serving.served import Server
from hisparse_sim.simulator.serving.workload import Requests

PAGE, CLIP, RESERVE = 64, 4096, 512


def pages(tokens: int) -> int:
    return -(-tokens // PAGE) * PAGE


def lengths(load: Requests, i: int) -> tuple[int, int]:
    return int(load.prompt_len[i]), int(load.output_len[i])


@dataclass(eq=False)
class Request:
    number: int
    prompt: int
    output: int
    arrival_s: float
    rank: Rank | None = None
    source: Rank | None = None
    generated: int = 0
    cached: int = 0  # tokens of the prompt that need no prefill
    done: int = 0  # tokens prefilled
    ready_s: float = inf
    first_token_s: float = -1.0
    end_s: float = -1.0

    @property
    def length(self) -> int:
        return self.prompt + self.generated

    @property
    def left(self) -> int:
        return self.output - self.generated


@dataclass(eq=False)
class Rank:
    pool: Pool
    role: str  # together, prefill or decode
    max_running: int
    budget: int  # prompt tokens a step
    queue: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    pending: list[Request] = field(default_factory=list)
    work: list[tuple[Request, int]] = field(default_factory=list)  # this step's prompts, up to
    full: bool = False
    link_free_s: float = 0.0
    ratio: float = 0.7
    retractions: int = 0

    def logical(self, growth: int = 0) -> int:
        running = sum(pages(r.length + growth) for r in self.running)
        return running + sum(pages(r.length) for r in self.pending)

    def device(self, growth: int = 0) -> int:
        buffer = self.pool.device_buffer_size
        if not buffer:
            return self.logical(growth)
        scratch = self.pool.scratch_tokens
        whole = buffer + PAGE + scratch
        held = [pages(r.length + growth) for r in self.running]
        used = sum(tokens if tokens < buffer and not scratch else whole for tokens in held)
        if self.role == "decode":
            return used
        return used + sum(pages(r.length) + scratch for r in self.pending)

    def fits(self, growth: int) -> bool:
        if self.logical(growth) > self.pool.logical_tokens:
            return False
        return not self.pool.hierarchical or self.device(growth) <= self.pool.device_tokens

    # --- admission with prefill -----------------------------------------------------------------

    def admits(self, request: Request) -> bool:
        if len(self.running) + len(self.pending) >= self.max_running:
            return False
        if not self.running and not self.pending:
            return True
        free = self.pool.logical_tokens - self.logical()
        if self.pool.hierarchical:
            device = self.pool.device_tokens - self.device()
            if self.pool.scratch_tokens:
                buffer = max(self.pool.device_buffer_size + PAGE, pages(request.length))
                device -= self.pool.scratch_tokens + buffer - pages(request.length)
            free = min(free, device)
        if self.role == "prefill":
            return pages(request.length) + PAGE <= free
        joined = [r for r, _ in self.work]
        promised: float = sum(min(r.left, CLIP) for r in self.running)
        if self.pool.scaled:
            promised *= self.ratio
        promised += sum(min(r.left, CLIP) for r in joined)
        free -= PAGE * len(joined)
        if not self.pool.ignore_eos:
            return request.length + min(request.left, CLIP) + PAGE < free - promised
        needed = pages(request.length) + (PAGE if self.pool.engine.admits_with_page else 0)
        if needed > free - promised:
            return False
        free -= needed
        ends = sorted((r.left, r.length) for r in (*joined, request, *self.running))
        for i, (left, held) in enumerate(ends):
            growing = len(ends) - i
            if free - left * growing <= growing:
                return False
            free += held
        return True

    def plan_prefill(self) -> None:
        self.work, budget = [], self.budget
        started = [r for r in self.pending if r.done < r.length and r.ready_s == inf]
        while budget > 0:
            if started:
                request = started.pop()
            else:
                if not self.queue or (self.full and not self.pool.hierarchical):
                    return
                if not self.admits(self.queue[0]):
                    self.full = True
                    return
                request = self.queue.pop(0)
                request.done, request.ready_s = request.cached, inf
                self.pending.append(request)
            upto = min(request.length, request.done + budget)
            self.work.append((request, upto))
            budget -= upto - request.done
            if upto < request.length:
                return

    # --- admission before a prefill elsewhere ---------------------------------------------------

    def reserves(self, request: Request) -> bool:
        active = len(self.running) + len(self.pending)
        slots = 3 * self.max_running if self.max_running <= 32 else self.max_running
        resumed = request.generated > 0
        if active >= slots or (resumed and len(self.running) >= self.max_running):
            return False
        if not active:
            return True
        whole = self.pool.device_buffer_size + PAGE + self.pool.scratch_tokens
        buffers = whole * (len(self.pending) + 1)
        if self.pool.hierarchical and self.device() + buffers > self.pool.device_tokens:
            return False
        held = sum(r.length for r in self.running)
        needed, kept = pages(request.length) + RESERVE, RESERVE * active
        if not resumed:
            needed = max(needed, request.length + min(request.output, CLIP) - held)
            for r in self.running:
                kept = max(kept, r.prompt + min(r.output, CLIP) - held)
        return self.logical() + needed + kept <= self.pool.logical_tokens

    # --- decode ---------------------------------------------------------------------------------

    def make_room(self) -> None:
        gone = False
        while len(self.running) > 1 and not self.fits(1):
            last = max(
                range(len(self.running)),
                key=lambda i: (-self.running[i].generated, self.running[i].prompt, i),
            )
            self.queue.insert(
                0 if self.role == "decode" else len(self.queue), self.running.pop(last)
            )
            self.retractions += 1
            gone = True
        if gone:
            self.full = False
            done = sum(r.generated + 20 for r in self.running)
            self.ratio = min(done / (sum(r.output for r in self.running) + 1), 1.0)

    def decode(self) -> list[Request]:
        self.ratio = max(self.ratio - (0.7 - 0.098) / 600, 0.098)
        for r in self.running:
            r.generated += 1
        ended = [r for r in self.running if r.left == 0]
        self.running = [r for r in self.running if r.left]
        self.full = self.full and not ended
        return ended


@dataclass(eq=False)
class Instance:
    ranks: list[Rank]
    since_s: float = 0.0
    until_s: float = inf
    busy: bool = False
    prefill_s: float = 0.0
    decode_s: float = 0.0
    idle_s: float = 0.0


class Reference:
    """One run; `requests`, `instances` and the means hold what came of it."""

    def __init__(self, server: Server, load: Requests) -> None:
        self.server, self.now, self.inside = server, 0.0, 0
        self.clients = load.concurrency or len(load)
        self.requests: list[Request] = []
        for i in range(len(load)):
            output = server.output(int(load.prompt_len[i]), int(load.output_len[i]))
            if output >= 1:
                self.requests.append(
                    Request(
                        len(self.requests),
                        int(load.prompt_len[i]),
                        output,
                        float(load.arrival_s[i]),
                    )
                )
        self.due = list(self.requests)
        self.clients = load.concurrency or len(self.requests)

        def instance(pool: Pool, role: str) -> Instance:
            return Instance(
                [
                    Rank(pool, role, server.max_running, server.chunk_tokens)
                    for _ in range(server.ranks)
                ]
            )

        role = "decode" if server.prefill_instances else "together"
        self.instances = [instance(server.pool, role) for _ in range(server.instances)]
        self.entries = [rank for one in self.instances for rank in one.ranks]
        prefill = server.prefill_pool or server.pool
        apart = [instance(prefill, "prefill") for _ in range(server.prefill_instances)]
        self.sources = [rank for one in apart for rank in one.ranks]
        self.instances += apart
        if load.blocks and server.prefix_cache:
            kept = [i for i in range(len(load)) if server.output(*lengths(load, i)) >= 1]
            pool = (server.prefill_pool or server.pool) if apart else server.pool
            caches: dict[int, list[int]] = {}
            for request, i in zip(self.requests, kept, strict=True):
                rank = request.number % len(self.sources or self.entries)
                cache, blocks = caches.setdefault(rank, []), load.blocks.row(i)
                hits = 0
                while hits < len(blocks) and blocks[hits] in cache:
                    hits += 1
                request.cached = min(hits * load.blocks.tokens, request.prompt - 1)
                for block in blocks[::-1]:  # the last used is the last of the list
                    if block in cache:
                        cache.remove(block)
                    cache.append(block)
                while len(cache) * load.blocks.tokens > pool.device_tokens:
                    cache.pop(0)

    def run(self) -> Reference:
        while True:
            arrival = inf
            if self.due and self.inside < self.clients:
                arrival = max(self.due[0].arrival_s, self.now)
            acting, when = None, arrival
            for one in self.instances:
                if one.until_s < when:
                    acting, when = one, one.until_s
            if when == inf:
                return self
            self.now = when
            if acting:
                self.finish(acting)
            self.arrive()
            if acting:
                self.begin(acting)

    def wake(self, rank: Rank, when: float) -> None:
        one = next(one for one in self.instances if rank in one.ranks)
        if not one.busy:
            one.until_s = min(one.until_s, when)

    def arrive(self) -> None:
        while self.due and self.inside < self.clients and self.due[0].arrival_s <= self.now:
            request = self.due.pop(0)
            request.arrival_s = self.now
            request.rank = self.entries[request.number % len(self.entries)]
            if self.sources:
                request.source = self.sources[request.number % len(self.sources)]
            request.rank.queue.append(request)
            self.wake(request.rank, self.now)
            self.inside += 1

    def end(self, request: Request) -> None:
        request.end_s = self.now
        self.inside -= 1

    def finish(self, one: Instance) -> None:
        seconds = self.now - one.since_s
        prefilled = any(rank.work for rank in one.ranks)
        for rank in one.ranks:
            work, rank.work = rank.work, []
            if work:
                self.prefilled(rank, work)
            elif one.busy:
                for request in rank.decode():
                    self.end(request)
            self.join(rank)
        if not one.busy:
            one.idle_s += seconds
        elif prefilled:
            one.prefill_s += seconds
        else:
            one.decode_s += seconds
        one.since_s = self.now

    def prefilled(self, rank: Rank, work: list[tuple[Request, int]]) -> None:
        server = self.server
        for request, upto in work:
            tokens = upto - (request.done if request.done > request.cached else 0)
            request.done = upto
            whole = upto == request.length
            if rank.role == "prefill":
                assert request.rank is not None
                begins = max(self.now, rank.link_free_s, request.rank.link_free_s)
                bytes_ = tokens * server.transfer_token_bytes
                ends = begins + bytes_ / server.transfer_bytes_per_s
                rank.link_free_s = request.rank.link_free_s = ends
                if whole:
                    request.ready_s = ends
                    self.wake(request.rank, ends)
                continue
            if not whole:
                continue
            if request.generated == 0:
                request.first_token_s = self.now
            request.generated += 1
            if request.left <= 0:
                rank.pending.remove(request)
                rank.full = False
                self.end(request)
                continue
            request.ready_s = self.now
            if rank.pool.hierarchical:
                begins = max(self.now, rank.link_free_s)
                bytes_ = request.length * server.token_bytes
                request.ready_s = rank.link_free_s = begins + bytes_ / server.staging_bytes_per_s

    def join(self, rank: Rank) -> None:
        for request in list(rank.pending):
            if request.ready_s > self.now:
                continue
            if rank.role == "prefill":
                rank.pending.remove(request)
                rank.full = False
            elif len(rank.running) < rank.max_running:
                rank.pending.remove(request)
                if rank.role == "decode":
                    request.first_token_s, request.generated = self.now, 1
                    if request.left <= 0:
                        self.end(request)
                        continue
                rank.running.append(request)

    def begin(self, one: Instance) -> None:
        for rank in one.ranks:
            if rank.role == "decode":
                while rank.queue and rank.reserves(rank.queue[0]):
                    request = rank.queue.pop(0)
                    if request.generated:
                        rank.running.append(request)
                        continue
                    request.ready_s = inf
                    rank.pending.append(request)
                    assert request.source is not None
                    request.source.queue.append(request)
                    self.wake(request.source, self.now)
            else:
                rank.plan_prefill()
            rank.make_room()
        one.busy = any(rank.work or rank.running for rank in one.ranks)
        if one.busy:
            one.until_s = self.now + self.step_us(one) / 1e6
        else:
            waiting = [r.ready_s for rank in one.ranks for r in rank.pending]
            one.until_s = min((t for t in waiting if t > self.now), default=inf)

    def step_us(self, one: Instance) -> float:
        steps, exposure = self.server.steps, self.server.exposure
        prefills = any(rank.work for rank in one.ranks)
        running = sum(len(rank.running) for rank in one.ranks)
        rest = 0.0 if prefills else steps.decode_rest_us(running / len(one.ranks))
        slowest, tokens = 0.0, 0
        for rank in one.ranks:
            attention = 0.0
            if rank.work:
                for request, upto in rank.work:
                    attention += steps.prefill_attention_chunk_us(request.done, upto)
                    tokens += upto - request.done
            elif rank.running:
                context = sum(r.length for r in rank.running) / len(rank.running)
                context += 0.0 if prefills else 0.5
                attention = steps.decode_attention_us(len(rank.running), context)
                buffer, more = max(rank.pool.device_buffer_size, 1), 0.0 if prefills else 0.5
                shares = [1 / max(r.length + more, buffer) for r in rank.running]
                attention += exposure.step_us(
                    len(rank.running), len(shares) / sum(shares), attention + rest, attention
                )
                tokens += len(rank.running)
            slowest = max(slowest, attention)
        if prefills:
            return slowest + steps.prefill_rest_chunk_us(tokens / len(one.ranks))
        return slowest + rest
