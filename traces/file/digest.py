"""The digest of a trace file: a changed bit never reaches a replay.

Parquet has checksums for the contents of pages, but none for their headers, for the footer, or for
the row group of a page. So the writer puts between the last row group and the footer:

    CRC-32 of every column chunk, group after group, columns as in the schema    4 bytes each
    their number                                                                 4 bytes
    SHA-256 of all that and of the footer                                        32 bytes
    MAGIC                                                                        8 bytes

Numbers are little-endian. Readers of Parquet do not look there; and a program that copies rows and
metadata to a new file does not copy the digest, which would be wrong there. The footer is checked
when a file is opened, before pyarrow sees it: so are the metadata, and rows, place and encoding of
every row group. A column chunk is checked when it is read.
"""

import hashlib
import os
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.checksum import crc32
from hisparse_sim.traces.files import opened, reread

MAGIC = b"HSIMDIG1"
_FIXED = struct.Struct("<I32s8s")  # what is behind the checksums
_END = struct.Struct("<I4s")  # of every Parquet file: bytes of the footer, and PAR1
_PARQUET = b"PAR1"
_PIECE_BYTES = 1 << 20


class Signed(NamedTuple):
    """The digest of a file, whose footer it fits."""

    checksums: NDArray[np.uint32]  # [row groups x columns]
    sha256: str  # of them and of the footer


@contextmanager
def sealed(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write Parquet to; it gets its digest if the block ends without exception."""
    with reread(path) as file:
        yield file
        seal(file)


def seal(file: IO[bytes]) -> None:
    """Put the digest into a complete Parquet file."""
    footer = pq.read_metadata(file)
    checksums = np.array(
        [
            _checksum(file, *_extent(footer, group, column))
            for group in range(footer.num_row_groups)
            for column in range(footer.num_columns)
        ],
        "<u4",
    )
    file.seek(-_END.size, os.SEEK_END)
    footer_bytes, _ = _END.unpack(file.read())
    start = file.seek(-_END.size - footer_bytes, os.SEEK_END)
    end = file.read()
    file.seek(start)
    file.write(checksums.tobytes())
    signature = _signature(checksums, end[:footer_bytes])
    file.write(_FIXED.pack(len(checksums), signature, MAGIC))
    file.write(end)


def read_digest(path: Path) -> Signed | None:
    """Return the digest of a Parquet file, or None if it has none.

    Raises TraceError if it is no complete Parquet file, or its footer is not the one written.
    """
    with opened(path, "trace file") as file:
        head = file.read(len(_PARQUET))
        if head != _PARQUET:
            raise TraceError(f"{path} is not a Parquet file{'' if head else ': it is empty'}")
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - _END.size))
        end = file.read()
        if size_bytes < len(head) + _END.size or not end.endswith(_PARQUET):
            raise TraceError(f"{path} was cut off: the end of the Parquet file is missing")
        footer_bytes, _ = _END.unpack(end)
        stop = size_bytes - _END.size - footer_bytes - _FIXED.size  # of the checksums
        if stop < 0:
            return None
        file.seek(stop)
        count, signature, magic = _FIXED.unpack(file.read(_FIXED.size))
        if magic != MAGIC:
            return None
        footer = file.read(footer_bytes)
        count = min(count, stop // 4)  # another one makes another signature
        file.seek(stop - 4 * count)
        checksums = np.frombuffer(file.read(4 * count), "<u4")
    if _signature(checksums, footer) != signature:
        raise TraceError(
            f"{path} was changed after it was written (its footer has another digest): fetch or "
            f"write it again"
        )
    return Signed(checksums, signature.hex())


class Digest:
    """The checksums of a file whose footer was checked."""

    def __init__(self, path: Path, signed: Signed, footer: pq.FileMetaData) -> None:
        self.path = path
        self.sha256 = signed.sha256
        self._checksums = signed.checksums.reshape(footer.num_row_groups, -1)
        self._footer = footer
        self._names = column_names(footer)

    def check(self, groups: Iterable[int], names: Collection[str], fetched: Any = None) -> None:
        """Raise ValueError if one of these columns, in one of these row groups, was changed.
        `fetched`: the file, where it need not be opened."""
        wanted = [number for number, name in enumerate(self._names) if name in names]
        with nullcontext(fetched) if fetched else self.path.open("rb", buffering=0) as file:
            for group in groups:
                for column in wanted:
                    found = _checksum(file, *_extent(self._footer, group, column))
                    if found != self._checksums[group, column]:
                        name = self._names[column]
                        raise ValueError(f"the checksum of {name} in row group {group} is wrong")


def column_names(footer: pq.FileMetaData) -> list[str]:
    """Return what the columns are called: a list is one of Parquet, as positions.list.element."""
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    return [path.partition(".")[0] for path in paths]


def runs_told(footer: pq.FileMetaData) -> list[tuple[str, int, int]] | None:
    """Return (request, layer, rows) of every row group by its statistics; None if they do not tell,
    or a group has several.

    Only of a footer that was checked: pyarrow ends the process when statistics are damaged. The
    rows themselves take several times as long to read, and of a URL a request each.
    """
    columns = [column_names(footer).index(name) for name in ("request", "layer")]
    runs = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        found = [group.column(column).statistics for column in columns]
        if any(each is None or not each.has_min_max or each.min != each.max for each in found):
            return None
        request, layer = (each.min for each in found)
        if not isinstance(request, str) or not isinstance(layer, int):
            return None
        runs.append((request, layer, group.num_rows))
    return runs


def extents(
    footer: pq.FileMetaData, groups: Iterable[int], names: Collection[str]
) -> list[tuple[int, int]]:
    """Return where the chunks of these columns, in these row groups, begin and end."""
    wanted = [number for number, name in enumerate(column_names(footer)) if name in names]
    found = [_extent(footer, group, column) for group in groups for column in wanted]
    return [(first, first + size_bytes) for first, size_bytes in found]


def _extent(footer: pq.FileMetaData, group: int, column: int) -> tuple[int, int]:
    """Return where a column chunk begins, and its bytes."""
    chunk = footer.row_group(group).column(column)
    first = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return first, chunk.total_compressed_size


def _checksum(file: Any, first: int, size_bytes: int) -> int:
    file.seek(first)
    buffer = memoryview(bytearray(min(size_bytes, _PIECE_BYTES)))
    checksum = 0
    while size_bytes > 0:
        count = file.readinto(buffer[:size_bytes])
        if not count:
            raise ValueError("the file is cut off")
        checksum = crc32(buffer[:count], checksum)
        size_bytes -= count
    return checksum


def _signature(checksums: NDArray[np.uint32], footer: bytes) -> bytes:
    count = len(checksums).to_bytes(4, "little")
    return hashlib.sha256(checksums.tobytes() + count + footer).digest()
