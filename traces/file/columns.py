"""Arrow columns as contiguous NumPy arrays; refuses what is missing or does not fit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hisparse_sim.traces.demand import Ints, Longs, Ragged
from hisparse_sim.traces.file.rules import RowError, outside, strip_padding

REQUIRED = ("request", "layer", "step", "seq_len", "positions")
QUERY = "row"  # the query inside a step
OPTIONAL = ("scores", "next_positions", QUERY)
_EXPECTED = {
    "request": "string",
    "layer": "int16",
    "step": "int32",
    "seq_len": "int32",
    "positions": "list<int32>",
    "scores": "list<float16>",
    "next_positions": "list<int32>",
    QUERY: "int8",
}


def wrong_column(schema: pa.Schema, required: Sequence[str] = REQUIRED) -> str | None:
    """Return what is wrong with the columns of a file, or None if they can be read.

    A column `row` means something only where it is `required`: others may use that name."""
    missing = [name for name in required if name not in schema.names]
    if missing:
        return f"has no column {', '.join(missing)} (it has {', '.join(schema.names) or 'none'})"
    for name in (*required, "scores", "next_positions"):
        found = schema.names.count(name)
        if found > 1:
            return f"has {found} columns called {name}"
        if name not in required and name not in present(schema):
            continue
        if not _casts(name, schema.field(name).type):
            found_type = schema.field(name).type
            return f"has column {name} of type {found_type}, expected {_EXPECTED[name]}"
    return None


def present(schema: pa.Schema) -> frozenset[str]:
    """Return the columns that hold anything: pandas gives one of nothing but None the type null."""
    return frozenset(field.name for field in schema if not pa.types.is_null(field.type))


def _casts(name: str, found: pa.DataType) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    is_list = (
        pa.types.is_list(found)
        or pa.types.is_large_list(found)
        or pa.types.is_fixed_size_list(found)
    )
    if name == "request":
        return bool(
            pa.types.is_string(found)
            or pa.types.is_large_string(found)
            or str(found) == "string_view"
            or pa.types.is_integer(found)
        )
    if name not in ("scores", "positions", "next_positions"):
        return bool(pa.types.is_integer(found))
    fits = pa.types.is_floating if name == "scores" else pa.types.is_integer
    # Lists that are all empty may have elements of type null.
    return bool(is_list and (fits(found.value_type) or pa.types.is_null(found.value_type)))


def request_codes(chunks: Sequence[pa.Array], known: dict[str, int]) -> Longs:
    """Return one number per row, the same for the same request; `known` grows as needed."""
    codes: list[Longs] = [np.empty(0, dtype=np.int64)]
    for row, chunk in _rows(chunks):
        if not pa.types.is_dictionary(chunk.type):
            chunk = chunk.dictionary_encode()
        _refuse_null(chunk, row, "request")
        values, indices = chunk.dictionary, chunk.indices.to_numpy()
        if len(values) > len(indices):  # the names of a whole row group, for a few of its rows
            used, indices = np.unique(indices, return_inverse=True)
            values = values.take(pa.array(used))
        names = (values if pa.types.is_string(values.type) else values.cast("string")).to_pylist()
        table = [-1 if name is None else known.setdefault(name, len(known)) for name in names]
        codes.append(np.array(table, dtype=np.int64)[indices])
        if (codes[-1] < 0).any():
            raise RowError(row + int(codes[-1].argmin()), "request is null")
    return np.concatenate(codes)


def integers(chunks: Sequence[pa.Array], name: str, dtype: type[np.integer[Any]]) -> NDArray[Any]:
    """Return one integer column as `dtype`. Raises RowError for a null or a value too large."""
    pieces = []
    for row, chunk in _rows(chunks):
        if pa.types.is_dictionary(chunk.type):
            chunk = chunk.dictionary_decode()
        _refuse_null(chunk, row, name)
        values, misfit = narrow(_view(chunk), dtype)
        if misfit is not None:
            raise RowError(
                row + misfit[0], f"{name} is {misfit[1]}, which {dtype.__name__} cannot hold"
            )
        pieces.append(values)
    return _joined(pieces, dtype)


def lists(
    chunks: Sequence[pa.Array], name: str, dtype: type[np.generic]
) -> tuple[Longs, NDArray[Any]]:
    """Return one list column as (offsets [n + 1], values [offsets[n]]).

    Raises RowError for a row that is null or holds one, or a value that `dtype` cannot hold.
    """
    lengths: list[Longs] = [np.zeros(1, dtype=np.int64)]
    pieces = []
    for row, chunk in _rows(chunks):
        _refuse_null(chunk, row, name)
        if pa.types.is_fixed_size_list(chunk.type):
            width = chunk.type.list_size
            offsets = np.arange(len(chunk) + 1, dtype=np.int64) * width
            elements = chunk.flatten()
        else:
            offsets = chunk.offsets.to_numpy().astype(np.int64)
            elements = chunk.values.slice(offsets[0], offsets[-1] - offsets[0])
            offsets -= offsets[0]
        if len(elements) != offsets[-1] or (np.diff(offsets) < 0).any():
            raise ValueError(f"{name} has rows outside its values")
        if elements.null_count:
            at = _row_of(offsets, pc.index(elements.is_null(), True).as_py())
            raise RowError(row + at, f"{name} holds a null")
        values, misfit = narrow(_view(elements), dtype)
        if misfit is not None:
            at = _row_of(offsets, misfit[0])
            raise RowError(
                row + at, f"{name} holds {misfit[1]}, which {dtype.__name__} cannot hold"
            )
        pieces.append(values)
        lengths.append(np.diff(offsets))
    return np.cumsum(np.concatenate(lengths)), _joined(pieces, dtype)


def ragged(chunks: Sequence[pa.Array], name: str) -> Ragged:
    """Return one column of position lists."""
    return Ragged(*lists(chunks, name, np.int32))


def read_scores(chunks: Sequence[pa.Array], listed: Ragged) -> NDArray[np.float16]:
    """Return the scores of the positions listed. Raises RowError where there are not as many."""
    offsets, scores = lists(chunks, "scores", np.float16)
    different = np.diff(offsets) != np.diff(listed.offsets)
    if different.any():
        raise RowError(int(different.argmax()), "the row does not have as many scores as positions")
    return scores


def read_following(following: Ragged, seq_len: Ints) -> Ragged:
    """Strip padding and check the range: what is ranked next need not be in any order."""
    following, _ = strip_padding(following)
    limits = np.repeat(seq_len, np.diff(following.offsets))
    wrong = (following.values < 0) | (following.values >= limits)
    if wrong.any():
        at = int(wrong.argmax())
        row = int(np.searchsorted(following.offsets, at, side="right")) - 1
        raise RowError(row, "next_" + outside(int(following.values[at]), int(seq_len[row])))
    return following


def _rows(chunks: Sequence[pa.Array]) -> list[tuple[int, pa.Array]]:
    first_rows = np.cumsum([0, *map(len, chunks)])
    return list(zip(first_rows.tolist(), chunks, strict=False))


def _refuse_null(chunk: pa.Array, row: int, name: str) -> None:
    if chunk.null_count:
        raise RowError(row + pc.index(chunk.is_null(), True).as_py(), f"{name} is null")


def _row_of(offsets: Longs, entry: int) -> int:
    return int(np.searchsorted(offsets, entry, side="right")) - 1


def _view(array: pa.Array) -> NDArray[Any]:
    """Return a primitive array without copying, and writable as its buffer is.

    `to_numpy` marks its result read-only, which for Numba is another type: every kernel would be
    compiled twice.
    """
    if len(array) == 0:
        return np.empty(0, dtype=np.int8)
    data = array.buffers()[1]
    dtype = np.dtype(array.type.to_pandas_dtype())
    return np.frombuffer(
        data or b"", dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize
    )


def narrow(
    values: NDArray[Any], dtype: type[np.generic]
) -> tuple[NDArray[Any], tuple[int, int | float] | None]:
    """Return the values as `dtype`, and the first (index, value) that it cannot hold."""
    if values.dtype == dtype:
        return values, None
    with np.errstate(over="ignore"):
        narrowed = values.astype(dtype)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        misfits = (values < limits.min) | (values > limits.max)
    else:
        misfits = np.isinf(narrowed) & np.isfinite(values)
    if not misfits.any():
        return narrowed, None
    index = int(misfits.argmax())
    return narrowed, (index, values[index].item())


def _joined(pieces: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    if len(pieces) == 1:
        return np.require(pieces[0], requirements=["C", "W"])
    return np.concatenate([np.empty(0, dtype=dtype), *pieces])
