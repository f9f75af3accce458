"""The locality of traces as one tidy table, the source of all its tables and figures."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pandas as pd

from hisparse_sim.simulator.replay.metrics import blocks_of, origins
from hisparse_sim.simulator.replay.sweeping import trace_names
from hisparse_sim.simulator.views.tables import print_table
from hisparse_sim.traces import Traces, as_traces
from hisparse_sim.traces.file.units import TOKEN
from hisparse_sim.traces.locality.measure import EDGES, RECENT, SINKS, Locality, measure_locality

SINGLE = (
    "steps",
    "accesses",
    "longest_row",
    "distinct",
    "first_accesses",
    "newest_share",
    "cross_layer_overlap",
    "reuse_p50",
    "reuse_p90",
    "sink_share",
    "recent_share",
    "sink_coverage",
    "recent_coverage",
    "density",
    "drift",
)
BINNED = ("reuse_distance", "reuse_nearest", "reuse_farthest", "reuse_interval")
_CITED = {"overlap": (1, 16, 64), "working_set": (64, 128, 512)}
TABLES = ("overlap", "cross_layer", "working_set", *BINNED)


def locality(
    traces: Traces | None = None,
    *,
    requests: Iterable[str] | None = None,
    layers: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Measure how traces reuse positions; `figures.locality_page` draws the result.

    Returns one row per number: `trace, provenance, request, layer, measure, at, value`. `at` is the
    lag, the window, the upper end of a bin (exclusive) or the other layer; null where a measure is
    a single number; docs/locality-measures.md defines them. If the positions of a trace are not
    tokens, there is a column `unit`. An `executor` measures a request at a time.

    Raises TraceError for an unknown request or layer, or a trace that breaks a rule, ValueError if
    the selection leaves no step.
    """
    opened = as_traces(traces)
    requests = None if requests is None else tuple(requests)
    layers = None if layers is None else tuple(layers)
    tables = []
    for trace, name in zip(opened, trace_names(opened), strict=True):
        rows = locality_rows(measure_locality(trace, requests, layers, steps, progress, executor))
        rows.insert(0, "trace", name)
        rows.insert(1, "provenance", trace.metadata.provenance)
        if any(each.metadata.unit != TOKEN for each in opened):
            rows.insert(2, "unit", trace.metadata.unit)
        tables.append(rows)
    if not tables or any(rows.empty for rows in tables):
        raise ValueError("nothing to measure: no trace, or one without a selected step")
    return pd.concat(tables, ignore_index=True)


def locality_rows(found: Sequence[Locality]) -> pd.DataFrame:
    """Return one row per number: request, layer, measure, at, value."""
    rows = []
    for each in found:
        rows += [(each.request, each.layer, name, None, getattr(each, name)) for name in SINGLE]
        for name in TABLES:
            table = getattr(each, name)
            rows += [(each.request, each.layer, name, at, value) for at, value in table.items()]
    table = pd.DataFrame(rows, columns=["request", "layer", "measure", "at", "value"])
    return table.astype({"layer": "Int64", "at": "Int64", "value": "float64"})


