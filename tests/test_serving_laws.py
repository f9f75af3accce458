"""Laws of a serving run: Little's, conservation of work, and that more of anything does no harm."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_serving import exposure, table

from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.serving.admission import Pool
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.simulator.serving.served import Server, serve
from hisparse_sim.simulator.serving.workload import Workload

NOISE = 0.005  # of the rate, that scheduling may cost


@cache
def setting(prompt: int, apart: bool, size: int, ratio: int) -> Setting:
    """GLM-5.1 on 8 x H200 with its own demand."""
    asked = Scenario(prompt=prompt, output_len=2048, disaggregated=apart)
    found = asked.resolve("hisparse", get_policy("lru"))
    misses = found.misses_of("lru", size)
    return replace(found.setting, device_buffer_size=size, ratio=ratio, misses=misses)


def mean_inside(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> float:
    """Requests inside at a time, looked at often."""
    times = np.linspace(0, ends.max(), 20_001)
    return float(np.mean([np.sum((starts <= t) & (t < ends)) for t in times]))


@settings(max_examples=15, deadline=None)
@given(
    prompt=st.sampled_from([8192, 32_768]),
    apart=st.booleans(),
    clients=st.sampled_from([None, 8, 64]),
    spread=st.sampled_from([1.0, 0.3]),
    seed=st.integers(0, 99),
)
def test_littles_law(
    prompt: int, apart: bool, clients: int | None, spread: float, seed: int
) -> None:
    one = setting(prompt, apart, 4096, 4)
    rate = None if clients else 0.3
    load = Workload(prompt, 2048, 200, clients, rate, spread, seed)
    served = serve(one.server(), load)
    done = served.finished
    inside = served.running + served.waiting
    stay = float(np.mean(done.end_s - done.arrival_s))
    assert inside == pytest.approx(len(done) / served.makespan * stay, rel=0.02)
    # The means over time are those of what arrives and ends, seen from outside.
    assert inside == pytest.approx(mean_inside(done.arrival_s, done.end_s), rel=0.02)
    if apart:
        assert served.running == pytest.approx(
            mean_inside(done.first_token_s, done.end_s), rel=0.02
        )
    assert sum(served.queued.values()) <= served.waiting + 1e-9


def test_an_arrival_counts_from_when_it_comes() -> None:
    # A prompt of 40 s is prefilled; what comes 1 s later waits 39 s and is prefilled for 40 s.
    one = Server(table(), exposure("baseline"), Pool(1 << 40, 1 << 40), 1, chunk_tokens=1 << 40)
    load = Workload(4_000_000, 1, 2, rate_per_s=1.0).draw()
    served = serve(one, replace(load, arrival_s=np.array([0.0, 1.0])))
    assert served.finished.end_s.tolist() == pytest.approx([40.0, 80.0])
    assert served.ttfts_s.tolist() == pytest.approx([40.0, 79.0])
    assert served.waiting == pytest.approx((40 + 79) / 80)


def covered(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> float:
    """Time in which at least one of the intervals lies."""
    total, reached = 0.0, 0.0
    for start, end in sorted(zip(starts, ends, strict=True)):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(1, 3),
    clients=st.none() | st.integers(1, 9),
    requests=st.integers(1, 30),
    running=st.integers(1, 4),
    seed=st.integers(0, 999),
)
def test_no_instance_idles_while_it_has_work(
    ranks: int, clients: int | None, requests: int, running: int, seed: int
) -> None:
    # With a network that takes no time, a prefill instance works whenever a request has memory and
    # no KV yet, and a decode instance whenever one has its first token and not its last.
    server = Server(
        table(prefill_us=2 + np.pi),
        exposure("baseline"),
        Pool(40_000, 40_000),
        ranks,
        chunk_tokens=2000,
        max_running=running,
        prefill_instances=1,
        prefill_pool=Pool(1 << 40, 1 << 40),
    )
    load = Workload(9000, 300, requests, clients, None if clients else 0.5, 0.1, seed)
    served = serve(server, load)
    done, (decode, prefill) = served.finished, served.by_instance
    assert prefill.prefill == pytest.approx(covered(done.admitted_s, done.ready_s))
    busy = decode.decode_attention + decode.decode_rest + decode.swap_in
    assert busy == pytest.approx(covered(done.first_token_s, done.end_s))
    for times in served.by_instance:
        assert times.total == pytest.approx(served.makespan)


# Lengths that are alike keep the ranks in step. Out of step on GPUs that prefill too, every prompt
# stalls all ranks, and more requests at a time can mean that fewer prompts share a step: there more
# memory may cost some rate, in the engine as here.
LOADS = st.one_of(
    st.tuples(st.just(False), st.just(1.0), st.sampled_from([16, 64, 256]), st.none()),
    st.tuples(
        st.just(True),
        st.sampled_from([1.0, 0.8, 0.3]),
        st.sampled_from([16, 64, 256]),
        st.none() | st.sampled_from([0.1, 0.5]),
    ),
)


@settings(max_examples=25, deadline=None)
@given(
    prompt=st.sampled_from([8192, 32_768, 65_536]),
    size=st.sampled_from([4096, 8192]),
    ratio=st.sampled_from([2, 4, 8]),
    how=LOADS,
    prefill=st.sampled_from([1, 3]),
    seed=st.integers(0, 999),
)
def test_more_never_gives_less(
    prompt: int,
    size: int,
    ratio: int,
    how: tuple[bool, float, int, float | None],
    prefill: int,
    seed: int,
) -> None:
    apart, spread, clients, rate = how
    one = replace(setting(prompt, apart, size, ratio), prefill_instances=prefill)
    requests = 4 * clients if rate is None else 200
    load = Workload(prompt, 2048, requests, clients if rate is None else None, rate, spread, seed)
    server = one.server()
    pool, least = server.pool, serve(server, load).output_tokens_per_s * (1 - NOISE)
    assert one.misses is not None
    device = pool.device_tokens * 5 // 4 // 64 * 64
    logical = pool.logical_tokens * 5 // 4 // 64 * 64
    better = {
        "fewer misses": replace(one, misses=one.misses.times(0.5)).server(),
        "no misses": replace(one, misses=one.misses.times(0.0)).server(),
        "a faster link": replace(one, host_gb_s=2 * one.link.bulk_gb_s * 8).server(),
        "more GPU memory": replace(server, pool=replace(pool, device_tokens=device)),
        "more of both": replace(
            server, pool=replace(pool, device_tokens=device, logical_tokens=logical)
        ),
        "a faster network": replace(server, transfer_bytes_per_s=2 * server.transfer_bytes_per_s),
    }
    for what, deployment in better.items():
        assert serve(deployment, load).output_tokens_per_s >= least, what


@pytest.mark.parametrize(("layout", "gains"), [("tp8", True), ("dp8-tp8", False)])
def test_more_memory_costs_rate_only_where_ranks_fall_out_of_step(layout: str, gains: bool) -> None:
    # The rate of the middle half of the requests: neither the first wave nor the last counts.
    load = Workload(32_768, 2000, 1024, 256, range_ratio=0.3)
    rates, prefills = [], []
    for gib in (25.0, 28.0):
        asked = Scenario(layout=layout, output_len=2000, early_stops=True, device_pool_gib=gib)
        found = asked.resolve("zero-cost", get_policy("lru")).setting
        served = serve(replace(found, ratio=4).server(), load)
        ends = np.sort(served.finished.end_s)
        rates.append(512 / (ends[767] - ends[255]))
        prefills.append(served.times.prefill)
    assert (rates[1] > rates[0]) == gains
    # The same prompts: out of step, fewer of them share a step.
    assert prefills[1] / prefills[0] == pytest.approx(1.0 if gains else 1.04, abs=0.01)
