"""A folder of files in hive layout as one trace: `request=a/layer=3/part-0.parquet`.

Requests come in the order of their names, the files of a (request, layer) in that of their steps.
Every file is opened, read and checked as if it were alone.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.columns import OPTIONAL, integers, present
from hisparse_sim.traces.file.metadata import KEY
from hisparse_sim.traces.file.opening import place, refuse_columns
from hisparse_sim.traces.file.parts import (
    Columns,
    Container,
    Part,
    constant,
    decoding,
    parts_of_runs,
)
from hisparse_sim.traces.file.rules import RowError
from hisparse_sim.traces.files import Version, sha256_of
from hisparse_sim.traces.folders import KEYS, Filed, files_of
from hisparse_sim.traces.remote import Url

T = TypeVar("T")
U = TypeVar("U")

_NULL = "__HIVE_DEFAULT_PARTITION__"  # the value of folders for rows without one
_AT_ONCE = 16  # files that are opened: of a URL each takes several round trips


def hive_container(path: Path, opens: Callable[[Path], Container]) -> Container:
    """Open the files of a folder, each by `opens`. Raises TraceError if they are not one trace."""
    files = _at_once(partial(_File, opens), files_of(path))
    for other in files[1:]:
        _refuse_different(files[0], other)
    return Container(files[0].schema, files[0].keys, lambda _: _lay_out(path, files))


def _at_once(function: Callable[[T], U], given: Iterable[T]) -> list[U]:
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(function, given))


class _File:
    """A file of the trace. Its parts are known once it is laid out."""

    def __init__(self, opens: Callable[[Path], Container], filed: Filed) -> None:
        self.path = filed.path
        self.says = _said(filed)  # by its folders
        self.schema, self.keys, self._find = opens(filed.path)
        self._told = {name: of for name, of in self.says.items() if name not in self.schema.names}
        for name, value in self._told.items():
            self.schema = self.schema.append(pa.field(name, pa.scalar(value).type))
        refuse_columns(filed.path, self.schema)

    def laid_out(self) -> "_File":
        """Raises TraceError if rows are not of the request and layer that its folders say."""
        self.parts, self.stored = self._find(self._told)
        for part in self.parts:
            for name, said in self.says.items():
                found = getattr(part, name)
                if found != said:
                    raise TraceError(
                        f"{self.path} has rows of {name} {found!r}, and its folder says {said!r}"
                    )
        return self

    def read(self, first_row: int, rows: int, columns: Sequence[str]) -> Columns:
        """Return rows as chunks per column."""
        with decoding(self.path):
            own = [name for name in columns if name not in self._told]
            told = [name for name in columns if name in self._told]
            found = self.stored.read(first_row, rows, own)
        return found | {name: [constant(self._told[name], rows)] for name in told}

    @property
    def sha256(self) -> str:
        """What names it. A URL without a digest is named by its version, since all of it would have
        to be fetched."""
        if self.stored.sha256 is not None:
            return self.stored.sha256
        return str(self.stored.version) if isinstance(self.path, Url) else sha256_of(self.path)


def _said(filed: Filed) -> dict[str, str | int]:
    """Return the values that the folders of a file give, decoded as pyarrow does.

    Raises TraceError for a value that no request or layer has, and for two of one.
    """
    found: dict[str, str | int] = {}
    for folder in filed.folders:
        spelt, _, quoted = folder.partition("=")
        key = unquote(spelt)
        if key not in KEYS:
            continue
        if key in found:
            raise TraceError(f"{filed.path}: two of its folders say a {key}, and one may")
        try:
            value = unquote(quoted, errors="strict")
            value.encode()  # which the other bytes of a name, not quoted, cannot be
        except UnicodeError:
            raise TraceError(f"{filed.path}: its folder {folder} does not encode UTF-8") from None
        if value == _NULL:
            raise TraceError(
                f"{filed.path}: its folder stands for rows whose {key} is null, and every row of a"
                " trace is of one"
            )
        if key == "layer" and not (re.fullmatch("-?[0-9]+", value) and abs(int(value)) < 2**15):
            raise TraceError(
                f"{filed.path}: its folder {folder} does not say the number of a layer"
            )
        found[key] = int(value) if key == "layer" else value
    return found


def _refuse_different(one: _File, other: _File) -> None:
    """Raise TraceError for files that do not describe the same trace."""
    same = "the files of a trace have the same"
    if one.keys.get(KEY) != other.keys.get(KEY):
        raise TraceError(
            f"{one.path} and {other.path} have different metadata ({KEY.decode()}), and {same}; "
            f"name files that are traces of their own by a glob"
        )
    columns = present(one.schema) ^ present(other.schema)
    differ = [name for name in OPTIONAL if name in columns]
    if differ:
        raise TraceError(
            f"only one of {one.path} and {other.path} has {', '.join(differ)}, and {same} columns"
        )


class _Piece(NamedTuple):
    """The rows that a file has of a (request, layer)."""

    file: _File
    part: Part

    def steps(self) -> tuple[int, int]:
        """Return the first and the last step. Raises TraceError if they cannot be decoded."""
        path, part = self.file.path, self.part
        try:
            with decoding(path, place(part)):
                found = self.file.read(part.first_row, part.rows, ("step",))
                step = integers(found["step"], "step", np.int32)
        except RowError as error:
            row = part.first_row + error.row
            raise TraceError(f"{path}{place(part)}, row {row}: {error.what}") from None
        return int(step[0]), int(step[-1])


def _lay_out(path: Path, files: Sequence[_File]) -> tuple[tuple[Part, ...], "Joined"]:
    pieces: dict[tuple[str, int], list[_Piece]] = {}
    for file in _at_once(_File.laid_out, files):
        for part in file.parts:
            pieces.setdefault((part.request, part.layer), []).append(_Piece(file, part))
    of_parts = [pieces[key] for key in sorted(pieces)]
    joined = Joined(files, list(chain.from_iterable(_at_once(_in_order, of_parts))))
    runs = [(part.request, part.layer, part.rows) for _, part in joined.pieces]
    return parts_of_runs(path, runs), joined


def _in_order(pieces: list[_Piece]) -> list[_Piece]:
    """Return the pieces of a (request, layer) by their steps.

    Raises TraceError if steps between them are missing, or in several.
    """
    if len(pieces) == 1:
        return pieces
    ordered = sorted(((*piece.steps(), piece) for piece in pieces), key=lambda each: each[:2])
    for (begin, last, one), (first, end, other) in pairwise(ordered):
        files = f"{one.file.path} and {other.file.path}{place(one.part)}"
        if first < last:  # that they share a step is for the rules to judge
            raise TraceError(
                f"{files}: the steps {begin} to {last} of the one and {first} to {end} of the other"
                " overlap; docs/clusters.md shows how to sort them"
            )
        if first > last + 1:
            raise TraceError(
                f"{files}: the steps {last + 1} to {first - 1} between them are missing"
            )
    return [piece for _, _, piece in ordered]


class Joined:
    """The rows of several files as those of one, with the columns that folders stand for."""

    def __init__(self, files: Sequence[_File], pieces: Sequence[_Piece]) -> None:
        self._files = files
        self.pieces = pieces  # in the order of the rows
        self._starts = np.cumsum([0, *(piece.part.rows for piece in pieces)], dtype=np.int64)
        versions = [file.stored.version for file in files]
        mark = hashlib.sha256(str(versions).encode()).digest()[:7]
        size_bytes = sum(version.size_bytes for version in versions)
        self.version = Version(size_bytes, int.from_bytes(mark, "little"))

    @property
    def digest(self) -> Any:
        """Those of the files; None if one has none."""
        digests = [file.stored.digest for file in self._files]
        return None if None in digests else digests

    @cached_property
    def sha256(self) -> str:
        """Digest of the files and of what their folders say, in any order."""
        names = zip(self._files, _at_once(lambda file: file.sha256, self._files), strict=True)
        told = sorted(json.dumps([file.says, name], sort_keys=True) for file, name in names)
        return hashlib.sha256("\n".join(told).encode()).hexdigest()

    def read(self, first_row: int, rows: int, columns: Sequence[str]) -> Columns:
        """Return the rows as chunks per column. Raises TraceError if a file has changed."""
        found: Columns = {name: [] for name in columns}
        number = int(np.searchsorted(self._starts, first_row, side="right")) - 1
        while rows > 0:
            file, part = self.pieces[number]
            skipped = first_row - int(self._starts[number])
            count = min(rows, part.rows - skipped)
            for name, chunks in file.read(part.first_row + skipped, count, columns).items():
                found[name] += chunks
            first_row, rows, number = first_row + count, rows - count, number + 1
        return found

    def shared(self, parts: Iterable[Part]) -> int:
        """Return how many pieces of the files hold rows of more than one part."""
        return sum(file.stored.shared(file.parts) for file in self._files)
