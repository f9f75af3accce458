"""Our own swap-in kernel, compiled on first use, with the call of the engine's.

`hisparse-sim engine run --kernel native` puts it into a running SGLang (gpu_replay/engine).
"""

import functools
from typing import Any

from hisparse_sim.gpu_replay.kernels.build import require_gpu
from hisparse_sim.gpu_replay.kernels.kernel import Kernel, check_tensor
from hisparse_sim.gpu_replay.kernels.native_library import (
    Planned,
    SwapIn,
    check_sizes,
    load_native,
)

# Thread blocks that copy one plan: beyond this the link, not the grid, sets the pace.
PLANNED_BLOCKS = 32

# Blocks that share one request, and blocks in all: 64 keep the link busy, and many more may not
# find room at once (128 in clusters of four did not on an H200).
MAX_CLUSTER = 8
BLOCKS_IN_ALL = 64


@functools.cache
def _blocks_limits(device: int) -> tuple[int, int]:
    """Most blocks of a cluster, and blocks in all, on that device."""
    properties = require_gpu().cuda.get_device_properties(device)
    clusters = MAX_CLUSTER if properties.major >= 9 else 1
    return clusters, min(BLOCKS_IN_ALL, properties.multi_processor_count)


def cluster_size(batch: int, most: int, blocks: int) -> int:
    """Blocks for each of `batch` requests: the largest power of two within both limits."""
    size = 1
    while size * 2 <= most and size * 2 * batch <= blocks:
        size *= 2
    return size


def load_cache_to_device_buffer_mla(
    top_k_tokens: Any,
    device_buffer_tokens: Any,
    host_cache_locs: Any,
    device_buffer_locs: Any,
    host_cache: Any,
    device_buffer: Any,
    top_k_device_locs: Any,
    req_pool_indices: Any,
    seq_lens: Any,
    lru_slots: Any,
    item_size_bytes: int,
    num_top_k: int,
    hot_buffer_size: int,
    page_size: int = 1,
    block_size: int = 256,
    num_real_reqs: Any = None,
    miss_src: Any = None,
    miss_dst: Any = None,
    miss_count: Any = None,
    skip_io: bool = False,
    *,
    cluster: int | None = None,
    early: bool = False,
    worth: Any = None,
) -> None:
    """One decode step of one layer: decide hits, misses and victims, and fetch the misses.

    Runs on the current stream and may be captured into a CUDA graph after one call with the same
    sizes. The arguments up to `skip_io` are those of SGLang's function of this name; `page_size`
    and `block_size` belong to that call and change nothing here, since the grid follows from the
    batch.

    Parameters
    ----------
    top_k_tokens
        int32 [batch, num_top_k]; selected positions, -1 is padding.
    device_buffer_tokens, device_buffer_locs
        int32 [requests, hot_buffer_size + 64]; position held by every slot (-1: empty; updated)
        and the entry of `device_buffer` that is the slot. Slot `hot_buffer_size` is the newest
        token's.
    host_cache_locs
        int64 [requests, context]; entry of `host_cache` for every position.
    host_cache, device_buffer
        Pinned host memory and device memory: KV entries of `item_size_bytes`, a multiple of 16.
    top_k_device_locs
        int32 [batch, num_top_k]; written: entry of `device_buffer` for every selected position.
    req_pool_indices, seq_lens
        int32 or int64 [batch]; row of the request in the tables; its tokens, the newest included.
    lru_slots
        int16 [requests, hot_buffer_size]; slots, next victim first; updated.
    num_real_reqs
        int32 [1]; rows of the batch before the padding; all of them if not given.
    miss_src, miss_dst, miss_count
        int64 and int32 [batch, >= num_top_k], int32 [batch]; if given, the plan is recorded there.
        `miss_count` alone records how many positions of every row were missed, not which.
    skip_io
        Decide everything and move no bytes, for timing.
    cluster
        Thread blocks for each request, a power of two up to 8; chosen from the batch if not given.
    early
        Begin while the kernel before on the stream ends (from compute capability 9.0 on): it may
        write `top_k_tokens` and `worth`, and nothing else of what is read here.
    worth
        uint8 [batch, context]; what every position is worth in this step, 0 to 62. If given, the
        slots to evict are chosen as by `policies/fast_slow.py` and not by LRU, and `lru_slots`
        holds the two sums of every slot, 0 at the start: 7 bits of the fast one below 9 of the
        slow one.

    Raises ValueError for tensors of another type or shape, GpuError if the kernel cannot run.
    """
    torch = require_gpu()
    check_sizes(num_top_k, hot_buffer_size, item_size_bytes)
    batch = int(top_k_tokens.shape[0])
    check_tensor("top_k_tokens", top_k_tokens, ["int32"], [1, num_top_k])
    check_tensor("top_k_device_locs", top_k_device_locs, ["int32"], [batch, num_top_k])
    for name, table in (
        ("device_buffer_tokens", device_buffer_tokens),
        ("device_buffer_locs", device_buffer_locs),
    ):
        check_tensor(name, table, ["int32"], [1, hot_buffer_size + 1])
    check_tensor("host_cache_locs", host_cache_locs, ["int64"], [1, 1])
    check_tensor("lru_slots", lru_slots, ["int16"], [1, hot_buffer_size])
    if hot_buffer_size % 2 == 0 and lru_slots.stride(0) % 2:
        raise ValueError("rows of lru_slots must start at a multiple of 4 bytes")
    check_tensor("req_pool_indices", req_pool_indices, ["int32", "int64"], [batch])
    check_tensor("seq_lens", seq_lens, ["int32", "int64"], [batch])
    if worth is not None:
        check_tensor("worth", worth, ["uint8"], [batch, 1])
    device = top_k_tokens.device.index
    arguments = SwapIn(
        top_k=top_k_tokens.data_ptr(),
        tokens=device_buffer_tokens.data_ptr(),
        locs=device_buffer_locs.data_ptr(),
        host_locs=host_cache_locs.data_ptr(),
        order=lru_slots.data_ptr(),
        out=top_k_device_locs.data_ptr(),
        request=req_pool_indices.data_ptr(),
        seq_len=seq_lens.data_ptr(),
        real=None if num_real_reqs is None else num_real_reqs.data_ptr(),
        host=host_cache.data_ptr(),
        device=device_buffer.data_ptr(),
        top_k_stride=top_k_tokens.stride(0),
        tokens_stride=device_buffer_tokens.stride(0),
        locs_stride=device_buffer_locs.stride(0),
        host_stride=host_cache_locs.stride(0),
        order_stride=lru_slots.stride(0),
        out_stride=top_k_device_locs.stride(0),
        worth=None if worth is None else worth.data_ptr(),
        worth_stride=0 if worth is None else worth.stride(0),
        batch=batch,
        wide_request=str(req_pool_indices.dtype) == "torch.int64",
        wide_seq_len=str(seq_lens.dtype) == "torch.int64",
        skip_io=skip_io,
        early=early and _blocks_limits(device)[0] > 1,
    )
    if miss_src is not None:
        _check_plan(miss_src, miss_dst, miss_count, batch, num_top_k)
        arguments.plan_source = miss_src.data_ptr()
        arguments.plan_target = miss_dst.data_ptr()
        arguments.plan_count = miss_count.data_ptr()
        arguments.plan_stride = miss_src.stride(0)
    elif miss_count is not None:
        check_tensor("miss_count", miss_count, ["int32"], [batch])
        arguments.plan_count = miss_count.data_ptr()
    arguments.cluster = cluster or cluster_size(batch, *_blocks_limits(device))
    library = load_native(num_top_k, hot_buffer_size, item_size_bytes, device)
    library.swap_in(arguments, torch.cuda.current_stream(device).cuda_stream)


