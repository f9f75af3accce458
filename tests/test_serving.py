"""The serving model: runs worked by hand, conservation laws, Little's law, speed."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.simulator.serving.admission import Pool
from hisparse_sim.simulator.serving.exposure import Exposure, Floats, SwapIn
from hisparse_sim.simulator.serving.misses import QUANTILES, LayerMisses
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.served import Served, Server, serve
from hisparse_sim.simulator.serving.steptimes import StepTimes, load_step_times
from hisparse_sim.simulator.serving.workload import Requests, Workload

GLM, GLM52 = load_model("glm-5.1"), load_model("glm-5.2")


def table(
    attention_us: float = 600.0, rest_us: float = 400.0, prefill_us: float = 10.0
) -> StepTimes:
    """Steps of 1 ms whatever the batch; a prompt token costs `prefill_us` in attention."""
    return StepTimes(
        model="m",
        hardware="h",
        layout="dp8-tp8",
        kv_dtype="bf16",
        source="by hand",
        batch=(1, 2),
        context=(1, 1_000_000),
        attention_us=((attention_us, attention_us),) * 2,
        rest_us=(rest_us, rest_us),
        prefill_tokens=(1000, 2000),
        prefill_attention_us=(1000 * prefill_us, 2000 * prefill_us),
        prefill_rest_us=(0.0, 0.0),
    )


def exposure(mode: str, misses: float = 200.0, swap_us: float = 10.0) -> Exposure:
    return Exposure(mode, GLM, 4096, replayed(misses), flat(swap_us))


def replayed(misses: float, context: float = 8192.0) -> LayerMisses:
    spread = ((misses,) * QUANTILES,)
    return LayerMisses("t", "synthetic", "", "lru", 4096, "", (misses,), spread, 2048, context)


def flat(swap_us: float) -> SwapIn:
    """A swap-in that takes the same time whatever is missed."""
    return lambda requests, mean, most: np.full_like(mean, swap_us)


def server(pool: Pool, mode: str = "baseline", ranks: int = 1, **settings: object) -> Server:
    return Server(table(), exposure(mode), pool, ranks, **settings)  # type: ignore[arg-type]


FLAT = Pool(100_000, 100_000)


def check_laws(served: Served, workload: Workload, pool: Pool) -> None:
    """Every request ends once, time and memory stay in bounds, the parts make the whole."""
    assert len(served.finished) == workload.requests - served.refused
    for request in served.finished:
        assert 1 <= request.generated == request.output <= workload.output
        assert 0 <= request.arrival_s <= request.admitted_s
        assert request.admitted_s <= request.first_token_s <= request.end_s
        assert request.end_s <= served.makespan
    assert served.peak_device_tokens <= pool.device_tokens
    assert served.peak_logical_tokens <= pool.logical_tokens
    for times in served.by_instance:
        assert times.total == pytest.approx(served.makespan)
        assert min(vars(times).values()) >= 0
    if served.makespan:
        stay = float(np.sum(served.finished.end_s - served.finished.arrival_s))
        assert served.running + served.waiting == pytest.approx(stay / served.makespan)


def test_one_request_by_hand() -> None:
    # 1,000 prompt tokens at 10 us: 10 ms and the first token; then 9 steps of 1 ms.
    served = serve(server(FLAT), Workload(1000, 10, 1, concurrency=1))
    assert served.makespan == pytest.approx(0.019)
    assert served.ttft_s(50) == pytest.approx(0.010)
    assert served.tpot_ms(50) == pytest.approx(1.0)
    assert served.output_tokens_per_s == pytest.approx(10 / 0.019)
    assert served.times.prefill == pytest.approx(0.010)
    assert served.times.decode_attention == pytest.approx(0.0054)


def test_two_ranks_wait_for_each_other() -> None:
    # Both prompts run in the same step on their own rank; round-robin gives one to each.
    served = serve(server(FLAT, ranks=2), Workload(1000, 10, 2, concurrency=2))
    assert served.makespan == pytest.approx(0.019)
    assert served.running == pytest.approx(2 * 0.009 / 0.019)


def test_a_prefill_stalls_the_other_rank() -> None:
    # Two requests on one rank of two: the second prompt is prefilled before anyone decodes.
    served = serve(server(FLAT), Workload(1000, 10, 2, concurrency=2))
    assert served.makespan == pytest.approx(0.029)
    assert served.ttft_s(0) == pytest.approx(served.ttft_s(100)) == pytest.approx(0.020)


def test_swap_in_is_added_to_every_decode_step() -> None:
    # 78 layers x 10 us each step; prompt 8,192 > B; staging at 81.92 MB/s of 8,193 x 100 B: 10 ms.
    pool = Pool(20_000, 100_000, 4096)
    served = serve(
        server(pool, "hisparse", token_bytes=100, staging_bytes_per_s=8193 * 100 / 0.01),
        Workload(8192, 11, 1, concurrency=1),
    )
    assert served.times.prefill == pytest.approx(0.08192)
    assert served.times.idle == pytest.approx(0.010)
    assert served.times.swap_in == pytest.approx(10 * 78 * 10e-6)
    assert served.times.decode_rest == pytest.approx(10 * 400e-6)


def test_modes_order() -> None:
    pool = Pool(20_000, 100_000, 4096)
    spans = {}
    for mode in ("hisparse", "overlap", "zero-cost"):
        served = serve(server(pool, mode), Workload(8192, 100, 4, concurrency=4))
        spans[mode] = served.makespan
    assert spans["zero-cost"] <= spans["overlap"] <= spans["hisparse"]
    # 10 us a layer, of which 600 / 78 hide behind attention.
    steps = serve(server(pool, "hisparse"), Workload(8192, 100, 1, concurrency=1))
    assert steps.times.swap_in == pytest.approx(99 * 780e-6)


def test_hierarchical_pool_holds_more_requests() -> None:
    # Flat: 20,000 tokens hold two of 8,292. HiSparse: P = 20,000 less a prompt holds two hot
    # buffers and the prompt, and 100,000 logical tokens.
    flat = serve(server(Pool(20_000, 20_000)), Workload(8192, 2000, 8, concurrency=8))
    pool = Pool(20_000, 100_000, 4096)
    deep = serve(server(pool, "zero-cost"), Workload(8192, 2000, 8, concurrency=8))
    assert deep.running > flat.running
    assert deep.makespan < flat.makespan


def test_too_long_requests_are_refused() -> None:
    workload = Workload(8192, 100, 3, concurrency=1)
    served = serve(server(Pool(8000, 8000)), workload)
    assert served.cut == 0
    assert (served.refused, len(served.finished), served.makespan) == (3, 0, 0)
    served = serve(server(Pool(8000, 80_000, 4096), "zero-cost"), workload)
    assert served.refused == 3  # P bounds the longest request, not P x R


def test_growth_retracts_the_youngest_and_all_finish() -> None:
    # Requests that may stop early: a hundredth of the future of those that run is charged, so that
    # more are let in than the pool holds when they grow; some must go and come back.
    workload = Workload(1000, 900, 20, concurrency=4, range_ratio=0.2, seed=1)
    eager = Pool(3000, 3000, conservativeness=0.01, ignore_eos=False)
    served = serve(server(eager), workload)
    assert served.retractions > 0
    check_laws(served, workload, eager)
    workload = Workload(1000, 900, 4, concurrency=4)
    # With the ends known, two of 1,900 are never let in together.
    calm = serve(server(Pool(3000, 3000)), workload)
    check_laws(calm, workload, Pool(3000, 3000))
    assert calm.retractions == 0
    assert calm.running < 1


def test_outputs_are_cut_to_what_can_fit() -> None:
    # Longest request 1,919; a prompt of 1,000 takes 1,024 in pages, and a page is kept.
    pool = Pool(1920, 1920)
    assert pool.length(1000, 900).output == 1920 - 1024 - 64 - 1
    assert pool.length(1914, 1).outcome == "refused"
    assert Pool(9600, 9600, context=1500).length(1000, 499).output == 498
    served = serve(server(pool), Workload(1000, 900, 3, concurrency=1))
    assert (served.cut, served.refused) == (3, 0)
    assert {request.output for request in served.finished} == {831}


def test_open_loop_waits_for_arrivals() -> None:
    workload = Workload(1000, 10, 50, rate_per_s=1.0, seed=3)
    served = serve(server(FLAT), workload)
    check_laws(served, workload, FLAT)
    assert served.times.idle > 0.8 * served.makespan
    assert served.ttft_s(50) == pytest.approx(0.010)


def test_disaggregated_prefill_does_not_stall_decode() -> None:
    workload = Workload(1000, 200, 40, concurrency=8, range_ratio=0.5)
    together = serve(server(FLAT), workload)
    apart = serve(server(FLAT, prefill_instances=1), workload)
    check_laws(apart, workload, FLAT)
    assert apart.times.prefill == 0
    assert apart.tpot_ms(50) < together.tpot_ms(50)


def test_deterministic() -> None:
    workload = Workload(1000, 300, 30, concurrency=7, range_ratio=0.3, seed=5)
    one, other = serve(server(FLAT), workload), serve(server(FLAT), workload)
    assert one.finished.tobytes() == other.finished.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.integers(1, 9000),
    output=st.integers(1, 3000),
    requests=st.integers(1, 25),
    concurrency=st.integers(1, 12),
    open_loop=st.booleans(),
    ratio=st.floats(0.05, 1.0),
    seed=st.integers(0, 1000),
    device=st.integers(2, 300),
    factor=st.integers(1, 9),
    buffer=st.sampled_from([0, 2048, 4096]),
    ranks=st.integers(1, 4),
    apart=st.booleans(),
    running=st.integers(1, 6),
    chunk=st.integers(64, 8192),
    early=st.booleans(),
)
def test_conservation_laws(
    prompt: int,
    output: int,
    requests: int,
    concurrency: int,
    open_loop: bool,
    ratio: float,
    seed: int,
    device: int,
    factor: int,
    buffer: int,
    ranks: int,
    apart: bool,
    running: int,
    chunk: int,
    early: bool,
) -> None:
    device *= 64
    device = max(device, buffer + 64)
    pool = Pool(device, device * (factor if buffer else 1), buffer, ignore_eos=not early)
    workload = Workload(
        prompt,
        output,
        requests,
        concurrency=None if open_loop else concurrency,
        rate_per_s=2.0 if open_loop else None,
        range_ratio=ratio,
        seed=seed,
    )
    served = serve(
        server(
            pool,
            "hisparse" if buffer else "baseline",
            ranks,
            prefill_instances=1 if apart else 0,
            max_running=running,
            chunk_tokens=chunk,
            token_bytes=1000,
        ),
        workload,
    )
    check_laws(served, workload, pool)


def test_littles_law() -> None:
    # Mean number in the system = arrival rate x mean time in it, over a long run.
    workload = Workload(1000, 400, 3000, rate_per_s=3.0, range_ratio=0.5, seed=1)
    served = serve(server(FLAT), workload)
    check_laws(served, workload, FLAT)
    rate = len(served.finished) / served.makespan
    stay = sum(r.end_s - r.arrival_s for r in served.finished) / len(served.finished)
    assert served.running + served.waiting == pytest.approx(rate * stay, rel=0.02)


def test_sixteen_thousand_requests_in_ten_seconds() -> None:
    one = Server(
        load_step_times("glm-5.1", "h200"), exposure("hisparse"), Pool(97_344, 778_752, 4096), 8
    )
    serve(one, Workload(32_768, 8192, 8, concurrency=8))  # compiled
    began = time.process_time()
    served = serve(one, Workload(32_768, 8192, 16_000, concurrency=256, range_ratio=0.5))
    assert len(served.finished) == 16_000
    assert time.process_time() - began < 10


def test_exposure_by_hand() -> None:
    # Context factor: outside the buffer at 8,192 half, at 16,384 three quarters, at 4,096 nothing.
    found = exposure("hisparse", misses=200)
    assert found.misses(8192) == 200
    assert found.misses(16_384) == 300
    assert found.misses(4096) == 0
    assert found.step_us(3, 8192, 1000, 600) == 78 * 10
    assert exposure("overlap", swap_us=10).step_us(3, 8192, 1000, 78 * 4) == 78 * 6
    assert exposure("zero-cost").step_us(3, 8192, 1000, 600) == 0


@pytest.mark.parametrize("lengths", [(1000, 20_000), (5000, 60_000), (1000, 2000)])
def test_a_batch_misses_as_its_requests_do(lengths: tuple[int, int]) -> None:
    # A miss takes 1 us. At 8,192 tokens, half of them outside the buffer, 200 are missed.
    def each(requests: Floats, mean: Floats, most: Floats) -> Floats:
        return mean

    one = Exposure("hisparse", GLM, 4096, replayed(200.0), each)
    deployment = Server(table(), one, Pool(1 << 40, 1 << 40, 4096), 1, chunk_tokens=1 << 40)
    load = Requests(np.zeros(2), np.array(lengths), np.array([50, 50]), None)
    served = serve(deployment, load)
    missed = [400 * max(1 - 4096 / (length + 25), 0.0) for length in lengths]
    expected = 49 * GLM.layers * np.mean(missed) / 1e6
    assert served.times.swap_in == pytest.approx(expected, rel=0.01, abs=1e-9)


def test_prefetch_hides_shared_layers() -> None:
    shared = Exposure("prefetch", GLM52, 4096, replayed(200), flat(10.0))
    us = shared.step_us(1, 8192, 78 * 20, 0)
    assert us == pytest.approx(21 * 10)  # the copy is done before its layer
    assert shared.step_us(1, 8192, 78 * 4, 0) == pytest.approx(21 * 10 + 57 * 6)
    with pytest.raises(ValueError, match=r"glm-5\.1 has none"):
        exposure("prefetch")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"concurrency": 1, "rate_per_s": 1.0}, "either a concurrency"),
        ({}, "either a concurrency"),
        ({"rate_per_s": 0.0}, "rate must be above 0"),
        ({"concurrency": 1, "range_ratio": 0.0}, "range_ratio"),
    ],
)
def test_bad_workloads(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workload(100, 100, 1, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prompt must be at least 1"):
        Workload(0, 100, 1, concurrency=1)


def test_bad_exposures() -> None:
    with pytest.raises(ValueError, match="unknown mode 'magic'; known: baseline, hisparse"):
        exposure("magic")
    with pytest.raises(ValueError, match="needs the misses of a replay"):
        Exposure("hisparse", GLM, 4096, None, flat(1.0))
    with pytest.raises(ValueError, match="fit into a buffer of 4,096 slots, so none can miss"):
        Exposure("hisparse", GLM, 4096, replayed(1.0, 4096.0), flat(1.0))


def apart(pool: Pool, **more: object) -> Server:
    return server(pool, prefill_instances=1, prefill_pool=FLAT, **more)


def test_a_prompt_is_sent_in_chunks_as_they_are_prefilled() -> None:
    # Four chunks of 250 tokens, 2.5 ms each; a chunk takes 25 ms on the link, the first begins
    # after 2.5 ms. Then the first token, and 9 steps of 1 ms.
    one = apart(FLAT, chunk_tokens=250, transfer_bytes_per_s=1e6, transfer_token_bytes=100)
    served = serve(one, Workload(1000, 10, 1, concurrency=1))
    assert served.ttft_s(50) == pytest.approx(0.0025 + 4 * 0.025)
    assert served.tpot_ms(50) == pytest.approx(1.0)
    assert served.prefill_busy == pytest.approx(0.010 / 0.1115)


def test_memory_is_reserved_before_the_prefill_elsewhere() -> None:
    # The pool holds one: the second is prefilled when the first has ended, and waits in its TTFT.
    pool = Pool(1600, 1600)
    served = serve(apart(pool), Workload(1000, 100, 2, concurrency=2))
    first, second = served.finished
    assert first.first_token_s == pytest.approx(0.010)
    assert first.end_s == pytest.approx(0.010 + 0.099)
    assert second.admitted_s == first.end_s
    assert second.first_token_s == pytest.approx(first.end_s + 0.010)
    assert served.tpot_ms(0) == pytest.approx(served.tpot_ms(100)) == pytest.approx(1.0)
    assert served.wait_s(100) == pytest.approx(0.109)
    # With room for both the second prompt is prefilled while the first decodes.
    roomy = serve(apart(FLAT, chunk_tokens=1000), Workload(1000, 100, 2, concurrency=2))
    assert roomy.finished.first_token_s.tolist() == pytest.approx([0.010, 0.020])
    assert roomy.makespan == pytest.approx(0.020 + 0.099)


def test_instances_have_clocks_of_their_own() -> None:
    # One prefills, two decode in turn: each request has an instance to itself.
    one = apart(FLAT, instances=2, chunk_tokens=1000)
    served = serve(one, Workload(1000, 100, 2, concurrency=2))
    assert served.finished.end_s.tolist() == pytest.approx([0.109, 0.119])
    first, second, prefill = served.by_instance
    assert (first.idle, second.idle) == pytest.approx((0.020, 0.020))
    assert prefill.prefill == pytest.approx(0.020)
    assert served.running == pytest.approx(2 * 0.099 / 0.119)
    # Two prefill: both prompts at once.
    both = serve(replace(one, prefill_instances=2), Workload(1000, 100, 2, concurrency=2))
    assert both.finished.end_s.tolist() == pytest.approx([0.109, 0.109])


def test_prompts_wait_for_the_pool_of_the_prefill_instance() -> None:
    # 1,000 tokens and a page of 1,200: the second prompt waits until the first is sent, 0.1 s.
    one = apart(FLAT, transfer_bytes_per_s=1e6, transfer_token_bytes=100)
    one = replace(one, prefill_pool=Pool(1200, 1200))
    served = serve(one, Workload(1000, 2, 2, concurrency=2))
    assert served.ttfts_s.tolist() == pytest.approx([0.110, 0.220])


def test_requests_given_one_by_one() -> None:
    # The seam for loads from files: any arrivals and lengths.
    load = Requests(np.array([0.0, 0.5]), np.array([1000, 2000]), np.array([10, 1]))
    served = serve(server(FLAT), load)
    assert served.finished.end_s.tolist() == pytest.approx([0.019, 0.52])
    capped = serve(server(FLAT), replace(load, concurrency=1, arrival_s=np.zeros(2)))
    assert capped.finished.arrival_s.tolist() == pytest.approx(
        [0.0, 0.019]
    )  # sent when one is free
    for wrong, message in (
        ({"arrival_s": np.array([0.5, 0.0])}, "ascend"),
        ({"output_len": np.array([1, 0])}, "at least 1"),
        ({"prompt_len": np.array([1])}, "same length"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(load, **wrong)  # type: ignore[arg-type]
