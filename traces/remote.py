"""Files behind URLs (s3://, gs://, hf://, https://), by fsspec: the one place that knows it.

Credentials, endpoints and timeouts are those of the environment, as each file system takes them
(AWS_PROFILE, AWS_ENDPOINT_URL, FSSPEC_S3_..., HF_TOKEN): no option or file of ours holds them.
"""

import hashlib
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from hisparse_sim.traces.errors import TraceError

T = TypeVar("T")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.")
_PIECE_BYTES = 1 << 23  # of a whole file that is streamed
_PAUSES_S = (0.2, 0.8, 3.2, None)  # after each try to read


def is_url(text: object) -> bool:
    """Return whether a path is a URL."""
    return isinstance(text, Url) or (isinstance(text, str) and _URL.match(text) is not None)


def place_of(path: "str | os.PathLike[str] | Url") -> Path:
    """Return a path as an object: a `Url` offers what is asked of the path of a trace or result."""
    if isinstance(path, Url):
        return cast(Path, path)
    if isinstance(path, str) and is_url(path):
        return Path(path[7:]) if path.startswith("file://") else cast(Path, Url(path))
    return Path(path)


class Url:
    """The URL of a file, in the place of its path."""

    def __init__(self, text: str) -> None:
        self._text = text

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
        system, path = self._system()
        with _asking(self):
            return bool(system.exists(path))

    def is_dir(self) -> bool:
        """Return whether there is a folder. Raises TraceError if nobody answers."""
        system, path = self._system()
        with _asking(self):
            return bool(system.isdir(path))

    def is_file(self) -> bool:
        """Return whether there is a file. Raises TraceError if nobody answers."""
        system, path = self._system()
        with _asking(self):
            return bool(system.isfile(path))

    def stat(self) -> SimpleNamespace:
        """Return the size, and in the place of a time what changes when the file is written again.

        Raises TraceError if it is not there or nobody answers.
        """
        system, path = self._system()

        def info() -> dict[str, Any]:
            system.invalidate_cache()
            found: dict[str, Any] = system.info(path)
            return found

        found = _tried(self, info)
        if found["size"] is None:
            raise TraceError(f"{self} cannot be read: the server does not tell how large it is")
        names = ("ETag", "etag", "md5Hash", "LastModified", "Last-Modified", "mtime", "created")
        marks = str([found.get(name) for name in names]).encode()
        mark = int.from_bytes(hashlib.sha256(marks).digest()[:7], "little")
        return SimpleNamespace(st_size=int(found["size"]), st_mtime_ns=mark)

    def open(self, mode: str = "rb", **_: Any) -> io.BufferedReader:
        """Open it to read its bytes, no more of them than are asked for."""
        assert mode == "rb"
        return io.BufferedReader(Ranges(self))

    def fetch(self, begins: list[int], ends: list[int]) -> list[bytes]:
        """Return ranges of bytes, all asked for at once. Raises TraceError."""
        system, path = self._system()

        def ranges() -> list[bytes]:
            found: list[bytes] = system.cat_ranges([path] * len(begins), begins, ends)
            for piece, begin, end in zip(found, begins, ends, strict=True):
                if len(piece) != end - begin:
                    raise ValueError(f"{len(piece)} bytes came in place of {end - begin}")
            return found

        return _tried(self, ranges) if begins else []

    def put(self, source: Path) -> None:
        """Write a file to it, which replaces what is there when all has arrived.

        Raises TraceError.
        """
        system, path = self._system()
        with _asking(self, "written"):
            system.put_file(str(source), path)

    def refuse_unwritable(self) -> None:
        """Raise TraceError if it cannot be written, as far as that can be told."""
        if self._text.startswith(("http://", "https://")):
            raise TraceError(f"{self} cannot be written: a web server takes no files")
        system, path = self._system()
        if self._text.startswith(("s3:", "s3a:", "gs:", "gcs:")):
            with _asking(self, "written"):
                if not system.exists(path.partition("/")[0]):
                    raise TraceError(f"{self} cannot be written: there is no such bucket")

    def _system(self) -> tuple[Any, str]:
        """Return the file system, which fsspec keeps, and the path in it."""
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise TraceError(f"{self} needs fsspec: pip install '.[remote]'") from None
        with _asking(self, "opened"):
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


@contextmanager
def uploaded(url: Url) -> Iterator[Path]:
    """Yield a path to write to; the file is put there when the block ends without an exception."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / (url.name or "file")
        yield path
        url.put(path)


def found_by(pattern: str) -> list[str]:
    """Return the URLs of the files that a glob finds, or all below a folder, sorted.

    Raises TraceError if nobody answers.
    """
    url = Url(pattern)
    system, path = url._system()
    with _asking(url):
        system.invalidate_cache()
        names = system.find(path) if not re.search(r"[*?[]", path) else system.glob(path)
        return sorted(system.unstrip_protocol(name) for name in names)


def _tried(url: Url, ask: Callable[[], T]) -> T:
    """Ask several times, with growing pauses: for a body that is cut, or a server that is busy."""
    with _asking(url):
        for pause in _PAUSES_S:
            try:
                return ask()
            except Exception as error:
                given = isinstance(error, FileNotFoundError | PermissionError | ImportError)
                if given or pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError


@contextmanager
def _asking(url: Url, purpose: str = "read") -> Iterator[None]:
    """Turn what file systems raise, which has no common base, into one sentence."""
    try:
        yield
    except TraceError:
        raise
    except FileNotFoundError:
        raise TraceError(f"{url} does not exist") from None
    except ImportError as error:
        raise TraceError(f"{url} cannot be {purpose}: pip install '.[remote]' ({error})") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise TraceError(f"{url} cannot be {purpose}: {reason}") from error