def copy_cache_planned_mla(
    *,
    miss_src: Any,
    miss_dst: Any,
    miss_count: Any,
    num_real_reqs: Any,
    host_cache: Any,
    device_buffer: Any,
    item_size_bytes: int,
    num_blocks: int = PLANNED_BLOCKS,
    block_size: int = 1024,
    is_dsv4_layout: bool = False,
    skip_io: bool = False,
) -> None:
    """Move the KV entries of a recorded plan for another layer, without decisions or state.

    The plan's tensors are those that `load_cache_to_device_buffer_mla` recorded; the arguments are
    those of SGLang's function of this name. `block_size` changes nothing here.
    """
    torch = require_gpu()
    if is_dsv4_layout:
        raise ValueError(
            "the native kernel copies linear KV entries, not the paged layout of DeepSeek-V4"
        )
    batch = int(miss_count.shape[0])
    _check_plan(miss_src, miss_dst, miss_count, batch, 1)
    check_tensor("num_real_reqs", num_real_reqs, ["int32"], [1])
    device = miss_src.device.index
    # The kernel's decisions play no part here, so their sizes are the smallest.
    library = load_native(1, 1, item_size_bytes, device)
    arguments = Planned(
        source=miss_src.data_ptr(),
        target=miss_dst.data_ptr(),
        count=miss_count.data_ptr(),
        real=num_real_reqs.data_ptr(),
        host=host_cache.data_ptr(),
        device=device_buffer.data_ptr(),
        stride=miss_src.stride(0),
        batch=batch,
        blocks=num_blocks,
        skip_io=skip_io,
    )
    library.copy_planned(arguments, torch.cuda.current_stream(device).cuda_stream)


def _check_plan(miss_src: Any, miss_dst: Any, miss_count: Any, batch: int, width: int) -> None:
    if miss_dst is None or miss_count is None:
        raise ValueError("miss_src, miss_dst and miss_count go together")
    check_tensor("miss_src", miss_src, ["int64"], [batch, width])
    check_tensor("miss_dst", miss_dst, ["int32"], [batch, width])
    check_tensor("miss_count", miss_count, ["int32"], [batch])
    if miss_src.stride(0) != miss_dst.stride(0):
        raise ValueError("miss_src and miss_dst must have the same row stride")


def _prepare(top_k: int, buffer: int, entry_bytes: int) -> None:
    device = require_gpu().cuda.current_device()
    load_native(top_k, buffer, entry_bytes, device)
    load_native(1, 1, entry_bytes, device)


NATIVE = Kernel(
    name="native",
    swap_in=load_cache_to_device_buffer_mla,
    copy_planned=copy_cache_planned_mla,
    prepare=_prepare,
    pads_rows=True,
)
