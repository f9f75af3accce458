"""Traces in memory: from an array or a data frame, under all rules of a trace file.

They are read like files, part by part, and checked by the same code.
"""

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hisparse_sim.traces.arguments import whole_number, whole_numbers
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.agreement import Agreement
from hisparse_sim.traces.file.columns import QUERY, REQUIRED, present, wrong_column
from hisparse_sim.traces.file.metadata import PROVENANCES, Metadata
from hisparse_sim.traces.file.opening import completed
from hisparse_sim.traces.file.parts import Part, TableRows, find_parts
from hisparse_sim.traces.file.reader import Trace
from hisparse_sim.traces.file.units import TOKEN
from hisparse_sim.traces.file.writer import TraceWriter

UNKNOWN_ORIGIN = "synthetic"  # what a trace is taken for that does not say where it comes from


class TraceInMemory(Trace):
    """A trace whose rows are a table in memory. `path` is its name; there is no such file."""

    def __init__(self, name: str, metadata: Metadata, parts: tuple[Part, ...], table: pa.Table):
        """Use `trace_from_array` or `trace_from_frame`."""
        self._table = table
        super().__init__(Path(name), None, metadata, parts, present(table.schema), TableRows(table))

    def __reduce__(self) -> tuple[Any, ...]:
        return TraceInMemory, (str(self.path), self.metadata, self.parts, self._table)

    @property
    def name(self) -> str:
        """The name that it was given."""
        return str(self.path)

    @cached_property
    def sha256(self) -> str:
        """Digest of metadata and rows, 64 hexadecimal digits: equal for equal traces."""
        digest = hashlib.sha256(self.metadata.to_json().encode())
        for part in self.parts:
            read = self.read(part, self.optional)
            digest.update(f"{part.request}/{part.layer}/{part.rows}".encode())
            for array in (read.step, read.seq_len, read.offsets, read.positions, read.scores):
                digest.update(b"" if array is None else array.tobytes())
            for array in read.next_positions or ():
                digest.update(array.tobytes())
            digest.update(b"" if read.query is None else read.query.tobytes())
        return digest.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a trace file, for the command line or for others. Raises TraceError if it cannot
        be written."""
        with TraceWriter(path, self.metadata) as writer:
            for part in self.parts:
                writer.write(self.read(part, self.optional))


def trace_from_frame(
    frame: Any,
    *,
    provenance: str = UNKNOWN_ORIGIN,
    model: str = "",
    top_k: int | None = None,
    num_layers: int | None = None,
    prompt_len: int | Mapping[str, int] | None = None,
    unit: str = TOKEN,
    draft_tokens: int = 1,
    name: str = "frame",
) -> TraceInMemory:
    """Take a data frame as a trace, in memory.

    Parameters
    ----------
    frame
        A pandas or polars DataFrame or an Arrow table with the columns of a trace file: `request,
        layer, step, seq_len, positions`, perhaps `scores, next_positions, row`; a row per request,
        layer and decode step, grouped by request, then sorted by layer, then by step. `positions`
        holds a list or an array of numbers. The trace keeps a copy.
    provenance
        Origin of the positions, one of `PROVENANCES`; synthetic if not given.
    model
        Name of the model; a profile's name gives sweeps its bytes and memory.
    top_k
        Largest number of positions in a row; None: that of the longest row.
    num_layers
        Layers of the model, where known.
    prompt_len
        Tokens of the prompt: for all requests, or by request id; where not given, one less than
        the first seq_len.
    unit
        Unit of positions: token, block4 (or another number) for a block of 4 tokens, or c4.
    draft_tokens
        Queries of a step at most, in speculative decoding. Above 1 a step has a row for each, and
        the column `row` counts them from 0.
    name
        Name of the trace in results.

    Warns if the layers of a request do not agree with each other, as in their seq_len.
    Raises TraceError naming request, layer and step if a rule of the trace file is broken;
    ValueError for an argument that no trace can have.
    """
    try:
        table = _copied(pa.table(frame))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TraceError(f"{name} is not the table of a trace: {error}") from error
    if provenance not in PROVENANCES:
        raise ValueError(
            f"unknown provenance {provenance!r}; choose one of {', '.join(PROVENANCES)}"
        )
    if top_k is not None:
        top_k = whole_number("top_k", top_k, 1)
    if num_layers is not None:
        num_layers = whole_number("num_layers", num_layers, 1)
    wrong = wrong_column(table.schema, (*REQUIRED, QUERY) if draft_tokens > 1 else REQUIRED)
    if wrong:
        raise TraceError(f"{name} {wrong}")
    parts = find_parts(Path(name), table.select(["request", "layer"]).to_batches(), {})
    if prompt_len is not None and not isinstance(prompt_len, Mapping):
        prompt_len = {part.request: prompt_len for part in parts}
    unknown = sorted(set(prompt_len or ()) - {part.request for part in parts})
    if unknown:
        raise ValueError(f"prompt_len names the request {unknown[0]!r}, which has no rows")
    metadata = Metadata(
        model,
        provenance,
        top_k or 0,
        num_layers,
        unit=unit,
        draft_tokens=draft_tokens,
        prompt_len={
            of: whole_number("prompt_len", tokens) for of, tokens in (prompt_len or {}).items()
        },
    )
    metadata = completed(Path(name), metadata, parts, TableRows(table))
    try:
        Metadata.from_json(metadata.to_json())
    except TraceError as error:
        raise TraceError(f"{name}: {error}") from None
    trace = TraceInMemory(name, metadata, parts, table)
    agreement = Agreement(metadata.layer_types)
    for part in parts:  # every rule is checked now, not only when a part is replayed
        agreement.add(trace.read(part, trace.optional))
    for doubt in agreement.sentences():
        warnings.warn(f"{name}: {doubt}", stacklevel=2)
    return trace


def trace_from_array(
    positions: Any,
    *,
    prompt_len: int | None = None,
    seq_len: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    request: str = "request-0",
    provenance: str = UNKNOWN_ORIGIN,
    model: str = "",
    top_k: int | None = None,
    num_layers: int | None = None,
    unit: str = TOKEN,
    name: str = "array",
) -> TraceInMemory:
    """Take the positions of one request as a trace, in memory.

    Parameters
    ----------
    positions
        Whole numbers, (steps, top_k) or (steps, layers, top_k), padded with -1; or for one layer a
        list of a list per step. Anything that NumPy takes for an array.
    prompt_len
        Tokens of the prompt. Step 0 is then the first decode step: its query is at position
        `prompt_len`, and every step adds a token.
    seq_len
        Tokens at every step, the newest included, instead or where steps add more than one.
    layers
        Numbers of the layers; None: 0, 1, ...
    request
        Id of the request.

    For the other arguments, and what is raised, see `trace_from_frame`.
    """
    rows = _per_layer(positions)
    steps = len(rows[0])
    if prompt_len is not None:
        prompt_len = whole_number("prompt_len", prompt_len)
    try:
        request.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ValueError(f"request must be a text of characters, not {request!a}") from None
    if prompt_len is None and seq_len is None:
        raise ValueError("give prompt_len (tokens of the prompt) or seq_len (tokens at every step)")
    if seq_len is None:
        tokens = np.arange(steps, dtype=np.int64) + (prompt_len or 0) + 1
    else:
        tokens = np.asarray(seq_len)
    if tokens.shape != (steps,):
        raise ValueError(f"seq_len has the shape {tokens.shape}, expected ({steps},): one per step")
    if isinstance(layers, Set):
        raise ValueError("layers is a set, which has no order: give a list")
    numbers = range(len(rows)) if layers is None else whole_numbers("layers", layers)
    if len(numbers) != len(rows):
        raise ValueError(f"layers names {len(numbers)}, but positions has {len(rows)} layers")
    table = pa.table(
        {
            "request": pa.array([request] * (steps * len(rows))),
            "layer": np.repeat(np.asarray(numbers), steps),
            "step": np.tile(np.arange(steps, dtype=np.int32), len(rows)),
            "seq_len": np.tile(tokens, len(rows)),
            "positions": pa.chunked_array(rows),
        }
    )
    return trace_from_frame(
        table,
        provenance=provenance,
        model=model,
        top_k=top_k,
        num_layers=num_layers,
        prompt_len=prompt_len,
        unit=unit,
        name=name,
    )


def _copied(table: pa.Table) -> pa.Table:
    """Return the table in memory of its own: Arrow shares that of NumPy arrays, which their owner
    may fill again."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def _per_layer(positions: Any) -> list[pa.Array]:
    """Return one array of lists per layer, a list per step."""
    if np.ma.isMaskedArray(positions):
        raise ValueError("positions is a masked array: give positions.filled(-1), -1 being padding")
    try:
        array = np.asarray(positions)
    except ValueError:  # lists of different lengths
        lists = [np.asarray(row) for row in positions]
        if all(row.ndim == 1 and (row.dtype.kind in "iu" or not len(row)) for row in lists):
            return [pa.array([row.astype(np.int64) for row in lists], pa.list_(pa.int64()))]
        found = "lists of something else"
    else:
        if array.ndim == 2:
            array = array[:, None, :]
        array = array.astype(array.dtype.newbyteorder("="), copy=False)  # Arrow takes no other
        if array.ndim == 3 and array.dtype.kind in "iu" and 0 not in array.shape:
            return [
                pa.FixedSizeListArray.from_arrays(
                    pa.array(np.ascontiguousarray(array[:, layer]).reshape(-1)), array.shape[2]
                )
                for layer in range(array.shape[1])
            ]
        found = f"an array of {array.dtype} with the shape {array.shape}"
    raise ValueError(
        "positions must be whole numbers, (steps, top_k) or (steps, layers, top_k) padded with -1, "
        f"or a list of a list per step, not {found}"
    )
