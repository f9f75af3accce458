"""Figures of the cost of misses: time, throughput, memory."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from hisparse_sim.simulator.views.figures.served import closed_loops
from hisparse_sim.simulator.views.figures.style import (
    COLOURS,
    MARKERS,
    draw_lines,
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABEL_WIDE, _LABEL_HIGH = 0.075, 0.045  # of a ratio, as shares of the axes


def _need(table: pd.DataFrame, names: str, what: str) -> None:
    if missing := [name for name in names.split() if name not in table]:
        raise ValueError(f"{what} needs the columns {names}; missing: {', '.join(missing)}")


def latency(
    points: pd.DataFrame,
    *,
    provenance: str = "",
    axes: "Axes | None" = None,
    style: str | None = None,
) -> "Axes":
    """Draw the swap-in time of a layer: measured points, and modelled ones joined by lines.

    `points`: columns `batch, misses` (of each request) and `measured_us`, `predicted_us` or both;
    nan where there is none. Each batch has a colour and a marker."""
    _need(points, "batch misses", "the latency figure")
    kinds = [name for name in ("predicted_us", "measured_us") if name in points]
    if not kinds:
        raise ValueError("the latency figure needs a column measured_us or predicted_us")
    batches = sorted(points["batch"].unique())
    with styled(style):
        axes = axes or new_axes(5.6, 3.4)
        look = looks(f"{batch} requests" if batch > 1 else "1 request" for batch in batches)
        for batch, (name, (colour, dash, marker, _)) in zip(batches, look.items(), strict=True):
            own = points[points["batch"] == batch].sort_values("misses")
            axes.plot([], [], color=colour, linestyle=dash, marker=marker, label=name)
            for kind in kinds:
                known = own[own[kind].notna()]
                if kind == "predicted_us":
                    axes.plot(known["misses"], known[kind], color=colour, linestyle=dash)
                else:
                    axes.plot(
                        known["misses"],
                        known[kind],
                        marker,
                        color=colour,
                        markerfacecolor="white",
                        markersize=5,
                    )
        axes.set_xlabel("misses per request, layer and step")
        axes.set_ylabel("swap-in of one layer (µs)")
        from_zero(axes)
        means = {"predicted_us": "lines: modelled", "measured_us": "points: measured"}
        titled(axes, "Time of a swap-in (" + ", ".join(means[kind] for kind in kinds) + ")")
        legend_beside(axes, "decoding together")
        put_origin(axes, provenance or origin(points))
    return axes


def throughput(
    rows: pd.DataFrame, *, axes: "Axes | None" = None, style: str | None = None
) -> "Axes":
    """Draw output tokens per second over concurrent requests, a line per mode.

    `rows`: those of `serve`, columns `mode, load, tokens_per_s`; open loops (a load per second) are
    left out. Raises ValueError if nothing is left, or for runs of several settings."""
    closed = closed_loops(rows, ("tokens_per_s",))
    with styled(style):
        axes = axes or new_axes(5.6, 3.4)
        draw_lines(axes, closed, "mode", "concurrency", "tokens_per_s")
        powers_of_two(axes, sorted(closed["concurrency"].unique()))
        from_zero(axes)
        axes.set_xlabel("concurrent requests")
        axes.set_ylabel("output tokens per second")
        titled(axes, "Throughput by concurrency (modelled)")
        legend_beside(axes)
        put_origin(axes, origin(rows))
    return axes


def plan_pareto(
    candidates: pd.DataFrame, *, axes: "Axes | None" = None, style: str | None = None
) -> "Axes":
    """Draw the candidates of a plan: tokens per second over time per token; upper left is better.

    A colour and marker per buffer, the area by pinned host memory, a ring around the recommended
    one, the ratio beside it and beside points that no other beats in both, as far as there is room.
    `candidates`: `Plan.candidates` or `Plan.pareto`;
    those that cannot run are left out. Raises ValueError if none can, or for several plans."""
    _need(candidates, "buffer ratio requests tokens_per_s tpot_ms host_gb", "the plan figure")
    able = candidates[candidates["requests"] > 0]
    if able.empty:
        raise ValueError("no candidate of this plan can run: there is nothing to draw")
    if able.duplicated(["buffer", "ratio"]).any():
        raise ValueError("the candidates are those of several plans: draw one")
    with styled(style):
        axes = axes or new_axes(5.8, 3.6)
        most = able["host_gb"].max()
        buffers = sorted(able["buffer"].unique())
        for number, buffer in enumerate(buffers):
            own = able[able["buffer"] == buffer]
            axes.scatter(
                own["tpot_ms"],
                own["tokens_per_s"],
                s=15 + 75 * own["host_gb"] / most,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                alpha=0.8,
                linewidth=0.5,
                edgecolor="white",
                label=f"B = {buffer:,}",
            )
        ahead = np.array(
            [
                not ((able["tpot_ms"] <= x) & (able["tokens_per_s"] > y)).any()
                for x, y in zip(able["tpot_ms"], able["tokens_per_s"], strict=True)
            ]
        )
        front = able[ahead].sort_values("tpot_ms").drop_duplicates(["tpot_ms", "tokens_per_s"])
        axes.step(
            front["tpot_ms"],
            front["tokens_per_s"],
            where="post",
            color="0.5",
            linewidth=0.8,
            zorder=0,
            label="front",
        )
        marked = able[able["best"].eq(True)] if "best" in able else able[:0]
        if len(marked):
            axes.scatter(
                marked["tpot_ms"],
                marked["tokens_per_s"],
                s=120,
                facecolors="none",
                edgecolors="black",
                linewidth=1.2,
                label="recommended",
            )
        axes.margins(x=0.15, y=0.12)  # room for the first label
        told = pd.concat([marked, front]).drop_duplicates(["buffer", "ratio"])
        for row in _apart(told, axes).to_dict("records"):
            axes.annotate(
                f"R {row['ratio']:g}",
                (row["tpot_ms"], row["tokens_per_s"]),
                xytext=(-6, 5),
                textcoords="offset points",
                ha="right",
                fontsize=6.5,
            )
        axes.set_xlabel("time per output token (ms)")
        axes.set_ylabel("output tokens per second")
        titled(axes, "Plans: throughput against latency (modelled)")
        legend_beside(axes, f"area: host memory,\nup to {most:,.0f} GB")
        put_origin(axes, origin(candidates))
    return axes


def _apart(front: pd.DataFrame, axes: "Axes") -> pd.DataFrame:
    """Return the points whose labels do not overlap those before them."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    places = zip(
        (front["tpot_ms"] - left) / (right - left),
        (front["tokens_per_s"] - bottom) / (top - bottom),
        strict=True,
    )
    taken: list[tuple[float, float]] = []
    kept = []
    for x, y in places:
        kept.append(all(abs(x - a) >= _LABEL_WIDE or abs(y - b) >= _LABEL_HIGH for a, b in taken))
        taken += [(x, y)] * kept[-1]
    return front[kept]


