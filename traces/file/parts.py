"""The (request, layer) parts of a trace, and what a container of rows offers to read them."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.columns import integers, request_codes
from hisparse_sim.traces.file.rules import RowError
from hisparse_sim.traces.files import Version, refuse_changed, version_of

Columns = dict[str, list[pa.Array]]
Told = Mapping[str, str | int]  # the value of a column that the rows do not have


@dataclass(frozen=True)
class Part:
    """The rows of one (request, layer) in a trace file."""

    request: str
    layer: int
    first_row: int  # in the file
    rows: int


class Stored(Protocol):
    """Where the rows of a trace are: `layout.Groups`, `arrow.Batches`, `hive.Joined` or a table."""

    @property
    def version(self) -> Version:
        """That of the file, when it was opened."""
        ...

    @property
    def digest(self) -> Any:
        """What tells whether they are as written; None if nothing does."""
        ...

    @property
    def sha256(self) -> str | None:
        """What names the trace; None: the digest of the file does."""
        ...

    def read(self, first_row: int, rows: int, columns: Sequence[str]) -> Columns:
        """Return the rows as chunks per column. Raises TraceError if the file has changed."""
        ...

    def shared(self, parts: Iterable[Part]) -> int:
        """Return how many of its pieces hold rows of more than one of the parts."""
        ...


class Container(NamedTuple):
    """An open file, before its parts are found."""

    schema: pa.Schema
    keys: dict[bytes, bytes]  # metadata
    lay_out: Callable[[Told], tuple[tuple[Part, ...], Stored]]  # told: columns that it lacks


class TableRows:
    """Ranges of rows of a table in memory, or of a file that is mapped into it."""

    digest = None
    sha256 = None

    def __init__(self, table: pa.Table, path: Path | None = None) -> None:
        self._table = table
        self._path = path
        self.version = Version(table.nbytes, 0) if path is None else version_of(path)

    def read(self, first_row: int, rows: int, columns: Sequence[str]) -> Columns:
        """Return the rows as chunks per column."""
        if self._path is not None:
            refuse_changed(self._path, self.version)
        piece = self._table.slice(first_row, rows)
        return {name: piece.column(name).chunks for name in columns}

    def shared(self, parts: Iterable[Part]) -> int:
        """A table has no groups."""
        return 0


def constant(value: str | int, rows: int) -> pa.Array:
    """Return a column of equal values."""
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([value]))


def find_parts(path: Path, batches: Iterable[pa.RecordBatch], told: Told) -> tuple[Part, ...]:
    """Return the parts of rows in file order, given the columns `request` and `layer` of them, but
    for those that are `told`.

    Raises what `parts_of_runs` raises.
    """
    return parts_of_runs(path, _runs(path, batches, told))


def parts_of_runs(path: Path, runs: Iterable[tuple[str, int, int]]) -> tuple[Part, ...]:
    """Return the parts in file order, given (request, layer, rows) of runs of rows.

    Raises TraceError naming `path` if they are not grouped by request and, within it, by rising
    layer.
    """
    parts: list[Part] = []
    finished: set[str] = set()
    for request, layer, rows in runs:
        if not rows:
            continue
        last = parts[-1] if parts else None
        if last is not None and last.request == request and last.layer == layer:
            parts[-1] = Part(request, layer, last.first_row, last.rows + rows)
            continue
        first_row = last.first_row + last.rows if last else 0
        if last is not None and last.request == request and layer < last.layer:
            raise TraceError(
                f"{path}: request {request!r} goes back from layer {last.layer} to {layer} in row "
                f"{first_row}; rows must be grouped by request, then sorted by layer, then step"
            )
        if last is not None and last.request != request:
            finished.add(last.request)
        if request in finished:
            raise TraceError(
                f"{path}: request {request!r} starts again in row {first_row}, layer {layer}; "
                f"rows must be grouped by request, then sorted by layer, then step"
            )
        parts.append(Part(request, layer, first_row, rows))
    return tuple(parts)


def _runs(
    path: Path, batches: Iterable[pa.RecordBatch], told: Told
) -> Iterator[tuple[str, int, int]]:
    """Yield (request, layer, rows) for runs of equal rows, in file order."""
    row = 0
    for batch in batches:
        known: dict[str, int] = {}
        requests, numbers = (
            constant(told[name], batch.num_rows) if name in told else batch.column(name)
            for name in ("request", "layer")
        )
        with decoding(path):
            try:
                codes = request_codes([requests], known)
                layers = integers([numbers], "layer", np.int16)
            except RowError as error:
                raise TraceError(f"{path}: row {row + error.row}: {error.what}") from None
        names = list(known)
        changes = (np.diff(codes) != 0) | (np.diff(layers) != 0)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(codes)]
        for first, stop in pairwise(edges):
            yield names[codes[first]], int(layers[first]), stop - first
        row += batch.num_rows


@contextmanager
def decoding(path: Path, place: str = "") -> Iterator[None]:
    """Turn whatever pyarrow raises for a damaged file into one sentence."""
    try:
        yield
    except TraceError:
        raise
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        LookupError,
        MemoryError,
        OverflowError,
    ) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise TraceError(f"{path} cannot be read: {os.strerror(error.errno)}") from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, (MemoryError, pa.ArrowCapacityError)):
            raise TraceError(
                f"{path}{place} needs more memory than there is ({reason}), for all rows of a "
                f"request and layer are read at once; if they are few, the file is damaged"
            ) from error
        if reason.startswith("Not yet implemented"):
            raise TraceError(
                f"{path}{place} is encoded in a way that pyarrow cannot decode ({reason}); write "
                f"it again with plain or dictionary encoding"
            ) from error
        raise TraceError(
            f"{path}{place} cannot be decoded ({reason}): the file is damaged or incomplete; "
            f"fetch or write it again"
        ) from error
