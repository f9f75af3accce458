"""Figures of the demand itself: how a trace re-uses positions. All take the rows of `hs.locality`.

One trace is shown with its spread over layers, several as a line each; what one of several is too
small for is said in a corner. Values are means over (request, layer)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hisparse_sim.simulator.views.figures.style import (
    COLOURS,
    DASHES,
    Look,
    from_zero,
    legend_beside,
    looks,
    new_axes,
    origin,
    put_origin,
    root_figure,
    shortened,
    styled,
)
from hisparse_sim.simulator.views.locality_view import curve, missed
from hisparse_sim.simulator.replay.metrics import blocks_of
from hisparse_sim.simulator.replay.replaying import default_buffers
from hisparse_sim.traces.locality.measure import EDGES, RECENT, SINKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Array = np.ndarray[Any, np.dtype[Any]]

_MOST_BANDS = 2  # traces; more bands would hide each other
_MOST_NUMBERS = 10  # layers of a heat map whose cells carry their number
_COLUMNS = ["trace", "request", "layer", "measure", "at", "value"]


def overlap(rows: pd.DataFrame, *, axes: "Axes | None" = None) -> "Axes":
    """Draw which share of a step's positions was demanded n steps before, over n.

    The band spans the 10th to 90th percentile of the layers. Raises ValueError for a trace of one
    step."""
    left_out = check_measure(rows, "overlap", "has a single step")
    with styled():
        axes = axes or new_axes(5.2, 3.2)
        _curves(axes, rows, "overlap", 100)
        from_zero(axes)
        axes.set_xlabel("steps before")
        axes.set_ylabel("demanded there too (%)")
        axes.set_title("Overlap of a step with earlier ones")
        _finish(axes, rows, "upper right", left_out)
    return axes


def working_set(rows: pd.DataFrame, *, axes: "Axes | None" = None) -> "Axes":
    """Draw how many distinct positions so many consecutive steps demand.

    The band spans the 10th to 90th percentile of the layers."""
    left_out = check_measure(rows, "working_set", "has no step")
    with styled():
        axes = axes or new_axes(5.2, 3.2)
        _curves(axes, rows, "working_set", 1)
        from_zero(axes)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("consecutive steps")
        axes.set_ylabel("distinct positions")
        axes.set_title("Growth of the working set")
        _finish(axes, rows, "upper left", left_out)
    return axes


def reuse_distance(
    rows: pd.DataFrame, *, buffers: Sequence[int] | None = None, axes: "Axes | None" = None
) -> "Axes":
    """Draw the share of demands that an LRU buffer misses over its slots, from reuse distances.

    The line begins at the smallest of `buffers`, which are marked: by default 1, 2 and 3 times the
    longest row of each trace, which is its top_k unless requests are shorter. For one trace they
    carry the share, bars are the distances by powers of two, and the band is what any order of the
    positions within a step could make of the line: the engine's LRU, started empty, lies in it if
    requests are longer than the buffer. Raises ValueError if nothing is demanded twice."""
    left_out = check_measure(rows, "reuse_distance", "demands nothing twice")
    traces = _traces(rows, "reuse_distance")
    marked = {name: sorted(buffers or _buffers(own)) for name, own, _ in traces}
    left = min(sizes[0] for sizes in marked.values())
    right = largest = max(sizes[-1] for sizes in marked.values())
    right = max(right, *curve(rows, "reuse_distance").columns)
    with styled():
        axes = axes or new_axes(5.2, 3.2)
        for name, own, look in traces:
            sizes = marked[name]
            slots = np.union1d(EDGES, sizes)
            slots = slots[(slots >= sizes[0]) & (slots <= right)]
            line = _missed(own, slots)
            marks = np.interp(sizes, slots, line)
            label = shortened(name)
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
                for number, (buffer, value) in enumerate(zip(sizes, marks, strict=True), 1):
                    # The line never rises, so each label stands clear of the one to its right.
                    axes.annotate(
                        f"{buffer:,}: {value:.1f}",
                        (buffer, value),
                        xytext=(6, 5 + 9 * (len(sizes) - number)),
                        textcoords="offset points",
                        fontsize=7,
                        arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.5},
                    )
                label = "missed by an LRU of so many slots"
            axes.plot(slots, line, color=look.colour, linestyle=look.dash, label=label)
            axes.plot(sizes, marks, look.marker, color=look.colour, markersize=4)
        if len(traces) == 1:
            right = max(right, 2 * largest)  # room for the label of the largest
        _powers(axes, np.array([left, right]))
        axes.set_xlim(left, right)
        from_zero(axes, 1.8 if len(traces) == 1 else 1.05)  # the legend stands above
        if len(traces) == 1:
            axes.set_title("Reuse distance, and what an LRU misses")
            axes.set_xlabel("reuse distance, or LRU buffer (positions)")
        else:
            axes.set_title("Misses of an LRU, by reuse distance")
            axes.set_xlabel("LRU buffer (slots)")
        axes.set_ylabel("share of demands (%)")
        _finish(axes, rows, "upper right", left_out)
    return axes


def cross_layer_overlap(rows: pd.DataFrame, *, axes: "Axes | None" = None) -> "Axes":
    """Draw which share of a layer's positions another one demands in the same step.

    One trace is a heat map, several are lines over the distance of the layers. Raises ValueError if
    there is no trace of more than one layer."""
    left_out = check_measure(rows, "cross_layer", "has a single layer")
    own = rows[rows["measure"] == "cross_layer"]
    with styled():
        if rows["trace"].nunique() > 1:
            axes = axes or new_axes(5.2, 3.2)
            apart = (own["layer"] - own["at"]).abs().astype(int).rename("apart")
            means = own.groupby(["trace", apart])["value"].mean()
            for name, _, look in _traces(rows, "cross_layer"):
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
            axes.set_ylabel("demanded there too (%)")
        else:
            grid = 100 * own.pivot_table(index="at", columns="layer", values="value")
            axes = axes or new_axes(4.6, 3.6)
            _heat_map(axes, grid)
            axes.set_xlabel("of what this layer demands (%)")
            axes.set_ylabel("this one demands too")
        axes.set_title("Overlap of layers in the same step")
        _finish(axes, rows, "upper right", left_out)
    return axes


def sinks_and_recent(rows: pd.DataFrame, *, axes: "Axes | None" = None) -> "Axes":
    """Draw which share of the first positions and of the last tokens a step demands, by layer.

    Of several traces the first positions are crosses on dotted lines."""
    left_out = check_measure(rows, "recent_coverage", "has no step")
    traces = _traces(rows, "recent_coverage")
    newest = "positions" if blocks_of(rows) else "tokens"
    kinds = {
        "recent_coverage": f"last {RECENT} {newest}",
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
                    dash, marker = ("-", "o") if number == 0 else (":", "x")
                    label = shortened(name) if number == 0 else ""
                    _by_layer(axes, own, measure, look.colour, dash, marker, label)
        one = len(traces) == 1
        axes.set_ylim(0, 135 if one else 105)  # the legend stands above
        axes.set_yticks(range(0, 101, 20))
        axes.set_ylabel("of them demanded in a step (%)")
        title = f"Recent {newest} and sinks" if one else f"Recent {newest} (dots), sinks (crosses)"
        axes.set_title(title)
        _finish(axes, rows, "upper left", left_out, columns=2)
    return axes


def drift(rows: pd.DataFrame, *, axes: "Axes | None" = None) -> "Axes":
    """Draw which share of the most demanded positions the second half of a trace changes, by layer.

    Raises ValueError for a trace of one step."""
    left_out = check_measure(rows, "drift", "has a single step")
    with styled():
        axes = axes or new_axes(5.2, 3.2)
        for name, own, look in _traces(rows, "drift"):
            _by_layer(axes, own, "drift", look.colour, look.dash, look.marker, shortened(name))
        from_zero(axes)
        axes.set_ylabel("most demanded that change (%)")
        axes.set_title("Drift between the halves")
        _finish(axes, rows, None, left_out)
    return axes


def check_measure(rows: pd.DataFrame, measure: str, why_not: str) -> list[str]:
    """Return a sentence for every trace that has no such measure; ValueError if none has it."""
    if missing := set(_COLUMNS) - set(rows):
        raise ValueError(
            f"these are no rows of hs.locality: they lack {', '.join(sorted(missing))}"
        )
    known = _known(rows, measure)
    left_out = [f"{trace} {why_not}" for trace in rows["trace"].unique() if trace not in known]
    if not known:
        raise ValueError(f"no {measure.replace('_', ' ')} to draw: {', '.join(left_out)}")
    return left_out


def _known(rows: pd.DataFrame, measure: str) -> set[str]:
    """Return the traces that have a measure."""
    return set(rows["trace"][(rows["measure"] == measure) & rows["value"].notna()])


def _traces(rows: pd.DataFrame, measure: str) -> list[tuple[str, pd.DataFrame, Look]]:
    """Return name, rows and look of every trace that has a measure."""
    known, names = _known(rows, measure), list(dict.fromkeys(rows["trace"]))
    return [
        (name, rows[rows["trace"] == name], look)
        for name, look in looks(names).items()
        if name in known
    ]


def _buffers(rows: pd.DataFrame) -> tuple[int, ...]:
    """Return the sizes that are marked for one trace if none are asked for."""
    longest = rows.loc[rows["measure"] == "longest_row", "value"].max()
    if pd.isna(longest):
        raise ValueError("these rows of hs.locality have no longest_row: say which `buffers`")
    return default_buffers(int(longest))


def _curves(axes: "Axes", rows: pd.DataFrame, measure: str, scale: float) -> None:
    """Draw a line per trace, and the spread of its layers where there is room."""
    traces = _traces(rows, measure)
    alone = rows["trace"].nunique() == 1
    everywhere = set()
    for name, own, look in traces:
        table = scale * curve(own, measure)
        at = table.columns.to_numpy(int)
        everywhere |= set(at.tolist())
        if len(traces) <= _MOST_BANDS and len(table) > 1:
            low, high = (table.quantile(share) for share in (0.1, 0.9))
            label = f"10-90 % of {len(table)} layers" if alone else ""
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
            label="mean" if alone else shortened(name),
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
    _whole_numbers(axes)
    axes.set_xlabel("layer")


def _whole_numbers(axes: "Axes") -> None:
    """Give the x axis whole ticks, and a single one where it shows a single number."""
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


def _powers(axes: "Axes", at: "Array") -> None:
    """Scale the x axis by powers of two, with at most eight ticks."""
    low, high = (int(value).bit_length() - 1 for value in (at.min(), at.max()))
    every = -(-(high - low + 1) // 8)
    ticks = [1 << power for power in range(low, high + 1, every)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{n // 1024}k" if n >= 1024 else str(n) for n in ticks])
    axes.minorticks_off()


def _finish(
    axes: "Axes", rows: pd.DataFrame, place: Any, left_out: Sequence[str], columns: int = 1
) -> None:
    """Put the legend: of several traces beside the figure, else in `place` (None: nowhere)."""
    if left_out:
        text = "\n".join(shortened(each) for each in left_out)
        axes.text(0.02, 0.02, text, fontsize=6.5, color="0.35", transform=axes.transAxes)
    if rows["trace"].nunique() > 1:
        legend_beside(axes)
    elif place and axes.get_legend_handles_labels()[0]:
        axes.legend(loc=place, ncols=columns)
    put_origin(axes, origin(rows))
