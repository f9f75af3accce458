"""Figures of locality by layer: overlap of layers, sinks and recent tokens, drift."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hisparse_sim.simulator.replay.metrics import blocks_of
from hisparse_sim.simulator.views.figures.locality_parts import check_measure, finish, traces_with
from hisparse_sim.simulator.views.figures.style import (
    COLOURS,
    DASHES,
    from_zero,
    new_axes,
    root_figure,
    shortened,
    styled,
    titled,
)
from hisparse_sim.traces.locality.measure import RECENT, SINKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NUMBERS = 10  # layers of a heat map whose cells carry their number


def cross_layer_overlap(
    rows: pd.DataFrame, *, axes: "Axes | None" = None, style: str | None = None
) -> "Axes":
    """Draw the share of positions that two layers select in the same step.

    A heat map for one trace; for several, lines over the distance between layers. Raises ValueError
    if no trace has more than one layer."""
    left_out = check_measure(rows, "cross_layer", "has a single layer")
    own = rows[rows["measure"] == "cross_layer"]
    with styled(style):
        if rows["trace"].nunique() > 1:
            axes = axes or new_axes(5.2, 3.2)
            apart = (own["layer"] - own["at"]).abs().astype(int).rename("apart")
            means = own.groupby(["trace", apart])["value"].mean()
            for name, _, look in traces_with(rows, "cross_layer"):
                line = means[name]
                axes.plot(
                    line.index,
                    100 * line,
                    color=look.colour,
                    linestyle=look.dash,
                    marker=look.marker,
                    markersize=3,
                    label=shortened(name),
                )
            from_zero(axes)
            _whole_numbers(axes)
            axes.set_xlabel("layers apart")
            axes.set_ylabel("selected there too (%)")
        else:
            grid = 100 * own.pivot_table(index="at", columns="layer", values="value")
            axes = axes or new_axes(4.6, 3.6)
            _heat_map(axes, grid)
            axes.set_xlabel("of the positions of this layer (%)")
            axes.set_ylabel("this one selects, too")
        titled(axes, "Overlap of layers in the same step")
        finish(axes, rows, "upper right", left_out)
    return axes


def sinks_and_recent(
    rows: pd.DataFrame, *, axes: "Axes | None" = None, style: str | None = None
) -> "Axes":
    """Draw the share of the first positions and of the last tokens that a step selects, by layer.

    With several traces, the first positions are crosses on dotted lines."""
    left_out = check_measure(rows, "recent_coverage", "has no step")
    traces = traces_with(rows, "recent_coverage")
    newest = "positions" if blocks_of(rows) else "tokens"
    kinds = {
        "recent_coverage": f"last {RECENT} {newest}",
        "sink_coverage": f"first {SINKS} positions",
        "density": "all positions",
    }
    with styled(style):
        axes = axes or new_axes(5.2, 3.2)
        for name, own, look in traces:
            for number, (measure, what) in enumerate(kinds.items()):
                if len(traces) == 1:
                    colour, dash = COLOURS[number], DASHES[number]
                    _by_layer(axes, own, measure, colour, dash, "o", what)
                elif measure != "density":
                    dash, marker = ("-", "o") if number == 0 else (":", "x")
                    label = shortened(name) if number == 0 else ""
                    _by_layer(axes, own, measure, look.colour, dash, marker, label)
        one = len(traces) == 1
        axes.set_ylim(0, 135 if one else 105)  # the legend is above
        axes.set_yticks(range(0, 101, 20))
        axes.set_ylabel("of them selected in a step (%)")
        title = f"Recent {newest} and sinks" if one else f"Recent {newest} (dots), sinks (crosses)"
        titled(axes, title)
        finish(axes, rows, "upper left", left_out, columns=2)
    return axes


def drift(rows: pd.DataFrame, *, axes: "Axes | None" = None, style: str | None = None) -> "Axes":
    """Draw the share of the most selected positions that differ in the second half, by layer.

    Raises ValueError for a trace of one step."""
    left_out = check_measure(rows, "drift", "has a single step")
    with styled(style):
        axes = axes or new_axes(5.2, 3.2)
        for name, own, look in traces_with(rows, "drift"):
            _by_layer(axes, own, "drift", look.colour, look.dash, look.marker, shortened(name))
        from_zero(axes)
        axes.set_ylabel("most selected that differ (%)")
        titled(axes, "Drift between the halves")
        finish(axes, rows, None, left_out)
    return axes


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
    # A gap for layers that were not sampled: lines join neighbours.
    own = own.reindex(range(int(own.index.min()), int(own.index.max()) + 1))
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
    _whole_numbers(axes)
    axes.set_xlabel("layer")


def _whole_numbers(axes: "Axes") -> None:
    """Give the x axis whole ticks, or one tick if it shows one number."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    low, high = axes.dataLim.intervalx
    axes.xaxis.set_major_locator(
        FixedLocator([low]) if low == high else MaxNLocator("auto", steps=[1, 2, 5], integer=True)
    )


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
