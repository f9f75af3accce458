"""The native kernel with `worth` against the NumPy form of fast-slow; skipped without a GPU."""

from dataclasses import replace

import pytest
from make_traces import drift
from test_fast_slow import with_next

from hisparse_sim.gpu_replay.harness.batch import Batch
from hisparse_sim.gpu_replay.harness.fast_slow import FastSlowReplayer
from hisparse_sim.gpu_replay.harness.trace_replay import run_verified
from hisparse_sim.gpu_replay.kernels.build import GpuError, require_gpu
from hisparse_sim.gpu_replay.kernels.native import NATIVE, load_cache_to_device_buffer_mla
from hisparse_sim.traces import Demand

pytestmark = pytest.mark.gpu

TOP_K = 64


@pytest.fixture(autouse=True)
def _gpu() -> None:
    try:
        require_gpu()
    except GpuError as error:
        pytest.skip(str(error))


def ranked(seed: int, first_seq_len: int, **options) -> Demand:
    options = {"steps": 60, "top_k": TOP_K, "keep": 0.6, "shuffled": True, **options}
    return with_next(drift(first_seq_len=first_seq_len, seed=seed, **options), seed, 2 * TOP_K)


def agree(batch: Batch, buffer: int, **options) -> int:
    """Replay with every check on; return the misses."""
    replayer = FastSlowReplayer(batch, buffer=buffer, top_k=TOP_K, check=True, **options)
    return run_verified(replayer)


@pytest.mark.parametrize("start", ["staged", "direct"])
@pytest.mark.parametrize("buffer", [65, 128])
def test_agrees_on_a_batch(buffer: int, start: str) -> None:
    layers = tuple(tuple(ranked(3 * layer + row, 400) for row in range(3)) for layer in range(2))
    assert agree(Batch(layers, 60), buffer, start=start, padding=2) > 0


@pytest.mark.parametrize("prompt_len", [100, 127, 128])
@pytest.mark.parametrize("start", ["staged", "direct"])
def test_grows_past_the_buffer(prompt_len: int, start: str) -> None:
    batch = Batch(((ranked(3, prompt_len + 1, steps=120, ragged=True),),), 120)
    assert agree(batch, 128, start=start) > 0


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("cluster", [1, 2, 8])
def test_agrees_for_every_cluster(cluster: int, early: bool) -> None:
    def swap_in(**arguments):
        load_cache_to_device_buffer_mla(**arguments, cluster=cluster, early=early)

    kernel = replace(NATIVE, swap_in=swap_in)
    batch = Batch((tuple(ranked(seed, 400) for seed in range(3)),), 60)
    assert agree(batch, 128, kernel=kernel) > 0
