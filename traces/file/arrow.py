"""Trace files in Arrow's IPC file format: the same columns and metadata, read in place.

A record batch holds a (request, layer) or a part of one. Its positions are used where the file is
mapped into memory, without a copy; of LZ4 batches the columns asked for are decompressed.

Arrow has no checksums. So the writer puts a digest between the last batch and the footer, where
readers of Arrow do not look:

    where every batch begins, and where the last one ends         8 bytes each
    CRC-32 of every batch: its header, then column by column      4 bytes each
    number of batches, and of columns                             4 bytes each
    SHA-256 of all that, of the file up to the first batch, of
    what lies between the last batch and this, and of the footer  32 bytes
    MAGIC                                                         8 bytes

Numbers are little-endian. The SHA-256 is checked when a file is opened, the columns of a batch when
they are read. It also names the trace: that of the whole file would take longer than a replay.

One file for writing and reading, which have this layout in common and nothing else has.
"""

import hashlib
import mmap
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.checksum import crc32
from hisparse_sim.traces.file.parts import (
    Columns,
    Container,
    Part,
    Stored,
    TableRows,
    Told,
    decoding,
    find_parts,
)
from hisparse_sim.traces.files import opened, refuse_changed, reread, version_of
from hisparse_sim.traces.remote import Url

HEAD = b"ARROW1"
MAGIC = b"HSIMDIG2"
STREAM_HEAD = b"\xff\xff\xff\xff"  # of Arrow's other format, which has no footer and no digest
_COUNTS = struct.Struct("<II")
_SIGNED = struct.Struct("<32s8s")
_END = struct.Struct("<I6s")  # of every Arrow file: bytes of the footer, and HEAD
_SCHEMA = 8  # where the schema begins
_PREFIX_BYTES = 8  # of a message: a mark, and the length of its header


class BatchDigest(NamedTuple):
    """The checksums of a file whose SHA-256 was right."""

    starts: NDArray[np.int64]  # [batches + 1]
    checksums: NDArray[np.uint32]  # [batches, 1 + columns]
    sha256: str


# --- writing -----------------------------------------------------------------------------------


@contextmanager
def arrow_writer(path: Path, schema: pa.Schema, lz4: bool) -> Iterator["_Writer"]:
    """Yield what tables are written to, each as a batch; the file gets its digest if the block ends
    without an exception."""
    with reread(path) as file:
        writer = _Writer(file, schema, lz4)
        yield writer
        writer.finish()


class _Writer:
    def __init__(self, file: IO[bytes], schema: pa.Schema, lz4: bool) -> None:
        self._file = file
        options = pa.ipc.IpcWriteOptions(compression="lz4" if lz4 else None)
        self._writer = pa.ipc.new_file(file, schema, options=options)
        self._starts: list[int] = []
        self._checksums: list[list[int]] = []

    def write_table(self, table: pa.Table) -> None:
        (batch,) = table.combine_chunks().to_batches()
        begin = self._file.tell()
        self._writer.write_batch(batch)
        end = self._file.tell()
        if begin == 0:  # the schema came first, a message without a body
            self._file.seek(_SCHEMA)
            begin = _SCHEMA + _body(memoryview(self._file.read(_PREFIX_BYTES)))
        self._file.seek(begin)
        block = memoryview(self._file.read(end - begin))
        self._starts.append(begin)
        self._checksums.append(
            [crc32(block[first:stop]) for first, stop in pairwise(_edges(block, batch.schema))]
        )

    def finish(self) -> None:
        file = self._file
        starts = np.array([*self._starts, file.tell()], "<i8")
        self._writer.close()
        size_bytes = file.tell()
        file.seek(size_bytes - _END.size)
        footer_bytes, _ = _END.unpack(file.read())
        stop = size_bytes - _END.size - footer_bytes
        file.seek(0)
        head = file.read(starts[0])
        file.seek(starts[-1])
        tail = file.read(stop - starts[-1])
        end = file.read()
        checksums = np.array(self._checksums, "<u4")
        table = starts.tobytes() + checksums.tobytes()
        table += bytes(-len(table) % 8)  # the footer stays aligned
        table += _COUNTS.pack(*checksums.shape)
        signature = hashlib.sha256(table + head + tail + end[:footer_bytes]).digest()
        file.seek(stop)
        file.write(table + _SIGNED.pack(signature, MAGIC) + end)


def _edges(block: memoryview, schema: pa.Schema) -> list[int]:
    """Return where the header of a batch begins and each of its columns, and where it ends."""
    buffers = iter(_buffer_offsets(block))
    body = _body(block)
    edges = [0]
    for field in schema:
        offsets = [next(buffers) for _ in range(_buffers_of(field.type))]
        edges.append(body + offsets[0])
    edges[1] = body
    return [*edges, len(block)]


