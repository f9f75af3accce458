"""Serving a load: the parts of a deployment, one run over time, and its outcome.

The run itself is in event_loop.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf

import numpy as np

from hisparse_sim.simulator.serving import event_loop
from hisparse_sim.simulator.serving.admission import (
    DECODE,
    DEVICE_POOL,
    LOGICAL_POOL,
    PREFILL,
    REQUEST,
    SLOTS,
    TOGETHER,
    Pool,
    Records,
    State,
    blank,
    length_on,
    make_ranks,
)
from hisparse_sim.simulator.serving.exposure import Exposure
from hisparse_sim.simulator.serving.prefixes import cached_tokens
from hisparse_sim.simulator.serving.step_tables import tabulate
from hisparse_sim.simulator.serving.steptimes import StepTimes
from hisparse_sim.simulator.serving.workload import Floats, Longs, Requests, Workload, drawn

EVENTS_AT_A_TIME = 50_000  # between two reports of progress
SHORT_OF = {  # in the words of memory.py
    SLOTS: "max-running-requests",
    DEVICE_POOL: "device pool",
    LOGICAL_POOL: "indexer keys",
}
Progress = Callable[[int, int], None]  # (requests finished, all)


@dataclass(frozen=True)
class Server:
    """A deployment. With `prefill_instances`, those prefill for the others; else all do both."""

    steps: StepTimes
    exposure: Exposure
    pool: Pool  # of a rank that decodes
    ranks: int  # of an instance
    chunk_tokens: int = 8192  # --chunked-prefill-size divided by the ranks
    max_running: int = 4096  # requests on one rank
    staging_bytes_per_s: float = 55.4e9  # device to host, one rank
    token_bytes: int = 0  # KV of one token over all layers, staged to the host after prefill
    instances: int = 1  # that decode
    prefill_instances: int = 0
    prefill_pool: Pool | None = None  # of a rank that only prefills; `pool` if not given
    transfer_bytes_per_s: float = inf  # from a rank that prefills to one that decodes
    transfer_token_bytes: int = 0
    prefix_cache: bool = False  # of the ranks that prefill

    def __post_init__(self) -> None:
        for name, least in (("ranks", 1), ("instances", 1), ("prefill_instances", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.transfer_bytes_per_s <= 0 or self.staging_bytes_per_s <= 0:
            raise ValueError("links must have a rate above 0")

    def output(self, prompt: int, output: int) -> int:
        """Tokens that a request may generate of those requested; 0: refused."""
        apart = self.prefill_pool if self.prefill_instances else None
        return length_on(self.pool, apart, prompt, output).output


@dataclass
class Times:
    """The time of an instance by use, in s. The parts add up to the makespan, and beside them
    `hidden` says how long copies ran while a decode step computed."""

    prefill: float = 0.0
    decode_attention: float = 0.0
    decode_rest: float = 0.0
    swap_in: float = 0.0
    idle: float = 0.0
    hidden: float = 0.0

    @property
    def total(self) -> float:
        return self.prefill + self.decode_attention + self.decode_rest + self.swap_in + self.idle


@dataclass(frozen=True, eq=False)
class Served:
    """The outcome of one run. Times in s, rates per s."""

    makespan: float
    finished: Records  # [n] of admission.REQUEST
    by_instance: tuple[Times, ...]  # those that decode first, then those that prefill for them
    decoding: int  # how many of them decode
    running: float  # requests decoding, mean over time
    waiting: float  # all others in the system: queued, prefilling, staged, transferred
    queued: dict[str, float]  # of these, without memory, by what was short; mean over time
    retractions: int
    peak_device_tokens: int  # of any rank
    peak_logical_tokens: int
    refused: int  # prompts too long for an empty rank
    cut: int  # outputs shortened to what an empty rank can hold
    prefix_hits: float = 0.0  # share of the prompt tokens that were in the prefix cache

    @property
    def times(self) -> Times:
        """The mean of the instances that decode."""
        parts = [vars(times) for times in self.by_instance[: self.decoding]]
        return Times(**{name: sum(p[name] for p in parts) / len(parts) for name in parts[0]})

    @property
    def prefill_busy(self) -> float:
        """Share of the time in which the instances that prefill for others do so; nan if none."""
        apart = self.by_instance[self.decoding :]
        if not apart or not self.makespan:
            return float("nan")
        return sum(times.prefill for times in apart) / len(apart) / self.makespan

    @property
    def output_tokens_per_s(self) -> float:
        return float(self.finished.output.sum()) / self.makespan if self.makespan else 0.0

    @property
    def ttfts_s(self) -> Floats:
        """[n] from sending to the first token: waiting, prefill, staging or transfer."""
        return np.asarray(self.finished.first_token_s - self.finished.arrival_s)

    @property
    def tpots_ms(self) -> Floats:
        """[n] time per output token after the first, as the engine's bench_serving has it:
        (latency - TTFT) / (output - 1). Requests of one token have none: nan."""
        after = np.maximum(self.finished.output - 1, 1)
        tpots = 1000 * (self.finished.end_s - self.finished.first_token_s) / after
        return np.where(self.finished.output > 1, tpots, np.nan)

    def ttft_s(self, percent: float) -> float:
        return _percentile(self.ttfts_s, percent)

    def tpot_ms(self, percent: float) -> float:
        return _percentile(self.tpots_ms, percent)

    def wait_s(self, percent: float) -> float:
        """The part of the TTFT until a request has memory and its prefill may begin."""
        return _percentile(self.finished.admitted_s - self.finished.arrival_s, percent)


def _percentile(values: Floats, percent: float) -> float:
    known = values[~np.isnan(values)]
    return float(np.percentile(known, percent)) if len(known) else float("nan")


def _cached(server: Server, load: Requests) -> Longs:
    """[n] tokens of each prompt that the prefix cache holds."""
    if load.blocks is None or not server.prefix_cache:
        return np.zeros(len(load), np.int64)
    apart = server.prefill_instances > 0
    pool = (server.prefill_pool or server.pool) if apart else server.pool
    ranks = server.ranks * (server.prefill_instances if apart else server.instances)
    return cached_tokens(load.blocks, load.prompt_len, ranks, pool.device_tokens)


def _state(server: Server, load: Requests, outputs: Longs, cached: Longs) -> State:
    requests = blank(len(load), REQUEST)
    requests.prompt, requests.output = load.prompt_len, outputs
    requests.arrival_s = load.arrival_s
    requests.cached = cached
    for name in ("admitted_s", "first_token_s", "end_s"):
        requests[name] = -1.0
    apart = server.prefill_instances > 0
    most = max(1, min(server.max_running, load.concurrency or len(load), len(load)))
    role = DECODE if apart else TOGETHER
    count, sources = server.ranks * server.instances, server.ranks * server.prefill_instances
    prefill_pool = server.prefill_pool or server.pool
    here = make_ranks(count, server.pool, role, most, server.chunk_tokens)
    there = make_ranks(sources, prefill_pool, PREFILL, most, server.chunk_tokens)
    ranks = np.concatenate([here, there]).view(np.recarray)
    ranks.instance = np.arange(count + sources) // server.ranks
    instances = blank(server.instances + server.prefill_instances, event_loop.INSTANCE)
    instances.role = [role] * server.instances + [PREFILL] * server.prefill_instances
    instances.first_rank = np.arange(len(instances)) * server.ranks
    instances.ranks = server.ranks
    instances.wake_s = inf
    totals = blank(1, event_loop.TOTALS)
    totals.concurrency = load.concurrency or len(load)
    totals.entries, totals.sources = count, sources
    totals.staging_bytes_per_s = server.staging_bytes_per_s
    totals.staging_token_bytes = server.token_bytes
    totals.transfer_bytes_per_s = server.transfer_bytes_per_s
    totals.transfer_token_bytes = server.transfer_token_bytes
    rows = (len(ranks), int(ranks.slots.max()))
    running, pending = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    return State(requests, ranks, running, pending, instances, totals)


def serve(
    server: Server,
    load: Workload | Requests,
    progress: Progress | None = None,
    *,
    context_steps: int = event_loop.CONTEXT_STEPS,
    queue_steps: int = event_loop.QUEUE_CHECK_STEPS,
) -> Served:
    """Serve all requests and return the outcome.

    Prompts too long for the pool are refused and counted, and outputs are cut and counted, as the
    engine does. Deterministic: the same arguments give the same result. With `context_steps` and
    `queue_steps` of 1 every decode step is taken on its own: hardly more exact, and slow.
    """
    asked = drawn(load)
    lengths = zip(asked.prompt_len.tolist(), asked.output_len.tolist(), strict=True)
    output = cache(server.output)  # many requests are alike
    outputs = np.array([output(*each) for each in lengths], np.int64)
    taken = outputs >= 1
    outputs = outputs[taken]
    kept = Requests(
        asked.arrival_s[taken],
        asked.prompt_len[taken],
        asked.output_len[taken],
        asked.concurrency,
        asked.blocks.of(np.flatnonzero(taken)) if asked.blocks else None,
    )
    cached = _cached(server, kept)
    state = _state(server, kept, outputs, cached)
    most = int(state.ranks.max_running.max())
    tables = tabulate(server.steps, server.exposure, server.ranks, most)
    run = event_loop.loop()
    outcome = event_loop.GOES_ON
    while outcome == event_loop.GOES_ON:
        outcome = run(state, tables, EVENTS_AT_A_TIME, context_steps, queue_steps)
        if progress:
            progress(int(state.totals.finished[0]), len(kept))
    if outcome == event_loop.STALLED:
        raise RuntimeError("serving model stalled: requests wait and nothing can run")
    return _served(server, state, int(np.sum(~taken)), int(np.sum(outputs < kept.output_len)))


def _served(server: Server, state: State, refused: int, cut: int) -> Served:
    totals, instances = state.totals[0], state.instances
    span = float(totals.now)
    times = []
    for i in range(len(instances)):
        one = instances[i]
        trailing = span - one.since_s if one.doing == event_loop.IDLE else 0.0
        times.append(
            Times(
                float(one.prefill_s),
                float(one.attention_s),
                float(one.rest_s),
                float(one.swap_in_s),
                float(one.idle_s + trailing),
                float(one.hidden_s),
            )
        )
    running = float(instances.running_s.sum()) / span if span else 0.0
    inside = float(totals.system_s) / span if span else 0.0
    return Served(
        makespan=span,
        finished=state.requests,
        by_instance=tuple(times),
        decoding=server.instances,
        running=running,
        waiting=inside - running,
        queued={
            name: float(totals.queued_s[reason]) / span if span else 0.0
            for reason, name in SHORT_OF.items()
        },
        retractions=int(state.ranks.retractions.sum()),
        peak_device_tokens=int(totals.peak_device),
        peak_logical_tokens=int(totals.peak_logical),
        refused=refused,
        cut=cut,
        prefix_hits=float(state.requests.cached.sum()) / max(int(state.requests.prompt.sum()), 1),
    )
