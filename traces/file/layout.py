"""Where the rows of each (request, layer) are in a Parquet file, and how they are read."""

import os
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.digest import Digest, extents, read_digest, runs_told
from hisparse_sim.traces.file.parts import (
    Columns,
    Container,
    Part,
    Told,
    decoding,
    find_parts,
    parts_of_runs,
)
from hisparse_sim.traces.files import refuse_changed, version_of
from hisparse_sim.traces.remote import Ranges, Url

# Of an encoded column, before compression: about a million positions.
BATCH_BYTES = 1 << 20


def open_parquet(
    path: Path,
    metadata: pq.FileMetaData | None = None,
    dictionary: Sequence[str] = (),
    buffer_bytes: int = 0,
    page_checksums: bool = True,
    fetched: Ranges | None = None,
) -> pq.ParquetFile:
    """Open a Parquet file for reads that do not start threads of their own.

    A ParquetFile may not be shared between threads, and opening one takes a time that grows with
    the row groups, even with `metadata` (50 us for 30, 500 us for 10,000). `dictionary`: columns
    of the file that come as DictionaryArray. With `buffer_bytes` a column is read from the disk bit
    by bit, else a row group's column at once. `page_checksums` are verified where the file has
    them, which is of no use behind `Digest.check`. `fetched`: what is known of a URL.
    """
    with decoding(path):
        # A path would first be looked up in pyarrow's file systems, and has to be UTF-8.
        source = Ranges(path) if isinstance(path, Url) and fetched is None else fetched
        return pq.ParquetFile(
            source or pa.OSFile(os.fsencode(path)),
            metadata=metadata,
            read_dictionary=list(dictionary),
            pre_buffer=False,
            buffer_size=buffer_bytes,
            page_checksum_verification=page_checksums,
        )


def parquet_container(path: Path) -> Container:
    """Open a Parquet file. Raises TraceError if it is none, or its footer was changed."""
    signed = read_digest(path)
    with open_parquet(path) as file:
        footer, schema = file.metadata, file.schema_arrow
    digest = None if signed is None else Digest(path, signed, footer)
    # Some writers fill only the latter.
    keys = {**(schema.metadata or {}), **(footer.metadata or {})}
    return Container(schema, keys, lambda told: lay_out(path, footer, digest, told))


def lay_out(
    path: Path, footer: pq.FileMetaData, digest: Digest | None, told: Told
) -> tuple[tuple[Part, ...], "Groups"]:
    """Return the parts of a file in file order, and the groups that hold their rows.

    Raises TraceError if there are not as many rows as the footer says, or if they are not grouped
    by request and, within it, by rising layer.
    """
    dictionary = [] if "request" in told else ["request"]
    names = [name for name in ("request", "layer") if name not in told]
    runs = None if digest is None or told else runs_told(footer)
    if not names:
        runs = [(str(told["request"]), int(told["layer"]), footer.num_rows)]
    if runs is not None:
        parts = parts_of_runs(path, runs)
    else:
        try:
            parts = find_parts(path, _batches(path, footer, digest, dictionary, names), told)
        except TraceError as error:
            if error.__cause__ is None:
                raise
            dictionary = []  # pyarrow decodes some encodings of other writers to plain strings only
            parts = find_parts(path, _batches(path, footer, digest, dictionary, names), told)
    largest = max((part.rows for part in parts), default=0)
    groups = Groups(path, footer, digest, largest, dictionary)
    counts = footer.num_rows, int(groups.starts[-1]), sum(part.rows for part in parts)
    if len(set(counts)) > 1:
        raise TraceError(
            f"{path} is damaged: its footer counts {counts[0]} rows, its row groups {counts[1]} "
            f"and its columns {counts[2]}; fetch or write it again"
        )
    return parts, groups


