"""Figures of a study: every policy with its interval, over buffers or at each of them."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from hisparse_sim.simulator.prefetch import NO_PREFETCH
from hisparse_sim.simulator.study.rows import ALL, BELADY, LRU
from hisparse_sim.simulator.views.figures.style import (
    PAPER,
    current_style,
    legend_beside,
    looks,
    new_axes,
    origin,
    powers_of_two,
    put_origin,
    styled,
    titled,
    width_of,
)
from hisparse_sim.simulator.views.palette import named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Measure(NamedTuple):
    """What is drawn of a policy: a column in per cent, whose interval is in `_low` and `_high`."""

    column: str
    axis: str
    title: str
    ends: tuple[str, ...] = ()  # policies that have the same value by definition, left out


MEASURES = {
    "misses": Measure("miss_rate", "misses (% of selected positions)", "Misses by policy"),
    "gap": Measure("gap_closed", "LRU-MIN gap closed (%)", "Gap closed", (LRU, BELADY)),
}
MOST_LINES = 8  # of policies in one panel; the dots of more stand in rows
_SPREAD = 0.6  # of the distance between two buffers, for the marks of all policies
_PANEL_INCHES, _NAMES_INCHES = 0.74, 1.1  # at least


def study_rows(rows: pd.DataFrame, what: str) -> tuple[pd.DataFrame, str]:
    """Return the rows of a study that are drawn, of several traces those of all together, and
    their origin. Raises ValueError for those of several studies."""
    corner = origin(rows[rows["trace"] != ALL])
    rows = rows[rows["trace"] == ALL] if ALL in set(rows["trace"]) else rows
    if rows.duplicated(["prefetcher", "budget", "policy", "buffer"]).any():
        raise ValueError(f"the figure of {what} shows one study: give the file of one")
    return rows, corner


def lines_fit(rows: pd.DataFrame, measure: str) -> bool:
    """Return whether the policies of a study are few enough, and the buffers several, for lines."""
    _, plain, _ = _measured(rows, measure)
    return plain["buffer"].nunique() > 1 and plain["policy"].nunique() <= MOST_LINES


def study_lines(
    rows: pd.DataFrame,
    *,
    measure: str = "misses",
    axes: "Axes | None" = None,
    style: str | None = None,
) -> "Axes":
    """Draw the policies of a study over its buffers, a line each.

    `measure` is one of MEASURES. Intervals of misses are bands; those of the gap are bars, and the
    marks of a buffer stand side by side. Raises ValueError for other tables."""
    of, plain, corner = _measured(rows, measure)
    policies = list(dict.fromkeys(plain["policy"]))
    sizes = sorted(plain["buffer"].unique())
    steps = np.diff(np.log2(sizes))
    room = _SPREAD * steps.min() / len(policies) if len(steps) else 0.0
    with styled(style):
        axes = axes or new_axes(5.4, 3.4)
        look = looks(policies)
        if of.ends:
            axes.axhline(0, color="0.5", linewidth=0.8, zorder=1)
        for number, policy in enumerate(policies):
            own = plain[plain["policy"] == policy].sort_values("buffer")
            colour, dash, marker, _ = look[policy]
            places = own["buffer"].to_numpy(float)
            if of.ends:  # nearly level lines, which a shift does not change
                places = places * 2 ** (room * (number - (len(policies) - 1) / 2))
                axes.vlines(places, own["low"], own["high"], colour, linewidth=1.4, alpha=0.55)
            else:
                axes.fill_between(places, own["low"], own["high"], color=colour, alpha=0.13, lw=0)
            axes.plot(places, own["value"], color=colour, linestyle=dash, linewidth=1,
                      marker=marker, markersize=4, label=named(policy))  # fmt: skip
        powers_of_two(axes, sizes)
        if not of.ends:
            axes.set_ylim(bottom=0)
        axes.set(xlabel="hot buffer (slots per request and layer)", ylabel=of.axis)
        titled(axes, f"{of.title}, with 95 % intervals")
        legend_beside(axes)
        put_origin(axes, corner)
    return axes


def study_dots(
    rows: pd.DataFrame, *, measure: str = "misses", style: str | None = None
) -> "Figure":
    """Draw a row for every policy of a study, by its mean place over the buffers, with a dot and
    the interval in a panel for every buffer; a line marks LRU.

    `measure` is one of MEASURES. Raises ValueError for other tables, and for more panels than the
    width of the style has room for."""
    from matplotlib.figure import Figure

    of, plain, corner = _measured(rows, measure)
    sizes = sorted(plain["buffer"].unique())
    places = plain.groupby("buffer")["value"].rank(ascending=not of.ends)
    order = places.groupby(plain["policy"], sort=False).mean().sort_values(kind="stable")
    with styled(style):
        narrow = current_style() == PAPER
        width = width_of(min(9.0, _NAMES_INCHES + 0.6 + 2.6 * len(sizes)))
        most = int((width - _NAMES_INCHES) / _PANEL_INCHES)
        if len(sizes) > most:
            raise ValueError(
                f"{len(order)} policies at {len(sizes)} buffers take more panels than the {most}"
                " that this width has room for: name some with `buffers`"
            )
        height = 0.9 + (0.135 if narrow else 0.165) * len(order)
        figure = Figure(figsize=(width, max(1.4, height)))
        panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
        for axes, size in zip(panels, sizes, strict=True):
            own = plain[plain["buffer"] == size].set_index("policy").reindex(list(order.index))
            lru = 0.0 if of.ends else own["value"].get(LRU)
            _dots(axes, own, lru, 2 if narrow and len(sizes) == most else 4)
            axes.set_title(f"B = {size:,}", loc="center", fontsize=8)
        panels[0].set_yticks(range(len(order)), [named(policy) for policy in order.index])
        panels[0].set_ylim(len(order) - 0.4, -0.6)
        # One label under all panels; in the corner below it stands the origin.
        middle = panels[len(panels) // 2]
        middle.set_xlabel(of.axis if len(sizes) % 2 else "")
        if len(sizes) % 2 == 0:
            middle.set_xlabel(of.axis, x=0.0)
        if current_style() not in (PAPER, "paper-wide"):
            figure.suptitle(f"{of.title}, with 95 % intervals", x=0.01, ha="left", fontsize=10)
        put_origin(panels[0], corner)
    return figure


def _dots(axes: "Axes", own: pd.DataFrame, lru: float | None, ticks: int) -> None:
    """Draw the rows of one buffer, by policy, and a line at `lru`."""
    if lru is not None:
        axes.axvline(lru, color="0.45", linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    look = looks([LRU])[LRU]
    places = np.arange(len(own))
    axes.hlines(places, own["low"], own["high"], color=look.colour, linewidth=1.6, alpha=0.5)
    axes.plot(own["value"], places, look.marker, color=look.colour, markersize=3.2)
    axes.locator_params(axis="x", nbins=ticks)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.08)


def _measured(rows: pd.DataFrame, measure: str) -> tuple[Measure, pd.DataFrame, str]:
    """Return what is drawn of a study without prefetch: `policy, buffer, value, low, high` in per
    cent, and the origin."""
    if measure not in MEASURES:
        raise ValueError(f"unknown measure {measure!r}; known: {', '.join(MEASURES)}")
    of = MEASURES[measure]
    needed = ("trace", "prefetcher", "budget", "policy", "buffer", of.column)
    if missing := [name for name in needed if name not in rows]:
        raise ValueError(
            f"the figure of a study lacks the columns {', '.join(missing)}: give it what"
            " `hisparse-sim study -o FILE` writes"
        )
    rows, corner = study_rows(rows, "policies")
    plain = rows[(rows["prefetcher"] == NO_PREFETCH) & ~rows["policy"].isin(of.ends)]
    if plain.empty:
        raise ValueError("the study has no policies without prefetch but LRU and MIN")
    table = pd.DataFrame({"policy": plain["policy"].astype(str), "buffer": plain["buffer"]})
    ends = {"value": of.column, "low": f"{of.column}_low", "high": f"{of.column}_high"}
    for name, column in ends.items():
        values = plain.get(column, np.nan)
        table[name] = 100 * pd.to_numeric(values, errors="coerce")
    return of, table.replace([np.inf, -np.inf], np.nan), corner
