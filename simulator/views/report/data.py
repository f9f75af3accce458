"""The tables inside a report: sums in place of rows, a limited number of points, columns in place
of records.

A note on the page states what is left out."""

import math
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.serving.latency import Link, load_link, swap_in_us
from hisparse_sim.simulator.serving.models import KV_DTYPES, Model, load_model
from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.simulator.views.palette import PARTS
from hisparse_sim.traces import TraceError
from hisparse_sim.traces.file.units import TOKEN

POINTS_PER_LINE = 600  # of a rolling curve; a screen does not resolve more
CURVE_POINTS = 12_000  # of all lines together
SWEEP_ROWS = 40_000
BATCHES = (1, 8, 32, 64)  # requests that decode together
LINK, KERNEL = "h200-pcie5", "sglang"  # where a sweep names none
MODEL = "glm-5.1"  # whose KV entries are used if a sweep names no model; all shipped ones are alike

Columns = dict[str, list[Any]]


def columns(table: pd.DataFrame, digits: int = 2) -> Columns:
    """Return a table as lists for JSON: floats rounded, and None for what JSON cannot express."""
    return {str(name): [_plain(value, digits) for value in table[name].tolist()] for name in table}


def packed(table: Columns) -> dict[str, Any]:
    """Return columns for a page: one that repeats its values as [values, lengths of runs]."""
    found: dict[str, Any] = {}
    for name, values in table.items():
        runs = [(value, sum(1 for _ in run)) for value, run in groupby(values)]
        short = 2 * len(runs) < len(values)
        found[name] = (
            {"runs": [list(part) for part in zip(*runs, strict=True)]} if short else values
        )
    return found


def unpacked(table: Mapping[str, Any]) -> Columns:
    """Return the columns that `packed` has made shorter."""
    return {
        name: [v for v, n in zip(*values["runs"], strict=True) for _ in range(n)]
        if isinstance(values, dict)
        else values
        for name, values in table.items()
    }


