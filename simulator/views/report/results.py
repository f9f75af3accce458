"""Reads what the commands wrote, told apart by columns: rows of sweep, curve, plan, serve and
reproduce, and measurements of gpu bench."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from hisparse_sim.simulator.replay.former_names import present_names
from hisparse_sim.traces import TraceError

SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")
# The first kind whose columns are all there.
_COLUMNS_OF = {
    "curve": {"policy", "buffer", "step", "misses_per_step", "p10", "p90"},
    "sweep": {"policy", "buffer", "steps", "accesses", "misses"},
    "plan": {"buffer", "ratio", "requests", "tokens_per_s", "tpot_ms", "host_gb", "meets"},
    "serve": {"mode", "load", "tokens_per_s", "tpot_p50_ms"},
    "reproduce": {"what", "published", "ours", "error", "how", "gap", "source"},
    "bench": {"batch", "misses", "buffer", "entry_bytes", "timer_us"},
    "bench of several": {"what", "gpus", "sum_gb_s", "us"},
}
_STAMP = ("trace", "provenance", "trace_sha256", "version")
_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": lambda path: pd.read_csv(path, dtype={"request": "string", "load": "string"}),
    ".json": lambda path: _records(json.loads(path.read_text("utf-8"))),
    ".jsonl": lambda path: _records(
        [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    ),
    ".parquet": pd.read_parquet,
}


@dataclass(frozen=True)
class Result:
    """One file of rows."""

    path: Path
    kind: str  # a key of _COLUMNS_OF
    rows: pd.DataFrame = field(repr=False)

    @property
    def parameters(self) -> dict[str, Any]:
        """What the command was given beside the columns, as it wrote it."""
        given = self.rows.get("parameters")
        if given is None or not isinstance(given.iloc[0], str):
            return {}
        found: dict[str, Any] = json.loads(given.iloc[0])
        return found


def read_results(paths: Sequence[Path]) -> list[Result]:
    """Read result files in the order given.

    Raises TraceError for a file that cannot be read, is empty, or was written by none of the
    commands; and if no file holds rows of a sweep, which a report is about.
    """
    found = [_read(path) for path in paths]
    if not any(result.kind == "sweep" for result in found):
        raise TraceError(
            "a report needs the rows of a sweep: write them with"
            " `hisparse-sim sweep -o rows.parquet` and name that file too"
        )
    return found


def rows_of(results: Sequence[Result], kind: str) -> pd.DataFrame:
    """Return the rows of all files of one kind, one below the other; empty if there is none."""
    tables = [result.rows for result in results if result.kind == kind]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _read(path: Path) -> Result:
    if path.suffix.lower() not in SUFFIXES:
        raise TraceError(f"{path} is no result file: those end in {', '.join(SUFFIXES)}")
    if not path.exists():
        raise TraceError(f"{path} does not exist")
    try:
        rows = present_names(_READERS[path.suffix.lower()](path))
    except (ValueError, OSError) as error:
        raise TraceError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error
    for kind, columns in _COLUMNS_OF.items():
        if columns <= set(rows.columns):
            if rows.empty:
                raise TraceError(f"{path} holds no rows")
            return Result(path, kind, rows)
    raise TraceError(
        f"{path} holds no rows of sweep, curve, plan, serve, reproduce or gpu bench; write them"
        " with -o"
    )


def _records(read: Any) -> pd.DataFrame:
    if isinstance(read, dict):
        return _document(read)
    if not isinstance(read, list) or not all(isinstance(row, dict) for row in read):
        raise ValueError("it is no list of rows")
    return pd.DataFrame(read)


def _document(read: dict[str, Any]) -> pd.DataFrame:
    """Rows of a plan's document or of measurements, with what stands beside them in each row."""
    rows = read.get("candidates", read.get("rows"))
    if not isinstance(rows, list):
        raise ValueError("it is no list of rows")
    stamp = {name: read[name] for name in _STAMP if name in read}
    if isinstance(read.get("machine"), dict):
        stamp["machine"] = str(read["machine"].get("gpu", "unknown GPU"))
    given = json.dumps(read.get("parameters") or {})
    return _records(rows).assign(**stamp, parameters=given)
