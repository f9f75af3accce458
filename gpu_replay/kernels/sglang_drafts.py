"""The engine's swap-in for drafts, compiled from the user's installed sglang package.

Reference: SGLang 0.5.23, `kernels/jit/csrc/kvcacheio/hisparse_spec.cuh` and
`kernels/ops/kvcache/hisparse.py` (HiSparseSpecState), whose tensors these are.
"""

from typing import Any, NamedTuple

from hisparse_sim.gpu_replay.kernels.build import require_gpu
from hisparse_sim.gpu_replay.kernels.sglang import architecture, load_function

FILE = "hisparse_spec.cuh"
FUNCTION = "load_cache_to_device_buffer_spec"
COUNTERS = 4  # of a request slot, in the first row of `scratch_state`
METADATA = 5  # 32-bit values of a listed position, in the row of its request
_BLOCK_SIZE = 64  # of the kernel that looks positions up, as the engine launches it
_HASH_BITS = 13


class DraftState(NamedTuple):
    """State of one layer, for r request slots, B slots of a buffer and c places of scratch."""

    cache_index: Any  # int64 [r, 2, hash size]
    cache_policy: Any  # int32 [r + 1, B]: cursors and epochs, then a row of last uses per request
    scratch_locs: Any  # int32 [r, c]
    scratch_state: Any  # int32 [r + 1, values]: counters, then a row per request


def new_state(requests: int, buffer_size: int, scratch: Any, accesses: int) -> DraftState:
    """Return the state of requests that begin, on the GPU. `scratch`: their places, [r, c];
    `accesses`: listed positions of a step. The hash index is empty: it only speeds up a search."""
    torch = require_gpu()
    on_gpu = {"dtype": torch.int32, "device": "cuda"}
    hash_size = 1 << max(1, (2 * buffer_size - 1).bit_length())
    width = max(COUNTERS * requests, METADATA * accesses)
    width += width % 2
    state = torch.full((requests + 1, width), -1, **on_gpu)
    state[0].zero_()
    # Counters hold a bit that says the index may miss entries: the kernel then looks at all slots.
    state[0, 3 * requests : 4 * requests] = -(2**31)
    return DraftState(
        torch.full((requests, 2, hash_size), -1, dtype=torch.int64, device="cuda"),
        torch.zeros((requests + 1, buffer_size), **on_gpu),
        scratch,
        state,
    )


def swap_in(
    top_k_tokens: Any,  # int32 [requests, n, k]
    device_buffer_tokens: Any,  # int32 [r, B + page]
    host_cache_locs: Any,  # int64 [r, longest]
    device_buffer_locs: Any,  # int32 [r, B + page]
    host_cache: Any,  # [rows, values], pinned
    device_buffer: Any,  # [rows, values]
    top_k_device_locs: Any,  # int32 [requests, n, k] output
    req_pool_indices: Any,  # int64 [requests]
    seq_lens: Any,  # int32 [requests * n]
    state: DraftState,
) -> None:
    """Swap in what any query of a step misses. Raises GpuError where the package cannot."""
    torch = require_gpu()
    requests, queries, top_k = top_k_tokens.shape
    buffer_size = state.cache_policy.shape[1]
    values = {
        "BLOCK_SIZE": _BLOCK_SIZE,
        "NUM_TOP_K": top_k,
        "HOT_BUFFER_SIZE": buffer_size,
        "ITEM_SIZE_BYTES": host_cache.stride(0) * host_cache.element_size(),
        "NUM_STEPS": queries,
        "RecordMissPlan": False,
        "USE_PDL": torch.cuda.get_device_capability() >= (9, 0),
    }
    module = load_function(architecture(), FUNCTION, tuple(values.items()), FILE)
    real = torch.full((1,), requests, dtype=torch.int32, device="cuda")
    empty = torch.empty(0, device="cuda")
    page = device_buffer_tokens.shape[1] - buffer_size
    module.load_cache_to_device_buffer_spec(
        top_k_tokens, device_buffer_tokens, host_cache_locs, device_buffer_locs, host_cache,
        device_buffer, top_k_device_locs, req_pool_indices, seq_lens, *state, real, page, empty,
        empty, empty,
    )  # fmt: skip


def ordinals(state: DraftState, request: int, accesses: int) -> list[int]:
    """Return the positions that the last step of a request missed, in the order in which the
    kernel's threads claimed them."""
    row = state.scratch_state[request + 1].cpu()
    count = int(state.scratch_state[0, request])
    tokens = row[0 : 2 * accesses : 2]  # the low half of each 64-bit entry
    places = row[4 * accesses : 4 * accesses + count] & ((1 << _HASH_BITS) - 1)
    found: list[int] = tokens[places.long()].tolist()
    return found
