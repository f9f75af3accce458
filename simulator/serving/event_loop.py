"""A deployment over time: a discrete-event model of continuous batching.

An instance is a group of ranks in lock-step, because the experts need the tokens of all. Instances
that prefill and decode together serve a request whole: a rank that can start or continue a prefill
does so (prefill first, in chunks); the others decode one token in that step, which lasts as long as
the slowest. If disaggregated, a decode instance reserves memory for a request, a prefill instance
then prefills its prompt and sends each chunk over the network, and the first token is returned when
the request joins the running batch. Requests go to the ranks in turn.

Between two events on an instance (a request ends or arrives, a transfer or staging ends, a pool
page is missing, a queue may move) its steps are the same and are taken together. An event elsewhere
in the meantime shortens that to the end of the current step. Admission, growth and
retraction follow admission.py, times come from step_tables.py. The compiled loop is one file: an
event passes through all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from hisparse_sim.simulator.serving.admission import (
    DECODE,
    NOBODY,
    PREFILL,
    State,
    decode,
    let_go,
    make_room,
    mean_context,
    missing_context,
    plan_chunks,
    push,
    reserve,
    start,
    steps_until_full,
    used,
    waits,
)
from hisparse_sim.simulator.serving.step_tables import (
    StepTables,
    copying_us,
    decode_us,
    line,
    prompt_us,
    wait_us,
)
from hisparse_sim.traces.machine_code import compiled, rule

QUEUE_CHECK_STEPS = 64  # steps between checks of a queue that only the progress of tokens can move
CONTEXT_STEPS = 512  # steps over which a step's time is taken as constant, at the mean context

IDLE, PREFILLING, DECODING = range(3)  # what an instance does
DONE, GOES_ON, STALLED = range(3)  # how `run` returns
ARRIVAL = NOBODY  # instead of an instance

INSTANCE = np.dtype(
    [
        ("role", "i8"),
        ("first_rank", "i8"),
        ("ranks", "i8"),
        ("doing", "i8"),
        ("since_s", "f8"),
        ("step_s", "f8"),
        ("steps", "i8"),
        ("wake_s", "f8"),  # an idle instance looks again then
        # The parts of a decode step, and their sums so far: all but `hidden` make up the time.
        ("step_attention_s", "f8"),
        ("step_rest_s", "f8"),
        ("step_swap_in_s", "f8"),
        ("step_hidden_s", "f8"),
        ("prefill_s", "f8"),
        ("attention_s", "f8"),
        ("rest_s", "f8"),
        ("swap_in_s", "f8"),
        ("hidden_s", "f8"),  # copying while the same rank computes, in no sum
        ("idle_s", "f8"),
        ("running_s", "f8"),  # requests that decode times seconds
    ]
)
TOTALS = np.dtype(
    [
        ("now", "f8"),
        ("due", "i8"),  # next request to arrive
        ("inside", "i8"),
        ("concurrency", "i8"),
        ("entries", "i8"),  # ranks at which requests arrive: the first ones
        ("sources", "i8"),  # ranks that prefill for others: behind them
        ("finished", "i8"),
        ("system_s", "f8"),  # requests inside times seconds
        ("queued_s", "f8", 4),  # those that wait for memory, by reason, times seconds
        ("peak_device", "i8"),  # tokens on any rank
        ("peak_logical", "i8"),
        ("staging_bytes_per_s", "f8"),  # device to host, one rank
        ("staging_token_bytes", "f8"),
        ("transfer_bytes_per_s", "f8"),  # from prefill to decode, one rank
        ("transfer_token_bytes", "f8"),
    ]
)


@rule
def earliest(state: State) -> tuple[int, float]:
    """The instance that acts next, or ARRIVAL, and its time; infinite if nothing will happen."""
    totals = state.totals[0]
    who, when = ARRIVAL, np.inf
    if totals.due < len(state.requests) and totals.inside < totals.concurrency:
        when = max(state.requests[totals.due].arrival_s, totals.now)
    for i in range(len(state.instances)):
        instance = state.instances[i]
        acts = instance.wake_s
        if instance.doing != IDLE:
            acts = instance.since_s + instance.steps * instance.step_s
        if acts < when:
            who, when = i, acts
    return who, when


@rule
def notify(state: State, i: int, when: float) -> None:
    """Let an instance look at its queues at `when`, or at the end of the step that runs then."""
    instance = state.instances[i]
    if instance.doing == IDLE:
        instance.wake_s = min(instance.wake_s, when)
    elif instance.doing == DECODING:
        passed = int(np.ceil((when - instance.since_s) / instance.step_s))
        instance.steps = min(instance.steps, max(passed, 1))


@rule
def arrive(state: State) -> None:
    """Admit requests that are due, in turn over the ranks."""
    totals = state.totals[0]
    while totals.due < len(state.requests) and totals.inside < totals.concurrency:
        request = state.requests[totals.due]
        if request.arrival_s > totals.now:
            return
        request.arrival_s = totals.now  # it may have waited for a free client
        request.rank = totals.due % totals.entries
        if totals.sources > 0:
            request.source = totals.entries + totals.due % totals.sources
        push(state, request.rank, totals.due)
        if state.ranks[request.rank].queued == 1:
            notify(state, state.ranks[request.rank].instance, totals.now)
        totals.due += 1
        totals.inside += 1


@rule
def leave(state: State, count: int) -> None:
    state.totals[0].finished += count
    state.totals[0].inside -= count


# --- the end of what an instance did ------------------------------------------------------------


@rule
def finish(state: State, i: int) -> None:
    """Account for the work of an instance until now, and let ready requests join."""
    instance, totals = state.instances[i], state.totals[0]
    seconds = totals.now - instance.since_s
    for r in range(instance.first_rank, instance.first_rank + instance.ranks):
        rank = state.ranks[r]
        instance.running_s += rank.running * seconds
        if rank.role != PREFILL:
            totals.queued_s[rank.refused] += rank.queued * seconds
        if instance.doing == DECODING:
            leave(state, decode(state, r, instance.steps, totals.now))
        elif instance.doing == PREFILLING:
            if has_chunks(state, r):
                finish_chunks(state, r)
            else:
                leave(state, decode(state, r, 1, totals.now))
        join(state, r)
    if instance.doing == DECODING:
        instance.attention_s += instance.steps * instance.step_attention_s
        instance.rest_s += instance.steps * instance.step_rest_s
        instance.swap_in_s += instance.steps * instance.step_swap_in_s
        instance.hidden_s += instance.steps * instance.step_hidden_s
    elif instance.doing == PREFILLING:
        instance.prefill_s += seconds
    else:
        instance.idle_s += seconds
    instance.since_s = totals.now


@rule
def has_chunks(state: State, r: int) -> bool:
    """Whether the rank prefills in this step."""
    for i in range(state.ranks[r].pending):
        request = state.requests[state.pending[r, i]]
        if request.planned > request.prefilled:
            return True
    return False


@rule
def finish_chunks(state: State, r: int) -> None:
    """Account for the prompt pieces of a step: finished ones are staged to the host, or sent."""
    rank, totals = state.ranks[r], state.totals[0]
    i = 0
    while i < rank.pending:
        request = state.requests[state.pending[r, i]]
        i += 1
        tokens = request.planned - request.prefilled
        if tokens == 0:
            continue
        if rank.role == PREFILL and request.prefilled == request.cached:
            tokens = request.planned  # what the prefix cache holds is sent, too
        request.prefilled = request.planned
        whole = request.prefilled == request.prompt + request.generated
        if rank.role == PREFILL:
            target = state.ranks[request.rank]
            begins = max(totals.now, rank.link_free_s, target.link_free_s)
            ends = begins + tokens * totals.transfer_token_bytes / totals.transfer_bytes_per_s
            rank.link_free_s = target.link_free_s = ends
            if whole:
                request.ready_s = ends
                notify(state, target.instance, ends)
        elif whole:
            if request.generated == 0:
                request.first_token_s = totals.now
            request.generated += 1
            if request.generated >= request.output:
                request.end_s = totals.now
                i -= 1
                let_go(state, r, i)
                rank.full = False
                leave(state, 1)
            elif rank.device_buffer_size > 0:
                bytes_ = (request.prompt + request.generated) * totals.staging_token_bytes
                begins = max(totals.now, rank.link_free_s)
                rank.link_free_s = begins + bytes_ / totals.staging_bytes_per_s
                request.ready_s = rank.link_free_s
            else:
                request.ready_s = totals.now


@rule
def join(state: State, r: int) -> None:
    """Start to decode requests whose prompt is in place; a rank that prefills for others drops
    them."""
    rank, now = state.ranks[r], state.totals[0].now
    i = 0
    while i < rank.pending:
        number = state.pending[r, i]
        request = state.requests[number]
        if request.ready_s > now or (rank.role != PREFILL and rank.running >= rank.max_running):
            i += 1
            continue
        let_go(state, r, i)
        if rank.role == PREFILL:
            rank.full = False
            continue
        if rank.role == DECODE:
            request.first_token_s = now
            request.generated = 1
            if request.generated >= request.output:
                request.end_s = now
                leave(state, 1)
                continue
        start(state, r, number)


# --- the next thing that it does ----------------------------------------------------------------


@rule
def begin(state: State, tables: StepTables, i: int, context_steps: int, queue_steps: int) -> None:
    """Admit, make room, and plan the next step, or the next steps that are alike."""
    instance, totals = state.instances[i], state.totals[0]
    prefills, ready = False, np.inf
    running = 0
    for r in range(instance.first_rank, instance.first_rank + instance.ranks):
        rank = state.ranks[r]
        if rank.role == DECODE:
            reserve_all(state, r)
        else:
            prefills = plan_chunks(state, r, totals.now) or prefills
        make_room(state, r)
        for k in range(rank.pending):
            until = state.requests[state.pending[r, k]].ready_s
            if until > totals.now:
                ready = min(ready, until)
        running += rank.running
        logical, device = used(state, r, 0)
        totals.peak_logical = max(totals.peak_logical, logical)
        totals.peak_device = max(totals.peak_device, device)
    if prefills:
        instance.doing = PREFILLING
        instance.steps = 1
        instance.step_s = prefill_step_us(state, tables, i) / 1e6
    elif running > 0:
        instance.doing = DECODING
        plan_decode(state, tables, i, running, context_steps, queue_steps)
        if ready < np.inf:
            notify(state, i, ready)
    else:
        instance.doing = IDLE
        instance.wake_s = ready


@rule
def reserve_all(state: State, r: int) -> None:
    """Reserve memory on a decode rank, and send the requests on to be prefilled."""
    totals = state.totals[0]
    number = reserve(state, r, totals.now)
    while number != NOBODY:
        source = state.requests[number].source
        push(state, source, number)
        notify(state, state.ranks[source].instance, totals.now)
        number = reserve(state, r, totals.now)


@rule
def prefill_step_us(state: State, tables: StepTables, i: int) -> float:
    """A step in which some ranks run prompt chunks and the others decode one token."""
    instance = state.instances[i]
    slowest, tokens = 0.0, 0
    for r in range(instance.first_rank, instance.first_rank + instance.ranks):
        rank, attention, chunks = state.ranks[r], 0.0, False
        for k in range(rank.pending):
            request = state.requests[state.pending[r, k]]
            if request.planned > request.prefilled:
                attention += prompt_us(tables, request.prefilled, request.planned)
                tokens += request.planned - request.prefilled
                chunks = True
        if not chunks and rank.running > 0:
            context = mean_context(rank)
            attention = decode_us(tables, rank.running, context)
            missing = missing_context(state, r, 0.0)
            attention += wait_us(tables, rank.running, missing, attention)
            tokens += rank.running
        slowest = max(slowest, attention)
    return slowest + line(tables.prompt, tables.prompt_rest, tokens / instance.ranks)


@rule
def plan_decode(
    state: State, tables: StepTables, i: int, running: int, context_steps: int, queue_steps: int
) -> None:
    """Decode on all ranks until the next event of their own."""
    instance, count = state.instances[i], context_steps
    ranks = range(instance.first_rank, instance.first_rank + instance.ranks)
    for r in ranks:
        rank = state.ranks[r]
        for k in range(rank.running):
            request = state.requests[state.running[r, k]]
            count = min(count, request.output - request.generated)
        if (rank.role == DECODE and rank.queued > 0) or waits(rank):
            count = min(count, queue_steps)
    for r in ranks:
        if state.ranks[r].running > 0:
            count = steps_until_full(state, r, count)
    rest = tables.rest[running]
    slowest = attention = wait = hidden = 0.0
    for r in ranks:
        rank = state.ranks[r]
        if rank.running > 0:
            context = mean_context(rank) + count / 2
            a = decode_us(tables, rank.running, context)
            missing = missing_context(state, r, count / 2)
            w = wait_us(tables, rank.running, missing, a + rest)
            if a + w > slowest:
                slowest, attention, wait = a + w, a, w
                hidden = max(copying_us(tables, rank.running, missing) - w, 0.0)
    instance.steps = count
    instance.step_s = (slowest + rest) / 1e6
    instance.step_attention_s = attention / 1e6
    instance.step_rest_s = rest / 1e6
    instance.step_swap_in_s = wait / 1e6
    instance.step_hidden_s = hidden / 1e6


def _stamp() -> int:
    """Digest of the source that the compiled loop may come from: Numba watches this file only."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return int.from_bytes(digest.digest()[:7], "little")


@cache
def loop() -> Callable[[State, StepTables, int, int, int], int]:
    """Return `run(state, tables, events, context_steps, queue_steps)`.

    It goes on for so many events and returns DONE, GOES_ON or STALLED: requests wait, and nothing
    can run. Compiled at the first call, which takes some seconds, and kept on disk.
    """
    stamp = _stamp()

    def run(
        state: State, tables: StepTables, events: int, context_steps: int, queue_steps: int
    ) -> int:
        _ = stamp
        totals = state.totals[0]
        for _event in range(events):
            who, when = earliest(state)
            if when == np.inf:
                return DONE if totals.finished == len(state.requests) else STALLED
            totals.system_s += totals.inside * (when - totals.now)
            totals.now = when
            if who != ARRIVAL:
                finish(state, who)
            arrive(state)
            if who != ARRIVAL:
                begin(state, tables, who, context_steps, queue_steps)
        return GOES_ON

    return compiled(run)
