"""Facts files: the misses of every (request, layer) and window of steps, by buffer size.

A facts file answers without the trace, for any of its sizes, requests, layers and windows. It is a
Parquet file with a row per line and policy: the columns of `MissCurves.lines`, `start`, `seed`,
`policy`, `method`, and two lists, `sizes` (slots) and `misses`. The key `hisparse_facts` of its
metadata holds JSON: `version`, and `parts`: all (request, layer, rows) of each trace, by its
SHA-256.

A merged file holds the lines of several, each once, sorted: in whatever order files are merged, the
result is the same to the byte.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hisparse_sim.simulator.mrc.checking import check_values, refuse_contradictions
from hisparse_sim.simulator.mrc.curves import Curve, MissCurves, covering
from hisparse_sim.simulator.mrc.names import ONE_PASS
from hisparse_sim.traces import Part, TraceError, atomic_path
from hisparse_sim.traces.files import opened
from hisparse_sim.traces.folders import is_folder
from hisparse_sim.traces.remote import place_of

KEY = b"hisparse_facts"
VERSION = 1
WINDOW = 64  # steps, by default
_SCHEMA = pa.schema(
    {
        "trace": pa.string(),
        "trace_sha256": pa.string(),
        "provenance": pa.string(),
        "unit": pa.string(),
        "model": pa.string(),
        "top_k": pa.int32(),
        "request": pa.string(),
        "layer": pa.int16(),
        "first_step": pa.int32(),
        "steps": pa.int32(),
        "tokens": pa.int32(),
        "accesses": pa.int64(),
        "start": pa.string(),
        "seed": pa.int64(),
        "policy": pa.string(),
        "method": pa.string(),
        "sizes": pa.list_(pa.int32()),
        "misses": pa.list_(pa.int64()),
    }
)
_LINE = _SCHEMA.names[: _SCHEMA.names.index("start")]
_OF_A_LINE = ["trace_sha256", "request", "layer", "first_step"]
_SORTED_BY = [*_OF_A_LINE, "start", "seed", "policy"]


def is_facts(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a facts file. Raises TraceError if it cannot be read."""
    if is_folder(place_of(path)):
        return False
    with opened(path) as file:
        if file.read(4) != b"PAR1":
            return False
        try:
            return KEY in (pq.read_schema(file).metadata or {})
        except (pa.ArrowException, OSError, ValueError):
            return False


def write_facts(curves: MissCurves, path: str | os.PathLike[str]) -> Path:
    """Write curves whose lines are single requests and layers, or windows of them.

    Raises ValueError for other lines, TraceError if the file cannot be written.
    """
    if curves.lines[["request", "layer", "first_step"]].isna().any(axis=None):
        raise ValueError("facts are about single requests and layers: count them `per_layer`")
    tables = [
        curves.lines[_LINE].assign(
            start=curves.start,
            seed=curves.seed,
            policy=policy,
            method=curve.method,
            sizes=[curve.sizes] * len(curves.lines),
            misses=list(curve.misses),
        )
        for policy, curve in curves.of.items()
    ]
    return _write(pd.concat(tables), curves.parts, path)


