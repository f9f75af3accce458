"""Miss-ratio curves on a terminal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hisparse_sim.simulator.mrc import Budget, mrc
from hisparse_sim.simulator.mrc.curves import ENGINE_LRU, REPLAY, MissCurves, engine_difference
from hisparse_sim.simulator.mrc.names import BELADY, COMPULSORY, TEXTBOOK_LRU
from hisparse_sim.simulator.replay.metrics import origins, slots_are
from hisparse_sim.simulator.replay.replaying import MAX_BUFFER_SIZE
from hisparse_sim.simulator.views.tables import print_table
from hisparse_sim.traces import Trace

_MOST_LINES = 12


def show_mrc(curves: MissCurves, output: Path | None = None) -> None:
    """Print a line per buffer size and a column per policy: misses in per cent of all
    accesses, summed over the lines of the curves."""
    total = curves.summed()
    first = total.lines.iloc[0]
    rows = total.rows.groupby(["policy", "buffer"], sort=False)[["misses", "accesses"]].sum()
    rates = (rows["misses"] / rows["accesses"]).unstack("policy")[list(curves.of)]
    table = rates.loc[_shown(curves, rates)].reset_index()
    print_table(
        table,
        {
            "buffer": ("buffer", lambda value: f"{value:,.0f}"),
            **{policy: (policy, _percent) for policy in curves.of},
        },
        output,
        before="Misses, % of accesses, by buffer size: "
        f"{', '.join(origins(total.lines))}, {curves.start} start{slots_are(total.lines)}",
        after=_notes(curves, first),
    )


def _shown(curves: MissCurves, rates: pd.DataFrame) -> list[int]:
    """Return the sizes at which a policy was replayed, else some of all sizes, close together where
    the curve is steep."""
    replayed = [curve.sizes for curve in curves.of.values() if curve.method == REPLAY]
    if replayed:
        return np.unique(np.concatenate(replayed)).tolist()  # type: ignore[no-any-return]
    sizes = np.array(rates.index)
    wanted = np.geomspace(sizes[0], sizes[-1], _MOST_LINES)
    nearest = [int(sizes[np.abs(sizes - each).argmin()]) for each in wanted]
    return list(dict.fromkeys(nearest))


def _notes(curves: MissCurves, first: pd.Series) -> str:
    every = [policy for policy, curve in curves.of.items() if curve.method != REPLAY]
    others = [policy for policy, curve in curves.of.items() if curve.method == REPLAY]
    sizes = next(iter(curves.of.values())).sizes
    lines = []
    if every:
        step = sizes[1] - sizes[0] if len(sizes) > 1 else 1
        each = "every size" if step == 1 else f"every multiple of {step} slots"
        lines.append(
            f"{', '.join(every)}: counted at {each} from {sizes[0]:,} to {sizes[-1]:,} in one pass"
        )
    if others:
        lines.append(f"{', '.join(others)}: replayed at these sizes")
    if difference := engine_difference(curves):
        apart, size = difference
        lines.append(
            f"the engine's lru differs from textbook-lru by at most {100 * abs(apart):.2f} points, "
            f"at {size:,} slots ({100 * apart:+.2f})"
        )
    return "\n" + "\n".join(lines)


def _percent(value: float) -> str:
    return "-" if pd.isna(value) else f"{100 * value:.2f}"


def show_sample(rows: pd.DataFrame, output: Path | None = None) -> None:
    """Print what was estimated from a sample, at some sizes, with its intervals."""
    sizes = np.array(sorted(rows["buffer"].unique()))
    wanted = np.geomspace(sizes[0], sizes[-1], _MOST_LINES)
    shown = {int(sizes[np.abs(sizes - each).argmin()]) for each in wanted}
    table = rows[rows["buffer"].isin(shown)].sort_values(["buffer", "policy"], kind="stable")
    print_table(
        table[["buffer", "policy", "miss_rate", "low", "high"]],
        {
            "buffer": ("buffer", lambda value: f"{value:,.0f}"),
            "policy": ("policy", str),
            "miss_rate": ("miss %", _percent),
            "low": ("from", _percent),
            "high": ("to", _percent),
        },
        output,
        before=f"Misses, % of accesses, estimated from a sample: {', '.join(origins(rows))}",
        after="\nfrom, to: the whole trace lies between them with 95 % confidence",
    )


def shares_of_misses(trace: Trace) -> str:
    """Return what the misses of the engine's LRU are made of, at twice the top_k, in a sentence."""
    size = 2 * trace.metadata.top_k
    if size > MAX_BUFFER_SIZE:
        return ""
    curves = mrc(trace, (COMPULSORY, BELADY, TEXTBOOK_LRU, ENGINE_LRU), size, largest=size)
    accesses = int(curves.lines["accesses"].sum())
    first, least, textbook, engine = (
        100 * int(curve.misses[:, -1].sum()) / max(1, accesses) for curve in curves.of.values()
    )
    return (
        f"misses of LRU at {size:,} slots: {engine:.2f} % of accesses = {first:.2f} compulsory\n"
        f"  + {least - first:.2f} capacity (MIN) + {textbook - least:.2f} textbook LRU over MIN"
        f" {'-' if engine < textbook else '+'} {abs(engine - textbook):.2f} engine's order within"
        " a step"
    )


def show_budget(found: Budget, output: Path | None = None) -> None:
    """Print a line per layer: its buffer, and misses per step with equal buffers and with this."""
    rows = found.rows
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {}
    if rows["request"].notna().any():
        columns["request"] = ("request", str)
    table = rows.assign(
        alike=rows["misses_alike"] / rows["steps"], own=rows["misses"] / rows["steps"]
    )
    columns |= {
        "layer": ("layer", lambda value: f"{value:.0f}"),
        "buffer": ("buffer", lambda value: f"{value:,.0f}"),
        "alike": (f"misses at {found.alike:,}", lambda value: f"{value:,.1f}"),
        "own": ("at its own size", lambda value: f"{value:,.1f}"),
    }
    steps = max(1, int(rows["steps"].sum()))
    before, after = (int(rows[name].sum()) / steps for name in ("misses_alike", "misses"))
    print_table(
        table,
        columns,
        output,
        before=f"Misses per step of {found.policy}, same total number of slots: {found.trace}"
        f" ({found.provenance}){slots_are(rows.assign(trace=found.trace, unit=found.unit))}",
        after=f"\nmean of all: {before:,.1f} with {found.alike:,} slots each, {after:,.1f} with"
        f" these ({-100 * found.saved:+.1f} %)",
    )
