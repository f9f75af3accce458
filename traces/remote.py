"""Files behind URLs (s3://, gs://, hf://, https://), by fsspec: the one place that knows it.

Credentials, endpoints and timeouts are those of the environment, as each file system takes them
(AWS_PROFILE, AWS_ENDPOINT_URL, FSSPEC_S3_..., HF_TOKEN): no option or file of ours holds them.
"""

import hashlib
import io
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.retries import asking, is_absent, tried

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.")
_FILE = re.compile(r"file://(localhost(?=/))?", re.IGNORECASE)
_BUFFER_BYTES = 1 << 13  # Python's own is 128 KiB from 3.14 on, more than is wanted of a footer
_PIECE_BYTES = 1 << 23  # of a whole file that is streamed


def is_url(text: object) -> bool:
    """Return whether a path is a URL."""
    return isinstance(text, Url) or (isinstance(text, str) and _URL.match(text) is not None)


def place_of(path: "str | os.PathLike[str] | Url") -> Path:
    """Return a path as an object: a `Url` offers what is asked of the path of a trace or result."""
    if isinstance(path, Url):
        return cast(Path, path)
    if isinstance(path, str) and is_url(path):
        local = _FILE.match(path)
        return Path(path[local.end() :]) if local else cast(Path, Url(path))
    return Path(path)


