"""Figures of locality over steps and distances: overlap, working set, reuse distance."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hisparse_sim.simulator.replay.replaying import default_buffers
from hisparse_sim.simulator.views.figures.locality_parts import check_measure, finish, traces_with
from hisparse_sim.simulator.views.figures.style import (
    from_zero,
    new_axes,
    shortened,
    styled,
    titled,
)
from hisparse_sim.simulator.views.locality_view import curve, missed
from hisparse_sim.traces.locality.measure import EDGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Array = np.ndarray[Any, np.dtype[Any]]

_MOST_BANDS = 2  # traces; more bands would hide each other


def overlap(rows: pd.DataFrame, *, axes: "Axes | None" = None, style: str | None = None) -> "Axes":
    """Draw the share of positions that were also selected n steps before, over n.

    The band spans the 10th to 90th percentile of the layers. Raises ValueError for a trace of one
    step."""
    left_out = check_measure(rows, "overlap", "has a single step")
    with styled(style):
        axes = axes or new_axes(5.2, 3.2)
        _curves(axes, rows, "overlap", 100)
        from_zero(axes)
        axes.set_xlabel("steps before")
        axes.set_ylabel("selected there too (%)")
        titled(axes, "Overlap of a step with earlier ones")
        finish(axes, rows, "upper right", left_out)
    return axes


def working_set(
    rows: pd.DataFrame, *, axes: "Axes | None" = None, style: str | None = None
) -> "Axes":
    """Draw the number of distinct positions in consecutive steps.

    The band spans the 10th to 90th percentile of the layers."""
    left_out = check_measure(rows, "working_set", "has no step")
    with styled(style):
        axes = axes or new_axes(5.2, 3.2)
        _curves(axes, rows, "working_set", 1)
        from_zero(axes)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("consecutive steps")
        axes.set_ylabel("distinct positions")
        titled(axes, "Growth of the working set")
        finish(axes, rows, "upper left", left_out)
    return axes


def reuse_distance(
    rows: pd.DataFrame,
    *,
    buffers: Sequence[int] | None = None,
    axes: "Axes | None" = None,
    style: str | None = None,
) -> "Axes":
    """Draw the miss rate of an LRU buffer over its slots, from reuse distances.

    The line begins at the smallest of `buffers`, which are marked: by default 1, 2 and 3 times the
    longest row of each trace, which is its top_k unless requests are shorter. For one trace the
    marks carry the miss rate, bars show the distances by powers of two, and the band covers all
    orders of positions within a step: the engine's LRU, started empty, lies within it if requests
    are longer than the buffer. Raises ValueError if no position is selected twice."""
    left_out = check_measure(rows, "reuse_distance", "selects no position twice")
    traces = traces_with(rows, "reuse_distance")
    marked = {name: sorted(buffers or _buffers(own)) for name, own, _ in traces}
    left = min(sizes[0] for sizes in marked.values())
    right = largest = max(sizes[-1] for sizes in marked.values())
    right = max(right, *curve(rows, "reuse_distance").columns)
    with styled(style):
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
                    # The line never rises, so no label touches the one to its right.
                    axes.annotate(
                        f"{buffer:,}: {value:.1f}",
                        (buffer, value),
                        xytext=(6, 5 + 9 * (len(sizes) - number)),
                        textcoords="offset points",
                        fontsize=7,
                        arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.5},
                    )
                label = "missed by an LRU buffer of this size"
            axes.plot(slots, line, color=look.colour, linestyle=look.dash, label=label)
            axes.plot(sizes, marks, look.marker, color=look.colour, markersize=4)
        if len(traces) == 1:
            right = max(right, 2 * largest)  # room for the label of the largest
        _powers(axes, np.array([left, right]))
        axes.set_xlim(left, right)
        from_zero(axes, 1.8 if len(traces) == 1 else 1.05)  # the legend is above
        if len(traces) == 1:
            titled(axes, "Reuse distance, and what an LRU misses")
            axes.set_xlabel("reuse distance, or LRU buffer (positions)")
        else:
            titled(axes, "Misses of an LRU, by reuse distance")
            axes.set_xlabel("LRU buffer (slots)")
        axes.set_ylabel("share of accesses (%)")
        finish(axes, rows, "upper right", left_out)
    return axes


def _buffers(rows: pd.DataFrame) -> tuple[int, ...]:
    """Return the default sizes to mark for one trace."""
    longest = rows.loc[rows["measure"] == "longest_row", "value"].max()
    if pd.isna(longest):
        raise ValueError("these rows of hs.locality have no longest_row: give `buffers`")
    return default_buffers(int(longest))


def _curves(axes: "Axes", rows: pd.DataFrame, measure: str, scale: float) -> None:
    """Draw a line per trace, and the spread of its layers where there is room."""
    traces = traces_with(rows, measure)
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
    """Return the miss rate of an LRU buffer in %, linear between the ends of bins."""
    line = missed(rows, measure)
    return np.asarray(100 * np.interp(slots, line.index, line))


def _octaves(axes: "Axes", shares: pd.Series) -> None:
    """Draw a histogram by powers of two; `shares` by the upper ends of bins, exclusive."""
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
        label="accesses at such a distance",
    )


def _powers(axes: "Axes", at: "Array") -> None:
    """Scale the x axis by powers of two, with at most eight ticks."""
    low, high = (int(value).bit_length() - 1 for value in (at.min(), at.max()))
    every = -(-(high - low + 1) // 8)
    ticks = [1 << power for power in range(low, high + 1, every)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{n // 1024}k" if n >= 1024 else str(n) for n in ticks])
    axes.minorticks_off()
