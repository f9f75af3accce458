"""The (request, layer) parts of a trace, found in the columns of these names."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.columns import integers, request_codes
from hisparse_sim.traces.file.rules import RowError


@dataclass(frozen=True)
class Part:
    """The rows of one (request, layer) in a trace file."""

    request: str
    layer: int
    first_row: int  # in the file
    rows: int


def find_parts(path: Path, batches: Iterable[pa.RecordBatch]) -> tuple[Part, ...]:
    """Return the parts of rows in file order, given the columns `request` and `layer` of them.

    Raises TraceError naming `path` if they are not grouped by request and, within it, by rising
    layer.
    """
    parts: list[Part] = []
    finished: set[str] = set()
    for request, layer, rows in _runs(path, batches):
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


def _runs(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, int]]:
    """Yield (request, layer, rows) for runs of equal rows, in file order."""
    row = 0
    for batch in batches:
        known: dict[str, int] = {}
        with decoding(path):
            try:
                codes = request_codes([batch.column("request")], known)
                layers = integers([batch.column("layer")], "layer", np.int16)
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
