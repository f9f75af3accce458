"""Both kernels against the simulator on a GPU; skipped and counted elsewhere."""

import make_traces
import numpy as np
import pytest

from hisparse_sim.gpu_replay.harness.batch import Batch
from hisparse_sim.gpu_replay.harness.replayer import Replayer
from hisparse_sim.gpu_replay.harness.trace_replay import run_verified
from hisparse_sim.gpu_replay.kernels import KERNELS, get_kernel
from hisparse_sim.gpu_replay.kernels.build import GpuError, require_gpu
from hisparse_sim.gpu_replay.kernels.native import load_cache_to_device_buffer_mla
from hisparse_sim.traces import Demand

pytestmark = pytest.mark.gpu

TOP_K = 64


@pytest.fixture(autouse=True)
def _gpu() -> None:
    try:
        require_gpu()
    except GpuError as error:
        pytest.skip(str(error))


@pytest.fixture(params=KERNELS)
def kernel(request):
    try:
        return get_kernel(request.param)
    except GpuError as error:
        pytest.skip(str(error))


def drift(seed: int, first_seq_len: int, **options) -> Demand:
    options = {"steps": 60, "top_k": TOP_K, "keep": 0.6, **options}
    return make_traces.drift(first_seq_len=first_seq_len, seed=seed, **options)


def agree(kernel, batch: Batch, buffer: int, **options) -> int:
    """Replay with every check on; return the misses."""
    replayer = Replayer(kernel, batch, buffer=buffer, top_k=TOP_K, check=True, **options)
    return run_verified(replayer)


@pytest.mark.parametrize("start", ["staged", "direct"])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("buffer", [64, 128, 192])
def test_agrees_on_one_request(kernel, buffer, shuffled, start):
    batch = Batch(((drift(1, 500, shuffled=shuffled),),), 60)
    assert agree(kernel, batch, buffer, start=start) > 0


@pytest.mark.parametrize("newest", [False, True])
def test_newest_token_demanded_and_not(kernel, newest):
    batch = Batch(((drift(2, 300, newest=newest, shuffled=True),),), 60)
    assert agree(kernel, batch, 128) > 0


@pytest.mark.parametrize("growth", [0, 1, 3])
def test_grows_past_the_buffer(kernel, growth):
    """seq_len runs from 100 (or stays) through B = 128 and beyond."""
    batch = Batch(((drift(3, 100, growth=growth, steps=120),),), 120)
    misses = agree(kernel, batch, 128)
    assert (misses > 0) == (growth > 0)


@pytest.mark.parametrize("start", ["staged", "direct"])
@pytest.mark.parametrize("prompt_len", [127, 128, 129])
def test_prompt_of_about_the_buffer(kernel, prompt_len, start):
    batch = Batch(((drift(4, prompt_len + 1),),), 60)
    assert agree(kernel, batch, 128, start=start) > 0


def test_batch_of_different_lengths_layers_and_padding(kernel):
    lengths = (40, 500, 127, 129, 1000, 64, 90)
    cells = tuple(
        tuple(drift(10 * layer + row, length, layer=layer) for row, length in enumerate(lengths))
        for layer in range(3)
    )
    assert agree(kernel, Batch(cells, 60), 128, padding=3) > 0


def test_more_requests_than_multiprocessors(kernel):
    cells = tuple(drift(seed, 60 + 3 * seed, steps=12) for seed in range(150))
    assert agree(kernel, Batch((cells,), 12), 128, padding=10) > 0


@pytest.mark.parametrize("lens", ["int32", "int64"])
@pytest.mark.parametrize("requests", ["int32", "int64"])
def test_index_types(kernel, lens, requests):
    torch = require_gpu()
    batch = Batch((tuple(drift(seed, 300) for seed in range(3)),), 60)
    replayer = Replayer(kernel, batch, buffer=128, top_k=TOP_K, check=True)
    replayer.seq_lens = replayer.seq_lens.to(getattr(torch, lens))
    replayer.request = replayer.request.to(getattr(torch, requests))
    for step in range(5):
        replayer.load_step(step)
        replayer.run_step()
        replayer.verify(step, replayer.expect_step(step))


