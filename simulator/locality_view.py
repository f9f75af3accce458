"""The locality report as a table for a terminal of 80 columns, and as tidy rows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hisparse_sim.simulator.tables import print_table
from hisparse_sim.traces.locality import RECENT, SINKS, Locality, summary

_SINGLE = (
    "distinct",
    "first_demands",
    "cross_layer_overlap",
    "sink_share",
    "recent_share",
    "newest_share",
    "drift",
)
_TABLES = ("overlap", "working_set", "reuse_distance", "reuse_interval")


def locality_rows(found: Sequence[Locality]) -> pd.DataFrame:
    """Return one row per number: request, layer, measure, at, value.

    `at` is the lag, the window or the upper end of the bin (exclusive); null for other measures.
    """
    rows = []
    for each in found:
        rows += [(each.request, each.layer, name, None, getattr(each, name)) for name in _SINGLE]
        for name in _TABLES:
            table = getattr(each, name)
            rows += [(each.request, each.layer, name, at, value) for at, value in table.items()]
    table = pd.DataFrame(rows, columns=["request", "layer", "measure", "at", "value"])
    return table.astype({"at": "Int64", "value": "float64"})


def show_locality(title: str, found: Sequence[Locality], output: Path | None = None) -> None:
    """Print a line per layer (mean over its requests) and the means over all of them."""
    layers = sorted({each.layer for each in found})
    lines = []
    for layer in [*layers, None]:
        means = summary([each for each in found if layer in (None, each.layer)])
        lags = means["overlap"]
        lines.append(
            {
                "layer": "all" if layer is None else str(layer),
                "next": lags.get(1),
                "later": lags.get(16),
                "cross": means["cross_layer_overlap"],
                "window": means["working_set"].get(64),
                "distinct": means["distinct"],
                "drift": means["drift"],
                "sinks": means["sink_share"],
                "recent": means["recent_share"],
            }
        )
    table = pd.DataFrame(lines).astype({name: "float64" for name in lines[0] if name != "layer"})
    print_table(
        table,
        {
            "layer": ("layer", str),
            "next": ("overlap %", _percent),
            "later": ("16 on", _percent),
            "cross": ("layers", _percent),
            "window": ("64 steps", _count),
            "distinct": ("all", _count),
            "drift": ("drift %", _percent),
            "sinks": ("sinks %", _percent),
            "recent": ("recent %", _percent),
        },
        output,
        before=title + "\n",
        after=_curves(summary(list(found))),
    )


def _curves(means: dict[str, Any]) -> str:
    """Return the four curves, mean over layers, and what the columns mean."""
    lines = [
        "",
        "overlap after so many steps, %:    " + _listed(means["overlap"], _percent),
        "positions that so many steps use:  " + _listed(means["working_set"], _count),
        "reuse distance below, positions, % of demands: "
        + _listed(means["reuse_distance"], _percent),
        "reuse interval below, steps, % of demands:     "
        + _listed(means["reuse_interval"], _percent),
        f"demanded for the first time, % of demands:     {_percent(means['first_demands'])}",
        "",
        "overlap: share of a step's positions that the step before (16 before) demanded; layers:",
        "that the layer before it in the file demands in the same step; 64 steps, all: distinct",
        "positions; drift: share of the most demanded positions that the second half changes;",
        f"sinks: the first {SINKS} positions; recent: the last {RECENT} tokens",
    ]
    return "\n".join(lines)


def _listed(table: dict[int, float], show: Callable[[float], str]) -> str:
    return "  ".join(f"{at}: {show(value)}" for at, value in table.items())


def _count(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:,.0f}"


def _percent(value: float) -> str:
    return "-" if pd.isna(value) else f"{100 * value:.1f}"
