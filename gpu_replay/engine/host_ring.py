"""Where a recording waits in host memory: a ring that a server process fills and another empties.

It lies in a file in shared memory, so that what has been written survives the process that wrote
it, whatever ends that. Room for all of it is taken when it is made: later there is no fault that a
full file system could cause. The layout is of this release only; both ends are ours.
"""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.engine.device_ring import FACTS, entry_bytes
from hisparse_sim.gpu_replay.engine.releases import EngineError

SHARED_MEMORY = Path("/dev/shm")
_PAGE = 4096  # before the entries: head and tail, on cache lines of their own
_HEAD, _TAIL = 0, 64


class HostRing:
    """One producer, one consumer.

    Attributes
    ----------
    heads
        int64 [entries, FACTS + layers], as in the ring on the device.
    positions
        int32 [entries, recorded layers, top_k].
    """

    def __init__(
        self, path: Path, entries: int, recorded: int, layers: int, top_k: int, *, make: bool
    ) -> None:
        """Make the file, or map the one that is there. Raises EngineError if there is no room."""
        self.path, self.entries = path, entries
        heads_bytes = 8 * entries * (FACTS + layers)
        size = _PAGE + heads_bytes + 4 * entries * recorded * top_k
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if make else 0)
        file = os.open(path, flags, 0o600)
        try:
            if make:
                os.posix_fallocate(file, 0, size)
            self._map = mmap.mmap(file, size)
        except OSError as error:
            if make:
                path.unlink()
            raise EngineError(
                f"no {size / 2**20:,.0f} MiB of shared memory for the recording in {path.parent} "
                f"({error.strerror}): give --host-ring-mib less, or the container more shared "
                "memory"
            ) from None
        finally:
            os.close(file)
        at = np.frombuffer(self._map, np.uint8)
        self.memory = at  # all of it, to be pinned
        self._cursors = at[:_PAGE].view(np.int64)
        self.heads: NDArray[np.int64] = (
            at[_PAGE : _PAGE + heads_bytes].view(np.int64).reshape(entries, FACTS + layers)
        )
        self.positions: NDArray[np.int32] = (
            at[_PAGE + heads_bytes :].view(np.int32).reshape(entries, recorded, top_k)
        )

    @property
    def head(self) -> int:
        """Entries ever written."""
        return int(self._cursors[_HEAD // 8])

    @head.setter
    def head(self, value: int) -> None:
        self._cursors[_HEAD // 8] = value

    @property
    def tail(self) -> int:
        """Entries ever read."""
        return int(self._cursors[_TAIL // 8])

    @tail.setter
    def tail(self, value: int) -> None:
        self._cursors[_TAIL // 8] = value

    @property
    def room(self) -> int:
        """Entries that may be written now."""
        return self.entries - (self.head - self.tail)

    def waiting(self) -> Iterator[int]:
        """Places of the entries to read, oldest first; each is free again when the next is asked
        for."""
        while self.tail < self.head:
            yield self.tail % self.entries
            self.tail += 1


def entries_within(size_bytes: int, recorded: int, layers: int, top_k: int) -> int:
    """Entries of a ring of that size; EngineError if it cannot hold even eight."""
    each = entry_bytes(recorded, layers, top_k)
    if size_bytes // each < 8:
        raise EngineError(
            f"a ring of {size_bytes:,} bytes is too small: one step of one request takes {each:,}, "
            "and eight of them have to fit"
        )
    return size_bytes // each