def _batches(
    path: Path,
    footer: pq.FileMetaData,
    digest: Digest | None,
    dictionary: Sequence[str],
    names: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the columns that parts are found by (two take 70 us a row group)."""
    with decoding(path):
        groups = range(footer.num_row_groups)
        fetched = _fetched(path, None, footer, groups, names)
        if digest is not None:
            digest.check(groups, names, fetched)
    with decoding(path), open_parquet(path, footer, dictionary, fetched=fetched) as file:
        yield from file.iter_batches(columns=list(names), use_threads=False)


def _fetched(
    path: Path,
    size_bytes: int | None,
    footer: pq.FileMetaData,
    groups: Iterable[int],
    columns: Collection[str],
) -> Ranges | None:
    """Return a file with these columns of these row groups, of a URL; None for another path."""
    if not isinstance(path, Url):
        return None
    return Ranges(path, size_bytes, extents(footer, groups, columns))


_last = threading.local()  # read: (the groups, their open file)


class Groups:
    """The row groups of a file: any range of rows, of any columns, from any thread.

    A group that lies within the range is decoded as it is. A group that several parts share, in
    files of other writers, is decoded in small batches that are remembered for a while, so that
    reading part after part decodes it once, without ever holding the whole group.
    """

    def __init__(
        self,
        path: Path,
        metadata: pq.FileMetaData,
        digest: Digest | None,
        largest_part: int,
        dictionary: Sequence[str],
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.digest = digest
        self.dictionary = dictionary  # see `open_parquet`
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.starts = np.cumsum([0, *rows], dtype=np.int64)  # [groups + 1] first row of each
        # As many parts as threads may ask for out of turn.
        self._window = largest_part * ((os.cpu_count() or 1) + 1)
        self.version = version_of(path)
        # Asking for a URL takes as long as reading it, and its digest tells the same.
        self._tells_changes = not (isinstance(path, Url) and digest is not None)
        self._lock = threading.Lock()
        self._cursors: dict[tuple[int, tuple[str, ...]], _Cursor] = {}

    @property
    def sha256(self) -> str | None:
        """That of the digest, for a URL: the whole file would have to be read for its own."""
        if isinstance(self.path, Url) and self.digest is not None:
            return self.digest.sha256
        return None

    def overlapping(self, first_row: int, rows: int) -> range:
        """Return the row groups that hold any of the rows."""
        first = int(np.searchsorted(self.starts, first_row, side="right")) - 1
        stop = int(np.searchsorted(self.starts, first_row + rows, side="left"))
        return range(first, stop)

    def shared(self, parts: Iterable[Part]) -> int:
        """Return how many groups hold rows of more than one of the parts."""
        inner = {part.first_row for part in parts} - set(self.starts.tolist())
        return len({self.overlapping(row, 1)[0] for row in inner})

    def read(self, first_row: int, rows: int, columns: Sequence[str]) -> Columns:
        """Return the rows as chunks per column. Raises TraceError if the file has changed."""
        if self._tells_changes:
            refuse_changed(self.path, self.version)
        found: Columns = {name: [] for name in columns}
        for group in self.overlapping(first_row, rows):
            begin, end = int(self.starts[group]), int(self.starts[group + 1])
            if begin == end:
                continue
            first, stop = max(begin, first_row), min(end, first_row + rows)
            whole = (first, stop) == (begin, end)
            fetched = None
            if whole or self.digest is not None:
                fetched = _fetched(
                    self.path, self.version.size_bytes, self.metadata, [group], columns
                )
            if self.digest is not None:
                self.digest.check([group], columns, fetched)
            if whole:
                with self._file(fetched) as file:
                    pieces = [file.read_row_group(group, columns=list(columns), use_threads=False)]
            else:
                pieces = self._read_shared(group, first - begin, stop - begin, tuple(columns))
            for name, chunks in found.items():
                for piece in pieces:
                    column = piece.column(name)
                    chunks.extend(
                        column.chunks if isinstance(column, pa.ChunkedArray) else [column]
                    )
        for name, chunks in found.items():
            if sum(map(len, chunks)) != rows:
                raise ValueError(f"{name} has fewer rows than the file says")
        return found

    @contextmanager
    def _file(self, fetched: Ranges | None) -> Iterator[pq.ParquetFile]:
        """Open the file, unless it is what this thread read last, without an error."""
        checked = self.digest is not None
        if fetched is not None:
            yield open_parquet(
                self.path,
                self.metadata,
                self.dictionary,
                page_checksums=not checked,
                fetched=fetched,
            )
            return
        owner, file = getattr(_last, "read", (None, None))
        _last.read = None, None
        if owner is None or owner() is not self:
            file = open_parquet(
                self.path, self.metadata, self.dictionary, page_checksums=not checked
            )
        yield file
        _last.read = weakref.ref(self), file

    def _read_shared(
        self, group: int, first: int, stop: int, columns: tuple[str, ...]
    ) -> list[pa.RecordBatch]:
        with self._lock:
            cursor = self._cursors.pop((group, columns), None)
            if cursor is None or first < cursor.oldest:
                cursor = _Cursor(self, group, columns)
            # Two, for the part that begins at the end of one group and ends in the next.
            self._cursors = dict([*self._cursors.items()][-1:])
            batches = cursor.take(first, stop, self._window)
            self._cursors[group, columns] = cursor
            return batches


class _Cursor:
    """Decodes one row group front to back, remembering the batches last decoded."""

    def __init__(self, groups: Groups, group: int, columns: tuple[str, ...]) -> None:
        header = groups.metadata.row_group(group)
        # (The header of a column would say how many positions there are, but a damaged one ends
        # the process.)
        batch_rows = max(1, BATCH_BYTES * header.num_rows // max(1, header.total_byte_size))
        file = open_parquet(groups.path, groups.metadata, groups.dictionary, BATCH_BYTES)
        self._batches = file.iter_batches(
            batch_size=batch_rows, row_groups=[group], columns=list(columns), use_threads=False
        )
        self._kept: list[tuple[int, pa.RecordBatch]] = []  # (first row in the group, batch)
        self._next_row = 0

    @property
    def oldest(self) -> int:
        """First row that can still be taken."""
        return self._kept[0][0] if self._kept else self._next_row

    def take(self, first: int, stop: int, window: int) -> list[pa.RecordBatch]:
        """Return rows first to stop of the group; rows before the last `window` are forgotten."""
        while self._next_row < stop:
            batch = next(self._batches, None)
            if batch is None:
                break
            self._kept.append((self._next_row, batch))
            self._next_row += batch.num_rows
            forgotten = min(first, self._next_row - window)
            while self._kept[0][0] + self._kept[0][1].num_rows <= forgotten:
                del self._kept[0]
        return [
            batch.slice(
                max(first - begin, 0), min(stop, begin + batch.num_rows) - max(first, begin)
            )
            for begin, batch in self._kept
            if begin < stop and first < begin + batch.num_rows
        ]
