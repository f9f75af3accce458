"""The figure of what a prefetch saves, and what it copies for that."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from hisparse_sim.simulator.prefetch import NO_PREFETCH
from hisparse_sim.simulator.study.rows import BELADY, LRU
from hisparse_sim.simulator.views.figures.studied import study_rows
from hisparse_sim.simulator.views.figures.style import (
    PAPER,
    SCREEN,
    Look,
    current_style,
    from_zero,
    legend_beside,
    legend_columns,
    look_at,
    looks,
    new_axes,
    put_origin,
    styled,
    titled,
    width_of,
)
from hisparse_sim.simulator.views.palette import Place, named, places

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NEEDED = (
    "trace", "prefetcher", "budget", "policy", "buffer", "misses_per_step", "copies_per_step",
)  # fmt: skip
_SMALLEST, _LARGER = 3.0, 0.8  # of a mark, in points; that of each budget is larger
_COPIES = "copies beyond LRU's misses, per step and layer"
_WAITED = "misses waited for,\nper step and layer"


class _Drawn(NamedTuple):
    """What is drawn of a study, in all its panels alike."""

    ahead: pd.DataFrame  # rows with a prefetch, their names in the column `name`
    plain: pd.DataFrame  # rows without, of `alone` only
    alone: list[str]
    budgets: list[int]
    looks: dict[str, Look]

    @property
    def legend(self) -> str:
        ends = " to ".join(
            f"{budget:,}" for budget in dict.fromkeys((self.budgets[0], self.budgets[-1]))
        )
        return f"budget {ends},\nmarks small to large"


def exposed_misses(
    rows: pd.DataFrame,
    *,
    buffer: int | None = None,
    axes: "Axes | None" = None,
    style: str | None = None,
) -> "Axes":
    """Draw the misses that a step waits for over the copies beyond LRU's, a line for every
    prefetcher (and policy beside it) and a mark for every budget.

    Single marks are without prefetch: LRU, MIN, and the policies beside a prefetcher, whose copies
    are their misses. `rows`: those of a study; of several traces those of all together. `buffer`
    chooses among several. Raises ValueError for other tables."""
    if buffer is not None:
        rows = rows[rows["buffer"] == buffer]
    drawn, corner = _drawn(rows)
    sizes = sorted(drawn.ahead["buffer"].unique())
    if len(sizes) != 1:
        found = ", ".join(f"{size:,}" for size in sizes)
        raise ValueError(
            f"these axes show the prefetch of one buffer, and the rows are of {found}: choose one"
        )
    with styled(style):
        axes = axes or new_axes(6.4, 4.0)
        _draw(axes, drawn, sizes[0])
        axes.set_xlabel(_COPIES)
        axes.set_ylabel(_WAITED)
        titled(axes, f"What a prefetch saves and copies, B = {sizes[0]:,}")
        legend_beside(axes, drawn.legend)
        put_origin(axes, corner)
    return axes


def exposed_misses_by_buffer(rows: pd.DataFrame, *, style: str | None = None) -> "Figure":
    """Draw `exposed_misses` of several buffers, a panel for each that has a prefetch."""
    from matplotlib.figure import Figure

    drawn, corner = _drawn(rows)
    sizes = sorted(drawn.ahead["buffer"].unique())
    with styled(style):
        columns = {PAPER: 1, SCREEN: min(3, len(sizes))}.get(current_style(), min(2, len(sizes)))
        lines = -(-len(sizes) // columns)
        width = width_of(2.5 * columns + 2.2)
        figure = Figure(figsize=(width, 1.95 * lines + 0.7))
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, size in zip(panels, sizes, strict=False):
            _draw(axes, drawn, size)
            axes.set_title(f"B = {size:,}", loc="center", fontsize=8)
        for axes in panels[len(sizes) :]:
            axes.set_axis_off()
        _legend(figure, list(panels), drawn)
        for axes in panels[(lines - 1) * columns : len(sizes)]:
            axes.set_xlabel(_COPIES.replace(", ", ",\n"))
        for axes in panels[::columns]:
            axes.set_ylabel(_WAITED)
        if current_style() == SCREEN:
            figure.suptitle("What a prefetch saves and copies", x=0.01, ha="left", fontsize=10)
        put_origin(panels[0], corner)
    return figure


def _drawn(rows: pd.DataFrame) -> tuple[_Drawn, str]:
    if missing := [name for name in _NEEDED if name not in rows]:
        raise ValueError(
            f"the figure of prefetch lacks the columns {', '.join(missing)}: give it what"
            " `hisparse-sim study -o FILE` writes, without `--prefetch none`"
        )
    rows, corner = study_rows(rows)
    ahead = rows[rows["prefetcher"] != NO_PREFETCH]
    plain = rows[rows["prefetcher"] == NO_PREFETCH]
    without = set(ahead["buffer"]) - set(plain.loc[plain["policy"] == LRU, "buffer"])
    if ahead.empty or without:
        raise ValueError("the figure of prefetch needs rows with a prefetch, and LRU without one")
    beside = list(dict.fromkeys(ahead["policy"]))
    prefetchers = names = ahead["prefetcher"].astype(str)
    if len(beside) > 1:
        names = names + ", " + ahead["policy"].map(named)
    known = set(plain["policy"])
    alone = [name for name in dict.fromkeys([LRU, *beside, BELADY]) if name in known]
    budgets = sorted(ahead["budget"].unique())
    at = places([*alone, *beside, *prefetchers])
    look = looks(alone)
    for name, prefetcher, policy in zip(names, prefetchers, ahead["policy"], strict=True):
        place = at[prefetcher]  # of several policies the mark is the policy's
        look[name] = look_at(place if len(beside) == 1 else Place(place.colour, at[policy].mark))
    return _Drawn(ahead.assign(name=names), plain, alone, budgets, look), corner


def _draw(axes: "Axes", drawn: _Drawn, buffer: int) -> None:
    """Draw one buffer."""
    plain = drawn.plain[drawn.plain["buffer"] == buffer].set_index("policy")["misses_per_step"]
    ahead = drawn.ahead[drawn.ahead["buffer"] == buffer]
    for name, line in ahead.groupby("name", sort=False):
        line = line.sort_values("budget")
        more = line["copies_per_step"] - plain[LRU]
        colour, dash, marker, _ = drawn.looks[str(name)]
        axes.plot(
            more, line["misses_per_step"], color=colour, linestyle=dash, linewidth=1, zorder=2
        )
        sizes_of = [
            (_SMALLEST + _LARGER * drawn.budgets.index(each)) ** 2 for each in line["budget"]
        ]
        axes.scatter(
            more,
            line["misses_per_step"],
            sizes_of,
            colour,
            marker=marker,
            label=str(name),
            clip_on=False,
            zorder=3,
        )
    for name in drawn.alone:
        if name not in plain:
            continue
        colour, _, marker, _ = drawn.looks[name]
        place = (plain[name] - plain[LRU], plain[name])
        axes.scatter(
            *place, 36, "white", marker=marker, edgecolors=colour, label=named(name), zorder=4
        )
    from_zero(axes)


def _legend(figure: "Figure", panels: Sequence["Axes"], drawn: _Drawn) -> None:
    """One legend for all panels: of a buffer that leaves no room for a budget, some are missing."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    names, title = list(handles), drawn.legend
    if current_style() == PAPER:
        figure.legend(
            list(handles.values()),
            names,
            title=title.replace("\n", " "),
            loc="outside upper center",
            ncols=legend_columns(names),
            columnspacing=1.0,
        )
    else:
        figure.legend(list(handles.values()), names, title=title, loc="outside right upper")
