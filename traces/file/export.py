"""Writes a trace in the formats of other simulators, so that they can check this one.

Every selected position becomes one access of size 1, row after row, and with drafts one for every
query that selects it; a cache there decides access by access, not row by row, and has no reserved
page for the newest token, so that its counts are close to ours but not equal. Each (request, layer)
has a cache of its own here: an object is `part * 2^32 + position`, parts counted from 0 in the
order of the export; export one (request, layer) to compare miss counts.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.columns import QUERY
from hisparse_sim.traces.file.reader import Trace
from hisparse_sim.traces.files import atomic_path

# libCacheSim, traceReader/customizedReader/oracle/oracleGeneralBin.h: 24 bytes, little-endian.
ORACLE_GENERAL = np.dtype(
    [("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next_access", "<i8")]
)
FORMS = ("oraclegeneral", "csv")


def export(
    trace: Trace,
    target: str | os.PathLike[str],
    form: str,
    *,
    requests: Iterable[str] | None = None,
    layers: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the selected parts to one file and return the number of accesses.

    `oraclegeneral`: records of ORACLE_GENERAL; `time` is the step, `next_access` the index of the
    next access of the same object, -1 if there is none. `csv`: columns time, object, size, request,
    layer, step, seq_len, position, and with several queries a step the query, row. One part is in
    memory at a time.

    Raises ValueError for an unknown form, TraceError if nothing is selected or on any failure.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}; known are {', '.join(FORMS)}")
    parts = trace.select(requests, layers)
    drafts = {QUERY} if trace.metadata.draft_tokens > 1 else set()

    def demands() -> Iterator[Demand]:
        for done, part in enumerate(parts, 1):
            yield trace.read(part, drafts, steps)
            if progress is not None:
                progress(done, len(parts))

    with atomic_path(target) as temporary:
        if form == "csv":
            accesses = _write_csv(temporary, demands(), drafts)
        else:
            accesses = _write_oracle_general(temporary, demands())
        if accesses == 0:
            raise TraceError(f"{trace.path}: no positions are in these steps")
    return accesses


def _write_oracle_general(path: os.PathLike[str], demands: Iterator[Demand]) -> int:
    written = 0
    with open(path, "wb") as file:
        for number, demand in enumerate(demands):
            records = np.zeros(len(demand.positions), ORACLE_GENERAL)
            records["time"] = np.repeat(demand.step, np.diff(demand.offsets))
            records["object"] = _objects(number, demand)
            records["size"] = 1
            records["next_access"] = _next_access(demand.positions, written)
            file.write(records.tobytes())
            written += len(records)
    return written


def _write_csv(path: os.PathLike[str], demands: Iterator[Demand], drafts: set[str]) -> int:
    import pyarrow as pa
    import pyarrow.csv as csv

    names = ("time", "object", "size", "request", "layer", "step", "seq_len", "position", *drafts)
    schema = pa.schema([(name, pa.string() if name == "request" else pa.int64()) for name in names])
    written = 0
    # A file of Python's, whose errors say what is wrong.
    with open(path, "wb") as file, csv.CSVWriter(file, schema) as writer:
        for number, demand in enumerate(demands):
            lengths = np.diff(demand.offsets)
            count = len(demand.positions)
            step = np.repeat(demand.step, lengths)
            columns: dict[str, Any] = {
                "time": step,
                "object": _objects(number, demand),
                "size": np.ones(count, np.int64),
                "request": pa.repeat(demand.request, count),
                "layer": np.full(count, demand.layer),
                "step": step,
                "seq_len": np.repeat(demand.seq_len, lengths),
                "position": demand.positions,
            }
            if demand.query is not None:
                columns[QUERY] = np.repeat(demand.query, lengths)
            writer.write_table(pa.table(columns).cast(schema))
            written += count
    return written


def _objects(part: int, demand: Demand) -> NDArray[np.int64]:
    return demand.positions.astype(np.int64) + (part << 32)


def _next_access(positions: NDArray[np.int32], first: int) -> NDArray[np.int64]:
    """Return for each access the index of the next one of the same position, from `first` on."""
    order = np.argsort(positions, kind="stable")
    following = np.full(len(positions), -1, np.int64)
    same = positions[order[1:]] == positions[order[:-1]]
    following[order[:-1][same]] = order[1:][same] + first
    return following
