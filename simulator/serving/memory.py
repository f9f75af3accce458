"""Memory of a request under HiSparse, and the number of requests that one GPU holds.

As the engine allocates, per GPU rank. Read from SGLang 0.5.23, files under sglang/srt:
managers/hisparse_coordinator.py (hot buffers, tables), mem_cache/allocator/hisparse.py,
mem_cache/hisparse_memory_pool.py, model_executor/pool_configurator.py (bytes of a token),
mem_cache/pool_host/base.py (host pool). For older releases see engines.py. Letters: P device pool
in tokens, R host_to_device_ratio, B device_buffer_size, L layers (shared ones too). The device pool
stores KV entries for P tokens, but indexer keys for all P * R tokens that the host pool can hold: a
larger R makes P smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hisparse_sim.simulator.serving.buffers import check_buffer
from hisparse_sim.simulator.serving.engines import NEWEST, Engine
from hisparse_sim.simulator.serving.lengths import PAGE_TOKENS as PAGE_TOKENS
from hisparse_sim.simulator.serving.lengths import REFUSED, check_length
from hisparse_sim.simulator.serving.lengths import pages as pages
from hisparse_sim.simulator.serving.model import Model

DEVICE_POOL, INDEXER_KEYS, HOST, LENGTH = "device pool", "indexer keys", "host", "length"


def _budgeted_entry_bytes(model: Model, kv_dtype: str, engine: Engine) -> int:
    """Bytes that the pool size counts for one entry of one layer."""
    as_stored = engine.budgets_fp8_as_stored or kv_dtype != "fp8"
    return model.entry_bytes(kv_dtype if as_stored else "fp8-raw")


def _whole_pages(pool_bytes: int, token_bytes: int, most: int | None) -> int:
    tokens = pool_bytes // token_bytes
    return (tokens if most is None else min(tokens, most)) // PAGE_TOKENS * PAGE_TOKENS


def device_pool_tokens(
    model: Model,
    kv_dtype: str,
    ratio: int,
    pool_bytes: int,
    engine: Engine = NEWEST,
    *,
    most: int | None = None,
    draft_layers: int = 0,
) -> int:
    """P: tokens in the device pool under HiSparse, as the engine sizes it for `pool_bytes`.

    `most`: --max-total-tokens, which can only lower it. `draft_layers`: of speculative decoding,
    whose entries and keys stay on the GPU for all P * R tokens.
    """
    keys = model.indexer_key_bytes * (ratio if engine.budgets_every_key else 1)
    entry = _budgeted_entry_bytes(model, kv_dtype, engine)
    others = draft_layers * (entry * ratio + keys) + ratio * model.resident_token_bytes(kv_dtype)
    return _whole_pages(pool_bytes, model.layers * (entry + keys) + others, most)


def baseline_pool_tokens(
    model: Model,
    kv_dtype: str,
    pool_bytes: int,
    engine: Engine = NEWEST,
    *,
    disaggregated: bool = False,
    most: int | None = None,
    draft_layers: int = 0,
) -> int:
    """Tokens that the same bytes hold without HiSparse: every entry and key on the GPU."""
    entry = _budgeted_entry_bytes(model, kv_dtype, engine)
    keys = _baseline_key_bytes(model, engine, disaggregated)
    others = draft_layers * (entry + model.indexer_key_bytes) + model.resident_token_bytes(kv_dtype)
    return _whole_pages(pool_bytes, model.layers * entry + keys + others, most)


def _baseline_key_bytes(model: Model, engine: Engine, disaggregated: bool) -> int:
    layers = engine.baseline_key_layers(model.layers, model.indexer_layers, disaggregated)
    return layers * model.indexer_key_bytes


def unbudgeted_bytes(
    model: Model, kv_dtype: str, ratio: int, pool_tokens: int, engine: Engine = NEWEST
) -> int:
    """Bytes that a pool of `pool_tokens` under HiSparse takes beyond its budget.

    Older engines leave out keys and a part of each fp8 entry; both come out of the reserve of the
    GPU. All P * R tokens have keys in every release.
    """
    keys = 0 if engine.budgets_every_key else (ratio - 1) * model.indexer_key_bytes
    entry = model.entry_bytes(kv_dtype) - _budgeted_entry_bytes(model, kv_dtype, engine)
    return pool_tokens * model.layers * (keys + entry)


def host_pool_bytes(pool_tokens: int, ratio: int, layers: int, entry_bytes: int) -> int:
    """Pinned host memory of one rank: P * R tokens and one page."""
    return (pool_tokens * ratio + PAGE_TOKENS) * layers * entry_bytes


def device_tokens(tokens: int, device_buffer_size: int, scratch_tokens: int = 0) -> int:
    """Device tokens of a decoding request: B and the reserved page; for a short one, its pages.

    The reserved page comes with the last page of the buffer, not only beyond B. With the scratch of
    speculative decoding all of that is held from the start.
    """
    if scratch_tokens > 0:
        return device_buffer_size + PAGE_TOKENS + scratch_tokens
    held = pages(tokens)
    return held if held < device_buffer_size else device_buffer_size + PAGE_TOKENS


def held_tokens(model: Model, device_buffer_size: int, resident_tokens: int = 0) -> int:
    """Tokens of a request on the GPU at most, beside the reserved page: slots, the resident share,
    and what a reserved block has beyond a page."""
    tokens = model.position_tokens
    return device_buffer_size * tokens + max(tokens - PAGE_TOKENS, 0) + pages(resident_tokens)


def hot_buffer_bytes(
    model: Model, kv_dtype: str, device_buffer_size: int, resident_tokens: int = 0
) -> int:
    """Bytes of one request's hot buffer over all layers, its reserved page included."""
    tokens = held_tokens(model, device_buffer_size, resident_tokens) + PAGE_TOKENS
    return tokens * model.layers * model.entry_bytes(kv_dtype)