def _body(block: memoryview) -> int:
    """Return where the columns of a batch begin: behind its header, of which the length is told."""
    return _PREFIX_BYTES + int(struct.unpack_from("<I", block, 4)[0])


def _buffers_of(kind: pa.DataType) -> int:
    if pa.types.is_list(kind):
        return 2 + _buffers_of(kind.value_type)
    return 3 if pa.types.is_string(kind) else 2


def _buffer_offsets(block: memoryview) -> list[int]:
    """Return where the buffers of a batch begin in its body.

    Read from its header, a FlatBuffer (Message.fbs of Arrow): the third field of a Message is the
    RecordBatch, whose third field is a vector of structures (offset, length).
    """

    def number(form: str, at: int) -> int:
        return int(struct.unpack_from("<" + form, block, at)[0])

    def field(table: int, index: int) -> int:
        entries = table - number("i", table)  # of a table: where its fields are
        at = table + number("H", entries + 4 + 2 * index)
        return at + number("I", at)

    message = _PREFIX_BYTES + number("I", _PREFIX_BYTES)
    vector = field(field(message, 2), 2)
    return [number("q", vector + 4 + 16 * each) for each in range(number("I", vector))]


# --- reading -----------------------------------------------------------------------------------


def arrow_container(path: Path) -> Container:
    """Open an Arrow file, or one in Arrow's stream format. Raises TraceError if it is none, or was
    changed since it was written."""
    if isinstance(path, Url):
        raise TraceError(
            f"{path} is an Arrow file, which is read where a disk is mapped into memory: copy it to"
            " one, or convert it to Parquet"
        )
    with opened(path, "trace file") as file:
        streams = file.read(len(STREAM_HEAD)) == STREAM_HEAD
    if streams:
        return _stream(path)
    batches = Batches(path)
    keys = batches.schema.metadata or {}
    return Container(batches.schema, keys, lambda told: (batches.lay_out(told), batches))


def _stream(path: Path) -> Container:
    with decoding(path):
        data = pa.py_buffer(_mapped(path))
        table = pa.ipc.open_stream(pa.BufferReader(data)).read_all()

    def lay_out(told: Told) -> tuple[tuple[Part, ...], Stored]:
        with decoding(path):
            table.validate(full=True)  # rows may lie outside of their columns
        return find_parts(path, table.to_batches(), told), TableRows(table, path)

    return Container(table.schema, table.schema.metadata or {}, lay_out)


