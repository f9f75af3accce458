"""Figures of serving runs: latency percentiles over the load, and where the time goes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from hisparse_sim.simulator.views.figures.style import (
    COLOURS,
    HATCHES,
    from_zero,
    legend_beside,
    looks,
    new_axes,
    origin,
    powers_of_two,
    put_origin,
    styled,
    titled,
)
from hisparse_sim.simulator.views.palette import PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SETTING = ("trace_sha256", "model", "hardware", "layout")


def closed_loops(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows of `serve` that are of a closed loop, with `concurrency` as a number.

    Raises ValueError if columns are missing, if nothing is left, or for runs of several settings.
    """
    if missing := [name for name in ("mode", "load", *columns) if name not in rows]:
        raise ValueError(f"a figure of serving runs lacks the columns {', '.join(missing)}")
    loads = pd.to_numeric(rows["load"], errors="coerce")
    closed = rows.assign(concurrency=loads)[loads.notna()]
    if closed.empty:
        raise ValueError("no closed loop to draw: run serve with `concurrencies`")
    told = [name for name in _SETTING if name in closed]
    differ = any(closed.loc[closed[name].ne(""), name].nunique() > 1 for name in told)
    if differ or closed.duplicated(["mode", "concurrency"]).any():
        raise ValueError("the runs are of several settings: draw those of one")
    return closed


def percentiles(
    rows: pd.DataFrame,
    of: str = "tpot",
    *,
    axes: "Axes | None" = None,
    style: str | None = None,
) -> "Axes":
    """Draw a latency over concurrent requests: the median as a line per mode, up to the 99th
    percentile as a thin one with a tick at the 95th.

    `rows`: those of `serve`. `of`: "tpot" (ms per output token) or "ttft" (s to the first token).
    Raises ValueError for another, and as `throughput` does."""
    units = {"tpot": "ms", "ttft": "s"}
    if of not in units:
        raise ValueError(f"unknown latency {of!r}; known: {', '.join(units)}")
    p50, p95, p99 = (f"{of}_p{percent}_{units[of]}" for percent in (50, 95, 99))
    closed = closed_loops(rows, (p50, p95, p99))
    with styled(style):
        axes = axes or new_axes(5.6, 3.4)
        look = looks(closed["mode"])
        for mode, own in closed.groupby("mode", sort=False):
            own = own.sort_values("concurrency")
            colour, dash, marker, _ = look[str(mode)]
            axes.plot(own["concurrency"], own[p50], color=colour, linestyle=dash, marker=marker,
                      markersize=4.5, label=str(mode))  # fmt: skip
            axes.vlines(own["concurrency"], own[p50], own[p99], color=colour, linewidth=0.9)
            axes.plot(own["concurrency"], own[p95], "_", color=colour, markersize=6)
        powers_of_two(axes, sorted(closed["concurrency"].unique()))
        if of == "ttft" and (closed[p50] > 0).all():  # grows by powers once requests wait
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:,g}")
        else:
            from_zero(axes)
        axes.set_xlabel("concurrent requests")
        what = {"tpot": "time per output token (ms)", "ttft": "time to first token (s)"}[of]
        axes.set_ylabel(what)
        titled(axes, f"{what[0].upper()}{what[1:]}, modelled")
        legend_beside(axes, "median,\nto p99")
        put_origin(axes, origin(rows))
    return axes


def time_shares(
    rows: pd.DataFrame, *, axes: "Axes | None" = None, style: str | None = None
) -> "Axes":
    """Draw where the time of the instances that decode goes, a stacked bar per load and mode.

    `rows`: those of `serve`. Raises ValueError as `throughput` does."""
    closed = closed_loops(rows, [column for column, _ in PARTS.values()])
    closed = closed.sort_values(["concurrency", "mode"], kind="stable")
    with styled(style):
        axes = axes or new_axes(5.6, max(2.2, 1.0 + 0.19 * len(closed)))
        places = np.arange(len(closed))
        left = np.zeros(len(closed))
        for number, (part, (column, place)) in enumerate(PARTS.items()):
            values = closed[column].to_numpy(float)
            colour = "0.85" if place is None else COLOURS[place]
            axes.barh(places, 100 * values, 0.8, 100 * left, color=colour, edgecolor="white",
                      hatch=HATCHES[number], linewidth=0, label=part)  # fmt: skip
            left += values
        names = closed["concurrency"].map("{:,.0f}, ".format) + closed["mode"]
        axes.set_yticks(places, names.tolist(), fontsize=6)
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("share of the time (%)")
        titled(axes, "Where the time goes, modelled")
        legend_beside(axes)
        put_origin(axes, origin(rows))
    return axes