def request_host_bytes(model: Model, kv_dtype: str, tokens: int) -> int:
    """Host bytes of a request of `tokens`, output included, over all layers, in whole pages."""
    return pages(tokens) * model.layers * model.entry_bytes(kv_dtype)


def indexer_bytes(model: Model, tokens: int) -> int:
    """Device bytes of a request's indexer keys under HiSparse, over all layers, in whole pages."""
    return pages(tokens) * model.layers * model.indexer_key_bytes


def full_kv_bytes(
    model: Model,
    kv_dtype: str,
    tokens: int,
    engine: Engine = NEWEST,
    *,
    disaggregated: bool = False,
) -> int:
    """Device bytes of a request that is wholly on the GPU: KV entries and indexer keys."""
    beside = _baseline_key_bytes(model, engine, disaggregated)
    beside += model.resident_token_bytes(kv_dtype)
    return request_host_bytes(model, kv_dtype, tokens) + pages(tokens) * beside


def slot_table_bytes(model: Model, device_buffer_size: int, engine: Engine = NEWEST) -> int:
    """Bytes of the engine's tables per request slot, outside the device pool.

    Per layer a 32-bit token and location for each of the B + 64 slots and a 16-bit order of the B
    slots; per request a 64-bit host location for every token of the context and for every slot, two
    32-bit lists of the top-k, and with shared layers a plan (64 and 32 bits a miss, and a count).
    """
    slots = device_buffer_size + PAGE_TOKENS
    per_layer = 8 * slots + 2 * device_buffer_size
    shared = model.indexer_layers < model.layers
    plan = 12 * model.top_k + 4 if shared and engine.plans_shared_misses else 0
    locations = model.context + (PAGE_TOKENS if engine.pads_context_table else 0)
    of_request = 8 * locations + 8 * slots + 8 * model.top_k + plan
    return model.layers * per_layer + of_request


@dataclass(frozen=True)
class Capacity:
    """Number of requests that one GPU holds in decode, and what limits it."""

    requests: int
    limit: str  # "device pool", "indexer keys", "host" or "length" (too long to run at all)
    reason: str  # one sentence with the figures
    pool_tokens: int  # P
    logical_tokens: int  # P * R, the length of the host pool
    output: int  # tokens that one request generates, perhaps cut
    device_tokens_per_request: int
    hot_buffer_bytes: int  # per request
    host_bytes_per_request: int
    indexer_bytes_per_request: int
    host_pool_bytes: int  # pinned at start, whatever is used


