"""The section on the cost of misses: time over the link, and memory."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import pandas as pd

from hisparse_sim.simulator.replay.metrics import blocks_of
from hisparse_sim.simulator.views.report import charts, data, findings, titles
from hisparse_sim.simulator.views.report.drawing import Drawn
from hisparse_sim.simulator.views.report.pieces import Cells, count, details, hint, options, table
from hisparse_sim.simulator.views.report.vega import Spec


def section(
    swept: pd.DataFrame,
    times: data.Times | None,
    policies: Sequence[str],
    shared: Sequence[Spec],
    drawn: Drawn,
    planned: int | None = None,
) -> str:
    """Return the swap-in times and what fits into memory for the joined rows `swept`.

    `times`: of the rows that are priced, None if there are none. `shared`: the parameters that
    all charts have in common."""
    rows = data.priced_rows(swept)
    text = ""
    if blocks := blocks_of(swept):
        text = (
            f'<p class="wide">Positions are {escape(blocks)}; bytes, time and memory are computed'
            " for tokens only.</p>"
        )
    if "rules" in swept and swept["rules"].notna().any():
        named = ", ".join(dict.fromkeys(swept.loc[swept["rules"].notna(), "trace"]))
        text += (
            '<p class="wide">Time and memory are computed for one query a step with all KV on the'
            f" host, not for {escape(named)}.</p>"
        )
    if times is None:
        return text
    drawn.tables["times"] = data.columns(times.table, 4)
    batch: Spec = {"name": "batch", "value": times.chosen}
    text += drawn.chart(
        "swap-in",
        charts.swap_in(
            policies, sorted(times.table["buffer"].unique().tolist()), times.title, [*shared, batch]
        ),
        _titles(times, planned),
        f"{times.title} by buffer size, a line per policy",
        times.source,
        ["trace", "policy", "buffer", "batch", "time"],
        "buffer",
        options("batch", "Requests that decode together", times.batches, times.chosen),
        legend=["policy"],
    )
    return text + f'<div class="card" id="memory"><h3>{_fitting(rows)}</h3>{_memory(rows)}</div>'


def _titles(times: data.Times, planned: int | None) -> dict[str, str]:
    """Return the title of every choice, that of the first one first."""
    found = {}
    for trace, own in times.table.groupby("trace", sort=False):
        policy, buffer = findings.focus(own, planned)
        sizes = own.loc[own["policy"] == policy, "buffer"].unique()
        for size in sorted(sizes, key=lambda size: size != buffer):
            for batch in sorted(times.batches, key=lambda batch: batch != times.chosen):
                title = titles.swap_in(own, times.unit, policy, int(size), batch)
                found[f"{trace}|{size}|{batch}"] = title
    return found


def _fitting(rows: pd.DataFrame) -> str:
    """Return the title of the memory table."""
    if "requests_per_gpu" not in rows or rows["requests_per_gpu"].isna().all():
        return "Memory"
    known = rows.dropna(subset=["requests_per_gpu"])
    low, high = known["requests_per_gpu"].min(), known["requests_per_gpu"].max()
    few = f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
    return f"{few} requests fit on a rank"


def _memory(rows: pd.DataFrame) -> str:
    if "requests_per_gpu" not in rows:
        return hint(
            "The results have no memory figures; a ratio adds them:",
            "hisparse-sim sweep TRACE --ratio 4,8 -o rows.parquet",
        )
    cells: dict[str, tuple[str, Callable[[Any], str]]] = {
        "trace": ("trace", str),
        **{name: (heading, show) for name, (heading, _, show) in _SETTING.items()},
        "buffer": ("slots", count),
        "host_to_device_ratio": ("ratio", count),
        "requests_per_gpu": ("requests per rank", count),
        "hot_buffer_bytes": ("MiB each", _scaled(2**20, 0)),
        "limit": ("limited by", str),
    }
    fits = rows.dropna(subset=["requests_per_gpu"]).reindex(columns=[*cells, "reason"])
    fits = fits.drop_duplicates()
    alike = [name for name in ("trace", *_SETTING) if fits[name].nunique(dropna=False) == 1]
    told = ", ".join(
        _SETTING[name][1].format(_SETTING[name][2](fits[name].iloc[0]))
        for name in alike
        if name != "trace" and pd.notna(fits[name].iloc[0])
    )
    shown = {name: cell for name, cell in cells.items() if name not in alike}
    because = fits.dropna(subset=["reason"]).drop_duplicates("reason")
    reasons: Cells = {"buffer": ("slots", count), "host_to_device_ratio": ("ratio", count)}
    text = f"<p>{escape(told)}.</p>" + table(fits.drop(columns="reason").drop_duplicates(), shown)
    if because.empty:
        return text
    return text + details(
        "What limits each", table(because, {**reasons, "reason": ("because", str)})
    )


def _scaled(unit: float, digits: int) -> Callable[[Any], str]:
    return lambda value: "-" if pd.isna(value) else f"{value / unit:,.{digits}f}"


# Of a memory table: heading, words, and how its values are shown. What is the same in all lines
# goes above them.
_SETTING: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "model": ("model", "{}", str),
    "kv_dtype": ("KV", "{} KV", str),
    "hardware": ("machine", "on {}", str),
    "engine": ("engine", "{}", str),
    "device_pool_gib": ("GiB of a GPU", "{} GiB for KV on a GPU", _scaled(1, 1)),
    "host_gib": ("GiB of its host", "{} GiB on its host", _scaled(1, 1)),
    "request_tokens": ("tokens a request", "requests of {} tokens", count),
    "host_bytes_per_request": (
        "GiB on the host each", "{} GiB each on the host", _scaled(2**30, 2),
    ),
}  # fmt: skip
