"""The sources of the rows of a report, and the commands that repeat them."""

import shlex
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from typing import Any

import pandas as pd

from hisparse_sim.simulator.replay.mode_names import EPOCH_CLOCK
from hisparse_sim.simulator.views.report.pieces import Cells, copy, details, table
from hisparse_sim.simulator.views.report.results import Result
from hisparse_sim.traces import open_trace, sample_path

_WORDS = (
    ("slot", "room for the KV entry of one token and layer in the hot buffer of a request"),
    ("step", "one token of one request; every layer selects positions anew"),
    (
        "miss",
        "a selected position that is not in the hot buffer: its entry is copied from the host",
    ),
    ("MIN", "Belady's policy, which knows the future: no policy misses fewer"),
    ("staged start", "the buffer begins with the first positions of the prompt; direct: empty"),
    ("trained-indexer", "the trace was selected by a trained model's indexer, outside a server"),
    ("synthetic", "the trace is generated, by parameters fitted to published figures"),
    ("ratio, R", "tokens of the host pool over those of the device pool"),
    ("rank", "one GPU's process; with data-parallel attention it serves requests of its own"),
    ("device pool, indexer keys", "what is full: memory for KV entries, or for the indexer's keys"),
    ("zero-cost", "a bound: copies take no time"),
)


def section(results: Sequence[Result], swept: pd.DataFrame, notes: Sequence[str]) -> str:
    """Return traces, the commands that repeat the rows, versions, and what the page leaves out."""
    wanted = ["trace", "provenance", "trace_sha256"]
    cells: Cells = {name: (name.replace("_", " "), str) for name in wanted}
    cells = {"of": ("what", str), **cells}
    origins = [
        rows.reindex(columns=wanted).assign(of=of)
        for rows, of in [
            (swept, "misses"),
            *((one.rows, one.path.name) for one in results if one.kind in ("plan", "serve")),
        ]
        if "trace" in rows
    ]
    text = ""
    if origins:
        every = pd.concat(origins).astype("string").fillna("")
        named = every[every["trace"] != ""].drop_duplicates()
        text = table(named.groupby(wanted, sort=False)["of"].agg(", ".join).reset_index(), cells)
    text += "<p>Computed by hisparse-sim. To repeat it:</p>"
    for result in results:
        text += copy(command(result))
    made = " ".join(dict.fromkeys(shlex.quote(result.path.name) for result in results))
    text += copy(f"hisparse-sim report {made} -o report.html")
    versions = {
        str(value)
        for result in results
        if "version" in result.rows
        for value in result.rows["version"].dropna().unique()
    }
    text += (
        f'<p class="note">Rows by hisparse-sim {escape(", ".join(sorted(versions)) or "?")},'
        f" page by {escape(version('hisparse-sim'))}. Rows do not hold paths: where a command"
        " names a file, use the trace with the SHA-256 above. Misses are replayed; times, plans"
        " and throughput are predicted by models.</p>"
    )
    words: Cells = {"word": ("word", str), "meaning": ("meaning", str)}
    text += details("Words", table(pd.DataFrame(_WORDS, columns=[*words]), words))
    if notes:
        text += f'<p class="note">{escape(" ".join(notes))}</p>'
    return text


def command(result: Result) -> str:
    """Return the command line that repeats the rows of a file.

    Traces are named by their stem, since rows do not hold paths; the bundled sample needs none.
    """
    given = result.parameters
    if result.kind.startswith("bench"):
        return _bench_command(result, given)
    if result.kind in ("sweep", "curve"):
        given |= _replayed(result.rows, result.kind)
    elif result.kind == "plan" and "best" not in result.rows:  # older files
        given |= {name: _values(result.rows, name) for name in ("buffer", "ratio")}
    elif result.kind == "serve":
        given |= _served(result.rows)
    if result.kind in ("plan", "serve") and given.get("policy") == EPOCH_CLOCK:
        del given["policy"]  # drafts have it without being asked
    words = ["hisparse-sim", result.kind]
    traces = _trace_names(result.rows)
    if result.kind in ("sweep", "curve"):
        words += traces
    elif "miss_curve" not in given:
        words += [word for name in traces for word in ("--trace", name)]
    plain = {} if result.kind == "serve" else _OPTION_OF  # there, `requests` is a number
    for name, value in given.items():
        words += _flag(plain.get(name, name), value)
    return " ".join([*map(shlex.quote, words), "-o", shlex.quote(result.path.name)])