def _largest(fits: Callable[[int], bool], below: int) -> int:
    """Largest whole number below `below` that fits, if smaller ones fit as well; 0 if none does."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def capacity(
    model: Model,
    kv_dtype: str,
    ratio: int,
    device_buffer_size: int,
    tokens: int,
    device_pool_bytes: int,
    host_bytes: int,
    *,
    output: int = 0,
    engine: Engine = NEWEST,
    most: int | None = None,
    draft_layers: int = 0,
    scratch_tokens: int = 0,
    resident_tokens: int = 0,
) -> Capacity:
    """Requests of `tokens` that decode together on one GPU under HiSparse.

    `tokens` counts prompt and output, `output` says how many of them are output: one that the
    engine cuts (see lengths.py) makes the request shorter. `device_pool_bytes` is what the engine
    has left for KV on the GPU and `host_bytes` the host memory of this GPU's rank. Every request
    counts at its full length, so none is retracted. The whole host pool is pinned at start: if it
    does not fit, the engine does not start and no request runs. `most`: --max-total-tokens.
    `draft_layers`, `scratch_tokens`: of speculative decoding, see speculation.py. With
    `resident_tokens` a request keeps so many of its newest tokens on the GPU, beside the buffer.
    Raises ValueError for arguments that the engine refuses.
    """
    check_buffer(model, device_buffer_size)
    for name, value in (("ratio", ratio), ("tokens", tokens)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if not 0 <= output < tokens:
        raise ValueError(f"of {tokens} tokens {output} cannot be output: the prompt needs one")
    if ratio != int(ratio):
        raise ValueError(f"host_to_device_ratio must be a whole number, not {ratio}")
    entry = model.entry_bytes(kv_dtype)

    def pool_at(any_ratio: int) -> int:
        return device_pool_tokens(
            model,
            kv_dtype,
            any_ratio,
            device_pool_bytes,
            engine,
            most=most,
            draft_layers=draft_layers,
        )

    pool = pool_at(ratio)
    logical = pool * ratio
    length = check_length(tokens - output, output, pool, model.context)
    tokens = tokens - output + length.output
    held = held_tokens(model, device_buffer_size, resident_tokens)
    per_request = device_tokens(tokens, held, scratch_tokens)
    pinned = host_pool_bytes(pool, ratio, model.layers, entry)
    by_device, by_keys = pool // per_request, logical // pages(tokens)
    if output > length.output == 0 or length.outcome == REFUSED:
        requests, limit, reason = 0, LENGTH, length.reason
    elif pinned > host_bytes:
        requests, limit = 0, HOST
        fitting = _largest(
            lambda r: host_pool_bytes(pool_at(r), r, model.layers, entry) <= host_bytes, ratio
        )
        way_out = f"the largest ratio that fits is {fitting}" if fitting else "no ratio fits"
        reason = (
            f"the host pool of {pinned / 1e9:.1f} GB ({logical:,} tokens) exceeds the"
            f" {host_bytes / 1e9:.1f} GB of this GPU; {way_out}"
        )
    elif by_device <= by_keys:
        requests, limit = by_device, DEVICE_POOL
        reason = (
            f"{by_device + 1} hot buffers of {per_request:,} tokens exceed the device pool of"
            f" {pool:,} tokens"
        )
    else:
        requests, limit = by_keys, INDEXER_KEYS
        reason = (
            f"{by_keys + 1} requests of {pages(tokens):,} tokens exceed the {logical:,} tokens "
            f"(pool x ratio {ratio}) whose indexer keys are on the GPU and whose KV entries the "
            "host pool holds"
        )
    return Capacity(
        requests=requests,
        limit=limit,
        reason=reason,
        pool_tokens=pool,
        logical_tokens=logical,
        device_tokens_per_request=per_request,
        hot_buffer_bytes=hot_buffer_bytes(model, kv_dtype, device_buffer_size, resident_tokens),
        output=length.output,
        host_bytes_per_request=request_host_bytes(model, kv_dtype, tokens),
        indexer_bytes_per_request=indexer_bytes(model, tokens),
        host_pool_bytes=pinned,
    )