def throughput_beside_published(
    served: pd.DataFrame, published: pd.DataFrame, *, style: str | None = None
) -> "Axes":
    """Draw throughput over concurrency beside published figures.

    `served`: see `throughput`. `published`: `source, concurrency, tokens_per_s`.
    """
    with styled(style):
        axes = throughput(served, axes=new_axes(8.4, 3.6))
        for source, marker, name in (
            ("user", "o", "a user"),
            ("paper", "s", "paper"),
            ("chart", "^", "blog"),
        ):
            own = published[published["source"] == source]
            axes.plot(
                own["concurrency"],
                own["tokens_per_s"],
                marker,
                color="black",
                markerfacecolor="none",
                label=f"published ({name})",
            )
        axes.set_ylim(top=1.05 * max(axes.get_ylim()[1] / 1.05, published["tokens_per_s"].max()))
        titled(axes, "GLM-5.1-FP8 on 8 x H200, 32k in, 8k out; lines are modelled")
        legend_beside(axes)
    return axes


def ours_over_published(rows: pd.DataFrame, axes: "Axes | None" = None) -> "Axes":
    """Draw our figures over published ones, both logarithmic, with bands of 10 and 25 %.

    `rows`: of `reproduce`: `published, ours, sample`. Every figure has its own unit.
    """
    with styled():
        axes = axes or new_axes(4.6, 4.6)
        both = pd.concat([rows["published"], rows["ours"]])
        ends = [both.min() / 1.6, both.max() * 1.6]
        for share, shade in ((0.25, 0.1), (0.1, 0.2)):
            low, high = ([end * factor for end in ends] for factor in (1 - share, 1 + share))
            axes.fill_between(ends, low, high, color="black", alpha=shade, linewidth=0)
        axes.plot(ends, ends, color="black", linewidth=0.8)
        for (sample, own), colour, marker in zip(
            rows.groupby("sample"), COLOURS, MARKERS, strict=False
        ):
            axes.plot(
                own["published"],
                own["ours"],
                marker,
                color=colour,
                markerfacecolor="none",
                markersize=4,
                label=f"{sample} ({len(own)})",
            )
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        axes.set_xlabel("published, each in its own unit")
        axes.set_ylabel("ours, modelled")
        axes.set_title("Published figures and ours; bands of 10 and 25 %")
        axes.legend(loc="upper left")
    return axes
