"""The compiled event loop against a plain one that takes one step at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_reference import Reference
from test_serving import exposure, table

from hisparse_sim.simulator.serving.admission import Pool
from hisparse_sim.simulator.serving.engines import load_engine
from hisparse_sim.simulator.serving.served import Served, Server, serve
from hisparse_sim.simulator.serving.workload import Blocks, Requests


@st.composite
def servers(draw: st.DrawFn) -> Server:
    buffer = draw(st.sampled_from([0, 2048, 4096]))
    device = max(64 * draw(st.integers(20, 250)), buffer + 64 + (1024 if buffer else 0))
    factor = draw(st.integers(1, 6)) if buffer else 1
    pool = Pool(
        device,
        device * factor,
        buffer,
        scratch_tokens=draw(st.sampled_from([0, 0, 1024])) if buffer else 0,
        ignore_eos=draw(st.booleans()),
        engine=load_engine(
            draw(st.sampled_from(["sglang-0.5.20", "sglang-0.5.21", "sglang-0.5.23"]))
        ),
    )
    apart = draw(st.integers(0, 2))
    return Server(
        table(prefill_us=2.0 + np.pi),  # no two events fall together by their numbers
        exposure("hisparse" if buffer else "baseline"),
        pool,
        draw(st.integers(1, 3)),
        chunk_tokens=draw(st.integers(64, 4096)),
        max_running=draw(st.integers(1, 6)),
        staging_bytes_per_s=1e6 * np.pi,
        token_bytes=draw(st.sampled_from([0, 100])),
        instances=draw(st.integers(1, 2)) if apart else 1,
        prefill_instances=apart,
        prefill_pool=Pool(64 * draw(st.integers(60, 250)), 1 << 40) if apart else None,
        transfer_bytes_per_s=1e6 * np.pi,
        transfer_token_bytes=draw(st.sampled_from([0, 100])),
        prefix_cache=draw(st.booleans()),
    )


@st.composite
def loads(draw: st.DrawFn) -> Requests:
    count = draw(st.integers(1, 10))
    gaps = draw(
        st.lists(st.sampled_from([0.0, 0.05 * np.pi, np.sqrt(0.5)]), min_size=count, max_size=count)
    )
    lengths = st.lists(st.integers(1, 6000), min_size=count, max_size=count)
    prompts = np.array(draw(lengths))
    return Requests(
        np.cumsum(gaps),
        prompts,
        np.minimum(np.array(draw(lengths)), 200),
        draw(st.none() | st.integers(1, 8)),
        draw(st.none() | blocks_of(prompts.tolist())),
    )


@st.composite
def blocks_of(draw: st.DrawFn, prompts: list[int]) -> Blocks:
    """Blocks of 512 tokens; a prompt begins like one of two others up to some block."""
    rows = []
    for i, prompt in enumerate(prompts):
        shared, family = draw(st.integers(0, 12)), draw(st.integers(1, 2))
        count = -(-prompt // 512)
        rows.append([family * 100 + k if k < shared else i * 1000 + k for k in range(count)])
    ends = np.cumsum([0, *map(len, rows)])
    return Blocks(np.array([each for row in rows for each in row]), ends, 512)


def check(server: Server, load: Requests, served: Served) -> None:
    slow = Reference(server, load).run()
    for name in ("arrival_s", "first_token_s", "end_s"):
        expected = [getattr(request, name) for request in slow.requests]
        np.testing.assert_allclose(served.finished[name], expected, rtol=1e-9, atol=1e-9)
    for times, one in zip(served.by_instance, slow.instances, strict=True):
        decode = times.decode_attention + times.decode_rest + times.swap_in
        found = (times.prefill, decode)
        assert found == pytest.approx((one.prefill_s, one.decode_s), rel=1e-9, abs=1e-9)
    ranks = [rank for one in slow.instances for rank in one.ranks]
    assert served.retractions == sum(rank.retractions for rank in ranks)


@settings(max_examples=60, deadline=None)
@given(server=servers(), load=loads())
def test_step_by_step(server: Server, load: Requests) -> None:
    check(server, load, serve(server, load, context_steps=1, queue_steps=1))


@settings(max_examples=30, deadline=None)
@given(server=servers(), load=loads())
def test_steps_taken_together_are_the_same(server: Server, load: Requests) -> None:
    # The hand-made tables do not change with the context, so that only queues could tell.
    check(server, load, serve(server, load, queue_steps=1))