def sweep_table(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return sums over requests by trace, layer, policy and buffer, and notes.

    Columns: `trace, layer` (None where a row covers all), `policy, buffer, steps, accesses, misses,
    optimum` (None where unknown)."""
    notes = []
    by = ["trace", "layer", "policy", "buffer"]
    sums = totals(rows, by)
    if len(sums) > SWEEP_ROWS:
        notes.append(
            f"{len(sums):,} rows by layer are too many for a page: layers are summed, and there is"
            " no view by layer. For that, report fewer traces or fewer layers."
        )
        sums = totals(rows.assign(layer=None), by)
    # Whole numbers, so that the page computes with what was counted.
    optimum = (sums["misses"] / (1 + sums["excess_over_min"])).round()
    table = sums[["trace", "layer", "policy", "buffer", "steps", "accesses", "misses"]].assign(
        optimum=optimum
    )
    return table, notes


def curve_table(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return rolling curves with fewer points: every n-th of a line, the first and the last."""
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


def priced_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that `sweep --link` and `--ratio` price: of tokens, by no rules but those of
    the plain replay."""
    if "unit" in rows:
        rows = rows[rows["unit"].fillna(TOKEN) == TOKEN]
    return rows[rows["rules"].isna()] if "rules" in rows else rows


class Times(NamedTuple):
    """Predicted swap-in times and their description."""

    table: pd.DataFrame  # trace, policy, buffer, batch, time
    title: str
    unit: str  # of a time
    source: str
    link: str
    entry_bytes: int
    model: str | None  # whose layers a time is of; None: of one layer
    layers: int
    batches: list[int]
    chosen: int  # the batch that the sweep asked for
    kv_dtype: str = ""  # of the entries of the model


Profiles = str | Path | None  # a file that the user names


def times_table(
    rows: pd.DataFrame, parameters: Mapping[str, Any], profiles: Profiles = None
) -> Times:
    """Return predicted swap-in times over the link that the sweep asked for, or the default one.

    For the model and KV entries of the rows: ms per token over all its layers, each with the mean
    misses of the replayed ones. Without a model: us of one layer. `parameters` are those of the
    sweep. Raises TraceError if the link or model of the sweep is in no available profile."""
    rows, asked, others_of_link = _only_first(rows, ("link", "swap_in_kernel"))
    rows, priced, others_of_model = _only_first(rows, ("model", "kv_dtype"))
    told = others_of_link + others_of_model
    if not asked:
        told += " The sweep named no link (`sweep --link`)."
    link = link_called(asked["link"], profiles) if asked else load_link(LINK)
    kernel = asked.get("swap_in_kernel", KERNEL)
    given = rows["batch"].dropna().tolist() if asked and "batch" in rows else []
    chosen = max(1, int(given[0])) if given else BATCHES[0]
    if kernel not in _WHOSE:
        raise TraceError(f"the results name the unknown kernel {kernel!r}")
    if priced:
        model = model_called(priced["model"], profiles)
        entry_bytes = entry_bytes_of(model, priced.get("kv_dtype", KV_DTYPES[0]))
        name, count = model.name, model.layers
        scale, unit, title = count / 1000, "ms", f"swap-in per token, ms ({model.name})"
    else:
        kv_dtype = str(parameters.get("kv_dtype") or KV_DTYPES[0])
        entry_bytes = entry_bytes_of(load_model(MODEL), kv_dtype)
        name, count = None, 1
        scale, unit, title = 1.0, "µs", "swap-in of one layer, µs"
    layers = totals(rows, ["trace", "layer", "policy", "buffer"])
    batches = sorted({*BATCHES, chosen})
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
    source = (
        f"Predicted for {_WHOSE[kernel]} kernel over {link.description}, KV entries of "
        f"{entry_bytes:,} bytes, from the mean misses of a layer, the same for all requests; "
        f"nothing is hidden behind compute. The figures of the link are {link.kind}: "
        f"{link.source}.{told}"
    )
    table = means.reset_index()
    return Times(table, title, unit, source, link.name, entry_bytes, name, count, batches, chosen,
                 priced.get("kv_dtype", ""))  # fmt: skip


_WHOSE = {"sglang": "the engine's", "native": "our"}


def _only_first(
    rows: pd.DataFrame, names: tuple[str, ...]
) -> tuple[pd.DataFrame, dict[str, str], str]:
    """Return the rows that name the first of several links (or models) or none, its name (empty if
    no row has one), and a sentence about the rows left out.

    Misses without a name get the cost of the first."""
    of = rows.reindex(columns=list(names)).astype("string").fillna("")
    named = of[of[names[0]] != ""].drop_duplicates().to_dict("records")
    if not named:
        return rows, {}, ""
    left_out = (of[names[0]] != "") & (of != pd.Series(named[0])).any(axis=1)
    told = ", ".join(" ".join(map(str, one.values())) for one in named[1:])
    said = f" Rows with {told} are left out here; report them separately." if told else ""
    return rows[~left_out], {str(name): value for name, value in named[0].items() if value}, said


def fitting(rows: pd.DataFrame, buffer: int) -> dict[str, dict[Any, Any]]:
    """Return for each model of `rows`, "glm-5.1 (fp8 KV)", the row with the most requests on a rank
    at `buffer`, in the order of the rows; models without such a row are left out."""
    if "requests_per_gpu" not in rows:
        return {}
    of = rows.reindex(columns=["model", "kv_dtype"]).astype("string").fillna("")
    names = [called(model, kv_dtype) for model, kv_dtype in of.itertuples(index=False)]
    own = rows.assign(called=names)[(rows["buffer"] == buffer) & rows["requests_per_gpu"].notna()]
    best = own.sort_values("requests_per_gpu", ascending=False, kind="stable")
    firsts = best.drop_duplicates("called").set_index("called").to_dict("index")
    return {name: firsts[name] for name in dict.fromkeys(own["called"])}


def called(model: str, kv_dtype: str) -> str:
    return f"{model} ({kv_dtype} KV)" if kv_dtype else model


def link_called(name: str, profiles: Profiles = None) -> Link:
    """Return a link that rows name. Raises TraceError if it is in no available profile."""
    try:
        return load_link(name, profiles)
    except ProfileError as error:
        raise _cannot("link", name, error) from error


def model_called(name: str, profiles: Profiles = None) -> Model:
    """Return a model that rows name. Raises TraceError if it is in no available profile."""
    try:
        return load_model(name, profiles)
    except ProfileError as error:
        raise _cannot("model", name, error) from error


def entry_bytes_of(model: Model, kv_dtype: str) -> int:
    """Return the bytes of a KV entry of the type that rows name. Raises TraceError for other
    types."""
    if kv_dtype not in KV_DTYPES:
        known = ", ".join(KV_DTYPES)
        raise TraceError(f"the results name KV entries of type {kv_dtype!r}; known are {known}")
    return model.entry_bytes(kv_dtype)


def _cannot(kind: str, name: str, error: ProfileError) -> TraceError:
    return TraceError(
        f"the results name the {kind} {name}, which this report cannot look up: {error}"
    )


def serve_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the closed loops of serving runs with their `concurrency` as a number."""
    loads = rows["load"].where(rows["load"].str.fullmatch("[0-9]{1,9}").fillna(False))
    wanted = ["mode", "concurrency", "tokens_per_s", "tpot_p50_ms"]
    more = [name for name in (*_PERCENTILES, *_columns()) if name in rows]
    return rows.assign(concurrency=pd.to_numeric(loads))[loads.notna()][wanted + more]


def _columns() -> list[str]:
    return [column for column, _ in PARTS.values()]


def shares_table(served: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the time of `serve_table`, a row each: `run, mode, concurrency, part,
    place, share`; empty for older rows."""
    if not set(_columns()) <= set(served):
        return pd.DataFrame()
    known = served.dropna(subset=_columns()).sort_values(["concurrency", "mode"], kind="stable")
    parts = [
        known[["mode", "concurrency"]].assign(
            run=known["concurrency"].map("{:,.0f}, ".format) + known["mode"],
            part=part,
            place=place,
            share=known[column].astype(float),
        )
        for place, (part, (column, _)) in enumerate(PARTS.items())
    ]
    return pd.concat(parts).sort_values(["concurrency", "mode", "place"], kind="stable")


_PERCENTILES = ("tpot_p95_ms", "tpot_p99_ms", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s")


def _plain(value: Any, digits: int) -> Any:
    if value is None or value is pd.NA:
        return None
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() else round(value, digits)
    return value
