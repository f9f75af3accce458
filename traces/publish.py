"""Files written to a store: whole, and only if no other run wrote there since this one began.

The condition goes with the upload where a store takes one: S3 an ETag, Google Cloud Storage a
generation, a repository of Hugging Face the commit before. Elsewhere the file is looked at just
before it is uploaded, so that two uploads at the same time go unnoticed.
"""

import mimetypes
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.remote import Url, mark_of, place_of
from hisparse_sim.traces.retries import status_of, tried

Info = dict[str, Any]

_REFUSED = 412  # the status of a request whose condition does not hold
_PIECE_BYTES = 1 << 20


class Changed(TraceError):
    """Another run wrote the file."""


class Target(Url):
    """The URL of a file that is written, which knows what was there when the run began."""

    def __init__(self, text: str, force: bool = False) -> None:
        """`force`: replace what is there, whoever wrote it."""
        super().__init__(text)
        self._force = force
        self._looked = False
        self.before: Info | None = None  # what the store told of it then; None: no file

    def refuse_unwritable(self) -> None:
        """Raise TraceError if it cannot be written, as far as that can be told. The first call
        looks at what is there: it belongs to the beginning of a run."""
        if self.on_the_web:
            raise TraceError(f"{self} cannot be written: a web server takes no files")
        if missing := tried(self, self.missing_place, "written"):
            raise TraceError(f"{self} cannot be written: {missing}")
        if not self._looked and not self._force:
            self.before, self._looked = self._file(), True

    def refuse_changed(self) -> None:
        """Raise Changed if what is there is no longer what was when the run began."""
        now = self._file()
        if (now and mark_of(now)) != (self.before and mark_of(self.before)):
            raise self._changed()

    def put(self, source: Path) -> None:
        """Write a file to it, which replaces what is there when all has arrived.

        Raises Changed, unless the same bytes are there, and TraceError.
        """
        system, path = self.system()
        upload = _UPLOADS.get(self.scheme, _unconditional)

        def ask() -> None:
            if self._force:
                return _unconditional(self, system, path, source)
            self.refuse_changed()
            try:
                upload(self, system, path, source)
            except Exception as error:
                if status_of(error) == _REFUSED:
                    raise self._changed() from None
                raise

        try:
            tried(self, ask, "written")
        except Changed:
            # Of another run with this result, or of our own try whose answer was lost.
            if not self._holds(source):
                raise

    def _file(self) -> Info | None:
        found = self.info()
        return found if found is not None and found["type"] == "file" else None

    def _changed(self) -> Changed:
        return Changed(
            f"{self} has been changed by another run since this one began; run again to replace it"
        )

    def _holds(self, source: Path) -> bool:
        found = self._file()
        if found is None or found["size"] != source.stat().st_size:
            return False
        with self.open() as there, source.open("rb") as here:
            pieces = iter(lambda: here.read(_PIECE_BYTES), b"")
            return all(there.read(len(piece)) == piece for piece in pieces)


def target_of(path: str | os.PathLike[str] | Url) -> Path:
    """Return the path of a file that is written as an object: a `Target` for a URL."""
    place = place_of(path)
    if isinstance(place, Url) and not isinstance(place, Target):
        return cast(Path, Target(str(place)))
    return place


@contextmanager
def uploaded(target: Target) -> Iterator[Path]:
    """Yield a path to write to; the file is put to `target` when the block ends without an
    exception.

    Raises TraceError if it cannot be, and KeyboardInterrupt; the message names the local file that
    holds it then.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp())
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        path = folder / (target.name or "file")
        yield path
        try:
            target.put(path)
        except (TraceError, KeyboardInterrupt) as error:
            kept = _kept(path)
            if kept == path:
                stack.pop_all()
            what = str(error) or "interrupted while the result was uploaded"
            raise type(error)(f"{what}; the result is kept, complete, in {kept}") from error


def _kept(path: Path) -> Path:
    """Move a file to the current folder, under a new name; return where it is."""
    kept = Path.cwd() / f"{path.stem}-{secrets.token_hex(4)}{path.suffix}"
    try:
        shutil.move(path, kept)
    except OSError:
        with suppress(OSError):
            kept.unlink()
        return path
    return kept


def _unconditional(target: Target, system: Any, path: str, source: Path) -> None:
    system.put_file(str(source), path)


def _to_s3(target: Target, system: Any, path: str, source: Path) -> None:
    shape = system.s3.meta.service_model.operation_model("PutObject").input_shape
    before = target.before
    condition = {"IfNoneMatch": "*"} if before is None else {"IfMatch": before["ETag"]}
    if not condition.keys() <= shape.members.keys():  # botocore before 1.35.69
        return _unconditional(target, system, path, source)
    # What is set so goes with each request that takes it: the one that completes an upload in
    # parts, too, which no argument of put_file reaches.
    settings = system.storage_options | {
        "s3_additional_kwargs": system.s3_additional_kwargs | condition,
        "skip_instance_cache": True,
    }
    type(system)(**settings).put_file(str(source), path)


def _to_google(target: Target, system: Any, path: str, source: Path) -> None:
    bucket, _, key = path.partition("/")
    before = target.before
    kind = mimetypes.guess_type(key)[0] or "application/octet-stream"
    with source.open("rb") as file:
        system.call(
            "POST",
            system.base.replace("/storage/", "/upload/storage/") + "b/{}/o",
            bucket,
            uploadType="media",
            name=key,
            ifGenerationMatch="0" if before is None else str(before["generation"]),
            headers={"Content-Type": kind},
            data=file,
        )


def _to_hub(target: Target, system: Any, path: str, source: Path) -> None:
    from huggingface_hub import HfApi

    place = system.resolve_path(path)
    if not hasattr(place, "repo_id"):  # a bucket, which has no commits
        return _unconditional(target, system, path, source)
    hub = HfApi(endpoint=system.endpoint, token=system.token)
    repository = {"repo_id": place.repo_id, "repo_type": place.repo_type}
    head = hub.repo_info(**repository, revision=place.revision).sha
    target.refuse_changed()
    try:
        hub.upload_file(
            **repository,
            path_or_fileobj=source,
            path_in_repo=place.path_in_repo,
            revision=place.revision,
            parent_commit=head,
        )
    except Exception as error:
        if status_of(error) == _REFUSED:  # by a commit to any file: look again
            raise ConnectionError("other commits come all the time") from None
        raise


_UPLOADS: dict[str, Callable[[Target, Any, str, Path], None]] = {
    "s3": _to_s3,
    "s3a": _to_s3,
    "gs": _to_google,
    "gcs": _to_google,
    "hf": _to_hub,
}