def curve(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return a measure that is a table: a row per (trace, request, layer), a column per `at`.

    Missing bins count as 0; lags and windows that some rows lack are left out, since the line would
    jump where the rows of the mean change."""
    keys = ["trace", "request", "layer"]
    table = rows[rows["measure"] == measure].pivot(index=keys, columns="at", values="value")
    if measure not in BINNED:
        return table.dropna(axis="columns")
    return table.reindex(pd.MultiIndex.from_frame(rows[keys].drop_duplicates())).fillna(0.0)


def missed(rows: pd.DataFrame, measure: str = "reuse_distance") -> pd.Series:
    """Return the miss rate of an LRU buffer by its slots, starting empty.

    The mean over (request, layer). Positions of a step are ordered as in its row; the measures
    `reuse_nearest` and `reuse_farthest` stand for the orders with the fewest and most misses."""
    shares = curve(rows, measure).mean()
    slots = EDGES[: np.searchsorted(EDGES, shares.index.max()) + 1] if len(shares) else EDGES[:1]
    newest = rows.loc[rows["measure"] == "newest_share", "value"].mean()
    return 1 - newest - shares.reindex(slots, fill_value=0.0).cumsum()


def locality_table(rows: pd.DataFrame, by: Sequence[str] = ("trace",)) -> pd.DataFrame:
    """Return a row per trace, or per `by`, with means over (request, layer) of the most cited
    measures.

    Lags and windows are nan where a trace is too short for them.
    """
    lines = []
    for key, own in rows.groupby(list(by), sort=False):
        line = dict(zip(by, key, strict=True))
        line["provenance"] = own["provenance"].iloc[0]
        line["layers"] = own["layer"].nunique()
        for measure in ("overlap", "working_set"):
            means = curve(own, measure).mean()
            for at in _CITED[measure]:
                line[f"{measure}_{at}"] = means.get(at, float("nan"))
        for measure in SINGLE:
            line[measure] = own.loc[own["measure"] == measure, "value"].mean()
        lines.append(line)
    return pd.DataFrame(lines)


def show_locality(
    title: str, rows: pd.DataFrame, output: Path | None = None, below: str = ""
) -> None:
    """Print a line per layer (mean over its requests) of one trace, the means over all layers, and
    what stands `below` them."""
    layers = locality_table(rows.sort_values("layer", kind="stable"), ["layer"])
    table = pd.concat([layers, locality_table(rows)], ignore_index=True)
    table["layer"] = [*map(str, layers["layer"]), "all"]
    print_table(
        table,
        {
            "layer": ("layer", str),
            "overlap_1": ("overlap %", _percent),
            "overlap_16": ("lag 16", _percent),
            "cross_layer_overlap": ("layers", _percent),
            "working_set_64": ("64 steps", _count),
            "distinct": ("all", _count),
            "drift": ("drift %", _percent),
            "sink_share": ("sinks %", _percent),
            "recent_share": ("recent %", _percent),
        },
        output,
        before=title + (f"\nPositions are {blocks}" if (blocks := blocks_of(rows)) else "") + "\n",
        after=_curves(rows) + f"\n{below}" * bool(below),
    )


def show_localities(rows: pd.DataFrame, output: Path | None = None) -> None:
    """Print a line per trace, a mean over its layers and requests."""
    table = locality_table(rows)
    kinds = list(table["provenance"].drop_duplicates())
    print_table(
        table if len(kinds) == 1 else table.assign(trace=origins(rows)),
        {
            "trace": ("trace", str),
            "overlap_1": ("overlap %", _percent),
            "overlap_16": ("lag 16", _percent),
            "overlap_64": ("lag 64", _percent),
            "cross_layer_overlap": ("layers", _percent),
            "reuse_p50": ("reuse p50", _count),
            "reuse_p90": ("reuse p90", _count),
            "working_set_128": ("128 steps", _count),
            "drift": ("drift %", _percent),
        },
        output,
        after="\n".join(
            [
                "",
                "overlap: share of positions that the step before selected (lag n: n steps before)",
                "layers: share that the previous layer in the file selects in the same step",
                "reuse: percentiles of the reuse distance, in positions",
                "128 steps: distinct positions in this many steps",
                "drift: share of the most selected positions that differ in the second half",
                *([f"all traces: {kinds[0]}"] if len(kinds) == 1 else []),
            ]
        ),
    )


def _curves(rows: pd.DataFrame) -> str:
    """Return the curves, as means over layers, and the meaning of the columns."""
    lru = missed(rows)
    powers = lru[[slots for slots in lru.index if slots >= 64 and slots & (slots - 1) == 0]]
    (means,) = locality_table(rows).to_dict("records")
    lines = [
        "",
        "overlap after n steps, %:         " + _listed(curve(rows, "overlap").mean(), _percent),
        "distinct positions in n steps:    " + _listed(curve(rows, "working_set").mean(), _count),
        "last access fewer than n steps ago, % of accesses:",
        "  " + _listed(curve(rows, "reuse_interval").mean(), _percent),
        "misses of an LRU buffer of n slots, % of accesses:",
        "  " + _listed(powers, _percent),
        f"of which first accesses: {_percent(means['first_accesses'])} %",
        f"reuse distance: median {_count(means['reuse_p50'])}, "
        f"90th percentile {_count(means['reuse_p90'])} positions",
        "",
        "overlap: share of positions that the step before selected (lag n: n steps before)",
        "layers: share that the previous layer in the file selects in the same step",
        "64 steps, all: distinct positions in this many steps",
        "drift: share of the most selected positions that differ in the second half",
        f"sinks: accesses to the first {SINKS} positions; recent: the last {RECENT}; % of all",
    ]
    return "\n".join(lines)


def _listed(table: pd.Series, show: Callable[[float], str]) -> str:
    return "  ".join(f"{at}:\xa0{show(value)}" for at, value in table.items())


def _count(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:,.0f}"


def _percent(value: float) -> str:
    return "-" if pd.isna(value) else f"{100 * value:.1f}"