def _bench_command(result: Result, given: dict[str, Any]) -> str:
    rows = result.rows
    grid = {name: _values(rows.dropna(subset=[name]), name) for name in _GRID if name in rows}
    words = ["hisparse-sim", "gpu", "bench"]
    for name, values in grid.items():
        words += _flag(_OPTION_OF.get(name, name), [int(value) for value in values])
    words += _flag("repeats", given.get("repeats")) + _flag("pin_numa", given.get("pin_numa"))
    words += ["--share-host-pool"] if given.get("host_pool") == "shared" else []
    return " ".join([*words, "-o", shlex.quote(result.path.name)])


_GRID = ("gpus", "batch", "misses", "buffer", "entry_bytes")


def _flag(name: str, value: Any) -> list[str]:
    if value is None or value is False or value == []:
        return []
    option = "--" + name.replace("_", "-")
    if value is True:
        return [option]
    if name == "steps" and isinstance(value, list) and len(value) == 2:
        return [option, f"{value[0]}:{value[1]}"]
    if name == "mode" and isinstance(value, list):
        return [word for each in value for word in (option, each)]
    if isinstance(value, list | tuple):
        return [option, ",".join(map(str, value))]
    return [option, f"{value:g}" if isinstance(value, float) else str(value)]


_OPTION_OF = {
    "entry_bytes": "kv-entry-bytes",
    "requests": "request",
    "layers": "layer",
    "host_to_device_ratio": "ratio",
    "swap_in_kernel": "kernel",
}


def _values(rows: pd.DataFrame, name: str) -> list[Any]:
    values = dict.fromkeys(rows[name].dropna()) if name in rows else {}
    return [value.item() if hasattr(value, "item") else value for value in values]


def _replayed(rows: pd.DataFrame, kind: str) -> dict[str, Any]:
    found = {name: _values(rows, name) for name in ("policy", "buffer", "host_to_device_ratio")}
    given: dict[str, Any] = dict(found)
    for name in ("start", "seed", "model", "kv_dtype", "link", "swap_in_kernel", "batch"):
        if values := _values(rows, name):
            given[name] = values[0]
    if kind == "sweep":
        given["per_layer"] = bool(rows["layer"].notna().any())
        known = "excess_over_min" in rows and rows["excess_over_min"].notna().any()
        given["no_min"] = not known
    return given


def _served(rows: pd.DataFrame) -> dict[str, Any]:
    loads = [str(load) for load in dict.fromkeys(rows["load"])]
    rates = [load.removesuffix("/s") for load in loads if load.endswith("/s")]
    given: dict[str, Any] = {"seed": next(iter(_values(rows, "seed")), None)}
    given["mode"] = _values(rows, "mode")
    if not any(load.endswith("recorded") for load in loads):  # at the times of its workload
        given["rate" if rates else "concurrency"] = rates[0] if rates else loads
    return given


def _trace_names(rows: pd.DataFrame) -> list[str]:
    if "trace" not in rows:
        return []
    digests = set(rows["trace_sha256"]) if "trace_sha256" in rows else set()
    if digests == {open_trace(sample_path()).sha256}:
        return []
    # The name is a path if two traces of a sweep have the same stem. It has an @ if it is the
    # synthetic demand of the model, which needs no name.
    names = [name for name in _values(rows, "trace") if "@" not in name]
    return [f"{name.removesuffix('.parquet')}.parquet" for name in names]
