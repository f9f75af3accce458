"""The tables inside a report: sums instead of rows, few enough points, columns instead of records.

Whatever is left out is told in a note that the page shows."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.serving.latency import Link, load_link, swap_in_us
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.traces import TraceError
from hisparse_sim.traces.file.units import TOKEN

POINTS_PER_LINE = 600  # of a rolling curve; more cannot be told apart on a screen
CURVE_POINTS = 30_000  # of all lines together
SWEEP_ROWS = 40_000
BATCHES = (1, 8, 32, 64)  # requests that decode together
LINK, KERNEL = "h200-pcie5", "sglang"  # where a sweep names none
MODEL = "glm-5.1"  # whose items are taken where a sweep names no model; all shipped ones are alike

Columns = dict[str, list[Any]]


def columns(table: pd.DataFrame, digits: int = 2) -> Columns:
    """Return a table as lists for JSON: floats rounded, what JSON cannot say as None."""
    return {str(name): [_plain(value, digits) for value in table[name].tolist()] for name in table}


def sweep_table(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return sums by trace, layer, policy and buffer, requests summed, and notes.

    Columns: `trace, layer` (None where a row covers all), `policy, buffer, steps, accesses, misses,
    optimum` (None where unknown)."""
    notes = []
    by = ["trace", "layer", "policy", "buffer"]
    sums = totals(rows, by)
    if len(sums) > SWEEP_ROWS:
        notes.append(
            f"{len(sums):,} rows by layer are too many for a page: layers are summed, so that there"
            " is no view by layer. Report fewer traces, or part of the layers, for that."
        )
        sums = totals(rows.assign(layer=None), by)
    # Whole numbers, so that the page computes with what was counted.
    optimum = (sums["misses"] / (1 + sums["excess_over_min"])).round()
    table = sums[["trace", "layer", "policy", "buffer", "steps", "accesses", "misses"]].assign(
        optimum=optimum
    )
    return table, notes


def curve_table(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return rolling curves of few enough points: every n-th of a line, first and last kept."""
    lines = [line for _, line in rows.groupby(["trace", "policy", "buffer"], sort=False)]
    most = max(2, min(POINTS_PER_LINE, CURVE_POINTS // len(lines)))
    step = max(1, *(math.ceil(len(line) / most) for line in lines))
    kept = pd.concat(
        [
            line.iloc[np.unique(np.append(np.arange(0, len(line), step), len(line) - 1))]
            for line in lines
        ]
    )
    wanted = ["trace", "policy", "buffer", "step", "misses_per_step", "p10", "p90"]
    notes = []
    if step > 1:
        notes.append(
            f"Charts draw one point in {step} of each line, and its last ({len(kept):,} of"
            f" {len(rows):,}); the result file has all."
        )
    return kept[wanted], notes


def token_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose positions are tokens: bytes, time and memory are known for no other."""
    return rows[rows["unit"].fillna(TOKEN) == TOKEN] if "unit" in rows else rows


class Times(NamedTuple):
    """Predicted swap-in times, and what they are."""

    table: pd.DataFrame  # trace, policy, buffer, batch, time
    title: str
    source: str
    batches: list[int]
    chosen: int  # of the batches: what the sweep asked for


def times_table(rows: pd.DataFrame, parameters: Mapping[str, Any]) -> Times:
    """Return predicted swap-in times over the link that the sweep asked for, or the default one.

    For the model and item size of the rows: ms per token over all its layers, each taken to miss
    like the mean of the replayed ones. Without a model: us of one layer. `parameters` are those of
    the sweep. Raises TraceError if the sweep's link is in no profile at hand."""
    link, kernel, chosen, asked = load_link(LINK), KERNEL, BATCHES[0], ""
    if "link" in rows and rows["link"].notna().any():
        rows = rows[rows["link"].notna()]
        name, kernel, chosen = rows.iloc[0][["link", "swap_in_kernel", "batch"]]
        others = sorted({*rows["link"]} - {name})
        if others:
            asked = f" Rows over {', '.join(others)} are left out here: report them alone."
        rows = rows[rows["link"] == name]
        link = _link(str(name), parameters.get("profiles"))
    else:
        asked = " The sweep named no link (`sweep --link`)."
    kv_dtype = str(parameters.get("kv_dtype", "bf16"))
    priced = "model" in rows and isinstance(rows["model"].iloc[0], str)
    if priced:
        model, kv_dtype = load_model(str(rows["model"].iloc[0])), str(rows["kv_dtype"].iloc[0])
        scale, title = model.layers / 1000, f"swap-in per token, ms ({model.name})"
    else:
        model, scale, title = load_model(MODEL), 1.0, "swap-in of one layer, µs"
    entry_bytes = model.entry_bytes(kv_dtype)
    layers = totals(rows, ["trace", "layer", "policy", "buffer"])
    batches = sorted({*BATCHES, int(chosen)})
    tables = [
        layers.assign(
            batch=batch,
            time=scale
            * swap_in_us(
                link, kernel, batch, layers["misses_per_step"], layers["buffer"], entry_bytes
            ),
        )
        for batch in batches
    ]
    times = pd.concat(tables, ignore_index=True)
    means = times.groupby(["trace", "policy", "buffer", "batch"], sort=False)["time"].mean()
    whose = {"sglang": "the engine's", "native": "our"}[str(kernel)]
    source = (
        f"Predicted for {whose} kernel over {link.description}, items of {entry_bytes:,} bytes,"
        " from the mean misses of a layer, all requests alike; nothing is hidden behind compute."
        f" The link's figures are {link.kind}: {link.source}.{asked}"
    )
    return Times(means.reset_index(), title, source, batches, int(chosen))


def _link(name: str, profiles: Any) -> Link:
    try:
        return load_link(name, profiles)
    except ProfileError as error:
        raise TraceError(
            f"the sweep asked for the link {name}, which this report cannot look up: {error}"
        ) from error


def serve_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the closed loops of serving runs with their `concurrency` as a number."""
    loads = pd.to_numeric(rows["load"], errors="coerce")
    wanted = ["mode", "concurrency", "tokens_per_s", "tpot_p50_ms"]
    return rows.assign(concurrency=loads)[loads.notna()][wanted]


def _plain(value: Any, digits: int) -> Any:
    if value is None or value is pd.NA:
        return None
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() else round(value, digits)
    return value
