"""The figure of what a prefetch saves, and what it copies for that."""

from typing import TYPE_CHECKING

import pandas as pd

from hisparse_sim.simulator.prefetch import NO_PREFETCH
from hisparse_sim.simulator.study.rows import ALL, BELADY, LRU
from hisparse_sim.simulator.views.figures.style import (
    from_zero,
    legend_beside,
    looks,
    new_axes,
    origin,
    put_origin,
    styled,
    titled,
)
from hisparse_sim.simulator.views.palette import named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NEEDED = (
    "trace", "prefetcher", "budget", "policy", "buffer", "misses_per_step", "copies_per_step",
)  # fmt: skip
_SMALLEST, _LARGER = 3.0, 0.8  # of a mark, in points; that of each budget is larger


def exposed_misses(
    rows: pd.DataFrame, *, axes: "Axes | None" = None, style: str | None = None
) -> "Axes":
    """Draw the misses that a step waits for over the copies beyond LRU's, a line for every
    prefetcher (and policy beside it) and a mark for every budget.

    Single marks are without prefetch: LRU, MIN, and the policies beside a prefetcher, whose copies
    are their misses. `rows`: those of a study of one buffer; of several traces those of all
    together. Raises ValueError for other tables."""
    if missing := [name for name in _NEEDED if name not in rows]:
        raise ValueError(
            f"the figure of prefetch lacks the columns {', '.join(missing)}: give it what"
            " `hisparse-sim study -o FILE` writes, without `--prefetch none`"
        )
    traces = set(rows["trace"])
    corner = origin(rows[rows["trace"] != ALL])
    rows = rows[rows["trace"] == ALL] if ALL in traces else rows
    sizes = sorted(rows["buffer"].unique())
    if len(sizes) != 1 or rows.duplicated(["prefetcher", "budget", "policy"]).any():
        found = ", ".join(f"{size:,}" for size in sizes)
        raise ValueError(
            f"the figure of prefetch shows one study of one buffer, and these rows are of {found}:"
            " run study with one --buffer"
        )
    ahead = rows[rows["prefetcher"] != NO_PREFETCH]
    plain = rows[rows["prefetcher"] == NO_PREFETCH].set_index("policy")["misses_per_step"]
    if ahead.empty or LRU not in plain:
        raise ValueError("the figure of prefetch needs rows with a prefetch, and LRU without one")
    beside = list(dict.fromkeys(ahead["policy"]))
    budgets = sorted(ahead["budget"].unique())
    names = ahead["prefetcher"]
    if len(beside) > 1:
        names = names + ", " + ahead["policy"].map(named)
    alone = [name for name in dict.fromkeys([LRU, *beside, BELADY]) if name in plain]
    with styled(style):
        axes = axes or new_axes(6.4, 4.0)
        look = looks([*alone, *names])
        for name, line in ahead.groupby(names, sort=False):
            line = line.sort_values("budget")
            more = line["copies_per_step"] - plain[LRU]
            colour, dash, marker, _ = look[str(name)]
            axes.plot(
                more, line["misses_per_step"], color=colour, linestyle=dash, linewidth=1, zorder=2
            )
            sizes_of = [(_SMALLEST + _LARGER * budgets.index(each)) ** 2 for each in line["budget"]]
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
        for name in alone:
            colour, _, marker, _ = look[name]
            place = (plain[name] - plain[LRU], plain[name])
            axes.scatter(
                *place, 36, "white", marker=marker, edgecolors=colour, label=named(name), zorder=4
            )
        axes.set_xlabel("copies beyond LRU's misses, per step and layer")
        axes.set_ylabel("misses waited for,\nper step and layer")
        from_zero(axes)
        titled(axes, f"What a prefetch saves and copies, B = {sizes[0]:,}")
        ends = " to ".join(f"{budget:,}" for budget in dict.fromkeys((budgets[0], budgets[-1])))
        legend_beside(axes, f"budget {ends},\nmarks small to large")
        put_origin(axes, corner)
    return axes
