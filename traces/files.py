"""Reads regular files and URLs only, and writes files that are either complete or absent."""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import ELOOP
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from hisparse_sim.traces.errors import TraceError, without_credentials
from hisparse_sim.traces.folders import ARROW_SUFFIX, belongs, is_folder, traces_below
from hisparse_sim.traces.publish import Target, target_of, uploaded
from hisparse_sim.traces.remote import Url, place_of

# Most file systems take 255; the files that lie beside it while it is made have longer names.
_LONGEST_NAME_BYTES = 240
TRACE_SUFFIXES = (".parquet", ARROW_SUFFIX, "")
_MAGICS = (b"PAR1", b"ARROW1")


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to write to; it becomes `path` when the block ends without an exception.

    The temporary file is beside the target and keeps its suffix, by which writers choose the
    format. On any exception, Ctrl-C included, it is removed and an existing target stays as it was.
    A link is followed; a device or pipe (`/dev/stdout`) is written directly.

    Raises TraceError naming `path` if it cannot be written (an OSError inside the block counts).
    """
    target = target_of(path)
    refuse_unwritable(target)
    if isinstance(target, Target):
        with uploaded(target) as temporary:
            yield temporary
        return
    try:
        if not is_file(target):
            yield target
            return
        target = resolved(target)
        temporary = target.with_name(f".{target.stem}-{secrets.token_hex(4)}{target.suffix}")
        try:
            yield temporary
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise TraceError(f"{path} cannot be written: {error.strerror or error}") from error


@contextmanager
def opened(path: str | os.PathLike[str], what: str = "file") -> Iterator[BufferedReader]:
    """Open a file to read its bytes. `what`: what it should be, for messages.

    A pipe is refused: files are inspected before they are read, and a pipe without a writer would
    block for ever.

    Raises TraceError naming `path` if it cannot be read (an OSError inside the block counts).
    """
    target = place_of(path)
    if isinstance(target, Url):
        with target.open() as file:
            yield file
        return
    try:
        if target.is_dir():
            raise TraceError(f"{path} is a folder, not a {what}")
        if target.exists() and not target.is_file():
            raise TraceError(f"{path} is a device or pipe, not a {what}: save it as a file first")
        with target.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error


def local_file(path: "str | os.PathLike[str]") -> Path:
    """Return the path of a file on this machine. Raises TraceError for a URL."""
    place = place_of(path)
    if isinstance(place, Url):
        raise TraceError(
            f"{place} is a URL, and only traces and results are read from there: download it, and"
            " name the file"
        )
    return place


class Version(NamedTuple):
    """What tells whether a file was written again."""

    size_bytes: int
    mark: int


def version_of(path: Path) -> Version:
    """Return the present version of a file. Raises TraceError if there is none."""
    try:
        status = path.stat()
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    return Version(status.st_size, status.st_mtime_ns)


def refuse_changed(path: Path, version: Version) -> None:
    """Raise TraceError if a file is no longer of this version."""
    if version_of(path) != version:
        raise TraceError(f"{path} has changed since it was opened; open it again")


def sha256_of(path: Path) -> str:
    """Return the digest of a whole file, 64 hexadecimal digits. Raises TraceError."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def reread(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write and to read again before it is finished.

    A pipe or device is written when all is complete.
    """
    directly = is_file(path)
    with path.open("w+b") if directly else TemporaryFile() as file:
        yield file
        if not directly:
            file.seek(0)
            with path.open("wb") as target:
                shutil.copyfileobj(file, target)


def refuse_input(output: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Raise TraceError if `output` is one of the files that are read."""
    target = place_of(output)
    for path in map(place_of, inputs):
        if isinstance(target, Url) or isinstance(path, Url):
            same = target == path
        else:
            same = target.exists() and path.exists() and target.samefile(path)
        same = same or (is_folder(path) and belongs(target, path))
        if same:
            raise TraceError(f"{output} cannot be written: it is read for this")


def refuse_same(*outputs: str | os.PathLike[str] | None) -> None:
    """Raise TraceError if two of the files that are written are one; None is no file."""
    seen: set[Path] = set()
    for output in outputs:
        if output is None or not is_file(place_of(output)):
            continue
        if place_of(output).resolve() in seen:
            raise TraceError(f"{output} cannot be written: two different things would go there")
        seen.add(place_of(output).resolve())


def holds_trace(path: str | os.PathLike[str]) -> bool:
    """Return whether a file exists that may be a trace: it begins as Parquet or Arrow files do, as
    all traces, or cannot be read. Or a folder that is one."""
    target = place_of(path)
    if is_folder(target):
        return str(target) in traces_below(target)
    if not target.is_file():  # reading from a pipe would wait for a writer
        return False
    try:
        with target.open("rb") as file:
            return file.read(max(map(len, _MAGICS))).startswith(_MAGICS)
    except OSError:
        return True


def refuse_unwritable(path: str | os.PathLike[str]) -> None:
    """Raise TraceError if `path` cannot be written; called before long work."""
    target = target_of(path)
    if isinstance(target, Target):
        target.refuse_unwritable()
        return
    if len(os.fsencode(target.name)) > _LONGEST_NAME_BYTES:
        raise TraceError(f"{path} cannot be written: its name is too long")
    if target.is_dir():
        raise TraceError(f"{path} cannot be written: it is a folder")
    if not target.parent.is_dir():
        raise TraceError(f"{path} cannot be written: there is no folder {target.parent}")
    if target.exists() and not os.access(target, os.W_OK):
        raise TraceError(f"{path} cannot be written: it is write-protected")
    folder = resolved(target).parent  # that of a link's target
    if not folder.is_dir():
        raise TraceError(f"{path} cannot be written: there is no folder {folder}")
    if is_file(target) and not os.access(folder, os.W_OK | os.X_OK):
        raise TraceError(f"{path} cannot be written: the folder {folder} is write-protected")


def work_of(output: Path) -> Path:
    """Return where the unfinished work for a file is kept: beside it, or what a link leads to; of a
    URL, in the current folder, by the whole of it without credentials, which may be renewed."""
    if isinstance(output, Url):
        whole = without_credentials(str(output)).encode()
        digest = hashlib.sha256(whole).hexdigest()[:8]
        return Path(f"{output.stem}-{digest}{output.suffix}.partial")
    target = resolved(output) if output.is_symlink() and is_file(output) else output
    return target.with_name(f"{target.name}.partial")


def resolved(path: Path) -> Path:
    """Return the path without links. Raises TraceError for links that lead to each other."""
    try:
        path.stat()
    except OSError as error:
        if error.errno == ELOOP:
            raise TraceError(f"{path} cannot be used: its links lead to each other") from None
    return path.resolve()


def is_file(target: Path) -> bool:
    """Return whether `target` is or becomes a regular file, not a device or pipe."""
    return isinstance(target, Url) or target.is_file() or not target.exists()
