"""The section on the cost of misses: time over the link, and memory."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from hisparse_sim.simulator.replay.metrics import blocks_of
from hisparse_sim.simulator.views.report import charts, data
from hisparse_sim.simulator.views.report.charts import Spec
from hisparse_sim.simulator.views.report.drawing import Drawn
from hisparse_sim.simulator.views.report.pieces import count, hint, options, table

# The setting of a memory table; what is the same in all of its lines goes above it.
_SETTING = (
    "trace",
    "model",
    "kv_dtype",
    "hardware",
    "engine",
    "device_pool_gib",
    "host_gib",
    "request_tokens",
)


def section(
    swept: pd.DataFrame,
    policies: Sequence[str],
    parameters: Mapping[str, Any],
    shared: Sequence[Spec],
    drawn: Drawn,
    profiles: data.Profiles,
) -> str:
    """Return the swap-in times and what fits into memory for the joined rows `swept`.

    `parameters`: those of the sweep. `shared`: the parameters that all charts have in common."""
    rows = data.token_rows(swept)
    text = ""
    if blocks := blocks_of(swept):
        text = (
            f"<p>Positions are {escape(blocks)}; bytes, time and memory are computed for tokens"
            " only.</p>"
        )
    if rows.empty:
        return text
    times = data.times_table(rows, parameters, profiles)
    drawn.tables["times"] = data.columns(times.table, 4)
    batch: Spec = {"name": "batch", "value": times.chosen}
    text += "<h3>Time</h3>" + options(
        "batch", "Requests that decode together", times.batches, times.chosen
    )
    text += drawn.chart(
        "swap-in",
        charts.swap_in(policies, times.title, [*shared, batch]),
        f"{times.title} by buffer size, a line per policy",
        times.source,
        "buffer",
    )
    return text + "<h3>Memory</h3>" + _memory(rows)


def _memory(rows: pd.DataFrame) -> str:
    if "requests_per_gpu" not in rows:
        return hint(
            "The results have no memory figures; a ratio adds them:",
            "hisparse-sim sweep TRACE --ratio 4,8 -o rows.parquet",
        )
    cells: dict[str, tuple[str, Callable[[Any], str]]] = {
        "trace": ("trace", str),
        "model": ("model", str),
        "kv_dtype": ("KV", str),
        "hardware": ("machine", str),
        "engine": ("engine", str),
        "device_pool_gib": ("GiB of a GPU", _whole_gib),
        "host_gib": ("GiB of its host", _whole_gib),
        "request_tokens": ("tokens", count),
        "buffer": ("buffer", count),
        "host_to_device_ratio": ("ratio", count),
        "requests_per_gpu": ("requests per GPU", count),
        "hot_buffer_bytes": ("MiB on the GPU per request", _scaled(2**20, 1)),
        "host_bytes_per_request": ("GiB on the host per request", _scaled(2**30, 2)),
        "limit": ("limited by", str),
        "reason": ("because", str),
    }
    fits = rows.dropna(subset=["requests_per_gpu"]).reindex(columns=list(cells))
    fits = fits.drop_duplicates()
    alike = [name for name in _SETTING if fits[name].nunique(dropna=False) == 1]
    told = ", ".join(
        f"{cells[name][0]} {cells[name][1](fits[name].iloc[0])}"
        for name in alike
        if name != "trace" and pd.notna(fits[name].iloc[0])
    )
    shown = {name: cell for name, cell in cells.items() if name not in alike}
    return f"<p>{escape(told)}.</p>" + table(fits, shown)


def _scaled(unit: float, digits: int) -> Callable[[Any], str]:
    return lambda value: "-" if pd.isna(value) else f"{value / unit:,.{digits}f}"


def _whole_gib(value: Any) -> str:
    return "-" if pd.isna(value) else f"{value:g}"
