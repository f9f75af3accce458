"""Writes a trace file: one row group per (request, layer), small and quick to read."""

import os
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hisparse_sim.traces.demand import Demand, Longs, Ragged
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.arrow import arrow_writer
from hisparse_sim.traces.file.columns import QUERY, narrow
from hisparse_sim.traces.file.digest import sealed
from hisparse_sim.traces.file.metadata import KEY, Metadata
from hisparse_sim.traces.file.rules import RowError, check_rows, finite, strip_padding
from hisparse_sim.traces.file.units import first_growth
from hisparse_sim.traces.files import atomic_path
from hisparse_sim.traces.folders import ARROW_SUFFIX

# A larger (request, layer) is split over row groups: 256 MB decoded.
LARGEST_GROUP = 1 << 26


class TraceWriter:
    """Writes demands to a new trace file, which appears when the block ends without an exception.

    The optional columns are those of the first demand. Every demand is checked like one that is
    read; padding (-1) is stripped.

        with TraceWriter("new.parquet", metadata) as writer:
            writer.write(demand)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metadata: Metadata,
        source: str | None = None,
        *,
        lz4: bool = False,
    ) -> None:
        """A file called `.arrow` becomes an Arrow file, compressed with `lz4`; any other Parquet.

        `source`: where the demands come from, which errors name in place of the new file.
        """
        self.path = path
        self.source = source or path
        if lz4 and not self._is_arrow:
            raise ValueError(
                f"{path} is not an {ARROW_SUFFIX} file: only these can be compressed by lz4"
            )
        self.metadata = metadata
        self._lz4 = lz4
        self._stack = ExitStack()
        self._file: Any = None  # of pyarrow, or ours for Arrow
        self._optional: tuple[bool, bool] = (False, False)  # scores, next_positions
        self._last: tuple[str, int] | None = None
        self._requests: set[str] = set()

    def __enter__(self) -> Self:
        """Raise TraceError for metadata that no reader would take, or a file that cannot be."""
        try:
            self._about = self.metadata.to_json()
            Metadata.from_json(self._about)
        except (TypeError, ValueError, RecursionError) as error:  # TraceError, and what is no JSON
            raise TraceError(f"{self.path} cannot be written: {error}") from None
        self._temporary = self._stack.enter_context(atomic_path(self.path))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and self._file is None:
            error = TraceError(f"{self.path} cannot be written: no rows were given")
            self._stack.__exit__(TraceError, error, None)
            raise error
        self._stack.__exit__(kind, error, traceback)

    def write(self, demand: Demand) -> None:
        """Append one (request, layer): requests one after the other, layers ascending.

        Raises TraceError if it breaks a rule of the trace file or comes out of order.
        """
        place = f"{self.source}: request {demand.request!r}, layer {demand.layer}"
        if demand.rows == 0:
            raise TraceError(f"{place}: there are no rows")
        self._keep_order(demand, place)
        if (demand.query is not None) != (self.metadata.draft_tokens > 1):
            raise TraceError(
                f"{place}: a step has several queries if, and only if, the metadata has a"
                f" draft_tokens above 1"
            )
        demand = _stripped(demand, self.metadata, place)
        optional = (demand.scores is not None, demand.next_positions is not None)
        if self._file is None:
            self._optional = optional
            self._file = self._open()
        if optional != self._optional:
            raise TraceError(f"{place}: scores and next_positions are in all parts or in none")
        for first, stop in _pieces(demand.offsets):
            self._file.write_table(_table(demand, first, stop, self._schema))

    def _keep_order(self, demand: Demand, place: str) -> None:
        request, layer = demand.request, demand.layer
        try:
            request.encode()
        except UnicodeEncodeError:
            raise TraceError(f"{place}: a lone surrogate in the name is not a character") from None
        if self._last is not None and self._last[0] == request:
            if layer <= self._last[1]:
                raise TraceError(f"{place}: layers must ascend, and {self._last[1]} came before")
        elif request in self._requests:
            raise TraceError(f"{place}: the parts of a request must follow each other")
        if not 0 <= layer < (self.metadata.num_layers or 2**15):
            raise TraceError(f"{place}: the model has {self.metadata.num_layers} layers")
        self._requests.add(request)
        self._last = request, layer

    @cached_property
    def _schema(self) -> pa.Schema:
        fields = [
            pa.field("request", self._request_type, nullable=False),
            pa.field("layer", pa.int16(), nullable=False),
            pa.field("step", pa.int32(), nullable=False),
            pa.field("seq_len", pa.int32(), nullable=False),
            *(
                [pa.field(QUERY, pa.int8(), nullable=False)]
                if self.metadata.draft_tokens > 1
                else []
            ),
            _list_field("positions", pa.int32()),
        ]
        if self._optional[0]:
            fields.append(_list_field("scores", pa.float16()))
        if self._optional[1]:
            fields.append(_list_field("next_positions", pa.int32()))
        return pa.schema(fields, metadata={KEY: self._about})

    @property
    def _is_arrow(self) -> bool:
        return Path(self.path).suffix.lower() == ARROW_SUFFIX

    @property
    def _request_type(self) -> pa.DataType:
        # An Arrow file has one dictionary, and it would have to be known from the start.
        return pa.string() if self._is_arrow else pa.dictionary(pa.int32(), pa.string())

    def _open(self) -> Any:
        if self._is_arrow:
            writer = arrow_writer(self._temporary, self._schema, self._lz4)
            return self._stack.enter_context(writer)
        delta = ["step", "seq_len", "positions.list.element", "next_positions.list.element"]
        schema = self._schema
        stream = self._stack.enter_context(sealed(self._temporary))
        file = pq.ParquetWriter(
            stream,
            schema,
            compression="zstd",
            use_dictionary=["request"],
            column_encoding={
                name: "DELTA_BINARY_PACKED" for name in delta if name.split(".")[0] in schema.names
            },
            write_statistics=True,
            write_page_checksum=True,
        )
        self._stack.enter_context(file)
        return file


def _list_field(name: str, element: pa.DataType) -> pa.Field:
    return pa.field(name, pa.list_(pa.field("element", element, nullable=False)), nullable=False)


def _stripped(demand: Demand, about: Metadata, place: str) -> Demand:
    """Return the demand as the rules want it, or raise TraceError."""
    step = _fitting(demand.step, np.int32, f"{place}: step")
    seq_len = _fitting(demand.seq_len, np.int32, f"{place}: seq_len")
    listed = _as_ragged(demand.offsets, demand.positions, f"{place}: positions")
    query = None if demand.query is None else _fitting(demand.query, np.int32, f"{place}: {QUERY}")
    scores = demand.scores
    if scores is not None:
        scores = _fitting(scores, np.float16, f"{place}: scores")
    columns = (step, seq_len, listed.offsets[1:], *(() if query is None else (query,)))
    if len({len(column) for column in columns}) > 1:
        raise TraceError(f"{place}: step, seq_len and offsets do not have the same rows")
    for lists in (listed, demand.next_positions):
        if lists is not None and not _encloses(*lists, rows=len(step)):
            raise TraceError(f"{place}: offsets do not divide the positions into rows")
    if scores is not None and len(scores) != len(listed.values):
        raise TraceError(f"{place}: there are not as many scores as positions")
    try:
        tally = check_rows(step, seq_len, listed, about.top_k, query, about.draft_tokens)
        if tally.padding:
            listed, kept = strip_padding(listed)
            scores = None if scores is None else scores[kept]
        scores = None if scores is None else finite(scores, listed.offsets)
    except RowError as error:
        raise TraceError(f"{place}, step {step[error.row]}: {error.what}") from None
    if demand.prompt_len > seq_len[0] - first_growth(about.unit):
        raise TraceError(
            f"{place}: seq_len {seq_len[0]} is not above prompt_len {demand.prompt_len}"
        )
    following = demand.next_positions
    if following is not None:
        following, _ = strip_padding(_as_ragged(*following, f"{place}: next_positions"))
    return Demand(
        demand.request,
        demand.layer,
        demand.prompt_len,
        step,
        seq_len,
        *listed,
        scores,
        following,
        query,
    )


def _fitting(values: Any, dtype: type[np.generic], what: str) -> Any:
    """Return an array as `dtype`, or raise TraceError if that cannot hold a value."""
    narrowed, misfit = narrow(np.asarray(values), dtype)
    if misfit is not None:
        raise TraceError(f"{what} holds {misfit[1]}, which {dtype.__name__} cannot hold")
    return np.require(narrowed, requirements=["C", "W"])


def _as_ragged(offsets: Any, values: Any, what: str) -> Ragged:
    return Ragged(np.require(offsets, np.int64, ["C", "W"]), _fitting(values, np.int32, what))


def _encloses(offsets: Longs, values: Any, rows: int) -> bool:
    return bool(
        len(offsets) == rows + 1
        and offsets[0] == 0
        and offsets[-1] == len(values)
        and (np.diff(offsets) >= 0).all()
    )


def _pieces(offsets: Longs) -> list[tuple[int, int]]:
    """Cut the rows so that no piece holds many more than LARGEST_GROUP positions."""
    pieces = []
    first, rows = 0, len(offsets) - 1
    while first < rows:
        stop = int(np.searchsorted(offsets, offsets[first] + LARGEST_GROUP, side="right")) - 1
        stop = min(rows, max(first + 1, stop))
        pieces.append((first, stop))
        first = stop
    return pieces


def _table(demand: Demand, first: int, stop: int, schema: pa.Schema) -> pa.Table:
    rows = stop - first
    columns: dict[str, Any] = {
        "request": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [demand.request]),
        "layer": np.full(rows, demand.layer, np.int16),
        "step": demand.step[first:stop],
        "seq_len": demand.seq_len[first:stop],
        QUERY: None if demand.query is None else demand.query[first:stop],
        "positions": _list_array(demand.offsets, demand.positions, first, stop),
        "scores": demand.scores,
        "next_positions": demand.next_positions,
    }
    if demand.scores is not None:
        columns["scores"] = _list_array(demand.offsets, demand.scores, first, stop)
    if demand.next_positions is not None:
        columns["next_positions"] = _list_array(*demand.next_positions, first, stop)
    return pa.table(
        [pa.array(columns[name]).cast(schema.field(name).type) for name in schema.names], schema
    )


def _list_array(offsets: Longs, values: Any, first: int, stop: int) -> pa.ListArray:
    low, high = offsets[first], offsets[stop]
    return pa.ListArray.from_arrays(
        (offsets[first : stop + 1] - low).astype(np.int32), values[low:high]
    )
