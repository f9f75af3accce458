"""Bytes of misses where memory and admission are not modelled: blocks of tokens, and modes of
replay.

What crosses the link follows from the misses and the bytes of a position. What a request takes on
the GPU follows from its slots. How many requests fit, and how fast they are, does not follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from hisparse_sim.simulator.replay.modes import Mode
from hisparse_sim.simulator.replay.modes.sglang import SGLANG, scratch_tokens
from hisparse_sim.simulator.replay.modes.vllm import PAGE_TOKENS, TAIL_PAGES
from hisparse_sim.simulator.replay.swept import Sweep
from hisparse_sim.simulator.serving.block_model import VALUE_BYTES, unit_of
from hisparse_sim.simulator.serving.memory import pages
from hisparse_sim.simulator.serving.models import KV_DTYPES, check_unit, load_model
from hisparse_sim.simulator.serving.profiles import match_profile
from hisparse_sim.traces import Trace
from hisparse_sim.traces.file.units import TOKEN


@dataclass(frozen=True)
class Price:
    """What a position costs in a model."""

    model: str
    layers: int  # whose KV is on the host
    entry_bytes: int  # of a position in one of them
    kv_dtype: str
    top_k: int
    position_tokens: int = 1


def price_of(
    traces: Sequence[Trace], name: str, kv_dtype: str, profiles: str | Path | None = None
) -> Price:
    """Return the price of the positions of these traces in the model called `name`.

    Raises ValueError for an unknown model or dtype, TraceError for a trace in another unit than the
    model selects.
    """
    if kv_dtype not in KV_DTYPES:
        raise ValueError(f"unknown KV dtype {kv_dtype!r}; known: {', '.join(KV_DTYPES)}")
    block = match_profile("blocks", name, profiles)
    if block is None:
        model = load_model(name, profiles)
        unit, entry_bytes = TOKEN, model.entry_bytes(kv_dtype)
        price = Price(model.name, model.layers, entry_bytes, kv_dtype, model.top_k)
    else:
        tokens = block.count("block_tokens", least=1)
        values = tokens * 2 * block.count("kv_heads", least=1) * block.count("head_dim", least=1)
        top_k = block.count("top_k", least=1)
        group = block.count("group_bytes", 0)
        unit, entry_bytes = unit_of(tokens, group), group or values * VALUE_BYTES[kv_dtype]
        stored_as = "" if group else kv_dtype  # a group has a format of its own
        layers = block.count("layers", least=1)
        price = Price(block.name, layers, entry_bytes, stored_as, top_k, tokens)
    check_unit(traces, unit, price.model, profiles)
    return price


def add_traffic(swept: Sweep, price: Price, mode: Mode | None) -> pd.DataFrame:
    """Return the rows of `swept` with `model, kv_dtype, bytes_per_step, bytes_per_request` and
    `hot_buffer_bytes`, as in docs/metrics.md; with drafts `bytes_per_token`, too.

    All layers count with the mean misses of the replayed ones, in which one that others repeat
    counts for them, too. `hot_buffer_bytes` is what a request
    takes on the GPU: its slots, what is always there beside them, and resident tokens.
    """
    rows = swept.rows.copy()
    layers = 1 if swept.per_layer else price.layers
    rows["model"] = price.model
    rows["kv_dtype"] = price.kv_dtype
    rows["bytes_per_step"] = swept.misses_per_layer() * price.entry_bytes * layers
    rows["bytes_per_request"] = rows["bytes_per_step"] * rows["steps"] / swept.parts_per_row
    if "accepted_per_step" in rows:
        rows["bytes_per_token"] = rows["bytes_per_step"] / rows["accepted_per_step"]
    queries = max(1 if mode is None else mode.queries(piece.trace) for piece in swept.pieces)
    longest = swept.longest_request
    held = [_on_gpu(mode, queries, price, int(size), longest) for size in rows["buffer"]]
    rows["hot_buffer_bytes"] = [count * layers * price.entry_bytes for count in held]
    return rows


def _on_gpu(mode: Mode | None, queries: int, price: Price, buffer_size: int, longest: int) -> int:
    """Return the positions of a request of `longest` positions on the GPU: the slots of its buffer,
    what is always there beside them, and what is resident; as a plan has it (memory.py)."""
    tokens = price.position_tokens
    resident = 0 if mode is None else pages(mode.resident_tokens) // tokens
    if mode is not None and mode.rules.name != SGLANG.name:
        beside = TAIL_PAGES * PAGE_TOKENS
    else:  # the reserved page, or block
        beside = max(PAGE_TOKENS // tokens, 1)
        beside += scratch_tokens(queries, price.top_k, buffer_size) if queries > 1 else 0
    held = buffer_size + beside + resident
    return min(held, -(-pages(longest * tokens) // tokens)) if resident else held
