"""Figures of the demand itself: how a trace re-uses positions. All take the rows of `hs.locality`.

One trace is shown with its spread over layers, several as a line each. Values are means over
(request, layer)."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hisparse_sim.simulator.figures.style import (
    COLOURS,
    DASHES,
    Look,
    legend_beside,
    looks,
    new_axes,
    origin,
    put_origin,
    root_figure,
    styled,
)
from hisparse_sim.simulator.locality_view import curve, missed
from hisparse_sim.traces.locality import EDGES, RECENT, SINKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Array = np.ndarray[Any, np.dtype[Any]]

BUFFERS = (2048, 4096, 6144)  # slots: the top-k of DeepSeek-V3.2 and GLM-5, times 1, 2, 3
_MOST_BANDS = 2  # traces; more bands would hide each other
_MOST_NUMBERS = 10  # layers of a heat map whose cells carry their number
_COLUMNS = ["trace", "request", "layer", "measure", "at", "value"]


def overlap(rows: pd.DataFrame, *, axes: "Axes | None" = None) -> "Axes":
    """Draw which share of a step's positions was demanded n steps before, over n.

    The band spans the 10th to 90th percentile of the layers. Raises ValueError for a trace of one
    step."""
    _check(rows, "overlap", "has a single step")
    with styled():
        axes = axes or new_axes(5.2, 3.2)
        _curves(axes, rows, "overlap", 100)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("steps before")
        axes.set_ylabel("demanded there too (%)")
        axes.set_title("Overlap of a step with earlier ones")
        _finish(axes, rows, "upper right")
    return axes


def working_set(rows: pd.DataFrame, *, axes: "Axes | None" = None) -> "Axes":
    """Draw how many distinct positions so many consecutive steps demand.

    The band spans the 10th to 90th percentile of the layers."""
    _check(rows, "working_set", "has no step")
    with styled():
        axes = axes or new_axes(5.2, 3.2)
        _curves(axes, rows, "working_set", 1)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("consecutive steps")
        axes.set_ylabel("distinct positions")
        axes.set_title("Growth of the working set")
        _finish(axes, rows, "upper left")
    return axes


def reuse_distance(
    rows: pd.DataFrame, *, buffers: Sequence[int] = BUFFERS, axes: "Axes | None" = None
) -> "Axes":
    """Draw the share of demands that an LRU buffer misses over its slots, from reuse distances.

    The line begins at the smallest of `buffers`, which are marked. For one trace they carry the
    share, bars are the distances by powers of two, and the band is what any order of the positions
    within a step could make of the line: the engine's LRU, started empty, lies in it if requests
    are longer than the buffer. Raises ValueError if nothing is demanded twice."""
    _check(rows, "reuse_distance", "demands nothing twice")
    traces = _traces(rows)
    left, right = min(buffers), max(*buffers, *curve(rows, "reuse_distance").columns)
    slots = np.union1d(EDGES, buffers)
    slots = slots[(slots >= left) & (slots <= right)]
    with styled():
        axes = axes or new_axes(5.2, 3.2)
        for name, own, look in traces:
            line = _missed(own, slots)
            marks = np.interp(buffers, slots, line)
            if len(traces) == 1:
                left = left // 8 or 1
                _octaves(axes, curve(own, "reuse_distance").mean())
                axes.fill_between(
                    slots,
                    _missed(own, slots, "reuse_nearest"),
                    _missed(own, slots, "reuse_farthest"),
                    color=look.colour,
                    alpha=0.25,
                    linewidth=0,
                    label="for any order within a step",
                )
                for buffer, value in zip(buffers, marks, strict=True):
                    axes.annotate(
                        f"{buffer:,}: {value:.1f}",
                        (buffer, value),
                        xytext=(4, 4),
                        textcoords="offset points",
                        fontsize=7,
                    )
                name = "missed by an LRU of so many slots"
            axes.plot(slots, line, color=look.colour, linestyle=look.dash, label=name)
            axes.plot(buffers, marks, look.marker, color=look.colour, markersize=4)
        _powers(axes, np.array([left, right]))
        axes.set_xlim(left, right)
        axes.set_ylim(0, axes.get_ylim()[1] * (1.4 if len(traces) == 1 else 1))  # for the legend
        if len(traces) == 1:
            axes.set_title("Reuse distance, and what an LRU misses")
            axes.set_xlabel("reuse distance, or LRU buffer (positions)")
        else:
            axes.set_title("Misses of an LRU, by reuse distance")
            axes.set_xlabel("LRU buffer (slots)")
        axes.set_ylabel("share of demands (%)")
        _finish(axes, rows, "upper right")
    return axes


def cross_layer_overlap(rows: pd.DataFrame, *, axes: "Axes | None" = None) -> "Axes":
    """Draw which share of a layer's positions another one demands in the same step.

    One trace is a heat map, several are lines over the distance of the layers. Raises ValueError
    for a trace of one layer."""
    _check(rows, "cross_layer", "has a single layer")
    traces = _traces(rows)
    own = rows[rows["measure"] == "cross_layer"]
    with styled():
        if len(traces) > 1:
            axes = axes or new_axes(5.2, 3.2)
            apart = (own["layer"] - own["at"]).abs().astype(int).rename("apart")
            means = own.groupby(["trace", apart])["value"].mean()
            for name, _, look in traces:
                line = means[name]
                axes.plot(
                    line.index, 100 * line, color=look.colour, linestyle=look.dash, label=name
                )
            axes.set_ylim(bottom=0)
            axes.set_xlabel("layers apart")
            axes.set_ylabel("demanded there too (%)")
        else:
            grid = 100 * own.pivot_table(index="at", columns="layer", values="value")
            axes = axes or new_axes(4.6, 3.6)
            _heat_map(axes, grid)
            axes.set_xlabel("of what this layer demands (%)")
            axes.set_ylabel("this one demands too")
        axes.set_title("Overlap of layers in the same step")
        _finish(axes, rows, "upper right")
    return axes


def sinks_and_recent(rows: pd.DataFrame, *, axes: "Axes | None" = None) -> "Axes":
    """Draw which share of the first positions and of the last tokens a step demands, by layer.

    Of several traces the first positions have thin lines without a marker."""
    _check(rows, "recent_coverage", "has no step")
    traces = _traces(rows)
    kinds = {
        "recent_coverage": f"last {RECENT} tokens",
        "sink_coverage": f"first {SINKS} positions",
        "density": "all positions",
    }
    with styled():
        axes = axes or new_axes(5.2, 3.2)
        for name, own, look in traces:
            for number, (measure, what) in enumerate(kinds.items()):
                if len(traces) == 1:
                    colour, dash = COLOURS[number], DASHES[number]
                    _by_layer(axes, own, measure, colour, dash, "o", what)
                elif measure != "density":
                    dash, marker = ("-", "o") if number == 0 else (":", "")
                    _by_layer(axes, own, measure, look.colour, dash, marker, name * (number == 0))
        axes.set_ylim(0, 105)
        axes.set_ylabel("of them demanded in a step (%)")
        one = len(traces) == 1
        axes.set_title("Recent tokens and sinks" if one else "Recent tokens (dots), sinks (dotted)")
        _finish(axes, rows, "best")
    return axes


def drift(rows: pd.DataFrame, *, axes: "Axes | None" = None) -> "Axes":
    """Draw which share of the most demanded positions the second half of a trace changes, by layer.

    Raises ValueError for a trace of one step."""
    _check(rows, "drift", "has a single step")
    with styled():
        axes = axes or new_axes(5.2, 3.2)
        for name, own, look in _traces(rows):
            _by_layer(axes, own, "drift", look.colour, look.dash, look.marker, name)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("most demanded that change (%)")
        axes.set_title("Drift between the halves")
        if rows["trace"].nunique() > 1:
            legend_beside(axes)
        put_origin(axes, origin(rows))
    return axes


def locality_page(rows: pd.DataFrame, *, buffers: Sequence[int] = BUFFERS) -> "Figure":
    """Draw all figures of this module on one page. What a trace is too small for stays empty."""
    from matplotlib.figure import Figure

    panels: tuple[Callable[..., Axes], ...] = (
        overlap,
        reuse_distance,
        working_set,
        cross_layer_overlap,
        sinks_and_recent,
        drift,
    )
    _check(rows, "working_set", "has no step")
    with styled():
        page = Figure(figsize=(11.0, 6.4))
        places = page.subplots(2, 3).ravel()
        for draw, axes in zip(panels, places, strict=True):
            options = {"buffers": buffers} if draw is reuse_distance else {}
            try:
                draw(rows, axes=axes, **options)
            except ValueError as why:
                axes.set_axis_off()
                axes.text(0.5, 0.5, str(why), ha="center", wrap=True, transform=axes.transAxes)
        if rows["trace"].nunique() > 1:
            legends = [axes.get_legend() for axes in places]
            handles, names = places[2].get_legend_handles_labels()
            for legend in legends:
                if legend is not None:
                    legend.remove()
            page.legend(handles, names, loc="outside upper center", ncols=4)
        put_origin(places[0], origin(rows))
    return page


def _check(rows: pd.DataFrame, measure: str, why_not: str) -> None:
    if missing := set(_COLUMNS) - set(rows):
        raise ValueError(
            f"these are no rows of hs.locality: they lack {', '.join(sorted(missing))}"
        )
    known = rows["trace"][(rows["measure"] == measure) & rows["value"].notna()]
    for trace in rows["trace"].unique():
        if trace not in set(known):
            raise ValueError(f"no {measure.replace('_', ' ')} to draw: {trace} {why_not}")


def _traces(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame, Look]]:
    names = list(dict.fromkeys(rows["trace"]))
    return [(name, rows[rows["trace"] == name], looks(names)[name]) for name in names]


def _curves(axes: "Axes", rows: pd.DataFrame, measure: str, scale: float) -> None:
    """Draw a line per trace, and the spread of its layers where there is room."""
    traces = _traces(rows)
    everywhere = set()
    for name, own, look in traces:
        table = scale * curve(own, measure)
        at = table.columns.to_numpy(int)
        everywhere |= set(at.tolist())
        if len(traces) <= _MOST_BANDS and len(table) > 1:
            low, high = (table.quantile(share) for share in (0.1, 0.9))
            label = f"10-90 % of {len(table)} layers" if len(traces) == 1 else ""
            axes.fill_between(
                at, low, high, color=look.colour, alpha=0.15, linewidth=0, label=label
            )
        axes.plot(
            at,
            table.mean(),
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker,
            markersize=3.5,
            label=name if len(traces) > 1 else "mean",
        )
    _powers(axes, np.array(sorted(everywhere)))


def _missed(rows: pd.DataFrame, slots: "Array", measure: str = "reuse_distance") -> "Array":
    """Return the share in % that an LRU misses, straight between the ends of bins."""
    line = missed(rows, measure)
    return np.asarray(100 * np.interp(slots, line.index, line))


def _octaves(axes: "Axes", shares: pd.Series) -> None:
    """Draw bars of a histogram, by powers of two; `shares` by the upper ends of bins, exclusive."""
    above = np.array([int(end - 1).bit_length() for end in shares.index])
    heights = np.bincount(above, shares)
    ends = 2.0 ** np.arange(len(heights))
    axes.bar(
        ends / 2,
        100 * heights,
        ends / 2,
        align="edge",
        color="0.85",
        edgecolor="white",
        label="demands at such a distance",
    )


def _by_layer(
    axes: "Axes",
    rows: pd.DataFrame,
    measure: str,
    colour: str,
    dash: Any,
    marker: str,
    name: str,
) -> None:
    own = rows[rows["measure"] == measure].groupby("layer")["value"].mean()
    axes.plot(
        own.index,
        100 * own,
        color=colour,
        linestyle=dash,
        marker=marker,
        markersize=3.5,
        linewidth=1.2,
        label=name,
    )
    axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    axes.set_xlabel("layer")


def _heat_map(axes: "Axes", grid: pd.DataFrame) -> None:
    values = grid.to_numpy(float)
    image = axes.imshow(values, cmap="cividis", origin="lower", aspect="auto")
    every = -(-len(grid) // 10)
    ticks = range(0, len(grid), every)
    names = [str(layer) for layer in grid.index[::every]]
    axes.set_xticks(ticks, names)
    axes.set_yticks(ticks, names)
    axes.grid(visible=False)
    bar = root_figure(axes).colorbar(image, ax=axes)
    bar.set_label("%")
    if len(grid) > _MOST_NUMBERS:
        return
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "white" if value < middle else "black"
            axes.text(
                column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=7
            )


def _powers(axes: "Axes", at: "Array") -> None:
    """Scale the x axis by powers of two, with at most eight ticks."""
    low, high = (int(value).bit_length() - 1 for value in (at.min(), at.max()))
    every = -(-(high - low + 1) // 8)
    ticks = [1 << power for power in range(low, high + 1, every)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{n // 1024}k" if n >= 1024 else str(n) for n in ticks])
    axes.minorticks_off()


def _finish(axes: "Axes", rows: pd.DataFrame, place: Any) -> None:
    """Put the legend: of several traces beside the figure, else into its free corner."""
    if rows["trace"].nunique() > 1:
        legend_beside(axes)
    elif axes.get_legend_handles_labels()[0]:
        axes.legend(loc=place)
    put_origin(axes, origin(rows))
