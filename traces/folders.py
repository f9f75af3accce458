"""Folders of traces: a trace is a file, or in hive layout many files of one.

`set/model=a/request=r0/layer=3/part-0.parquet` is a file of the trace `set/model=a`: a folder that
names a request or a layer stands for a column of the files below it, any other for traces of its
own. One of these that lies below a request is found as `set/request=*/model=a`.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.remote import Url, place_of
from hisparse_sim.traces.retries import is_absent, tried

KEYS = ("request", "layer")  # the columns that folders may stand for
ARROW_SUFFIX = ".arrow"  # of a trace in Arrow's container; any other is Parquet
_ANY = re.compile(r"(?:^|[\\/])(?:request|layer)=\*(?:[\\/]|$)")


class Filed(NamedTuple):
    """A file of a trace in hive layout."""

    path: Path
    folders: tuple[str, ...]  # that may say something of it, as they are spelt


def is_folder(path: Path) -> bool:
    """Return whether a path stands for the traces below it: a folder, or a URL that ends in / and
    has no query: behind that is what a web server makes of it."""
    if isinstance(path, Url):
        return str(path).endswith("/") and not (path.on_the_web and "?" in str(path))
    return path.is_dir() or bool(_ANY.search(str(path)) and not path.exists())


def traces_below(folder: Path) -> list[str]:
    """Return the traces below a folder, sorted by their files. Raises TraceError."""
    return list(_below(folder))


def files_of(trace: Path) -> list[Filed]:
    """Return the files of a trace in hive layout, sorted. Raises TraceError if it is none."""
    found = _below(_root(trace))
    files = found.get(str(trace), [])
    if files:
        return files
    if not found:
        raise TraceError(f"{trace} is a folder without traces")
    raise TraceError(
        f"{trace} is a folder, not a trace file: open what it holds, such as {next(iter(found))}"
    )


def found_by(pattern: str) -> list[str]:
    """Return the URLs of the files that a glob finds, or all below a folder, sorted.

    Raises TraceError if nobody answers, or the store has no such bucket.
    """
    url = Url(pattern)
    system, path = url.system()

    def names() -> list[str]:
        system.invalidate_cache()
        find = system.find if not re.search(r"[*?[]", path) else system.glob
        # Web folders are read one by one: else one that cannot be read would count as empty.
        settings = {"on_error": "raise"} if url.on_the_web else {}
        try:
            found = find(path, **settings)
        except FileNotFoundError as error:
            if not is_absent(error):
                raise
            return []
        if url.on_the_web:
            return sorted(found)
        # gs:// and gcs:// are one file system
        return sorted(f"{url.scheme}://{name}" for name in found)

    urls = tried(url, names)
    if not urls and tried(url, url.missing_place):
        raise url.absent()
    return urls


def name_of(trace: Path) -> str:
    """Return what a trace is called: a file without its suffix, or a folder."""
    return trace.name if is_folder(trace) else trace.stem


def belongs(file: Path, folder: Path) -> bool:
    """Return whether a file of this name would be one of the trace in hive layout."""
    root = _root(folder)
    if isinstance(file, Url) or isinstance(root, Url):
        below = str(file).removeprefix(str(root)) if str(file).startswith(str(root)) else ""
    else:
        here, there = root.resolve(), file.resolve()
        below = there.relative_to(here).as_posix() if there.is_relative_to(here) else ""
    return _counts(below) and _trace(root, _above(root), below) == str(folder)


def _root(trace: Path) -> Path:
    """Return the folder that holds all files of a trace."""
    text = str(trace)
    split = _ANY.search(text)
    if split is None or (not isinstance(trace, Url) and trace.exists()):
        return trace
    return place_of(text[: split.start()] + "/" * isinstance(trace, Url))


def _below(root: Path) -> dict[str, list[Filed]]:
    found: dict[str, list[Filed]] = {}
    above = _above(root)
    for path, below in _files(root):
        trace = _trace(root, above, below)
        folders = (*above, *below.split("/")[:-1])
        found.setdefault(trace or str(path), []).append(Filed(path, folders))
    return found


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files that count, sorted, and where they lie below the folder."""
    if isinstance(root, Url):
        start = str(root).partition("://")[2]
        for url in found_by(str(root)):
            below = url.partition(start)[2]
            # Links of web pages are quoted once more than the names of the folders.
            below = unquote(below) if url.startswith(("http://", "https://")) else below
            if _counts(below):
                yield place_of(url), below
        return
    for path in sorted(_walk(root)):
        below = path.relative_to(root).as_posix()
        if _counts(below):
            yield path, below


def _walk(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield what is no folder below one. Links are followed, except back to a folder above.

    Raises TraceError for a folder that cannot be read: its rows would be missing unseen.
    """
    here = folder.resolve()
    if here in above:
        return
    try:
        found = [path for path in folder.iterdir() if not _hidden(path.name)]
    except OSError as error:
        raise TraceError(f"{folder} cannot be read: {error.strerror or error}") from None
    for path in found:
        if path.is_dir():
            yield from _walk(path, above | {here})
        else:
            yield path


def _counts(below: str) -> bool:
    """Return whether a file of a folder counts: writers of data sets leave others there."""
    hidden = any(map(_hidden, below.split("/")))
    return not hidden and below.lower().endswith((".parquet", ARROW_SUFFIX))


def _hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _above(root: Path) -> list[str]:
    """Return the folders that end the path of one and say something, as `request=a` does."""
    pieces = [*(root if isinstance(root, Url) else Path(os.path.abspath(root))).parts]
    first = len(pieces)
    while first and "=" in pieces[first - 1]:
        first -= 1
    return pieces[first:]


def _trace(root: Path, above: list[str], below: str) -> str | None:
    """Return the trace that a file in hive layout belongs to; None for another file."""
    folders = below.split("/")[:-1]
    if not any(_key(folder) for folder in (*above, *folders)):
        return None
    named = [f"{key}=*" if (key := _key(folder)) else folder for folder in folders]
    while named and named[-1].endswith("=*"):
        named.pop()
    if isinstance(root, Url):
        return str(root) + "".join(f"{folder}/" for folder in named)
    return str(root.joinpath(*named))


def _key(folder: str) -> str | None:
    """Return the column that a folder stands for, if it does."""
    key = unquote(folder.partition("=")[0]) if "=" in folder else ""
    return key if key in KEYS else None
