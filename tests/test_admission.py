"""Who may run: pages, pools and futures of requests, worked by hand."""

from __future__ import annotations

from hisparse_sim.simulator.serving.admission import Pool, Rank, Request
from hisparse_sim.simulator.serving.engines import load_engine


def test_rank_takes_pages() -> None:
    rank = Rank(Pool(640, 640), 10)
    rank.queue.extend([Request(0, 100, 50, 0.0), Request(1, 100, 50, 0.0)])
    assert [(r.number, a, b) for r, a, b in rank.next_chunks(150)] == [(0, 0, 100), (1, 0, 50)]
    assert rank.logical_used() == 256
    assert [(r.number, a, b) for r, a, b in rank.next_chunks(150)] == [(1, 50, 100)]


def decoding(rank: Rank, *requests: tuple[int, int, int]) -> None:
    """Put (prompt, output, generated) into the running batch."""
    for number, (prompt, output, generated) in enumerate(requests):
        request = Request(number, prompt, output, 0.0, generated)
        rank.pending.append(request)
        rank.staged(request)


def admits(pool: Pool, prompt: int, output: int, *running: tuple[int, int, int]) -> bool:
    rank = Rank(pool, 10)
    decoding(rank, *running)
    rank.queue.append(Request(9, prompt, output, 0.0))
    return bool(rank.next_chunks(100_000))


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
    rank = Rank(Pool(3100, 3100), 10)
    decoding(rank, (1000, 100, 0), (1000, 900, 0))
    rank.queue.append(Request(9, 1000, 64, 0.0))
    assert rank.waits
    assert not rank.next_chunks(8192)
    assert not rank.waits
    assert [request.number for request in rank.decode(100)] == [0]
    assert rank.waits
    assert rank.next_chunks(8192)


def test_retraction_takes_the_fewest_generated_then_the_longest_prompt() -> None:
    rank = Rank(Pool(3200, 3200), 10)
    decoding(rank, (640, 500, 64), (640, 500, 0), (768, 500, 0), (768, 500, 0))
    rank.clock += 127
    rank.make_room()
    assert [request.number for request in rank.queue] == [3]
    assert [request.number for request in rank.running] == [0, 1, 2]
    assert rank.ratio == (64 + 20 * 3) / (1500 + 1)
