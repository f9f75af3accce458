"""Figures of misses."""

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hisparse_sim.simulator.mrc.curves import ENGINE_LRU
from hisparse_sim.simulator.mrc.names import TEXTBOOK_LRU
from hisparse_sim.simulator.replay.joining import joined, joined_curves
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.views.figures.style import (
    DASHES,
    from_zero,
    legend_beside,
    looks,
    new_axes,
    origin,
    powers_of_two,
    put_origin,
    root_figure,
    shortened,
    styled,
    titled,
)
from hisparse_sim.simulator.views.palette import named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAP_COLUMNS = 256  # of a heat map; more steps are averaged

_MOST_SIZES = 12  # ticks of an axis of buffer sizes
_MOST_LEVEL = 8  # labels under groups of dots; more are turned
_LABEL_INCHES = 0.42  # of the figure, for a text at every dot
_MOST_BANDS = 6  # more are all grey
_SLOTS = "hot buffer (slots per request and layer)"
_MARKS = 8  # of a line


def rolling_misses(
    curves: pd.DataFrame,
    *,
    window: int | None = None,
    provenance: str = "",
    axes: "Axes | None" = None,
    style: str | None = None,
) -> "Axes":
    """Draw rolling curves of misses or swap-in time (the columns of `curves.rolling_curves`), a
    line per policy and buffer, and per trace, start and selection where several are given.

    The band spans the 10th to 90th percentile of the smoothed layers; more than six lines have
    none. `window` (default: the column) must be that of the curves; `provenance` (default: the
    trace) stands in the corner. Raises ValueError for curves of other or several windows."""
    curves = joined_curves(curves)
    windows = sorted(set(curves["window"])) if "window" in curves else [window]
    window = window or windows[0]
    if windows != [window]:
        found = " and ".join(map(str, windows))
        raise ValueError(f"the curves have windows of {found} steps, not of {window}: draw one")
    timed = "swap_in_us" in curves
    drawn = "swap_in_us" if timed else "misses_per_step"
    with styled(style):
        policies = list(dict.fromkeys(curves["policy"]))
        several = "trace" in curves and curves["trace"].nunique() > 1
        by = ["buffer", "policy", *(["trace"] if several else [])]
        lines = curves.groupby(by, sort=False)
        layers = int(curves["layers"].max())
        banded = layers > 1 and lines.ngroups <= _MOST_BANDS
        axes = axes or new_axes(7.2, 3.6)
        look = looks(policies)
        dashes: dict[str, Any] = {}
        for of, line in lines:
            buffer, policy, *series = map(str, of)
            colour = look[policy].colour
            name = "\n".join([f"B = {int(buffer):,}", *map(shortened, series)])
            dash = dashes.setdefault(name, DASHES[len(dashes) % len(DASHES)])
            if banded:
                axes.fill_between(
                    line["step"], line["p10"], line["p90"], color=colour, alpha=0.12, linewidth=0
                )
                for edge in ("p10", "p90"):
                    axes.plot(line["step"], line[edge], color=colour, linestyle=dash, linewidth=0.5)
            axes.plot(
                line["step"],
                line[drawn],
                color=colour,
                linestyle=dash,
                marker=look[policy].marker if len(policies) > 1 else None,
                markevery=max(1, len(line) // _MARKS),
                markersize=4,
            )
        # Colours and marks are policies, dashes are buffers: an entry for each, not for each pair.
        for policy in policies if len(policies) > 1 else ():
            colour, _, marker, _ = look[policy]
            axes.plot([], [], color=colour, marker=marker, markersize=4, label=named(policy))
        for name, dash in dashes.items():
            colour = look[policies[0]].colour if len(policies) == 1 else "0.3"
            axes.plot([], [], color=colour, linestyle=dash, label=name)
        axes.set_xlabel("decode step")
        what = "swap-in, µs" if timed else "misses"
        axes.set_ylabel(f"{what} per step and layer\n(mean of the last {window} steps)")
        from_zero(axes)
        axes.margins(x=0.01)
        what = "Modelled swap-in time" if timed else "Misses in the hot buffer"
        titled(axes, what + f", {named(policies[0])}" * (len(policies) == 1))
        put_origin(axes, provenance or origin(curves))
        band = "\n(band: 10-90 % of them)" if banded else ""
        legend_beside(axes, f"mean of {layers} layers{band}" if layers > 1 else "one layer")
    return axes


def miss_ratio(
    rows: pd.DataFrame, *, axes: "Axes | None" = None, style: str | None = None
) -> "Axes":
    """Draw the miss-ratio curve: misses over selected positions by buffer size, a line per policy,
    and per trace and start where several are given.

    `rows`: those of a sweep or of `hs.mrc`; layers and requests are summed. Markers stand
    where a policy was replayed; a line without any was counted at every size, a thin one is
    interpolated between markers. Raises ValueError for other tables, and for rows of different
    parts of a trace, which are not summed.
    """
    corner = origin(rows)
    told = rows.assign(method=rows.get("method", "replay"), trace=rows.get("trace", ""))
    rows = joined(told.reset_index(drop=True))
    sums = totals(rows, ["trace", "policy", "buffer", "method"])
    traces, policies = (list(dict.fromkeys(sums[name])) for name in ("trace", "policy"))
    sums = sums.sort_values("buffer", kind="stable")
    banded = rows[rows["low"].notna()] if "low" in rows else rows[:0]
    with styled(style):
        axes = axes or new_axes(5.2, 3.4)
        look = looks(policies)
        for (number, trace), policy in product(enumerate(traces), policies):
            line = sums[(sums["policy"] == policy) & (sums["trace"] == trace)]
            if line.empty:
                continue
            colour, dash, marker, _ = look[policy]
            name = named(policy)
            if len(traces) > 1:
                name, dash = f"{name}, {shortened(trace)}", DASHES[number % len(DASHES)]
            replayed = (line["method"] == "replay").to_numpy()
            between = not replayed.all() and replayed.any()
            points = between and policy == ENGINE_LRU and TEXTBOOK_LRU in policies
            own = (banded["policy"] == policy) & (banded["trace"] == trace)
            band = banded[own].sort_values("buffer")
            if len(band):
                axes.fill_between(
                    band["buffer"], 100 * band["low"], 100 * band["high"], color=colour, alpha=0.15
                )
            note = "\n(replayed)" if points else "\n(line interpolated)" if between else ""
            axes.plot(
                line["buffer"],
                100 * line["miss_rate"],
                color=colour,
                linestyle="none" if points else dash,
                linewidth=0.9 if between else None,
                marker=marker if replayed.any() else None,
                markersize=4.5,
                markevery=np.flatnonzero(replayed).tolist(),
                label=name + note,
            )
        exact = sums[sums["method"] == "replay"] if (sums["method"] == "replay").any() else sums
        sizes = sorted(exact["buffer"].unique())
        if len(sizes) > _MOST_SIZES:
            sizes = [sizes[at] for at in np.linspace(0, len(sizes) - 1, _MOST_SIZES).astype(int)]
        powers_of_two(axes, sizes)
        from_zero(axes)
        axes.set(xlabel=_SLOTS, ylabel="misses (% of selected positions)")
        titled(axes, "Miss ratio by buffer size")
        legend_beside(axes)
        put_origin(axes, corner)
    return axes


def policy_dots(
    rows: pd.DataFrame, *, axes: "Axes | None" = None, style: str | None = None
) -> "Axes":
    """Draw misses per step and layer, a group of dots per buffer and a dot per policy.

    A line spans the layers where `rows` list them, its thick part their middle half; else it runs
    from the median to the 95th percentile of single steps. With few dots their text is the excess
    over MIN (Belady) in per cent. `rows`: those of a sweep of one trace and start, summed as in
    `miss_ratio`; ValueError for others."""
    sums = totals(rows)
    policies = list(dict.fromkeys(sums["policy"]))
    sizes = sorted(sums["buffer"].unique())
    spans, what = _spans(rows)
    width = 0.8 / len(policies)
    with styled(style):
        axes = axes or new_axes(min(7.2, max(4.2, 0.26 * len(policies) * len(sizes) + 1.6)), 3.4)
        inches = root_figure(axes).get_figwidth() / (len(policies) * len(sizes))  # for a dot
        size, labelled = min(5.0, max(1.5, 36 * inches)), inches >= _LABEL_INCHES  # size: points
        look = looks(policies)
        for number, policy in enumerate(policies):
            own = sums[sums["policy"] == policy].set_index("buffer").reindex(sizes)
            places = np.arange(len(sizes)) + (number - (len(policies) - 1) / 2) * width
            colour, _, marker, _ = look[policy]
            axes.plot(places, own["misses_per_step"], marker, color=colour, markersize=size,
                      label=named(policy))  # fmt: skip
            tops = own["misses_per_step"].to_numpy(float)
            if spans is not None:
                span = spans[spans["policy"] == policy].set_index("buffer").reindex(sizes)
                axes.vlines(places, span["low"], span["high"], color=colour, linewidth=0.24 * size)
                if "q1" in span:
                    axes.vlines(places, span["q1"], span["q3"], colour, lw=0.7 * size, alpha=0.45)
                tops = np.fmax(tops, span["high"].to_numpy(float))
            if not labelled:
                continue
            for place, top, excess in zip(places, tops, own["excess_over_min"], strict=True):
                text = "" if np.isnan(excess) else f"{100 * excess:+.0f}%"
                axes.annotate(text, (place, top), xytext=(0, 4), textcoords="offset points",
                              ha="center", fontsize=6.5)  # fmt: skip
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
        if len(sizes) > _MOST_LEVEL:
            axes.tick_params(axis="x", rotation=45)
        for between in range(1, len(sizes)):
            axes.axvline(between - 0.5, color="0.85", linewidth=0.6, zorder=0)
        axes.set(xlabel=_SLOTS, ylabel="misses per step and layer")
        axes.grid(axis="x", visible=False)
        from_zero(axes, 1.12)
        titled(axes, "Misses by policy")
        known = labelled and sums["excess_over_min"].notna().any()
        legend_beside(axes, "\n".join([what, *["%: over MIN"] * bool(known)]).strip())
        put_origin(axes, origin(rows))
    return axes


def _spans(rows: pd.DataFrame) -> tuple[pd.DataFrame | None, str]:
    """Return the ends of lines, `policy, buffer, low, high` (of layers `q1, q3`), and a name."""
    by = ["policy", "buffer"]
    if "layer" in rows and rows["layer"].dropna().nunique() > 1:
        layers = totals(rows[rows["layer"].notna()], ["layer", *by])
        parts = layers.groupby(by)["misses_per_step"].quantile(np.array([0, 0.25, 0.75, 1]))
        found = parts.unstack().set_axis(["low", "q1", "q3", "high"], axis=1).reset_index()
        return found, "lines: layers,\nthick: middle half"
    if {"p50", "p95"} <= set(rows) and rows.groupby(by).ngroups == len(rows):
        return rows[[*by, "p50", "p95"]].set_axis(
            [*by, "low", "high"], axis=1
        ), "lines: p50-p95\nof steps"
    return None, ""


def layer_step_map(
    steps: pd.DataFrame,
    *,
    policy: str | None = None,
    buffer: int | None = None,
    provenance: str = "",
    axes: "Axes | None" = None,
    style: str | None = None,
) -> "Axes":
    """Draw misses as a heat map of layers (up) and decode steps (to the right).

    `steps`: the misses of single steps (`Sweep.steps`), averaged over requests; more than 256 steps
    are averaged in groups. Colours end at the 99th percentile, so that the burst of the first steps
    does not hide the rest. `policy` and `buffer` choose among several; ValueError if that leaves
    none or more than one, or if the steps are those of several sweeps."""
    for column, value in (("policy", policy), ("buffer", buffer)):
        if value is not None:
            steps = steps[steps[column] == value]
        found = list(dict.fromkeys(steps[column]))
        if len(found) != 1:
            names = ", ".join(map(str, found)) or "none"
            raise ValueError(f"a heat map shows one {column}; choose one of these: {names}")
    place = [name for name in ("trace", "request", "layer", "step") if name in steps]
    if steps.duplicated(place).any() or ("trace" in steps and steps["trace"].nunique() > 1):
        raise ValueError("a heat map shows one sweep of one trace; choose one")
    policy, buffer = str(steps["policy"].iloc[0]), int(steps["buffer"].iloc[0])
    first, last = int(steps["step"].min()), int(steps["step"].max())
    size = -(-(last - first + 1) // MAP_COLUMNS)  # steps in a column
    grid = steps.assign(column=(steps["step"] - first) // size).pivot_table(
        index="layer", columns="column", values="misses", aggfunc="mean"
    )
    grid = grid.reindex(columns=range((last - first) // size + 1))
    values = grid.to_numpy(float)
    with styled(style):
        axes = axes or new_axes(6.4, max(2.2, min(5.0, 0.9 + 0.22 * len(grid))))
        image = axes.imshow(
            values,
            cmap="cividis",
            vmin=0,
            vmax=max(float(np.nanpercentile(values, 99)), 1e-9),
            aspect="auto",
            origin="lower",
            interpolation="nearest",
            extent=(first - 0.5, first + values.shape[1] * size - 0.5, -0.5, len(grid) - 0.5),
        )
        every = -(-len(grid) // 20)
        axes.set_yticks(range(0, len(grid), every), [str(layer) for layer in grid.index[::every]])
        axes.set_xlim(first - 0.5, last + 0.5)
        axes.grid(visible=False)
        axes.set_xlabel("decode step" + f" (means of {size})" * (size > 1))
        axes.set_ylabel("layer")
        bar = root_figure(axes).colorbar(image, ax=axes, extend="max")
        bar.set_label("misses per step")
        titled(axes, f"Misses by layer and step, {named(policy)}, B = {buffer:,}")
        put_origin(axes, provenance or origin(steps))
    return axes
