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
_LONGEST, _LONGEST_OF_PAPER = 36, 20  # letters of a name
_MOST_BARS = 4  # lines that have intervals: those of more would cover each other
_BESIDE = 0.01  # of a buffer, to either side, for intervals that would cover each other
_PANEL_INCHES, _NAMES_INCHES, _LETTER_INCHES = 0.74, 1.1, 0.065  # at least; of a name
_FARTHEST = -100.0  # per cent of the gap: as far from LRU as MIN, to the other side


def study_rows(rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows of a study that are drawn, of several traces those of all together, and
    their origin. Raises ValueError for those of several studies."""
    corner = origin(rows[rows["trace"] != ALL])
    rows = rows[rows["trace"] == ALL] if ALL in set(rows["trace"]) else rows
    if rows.duplicated(["prefetcher", "budget", "policy", "buffer"]).any():
        raise ValueError(
            "a figure shows one study, and these are several: give the file of one, or let one"
            " `hisparse-sim study` replay the traces of all"
        )
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

    `measure` is one of MEASURES. Few lines have intervals. Raises ValueError for other tables."""
    of, plain, corner = _measured(rows, measure)
    policies = list(dict.fromkeys(plain["policy"]))
    sizes = sorted(plain["buffer"].unique())
    barred = len(policies) <= _MOST_BARS and plain["low"].notna().any()
    shifts = 1 + _BESIDE * np.linspace(-1, 1, len(policies)) * barred * (len(policies) > 1)
    with styled(style):
        axes = axes or new_axes(5.4, 3.4)
        look, labels = looks(policies), _labels(policies)
        if of.ends:
            axes.axhline(0, color="0.5", linewidth=0.8, zorder=1, label="LRU", dashes=(4, 2))
        for shift, policy in zip(shifts, policies, strict=True):
            own = plain[plain["policy"] == policy].sort_values("buffer")
            colour, dash, marker, _ = look[policy]
            places = shift * own["buffer"].to_numpy(float)
            if barred:
                axes.vlines(places, own["low"], own["high"], colour, linewidth=0.9, alpha=0.6)
            axes.plot(places, own["value"], color=colour, linestyle=dash, linewidth=1,
                      marker=marker, markersize=4, label=labels[policy])  # fmt: skip
        powers_of_two(axes, sizes)
        if of.ends:
            _clip(axes, plain["value"], "y")
        else:
            axes.set_ylim(bottom=0)
        axes.set(xlabel="hot buffer (slots per request and layer)", ylabel=of.axis)
        titled(axes, of.title + ", with 95 % intervals" * bool(barred))
        legend_beside(axes)
        put_origin(axes, corner)
    return axes


def study_dots(
    rows: pd.DataFrame, *, measure: str = "misses", style: str | None = None
) -> "Figure":
    """Draw a row for every policy of a study, with a dot and the interval in a panel for every
    buffer; a line marks LRU. Rows are in the order of the mean rank over the buffers, the best
    above.

    `measure` is one of MEASURES. Raises ValueError for other tables, and for more panels than the
    width of the style has room for."""
    from matplotlib.figure import Figure

    of, plain, corner = _measured(rows, measure)
    sizes = sorted(plain["buffer"].unique())
    places = plain.groupby("buffer")["value"].rank(ascending=not of.ends)
    order = places.groupby(plain["policy"], sort=False).mean().sort_values(kind="stable")
    with styled(style):
        narrow = current_style() == PAPER
        labels = _labels(list(order.index))
        letters = max(map(len, labels.values()))
        names = _NAMES_INCHES if narrow else max(_NAMES_INCHES, _LETTER_INCHES * letters)
        width = width_of(min(9.0, _NAMES_INCHES + 0.6 + 2.6 * len(sizes)) + names - _NAMES_INCHES)
        most = int((width - names) / _PANEL_INCHES)
        if len(sizes) > most:
            raise ValueError(
                f"{len(order)} policies at {len(sizes)} buffers take more panels than the {most}"
                " that this width has room for: name some with `buffers`"
            )
        height = (1.2 if narrow else 1.45) + (0.135 if narrow else 0.165) * len(order)
        figure = Figure(figsize=(width, max(1.4, height)))
        panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
        clipped = False
        for axes, size in zip(panels, sizes, strict=True):
            own = plain[plain["buffer"] == size].set_index("policy").reindex(list(order.index))
            lru = 0.0 if of.ends else own["value"].get(LRU)
            _dots(axes, own, lru, 2 if narrow and len(sizes) == most else 4)
            if of.ends:
                clipped |= _clip(axes, own["value"], "x")
            axes.set_title(f"B = {size:,}", loc="center", fontsize=8)
        panels[0].set_yticks(range(len(order)), list(labels.values()))
        panels[0].set_ylim(len(order) - 0.4 + clipped, -0.6)
        # One label under all panels; in the corner below it stands the origin.
        told = ["dashed line: LRU", *["order: mean rank"] * (len(sizes) > 1)]
        middle = panels[len(panels) // 2]
        middle.set_xlabel(f"{of.axis}\n{'; '.join(told)}", x=0.5 if len(sizes) % 2 else 0.0)
        if current_style() not in (PAPER, "paper-wide"):
            figure.suptitle(f"{of.title}, with 95 % intervals", x=0.01, ha="left", fontsize=10)
        put_origin(panels[0], corner)
    return figure


def _labels(policies: list[str]) -> dict[str, str]:
    """Return what figures call policies: of a name with long parameters both ends, unless two would
    be the same."""
    most = _LONGEST_OF_PAPER if current_style() == PAPER else _LONGEST
    full = {policy: named(policy) for policy in policies}
    short = {
        policy: name if len(name) <= most else f"{name[: most // 2]}…{name[most // 2 + 1 - most :]}"
        for policy, name in full.items()
    }
    return short if len(set(short.values())) == len(short) else full


def _dots(axes: "Axes", own: pd.DataFrame, lru: float | None, ticks: int) -> None:
    """Draw the rows of one buffer, by policy, and a line at `lru`."""
    if lru is not None:
        axes.axvline(lru, color="0.45", linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    look = looks(list(own.index))
    places = np.arange(len(own))
    colours = [look[policy].colour for policy in own.index]
    axes.hlines(places, own["low"], own["high"], color=colours, linewidth=1.6, alpha=0.5)
    for place, (policy, value) in enumerate(zip(map(str, own.index), own["value"], strict=True)):
        axes.plot(value, place, look[policy].marker, color=colours[place], markersize=3.6)
    axes.locator_params(axis="x", nbins=ticks)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.08)


def _clip(axes: "Axes", values: pd.Series, which: str) -> bool:
    """Let the axis of values beyond twice _FARTHEST end there, or where half of them are shown; say
    how many are left out, and whether any: where LRU is nearly MIN, shares are of any size."""
    end = min(_FARTHEST, float(values.median()))
    beyond = int((values < end).sum()) if values.min() < 2 * _FARTHEST else 0
    if beyond:
        top = max(0.0, float(values.max()))
        room = 0.08 * (top - end)
        axes.set(**{f"{which}lim": (end - room, top + room)})
        text = f"{beyond} below {end:,.0f} %"
        axes.text(0.02, 0.01, text, transform=axes.transAxes, fontsize=6, color="0.3")
    return beyond > 0


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
    rows, corner = study_rows(rows)
    plain = rows[(rows["prefetcher"] == NO_PREFETCH) & ~rows["policy"].isin(of.ends)]
    if plain.empty:
        raise ValueError("the study has no policies without prefetch but LRU and MIN")
    table = pd.DataFrame({"policy": plain["policy"].astype(str), "buffer": plain["buffer"]})
    ends = {"value": of.column, "low": f"{of.column}_low", "high": f"{of.column}_high"}
    for name, column in ends.items():
        values = plain.get(column, np.nan)
        table[name] = 100 * pd.to_numeric(values, errors="coerce")
    return of, table.replace([np.inf, -np.inf], np.nan), corner