class Url:
    """The URL of a file, in the place of its path."""

    def __init__(self, text: str) -> None:
        scheme, colon, rest = text.partition("://")
        self.scheme = scheme.lower()  # as fsspec knows it; case does not matter in a URL
        self._text = self.scheme + colon + rest
        self.on_the_web = self.scheme in ("http", "https")
        self._sends_parts = False  # whether a web server was seen to do so

    def __str__(self) -> str:
        return self._text

    def __fspath__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Url({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Url) and str(other) == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    @property
    def _path(self) -> PurePosixPath:
        return PurePosixPath(re.split("[?#]", self._text.partition("://")[2])[0])

    @property
    def name(self) -> str:
        """The last piece of the path."""
        return self._path.name

    @property
    def stem(self) -> str:
        """That without its suffix."""
        return self._path.stem

    @property
    def suffix(self) -> str:
        """The suffix, with its dot."""
        return self._path.suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The pieces of the path."""
        return self._path.parts

    def absolute(self) -> "Url":
        """A URL is that."""
        return self

    def resolve(self) -> "Url":
        """There are no links."""
        return self

    def is_symlink(self) -> bool:
        """There are no links."""
        return False

    def exists(self) -> bool:
        """Return whether there is a file or folder. Raises TraceError if nobody answers."""
        return self.info() is not None

    def is_dir(self) -> bool:
        """Return whether there is a folder. Raises TraceError if nobody answers."""
        return (self.info() or {}).get("type") == "directory"

    def is_file(self) -> bool:
        """Return whether there is a file. Raises TraceError if nobody answers."""
        return (self.info() or {}).get("type") == "file"

    def info(self) -> dict[str, Any] | None:
        """Return what the store tells about it now; None if it is not there.

        Raises TraceError if nobody answers.
        """
        system, path = self.system()

        def ask() -> dict[str, Any] | None:
            system.invalidate_cache()
            try:
                found: dict[str, Any] = system.info(path)
            except FileNotFoundError as error:
                if is_absent(error):
                    return None
                raise
            return found

        return tried(self, ask)

    def stat(self) -> SimpleNamespace:
        """Return the size, and in the place of a time what changes when the file is written again.

        Raises TraceError if it is not there, nobody answers, or the server does not send parts.
        """
        found = self.info()
        if found is None:
            raise self.absent()
        if found.get("mimetype") == "text/html" and self._text.partition("?")[0].endswith("/"):
            raise TraceError(
                f"{self} is a web page: the query of a folder does not reach its files; name each"
                " with its own"
            )
        if found["type"] == "directory":
            raise TraceError(
                f"{self} is a folder: with a / at its end, the traces in it are opened"
            )
        if found["size"] is None:
            raise TraceError(f"{self} cannot be read: the server does not tell how large it is")
        size_bytes = int(found["size"])
        if self.on_the_web and not self._sends_parts:
            self._refuse_whole(size_bytes)
        return SimpleNamespace(st_size=size_bytes, st_mtime_ns=mark_of(found))

    def absent(self) -> TraceError:
        """Return the exception for a file that is not there, or not even its bucket."""
        try:
            missing = self.missing_place()
        except Exception:  # the bucket may not be looked at, which is another matter
            missing = None
        return TraceError(f"{self} does not exist" + (f": {missing}" if missing else ""))

    def missing_place(self) -> str | None:
        """Return the words for a bucket or repository that is not there, where stores tell.

        Raises what the client of the store raises.
        """
        system, path = self.system()
        try:
            if self.scheme == "hf":
                system.resolve_path(path)
            if self.scheme in ("s3", "s3a", "gs", "gcs"):
                system.info(path.partition("/")[0])
        except FileNotFoundError:
            return f"there is no such {'repository' if self.scheme == 'hf' else 'bucket'}"
        except PermissionError:  # its files may be open to those who may not look at it
            pass
        return None

    def _refuse_whole(self, size_bytes: int) -> None:
        """Raise TraceError if a web server ignores `Range`: it would send all for each part."""
        system, path = self.system()

        def last_byte() -> None:
            with system.open(path, block_size=1, cache_type="none", size=size_bytes) as file:
                file.seek(size_bytes - 1)
                try:
                    file.read(1)
                except ValueError:
                    raise TraceError(
                        f"{self} cannot be read: the server sends whole files only, not the parts"
                        " that are asked for; download it and name the local file"
                    ) from None

        if size_bytes > 1:
            tried(self, last_byte)
        self._sends_parts = True

    def open(self, mode: str = "rb", **_: Any) -> io.BufferedReader:
        """Open it to read its bytes, no more of them than are asked for."""
        assert mode == "rb"
        return io.BufferedReader(Ranges(self), _BUFFER_BYTES)

    def fetch(self, begins: list[int], ends: list[int]) -> list[bytes]:
        """Return ranges of bytes, all asked for at once where that can be. Raises TraceError."""
        system, path = self.system()

        def ranges() -> list[bytes]:
            found: list[Any]
            if system.async_impl:
                found = system.cat_ranges([path] * len(begins), begins, ends)
            else:  # which opens the file for each range, and would read ahead
                extents = zip(begins, ends, strict=True)
                found = [system.cat_file(path, *each, cache_type="none") for each in extents]
            for piece, begin, end in zip(found, begins, ends, strict=True):
                if isinstance(piece, BaseException):
                    raise piece
                if len(piece) != end - begin:
                    raise ValueError(f"{len(piece)} bytes came in place of {end - begin}")
            return found

        return tried(self, ranges) if begins else []

    def system(self) -> tuple[Any, str]:
        """Return the file system, which fsspec keeps, and the path in it. Raises TraceError."""
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise TraceError(f"{self} needs fsspec: pip install '.[remote]'") from None
        with asking(self, "opened"):
            system, path = url_to_fs(self._text)
        return system, path


class Ranges(io.RawIOBase):
    """The bytes of a URL. Those of `known` (begin, end) are fetched at once and kept; others when
    they are read."""

    def __init__(
        self, url: Url, size_bytes: int | None = None, known: Iterable[tuple[int, int]] = ()
    ) -> None:
        self._url = url
        self._size = url.stat().st_size if size_bytes is None else size_bytes
        extents = sorted(set(known))
        pieces = url.fetch([begin for begin, _ in extents], [end for _, end in extents])
        self._known: Mapping[int, bytes] = dict(
            zip((begin for begin, _ in extents), pieces, strict=True)
        )
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if begin + offset < 0:
            raise ValueError("a place before the beginning of the file")
        self._at = begin + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        stop = min(self._at + len(view), self._size)
        if stop <= self._at:
            return 0
        piece = self._piece(self._at, stop)
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def readall(self) -> bytes:
        pieces = iter(lambda: self.read(_PIECE_BYTES) or b"", b"")
        return b"".join(pieces)

    def _piece(self, begin: int, end: int) -> bytes | memoryview:
        for first, data in self._known.items():
            if first <= begin < first + len(data):
                return memoryview(data)[begin - first : end - first]
        return self._url.fetch([begin], [end])[0]


def mark_of(info: dict[str, Any]) -> int:
    """Return what changes when a file is written again, of all that stores tell."""
    names = "size ETag etag md5Hash LastModified Last-Modified mtime created blob_id".split()
    marks = str([info.get(name) for name in names]).encode()
    return int.from_bytes(hashlib.sha256(marks).digest()[:7], "little")
