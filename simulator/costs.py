"""What the misses of a sweep cost on a model and a GPU: bytes over the link, memory, requests that
fit."""

from collections.abc import Sequence

import pandas as pd

from hisparse_sim.simulator.memory import capacity
from hisparse_sim.simulator.models import Model
from hisparse_sim.simulator.sweeping import Sweep

GIB = 2**30


def add_costs(
    swept: Sweep,
    model: Model,
    ratios: Sequence[int],
    *,
    kv_dtype: str = "bf16",
    device_pool_gib: float = 30,
    host_gib: float = 250,
    output_len: int = 0,
) -> pd.DataFrame:
    """Return the rows of `swept`, once per ratio, with the columns of docs/metrics.md behind them.

    `bytes_per_step` and `bytes_per_request` (host to device) are those of all layers of `model`,
    each taken to miss like the mean of the replayed layers; with `per_layer` those of the one layer
    of the row. A request makes as many steps as were replayed of it, and is as long as the longest
    of the traces plus `output_len`. `device_pool_gib` is what one GPU has left for KV, `host_gib`
    the host memory for it; memory rules: see `hisparse_sim.simulator.memory`. Raises ValueError for
    values that the engine refuses."""
    rows = swept.rows
    item_bytes = model.item_bytes(kv_dtype)
    priced = []
    for ratio in ratios:
        block = rows.copy()
        block["model"] = model.name
        block["kv_dtype"] = kv_dtype
        block["host_to_device_ratio"] = ratio
        layers = 1 if swept.per_layer else model.layers
        block["bytes_per_step"] = block["misses_per_step"] * item_bytes * layers
        block["bytes_per_request"] = block["bytes_per_step"] * block["steps"] / swept.parts_per_row
        fits = {
            size: capacity(
                model,
                kv_dtype,
                ratio,
                size,
                swept.longest_request + output_len,
                round(device_pool_gib * GIB),
                round(host_gib * GIB),
            )
            for size in rows["buffer"].unique()
        }
        for column in ("hot_buffer_bytes", "host_bytes_per_request", "requests", "limit", "reason"):
            values = {size: getattr(fit, column) for size, fit in fits.items()}
            name = "requests_per_gpu" if column == "requests" else column
            block[name] = block["buffer"].map(values)
        priced.append(block)
    return pd.concat(priced, ignore_index=True) if priced else rows
