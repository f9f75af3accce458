"""Who may run: pages, pools and futures of requests, worked by hand."""

from __future__ import annotations

import numpy as np

from hisparse_sim.simulator.serving.admission import (
    NOBODY,
    REQUEST,
    TOGETHER,
    Pool,
    State,
    blank,
    decode,
    hold,
    let_go,
    make_ranks,
    make_room,
    plan_chunks,
    pop,
    push,
    start,
    used,
    waits,
)
from hisparse_sim.simulator.serving.engines import load_engine


def rank_of(pool: Pool, *requests: tuple[int, int, int], budget: int = 100_000) -> State:
    """An empty rank, and requests (prompt, output, generated) that are nowhere yet."""
    known = blank(len(requests), REQUEST)
    for request, (prompt, output, generated) in zip(known, requests, strict=True):
        request.prompt, request.output, request.generated = prompt, output, generated
    none = blank(0, REQUEST)
    ranks = make_ranks(1, pool, TOGETHER, 10, budget)
    return State(known, ranks, np.zeros((1, 10), int), np.zeros((1, 10), int), none, none)


def decoding(state: State, *numbers: int) -> None:
    """Put requests into the running batch."""
    for number in numbers:
        start(state, 0, number)


def numbers(state: State, what: str) -> list[int]:
    return [int(n) for n in getattr(state, what)[0][: state.ranks[0][what]]]


def queue(state: State) -> list[int]:
    return [pop(state, 0) for _ in range(state.ranks[0].queued)]


def chunks(state: State) -> list[tuple[int, int, int]]:
    """The pieces of the next step, taken as done."""
    plan_chunks(state, 0, 0.0)
    found = []
    for number in numbers(state, "pending"):
        request = state.requests[number]
        if request.planned > request.prefilled:
            found.append((number, int(request.prefilled), int(request.planned)))
            request.prefilled = request.planned
    return found


def test_rank_takes_pages() -> None:
    state = rank_of(Pool(640, 640), (100, 50, 0), (100, 50, 0), budget=150)
    push(state, 0, 0)
    push(state, 0, 1)
    assert chunks(state) == [(0, 0, 100), (1, 0, 50)]
    assert used(state, 0, 0)[0] == 256
    assert chunks(state) == [(1, 50, 100)]


def admits(pool: Pool, prompt: int, output: int, *running: tuple[int, int, int]) -> bool:
    state = rank_of(pool, *running, (prompt, output, 0))
    decoding(state, *range(len(running)))
    push(state, 0, len(running))
    return plan_chunks(state, 0, 0.0)


def test_admission_of_fixed_lengths() -> None:
    # One runs, 640 of 1,280 tokens held and 640 to come. A prompt of 640 with 640 out needs its
    # page too; both growing 640 more takes 1,280, and a token each must stay.
    used = 640 + 640 + 64 + 2 * 640 + 2
    assert not admits(Pool(used, used), 640, 640, (640, 640, 0))
    assert admits(Pool(used + 1, used + 1), 640, 640, (640, 640, 0))
    # The first ends after 64 steps and frees 1,216 tokens, more than the other still needs.
    used = 1216 + 640 + 64 + 2 * 64 + 2
    assert not admits(Pool(used, used), 640, 640, (640, 640, 576))
    assert admits(Pool(used + 1, used + 1), 640, 640, (640, 640, 576))


def test_admission_charges_the_future_of_those_that_run() -> None:
    # Up to 4,096 tokens of each, beside prompt and page; scaled in older engines.
    running = (6400, 9000, 0)
    used = 6400 + 4096 + 6400 + 64
    assert not admits(Pool(used - 1, used - 1), 6400, 1, running)
    assert admits(Pool(used, used), 6400, 1, running)
    scaled = used - 4096 + 2868  # 0.7 x 4096 = 2867.2
    old = load_engine("sglang-0.5.21")
    assert not admits(Pool(scaled - 1, scaled - 1, engine=old), 6400, 1, running)
    assert admits(Pool(scaled, scaled, engine=old), 6400, 1, running)
    no_page, older = scaled - 64, load_engine("sglang-0.5.20")
    assert not admits(Pool(no_page - 1, no_page - 1, engine=older), 6400, 1, running)
    assert admits(Pool(no_page, no_page, engine=older), 6400, 1, running)


def test_admission_of_requests_that_may_stop_early() -> None:
    # 0.7 of the 640 to come: 448. The new one is charged its own 640 whole, and strictly less fits.
    used = 640 + 448 + 640 + 640 + 64
    assert not admits(Pool(used, used, ignore_eos=False), 640, 640, (640, 640, 0))
    assert admits(Pool(used + 1, used + 1, ignore_eos=False), 640, 640, (640, 640, 0))


def test_the_smaller_pool_decides_under_hisparse() -> None:
    # A hot buffer of 4,160 and a prompt of 6,400 with its page; P * R = 12,864 is the tighter.
    running = (6400, 64, 0)
    assert admits(Pool(100_000, 6400 + 6400 + 64 + 64 + 3, 4096), 6400, 1, running)
    assert not admits(Pool(100_000, 6400 + 6400 + 64 + 63, 4096), 6400, 1, running)
    assert not admits(Pool(4160 + 6400 + 64 + 63, 100_000, 4096), 6400, 1, running)


def test_a_refused_queue_waits_until_one_leaves() -> None:
    state = rank_of(Pool(3100, 3100), (1000, 100, 0), (1000, 900, 0), (1000, 64, 0))
    rank = state.ranks[0]
    decoding(state, 0, 1)
    push(state, 0, 2)
    assert waits(rank)
    assert not plan_chunks(state, 0, 0.0)
    assert not waits(rank)
    assert decode(state, 0, 100, 7.0) == 1
    assert numbers(state, "running") == [1]
    assert state.requests[0].end_s == 7.0
    assert waits(rank)
    assert plan_chunks(state, 0, 0.0)


def test_retraction_takes_the_fewest_generated_then_the_longest_prompt() -> None:
    state = rank_of(Pool(3200, 3200), (640, 500, 64), (640, 500, 0), (768, 500, 0), (768, 500, 0))
    decoding(state, 0, 1, 2, 3)
    rank = state.ranks[0]
    rank.clock += 127
    make_room(state, 0)
    assert numbers(state, "running") == [0, 1, 2]
    assert queue(state) == [3]
    assert rank.ratio == (64 + 20 * 3) / (1500 + 1)


def test_queue_and_pending_keep_their_order() -> None:
    state = rank_of(Pool(6400, 6400), *[(64, 64, 0)] * 5)
    for number in (1, 2):
        push(state, 0, number)
    push(state, 0, 0, True)
    push(state, 0, 3)
    assert queue(state) == [0, 1, 2, 3]
    assert state.ranks[0].head == NOBODY
    push(state, 0, 4)
    assert queue(state) == [4]
    for number in (0, 1, 2):
        hold(state, 0, number, 1.0)
    let_go(state, 0, 1)
    assert numbers(state, "pending") == [0, 2]
    assert state.requests[0].admitted_s == 0.0  # it had memory before, at 0
