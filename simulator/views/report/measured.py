"""The sections on published figures and on measurements."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import pandas as pd

from hisparse_sim.simulator.views.report import data, findings, served_charts, titles
from hisparse_sim.simulator.views.report.drawing import Drawn
from hisparse_sim.simulator.views.report.pieces import Cells, count, details, more, table
from hisparse_sim.simulator.views.report.results import Result, distinct

FOCUS_BUFFER = 4096
_FAR = 10  # figures with the largest errors, beside the chart


def sections(results: Sequence[Result], drawn: Drawn) -> list[tuple[str, str, str]]:
    """Return name, heading and body of the sections for which there are results."""
    found = []
    if not (redone := findings.published_of(results)).empty:
        found.append(("published", "Published figures, reproduced", _reproduced(redone, drawn)))
    if timed := [result for result in distinct(results) if result.kind.startswith("bench")]:
        found.append(("measured", "Measured on a GPU", _benched(timed)))
    return found


def _reproduced(rows: pd.DataFrame, drawn: Drawn) -> str:
    """Return ours against published as a chart and a table; unfolded, how each was obtained."""
    cells: Cells = {
        "what": ("figure", str),
        "published": ("published", _figure),
        "ours": ("ours", _figure),
        "error": ("error", more),
    }
    how: Cells = {
        "what": ("figure", str),
        "how": ("ours", _text),
        "gap": ("unexplained", _text),
        "source": ("published", str),
    }
    title = titles.reproduced(rows)
    obtained = details("How each figure was obtained and where it was published", table(rows, how))
    far = rows.loc[rows["error"].abs().sort_values(ascending=False, kind="stable").index]
    every = details(f"All {len(rows)} figures", table(rows, cells)) if len(rows) > _FAR else ""
    body = (
        f'<div class="card"><h3>The largest errors</h3>{table(far.head(_FAR), cells)}</div>'
        f"{every}{obtained}"
    )
    points = rows[(rows["published"] > 0) & (rows["ours"] > 0)]
    if points.empty:
        return f'<p class="wide">{escape(title)}.</p>{body}'
    kinds = _kinds(points)
    ends = points[["published", "ours"]].to_numpy(float)
    drawn.tables["reproduce"] = data.columns(
        points[["what", "published", "ours", "error"]].assign(kind=kinds), 4
    )
    chart = drawn.chart(
        "reproduced",
        served_charts.reproduced(
            "reproduce",
            float(ends.min()) / 1.5,
            float(ends.max()) * 1.5,
            list(dict.fromkeys(kinds)),
        ),
        title,
        "Ours against published figures on logarithmic axes",
        "On the line ours is the published figure; bands: 10 and 25 %. Each in its own unit.",
        ["what", "published", "ours", "error", "kind"],
    )
    return chart + body


def _kinds(rows: pd.DataFrame) -> list[str]:
    """Return of every figure whether it shaped a choice in the model, where rows tell."""
    if "sample" not in rows:
        return ["published figure"] * len(rows)
    return [_text(one) or "not told" for one in rows["sample"]]


def _benched(results: Sequence[Result]) -> str:
    """Return the times of the kernels, a line per point, and the rates of several GPUs at once."""
    text = ""
    for result in results:
        rows = result.rows
        machine = rows["machine"].iloc[0] if "machine" in rows else "unknown GPU"
        text += f'<div class="card"><h3>{escape(f"{machine}: {result.path.name}")}</h3>'
        text += _together(rows) if result.kind == "bench of several" else _points(rows)
        text += "</div>"
    return text


def _points(rows: pd.DataFrame) -> str:
    kernels = [name for name in ("sglang", "native", "copy") if f"{name}_us" in rows]
    cells: dict[str, tuple[str, Callable[[Any], str]]] = {
        "batch": ("batch", count),
        "misses": ("misses per request", count),
        "buffer": ("buffer", count),
        "entry_bytes": ("KV entry, bytes", count),
    } | {f"{name}_us": (f"{name}, µs", _time) for name in kernels}
    if {"sglang", "native"} <= set(kernels):
        rows = rows.assign(faster=rows["sglang_us"] / rows["native_us"])
        cells["faster"] = ("sglang / native", lambda value: f"{value:.2f}")
    sizes = set(rows["buffer"])
    focus = FOCUS_BUFFER if FOCUS_BUFFER in sizes else max(sizes)
    own = rows[(rows["buffer"] == focus) & (rows["entry_bytes"] == rows["entry_bytes"].max())]
    shown = {name: cell for name, cell in cells.items() if name not in ("buffer", "entry_bytes")}
    return (
        "<p>Swap-in of one layer, median of the repeats; buffer of"
        f" {focus:,}, KV entries of {own['entry_bytes'].iloc[0]:,} bytes.</p>"
        + table(own, shown)
        + (details(f"All {len(rows)} points", table(rows, cells)) if len(rows) > len(own) else "")
    )


def _together(rows: pd.DataFrame) -> str:
    measured = rows[rows["gpus"].notna() & rows["us"].notna()]
    measured = measured.assign(slowest=measured["us"].map(max).astype(float))
    cells: Cells = {
        "what": ("what", str),
        "batch": ("batch", count),
        "misses": ("misses per request", count),
        "entry_bytes": ("KV entry, bytes", count),
        "gpus": ("GPUs at once", count),
        "slowest": ("slowest, µs", _time),
        "sum_gb_s": ("GB/s in sum", _time),
    }
    return table(measured, {name: cell for name, cell in cells.items() if name in measured})


def _time(value: Any) -> str:
    return "-" if pd.isna(value) else f"{value:,.1f}"


def _figure(value: Any) -> str:
    return f"{value:,.4g}" if abs(value) < 100 else f"{value:,.0f}"


def _text(value: Any) -> str:
    return "" if pd.isna(value) else str(value)