@pytest.mark.parametrize("entry_bytes", [656, 1152])
def test_entry_sizes(kernel, entry_bytes):
    batch = Batch((tuple(drift(seed, 400) for seed in range(4)),), 60)
    assert agree(kernel, batch, 128, entry_bytes=entry_bytes) > 0


def test_native_takes_ragged_rows_and_odd_buffers():
    native = get_kernel("native")
    batch = Batch((tuple(drift(s, 300, ragged=True, shuffled=True) for s in range(5)),), 60)
    for buffer in (64, 65, 100, 129):
        assert agree(native, batch, buffer) > 0


def test_engine_refuses_ragged_rows():
    try:
        kernel = get_kernel("sglang")
    except GpuError as error:
        pytest.skip(str(error))
    batch = Batch(((drift(1, 300, ragged=True),),), 60)
    with pytest.raises(ValueError, match="has fewer"):
        Replayer(kernel, batch, buffer=128, top_k=TOP_K)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_native_agrees_for_every_cluster(cluster, early):
    from dataclasses import replace

    def swap_in(**arguments):
        load_cache_to_device_buffer_mla(**arguments, cluster=cluster, early=early)

    kernel = replace(get_kernel("native"), swap_in=swap_in)
    batch = Batch((tuple(drift(seed, 400, shuffled=True) for seed in range(3)),), 60)
    assert agree(kernel, batch, 128, padding=1) > 0


def test_plan_of_more_requests_than_a_block_has_threads(kernel):
    torch = require_gpu()
    requests, width, items = 2500, 4, 20000
    random = torch.Generator().manual_seed(0)
    host = torch.randint(0, 256, (items, 656), dtype=torch.uint8, generator=random).pin_memory()
    source = torch.randint(0, items, (requests, width), generator=random).cuda()
    places = torch.randperm(requests * width, generator=random).view(requests, width)
    target = places.to(torch.int32).cuda()
    count = torch.randint(0, width + 1, (requests,), dtype=torch.int32, generator=random).cuda()
    device = torch.zeros((requests * width, 656), dtype=torch.uint8, device="cuda")
    kernel.copy_planned(
        miss_src=source,
        miss_dst=target,
        miss_count=count,
        num_real_reqs=torch.tensor([requests - 7], dtype=torch.int32, device="cuda"),
        host_cache=host,
        device_buffer=device,
        item_size_bytes=656,
    )
    wanted = torch.zeros_like(device)
    listed = torch.arange(width, device="cuda") < count[:, None]
    listed[requests - 7 :] = False
    wanted[target[listed].long()] = host.cuda()[source[listed]]
    assert torch.equal(device, wanted)


def test_largest_buffer_and_wide_rows():
    native = get_kernel("native")
    rng = np.random.default_rng(0)
    rows = [np.sort(rng.permutation(60000)[:2048]) for _ in range(6)]
    batch = Batch(((make_traces.demand(rows, 60001),),), 6)
    replayer = Replayer(native, batch, buffer=32767, top_k=2048, entry_bytes=16, check=True)
    replayer.capture()
    for step in range(6):
        replayer.load_step(step)
        replayer.run_step()
        replayer.verify(step, replayer.expect_step(step))


def test_wrong_tensors_are_refused():
    torch = require_gpu()
    batch = Batch(((drift(1, 300),),), 60)
    native = get_kernel("native")
    replayer = Replayer(native, batch, buffer=128, top_k=TOP_K)
    replayer.seq_lens = replayer.seq_lens.to(torch.float32)
    with pytest.raises(ValueError, match="seq_lens must be int32 or int64"):
        replayer.launch(0)
    replayer.seq_lens = replayer.seq_lens.to(torch.int32)
    replayer.pools.host[0] = torch.zeros((4096, 1152), dtype=torch.uint8)
    with pytest.raises(GpuError, match="pinned"):
        replayer.launch(0)