def merge_facts(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Write the lines of several facts files to one.

    Raises TraceError for a file of another kind, and for files that contradict each other, or whose
    windows have several sizes or begin at different steps.
    """
    return _write(*_read(paths), out)


def read_facts(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], start: str | None = None
) -> MissCurves:
    """Return the curves of facts files, as `mrc` returned them; of two starts, those of `start`.

    Raises TraceError for a file of another kind, or if lines were counted for different starts,
    seeds or policies.
    """
    paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    rows, parts = _read(paths)
    names = ", ".join(map(str, paths))
    if start is not None:
        found = sorted(set(rows["start"]))
        rows = rows[rows["start"] == start]
        if rows.empty:
            raise TraceError(f"{names} was counted for the start {found[0]}, not {start}")
    for column in ("start", "seed"):
        if rows[column].nunique() > 1:
            raise TraceError(f"{names} holds several {column}s: choose one")
    lines = rows[_LINE].drop_duplicates(_OF_A_LINE).reset_index(drop=True)
    key = pd.MultiIndex.from_frame(lines[_OF_A_LINE])
    of = {}
    counted = sorted(set(rows["policy"]))
    for policy in dict.fromkeys([name for name in ONE_PASS if name in counted] + counted):
        own = rows[rows["policy"] == policy]
        if len(own) < len(lines):
            raise TraceError(f"{names}: {policy} was not counted in all of them")
        own = own.set_index(_OF_A_LINE).loc[key]
        sizes = own["sizes"].iloc[0]
        for other in own["sizes"]:
            sizes = sizes if np.array_equal(sizes, other) else np.intersect1d(sizes, other)
        misses = np.stack(
            [
                found[np.searchsorted(at, sizes)]
                for found, at in zip(own["misses"], own["sizes"], strict=True)
            ]
        )
        of[policy] = Curve(str(own["method"].iloc[0]), sizes.astype(np.int64), misses)
    several = lines.duplicated(["trace_sha256", "request", "layer"]).any()
    return MissCurves(
        lines=covering(lines, lines, parts, int(rows["seed"].iloc[0])),
        start=str(rows["start"].iloc[0]),
        seed=int(rows["seed"].iloc[0]),
        of=of,
        parts=parts,
        window=int(lines["steps"].max()) if several else None,
    )


_Parts = dict[str, tuple[Part, ...]]


def _read(paths: Iterable[str | os.PathLike[str]]) -> tuple[pd.DataFrame, _Parts]:
    """Return the rows of files as a canonical table, and the parts of their traces."""
    frames: list[pd.DataFrame] = []
    parts: _Parts = {}
    for path in paths:
        rows, known = _read_one(path)
        for sha256 in parts.keys() & known:
            if parts[sha256] != known[sha256]:
                raise TraceError(f"{path} tells other parts of a trace than the files before it")
        frames.append(rows.assign(file=len(frames)))
        parts |= known
    rows = pd.concat(frames, ignore_index=True)
    refuse_contradictions(rows, _SORTED_BY, _OF_A_LINE)
    # Of duplicate lines, the one with more sizes is kept; a trace gets the first of its names.
    rows["trace"] = rows.groupby("trace_sha256")["trace"].transform("min")
    rows["most"] = rows["sizes"].map(len)
    rows = rows.sort_values([*_SORTED_BY, "most"], kind="stable")
    rows = rows.drop_duplicates(_SORTED_BY, keep="last").drop(columns=["most", "file"])
    return rows.reset_index(drop=True), parts


def _read_one(path: str | os.PathLike[str]) -> tuple[pd.DataFrame, _Parts]:
    if not is_facts(path):
        raise TraceError(
            f"{path} is not a facts file: write one with `hisparse-sim mrc -o FILE.parquet`"
        )
    try:
        with opened(path) as file:
            table = pq.read_table(file, page_checksum_verification=True)
        about = json.loads(table.schema.metadata[KEY])
        if about["version"] != VERSION:
            raise ValueError(f"it has version {about['version']}, and this release reads {VERSION}")
        parts = {sha256: _parts(own) for sha256, own in about["parts"].items()}
        table = table.select(_SCHEMA.names).cast(_SCHEMA)
        rows: pd.DataFrame = table.to_pandas()
        numbers = [name for name in rows if pa.types.is_integer(_SCHEMA.field(name).type)]
        rows = rows.astype(dict.fromkeys(numbers, "int64"))
        _check(rows, parts)
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise TraceError(f"{path} cannot be read as a facts file ({reason})") from error
    return rows, parts


def _check(rows: pd.DataFrame, parts: _Parts) -> None:
    """Raise ValueError for rows that `write_facts` never writes."""
    if rows.empty or rows.isna().any(axis=None):
        raise ValueError("it has no rows, or values are missing")
    for sizes, misses in zip(rows["sizes"], rows["misses"], strict=True):
        if len(sizes) != len(misses) or not len(sizes) or (np.diff(sizes) <= 0).any():
            raise ValueError("sizes and misses do not match")
    known = {(sha256, part.request, part.layer) for sha256, own in parts.items() for part in own}
    found = rows[["trace_sha256", "request", "layer"]].itertuples(index=False, name=None)
    if not set(found) <= known:
        raise ValueError("it has rows of a request and layer that its trace does not have")
    check_values(rows)


def _parts(listed: Any) -> tuple[Part, ...]:
    first, parts = 0, []
    for request, layer, rows in listed:
        parts.append(Part(str(request), int(layer), first, int(rows)))
        first += int(rows)
    return tuple(parts)


def _write(rows: pd.DataFrame, parts: Any, path: str | os.PathLike[str]) -> Path:
    rows = rows.sort_values(_SORTED_BY, kind="stable")
    about = {
        "version": VERSION,
        "parts": {
            sha256: [[part.request, part.layer, part.rows] for part in parts[sha256]]
            for sha256 in sorted(parts)
        },
    }
    table = pa.Table.from_pandas(rows, _SCHEMA, preserve_index=False)
    table = table.replace_schema_metadata({KEY: json.dumps(about)})
    delta = [
        "first_step",
        "steps",
        "tokens",
        "accesses",
        "sizes.list.element",
        "misses.list.element",
    ]
    with atomic_path(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            use_dictionary=[
                name for name in _SCHEMA.names if pa.types.is_string(_SCHEMA.field(name).type)
            ],
            column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        )
    return place_of(path)