class Batches:
    """The batches of a file: any range of rows, of any columns, from any thread."""

    def __init__(self, path: Path) -> None:
        """Raises TraceError if the file is no whole Arrow file, or was changed since it was
        written."""
        self.path = path
        self.version = version_of(path)
        self.digest = read_digest(path)
        with decoding(path):
            self._map = _mapped(path)
            self._data = pa.py_buffer(self._map)
            reader = pa.ipc.open_file(pa.BufferReader(self._data))
            self.schema = reader.schema
            self._batches = range(reader.num_record_batches)
        self._edges: dict[int, list[tuple[int, int]]] = {}  # of a batch's header and columns
        self._chooses = False  # whether to read only the columns asked for
        self._starts = np.zeros(1, np.int64)  # [batches + 1] first row of each

    def lay_out(self, told: Told) -> tuple[Part, ...]:
        """Find the parts. Raises TraceError if rows are not grouped as in a trace."""
        names = [name for name in ("request", "layer") if name not in told] or ["step"]
        with decoding(self.path):
            for batch in self._batches:
                self._check(batch, names)
            if self._batches:
                # It spares decompressing the others, but copies what is not compressed.
                column = self._open(names).get_batch(0).column(names[-1])
                self._chooses = self._place(column) is None
            reader = self._open(names)
            batches = [reader.get_batch(batch) for batch in self._batches]
            for batch in batches:
                batch.select(names).validate(full=True)
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)], dtype=np.int64)
        return find_parts(self.path, (batch for batch in batches if batch.num_rows), told)

    @property
    def sha256(self) -> str | None:
        """The digest that names the trace; None: that of the file does."""
        return None if self.digest is None else self.digest.sha256

    def read(self, first_row: int, rows: int, columns: Sequence[str]) -> Columns:
        """Return the rows as chunks per column. Raises TraceError if the file has changed."""
        refuse_changed(self.path, self.version)
        found: Columns = {name: [] for name in columns}
        reader = self._open(columns)
        first = int(np.searchsorted(self._starts, first_row, side="right")) - 1
        stop = int(np.searchsorted(self._starts, first_row + rows, side="left"))
        for batch in range(first, stop):
            self._check(batch, columns)
            begin = max(0, first_row - int(self._starts[batch]))
            end = min(first_row + rows, int(self._starts[batch + 1])) - int(self._starts[batch])
            piece = reader.get_batch(batch).slice(begin, end - begin)
            if self.digest is None:  # rows may lie outside of their columns
                piece.select(columns).validate(full=True)
            for name in columns:
                found[name].append(self._writable(piece.column(name)))
        return found

    def shared(self, parts: Iterable[Part]) -> int:
        """A batch with rows of several parts is as quick to read."""
        return 0

    def _open(self, columns: Collection[str]) -> pa.RecordBatchFileReader:
        options = pa.ipc.IpcReadOptions(use_threads=False)
        if self._chooses:
            options.included_fields = [
                number for number, name in enumerate(self.schema.names) if name in columns
            ]
        return pa.ipc.open_file(pa.BufferReader(self._data), options=options)

    def _check(self, batch: int, columns: Collection[str]) -> None:
        """Raise ValueError if one of these columns of a batch was changed."""
        if self.digest is None:
            return
        begin, end = self.digest.starts[batch : batch + 2].tolist()
        block = memoryview(self._map)[begin:end]
        known = self.digest.checksums[batch].tolist()
        if crc32(block[: _body(block)]) != known[0]:
            raise ValueError(f"the checksum of the header of batch {batch} is wrong")
        if batch not in self._edges:
            self._edges[batch] = list(pairwise(_edges(block, self.schema)))
        edges = self._edges[batch]
        for name, (first, stop), checksum in zip(
            self.schema.names, edges[1:], known[1:], strict=True
        ):
            if name in columns and crc32(block[first:stop]) != checksum:
                raise ValueError(f"the checksum of {name} in batch {batch} is wrong")

    def _place(self, array: pa.Array) -> slice | None:
        """Return where in the file the values of an array lie; None if they do not."""
        data = array.buffers()[1]
        if data is None:
            return None
        begin = data.address - self._data.address
        inside = 0 <= begin <= len(self._map) - data.size
        return slice(begin, begin + data.size) if inside else None

    def _writable(self, array: pa.Array) -> pa.Array:
        """Return a list with values that may be written to, as compiled loops want them: their
        memory becomes a copy as soon as somebody does."""
        if not pa.types.is_list(array.type) or array.null_count or array.values.null_count:
            return array
        values = array.values
        place = self._place(values)
        if place is None:
            return array
        data = pa.py_buffer(memoryview(self._map)[place])
        values = pa.Array.from_buffers(values.type, len(values), [None, data], 0, values.offset)
        return pa.ListArray.from_arrays(array.offsets, values)


def read_digest(path: Path) -> BatchDigest | None:
    """Return the digest of a file, or None if it has none.

    Raises TraceError if it is no whole Arrow file, or does not have the digest that it tells.
    """
    with opened(path, "trace file") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - _END.size))
        end = file.read()
        if size_bytes < len(HEAD) + _END.size or not end.endswith(HEAD):
            raise TraceError(f"{path} was cut off: the end of the Arrow file is missing")
        footer_bytes, _ = _END.unpack(end)
        stop = size_bytes - _END.size - footer_bytes
        signed = stop - _SIGNED.size - _COUNTS.size
        if signed < 0:
            return None
        file.seek(signed)
        counts = file.read(_COUNTS.size)
        signature, magic = _SIGNED.unpack(file.read(_SIGNED.size))
        if magic != MAGIC:
            return None
        footer = file.read(footer_bytes)
        batches, columns = _COUNTS.unpack(counts)
        table_bytes = 8 * (batches + 1) + (4 * batches * columns + 7) // 8 * 8
        wrong = TraceError(
            f"{path} was changed after it was written (it has another digest): fetch or write it "
            f"again"
        )
        if table_bytes > signed:
            raise wrong
        file.seek(signed - table_bytes)
        table = file.read(table_bytes)
        starts = np.frombuffer(table, "<i8", batches + 1)
        checksums = np.frombuffer(table, "<u4", batches * columns, 8 * (batches + 1))
        if not 0 <= starts[0] <= starts[-1] <= signed - table_bytes:
            raise wrong
        file.seek(0)
        head = file.read(int(starts[0]))
        file.seek(int(starts[-1]))
        tail = file.read(signed - table_bytes - int(starts[-1]))
    found = hashlib.sha256(table + counts + head + tail + footer)
    if found.digest() != signature:
        raise wrong
    return BatchDigest(starts, checksums.reshape(batches, columns), found.hexdigest())


def _mapped(path: Path) -> mmap.mmap:
    """Map a file so that it stays as it is whatever is written to the memory."""
    with path.open("rb") as file:
        if hasattr(mmap, "MAP_PRIVATE"):
            # Not reserved: else the memory of the machine would have to suffice for a copy.
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
            return mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
