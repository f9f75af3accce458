"""Results of the commands, distinguished by columns: rows of sweep, curve, plan, serve and
reproduce, and measurements of gpu bench."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from hisparse_sim.simulator.mrc.counted import as_traces_or_facts, counted_only, sweep_counted
from hisparse_sim.simulator.mrc.facts import is_facts
from hisparse_sim.simulator.replay.joining import FILE
from hisparse_sim.simulator.replay.result_files import read_rows
from hisparse_sim.traces import TraceError
from hisparse_sim.traces.documents import parse_json

# The first kind whose columns are all there.
_COLUMNS_OF = {
    "curve": {"policy", "buffer", "step", "misses_per_step", "p10", "p90"},
    "sweep": {"policy", "buffer", "steps", "accesses", "misses"},
    "plan": {
        "buffer", "ratio", "requests", "batch", "tokens_per_s", "tpot_ms", "host_gb", "limit",
        "meets",
    },
    "serve": {"mode", "load", "tokens_per_s", "tpot_p50_ms"},
    "reproduce": {"what", "published", "ours", "error", "how", "gap", "source"},
    "bench": {"batch", "misses", "buffer", "entry_bytes", "timer_us"},
    "bench of several": {"what", "gpus", "sum_gb_s", "us"},
}  # fmt: skip
_MAY_MISS = {"tpot_ms", "limit", "gap", "tpot_p50_ms", "gpus", "sum_gb_s", "us"}
_TRACED = ("curve", "sweep")  # which also name their trace
# Rows of one file that differ in these come from several commands and were joined by a user.
_COMMAND = {
    "sweep": ("start", "seed", "model", "kv_dtype", "link", "swap_in_kernel", "batch"),
    "curve": ("start", "seed", "window", "skip_steps"),
    "plan": ("trace", "trace_sha256"),
    "serve": ("seed", "trace", "trace_sha256"),
}
_MOST_COMMANDS = 100
_OF_FACTS = (1, 1.5, 2, 3, 4, 6, 8)  # of top_k: buffers that a report shows of a facts file


@dataclass(frozen=True)
class Result:
    """The rows that one command wrote to one file."""

    path: Path
    kind: str  # a key of _COLUMNS_OF
    rows: pd.DataFrame = field(repr=False)

    @property
    def parameters(self) -> dict[str, Any]:
        """The options of the command that are not columns. Raises TraceError if they are no JSON
        object."""
        given = self.rows["parameters"].iloc[0] if "parameters" in self.rows else None
        if not isinstance(given, str):
            return {}
        found = parse_json(given, f"{self.path}: its parameters")
        if not isinstance(found, dict):
            raise TraceError(f"{self.path}: its parameters are no JSON object")
        return found


def read_results(paths: Sequence[Path]) -> list[Result]:
    """Read result files in the order given.

    Raises TraceError for a file that cannot be read, is empty, or was written by none of the
    commands.
    """
    return [result for path in paths for result in _read(path)]


def distinct(results: Sequence[Result]) -> list[Result]:
    """Return the results without those that repeat an earlier one: a file given twice or in two
    formats."""
    found: list[Result] = []
    for result in results:
        if not any(result.kind == one.kind and result.rows.equals(one.rows) for one in found):
            found.append(result)
    return found


def rows_of(results: Sequence[Result], kind: str) -> pd.DataFrame:
    """Return the distinct rows of all files of one kind, one below the other, with a column for the
    file; empty if there is none."""
    own = distinct([result for result in results if result.kind == kind])
    tables = [result.rows.assign(**{FILE: result.path.name}) for result in own]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _read(path: Path) -> list[Result]:
    of_facts = path.suffix.lower() == ".parquet" and is_facts(path)
    rows = _counted(path) if of_facts else read_rows(path)
    kind = next((kind for kind, names in _COLUMNS_OF.items() if names <= set(rows.columns)), None)
    if kind is None:
        raise TraceError(
            f"{path} holds no rows of sweep, curve, plan, serve, reproduce or gpu bench"
            f"{_nearly(set(rows.columns))}; write them with -o"
        )
    if rows.empty:
        raise TraceError(f"{path} holds no rows")
    needed = _COLUMNS_OF[kind] | ({"trace"} if kind in _TRACED else set())
    for name in sorted(needed - _MAY_MISS):
        if name not in rows:
            raise TraceError(f"{path} lacks the column {name} of {kind}")
        if (missing := rows[name].isna()).any():
            raise TraceError(f"{path}, row {missing.to_numpy().argmax() + 1}: {name} is missing")
    if kind == "sweep":
        for name in ("steps", "accesses"):
            if (nothing := rows[name] == 0).any():
                raise TraceError(
                    f"{path}, row {nothing.to_numpy().argmax() + 1}: {name} is 0, of which there is"
                    " no mean"
                )
    if kind in _TRACED:
        left_out = [name for name in ("provenance", "layer", "start") if name not in rows]
        rows = rows.assign(**dict.fromkeys(left_out, pd.array([None] * len(rows), "string")))
        rows["provenance"] = rows["provenance"].fillna("unknown")
    told_apart = [
        name for name in ("parameters", "version", *_COMMAND.get(kind, ())) if name in rows
    ]
    if not told_apart:
        return [Result(path, kind, rows)]
    parts = [part for _, part in rows.groupby(told_apart, sort=False, dropna=False)]
    if len(parts) > _MOST_COMMANDS:
        raise TraceError(f"{path} holds the rows of more than {_MOST_COMMANDS} commands; split it")
    return [Result(path, kind, part.reset_index(drop=True)) for part in parts]


def _counted(path: Path) -> pd.DataFrame:
    """Return the rows of a facts file at some sizes."""
    traces = counted_only(as_traces_or_facts(path))
    sizes = [curve.sizes.tolist() for trace in traces for curve in trace.curves.of.values()]
    known = set(sizes[0]).intersection(*sizes)
    top_k = max(trace.metadata.top_k for trace in traces)
    shown = [int(times * top_k) for times in _OF_FACTS if times * top_k in known]
    start = traces[0].curves.start
    return sweep_counted(traces, None, shown or [min(known)], start, per_layer=True).rows


def _nearly(columns: set[str]) -> str:
    """Return what is missing of the kind that most of the columns belong to."""
    for kind, names in _COLUMNS_OF.items():
        if len(names & columns) > len(names) / 2:
            return f" ({kind} without {', '.join(sorted(names - columns))})"
    return ""
