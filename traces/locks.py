"""A lock beside a file, so that one process at a time writes it or the work kept for it."""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from errno import EACCES, EAGAIN
from pathlib import Path
from platform import node

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.files import resolved
from hisparse_sim.traces.terminal import printable

try:
    import fcntl
except ImportError:  # Windows: two processes on one file go unnoticed
    fcntl = None  # type: ignore[assignment]


def locked(path: Path, work: str) -> Callable[[], None]:
    """Take the lock of a file and return how to release it. `work`: what holds it, for messages.

    The lock lies beside the file that a link leads to. The system releases it when the process
    ends, in whatever way; it names its holder.

    Raises TraceError if another process has it, or it cannot be made.
    """
    if fcntl is None:
        return _nothing
    target = resolved(path)
    lock = target.with_name(f".{target.name}.lock")
    while True:
        try:
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except OSError as error:
            raise TraceError(f"{lock} cannot be written: {error.strerror or error}") from error
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise TraceError(
                f"{lock} is a device or pipe, where the lock of {path} belongs: remove it, or name"
                " another file"
            )
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = printable(os.read(file, 200).decode(errors="replace")) or "another process"
            os.close(file)
            if error.errno not in (EACCES, EAGAIN):
                return _nothing  # a file system without locks
            raise TraceError(
                f"{path} is in use: {work} ({holder}) is writing the same output; wait for it, or"
                " name another file"
            ) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(lock)):
                break
        os.close(file)  # its holder has just removed it

    os.truncate(file, 0)
    os.write(file, f"process {os.getpid()} on {node()}".encode())

    def release() -> None:
        with suppress(OSError):
            lock.unlink()
        os.close(file)

    return release


def _nothing() -> None:
    pass
