"""Makes trace files of what a server process records, in another process, request by request.

Entries are taken from the ring as they come and wait in a scratch file until their request ends;
then its trace file is written, and beside it, under `counted/`, what the server counted for the
same calls. Whatever ends the server or this process, finished requests are whole files.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.engine import events
from hisparse_sim.gpu_replay.engine.device_ring import EPOCH, FACTS, SEQ_LEN
from hisparse_sim.gpu_replay.engine.host_ring import HostRing
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.metadata import Metadata
from hisparse_sim.traces.file.spool import Spool
from hisparse_sim.traces.file.writer import TraceWriter
from hisparse_sim.traces.files import atomic_path

COUNTED = "counted"  # the folder of what the server counted, call by call
WRITERS = 2  # trace files that are written at once
NOTES = "engine"  # in the notes of a trace: facts about its request
NO_ROOM = "the disk has no more room than the open requests will take"


@dataclass(frozen=True)
class Source:
    """What the trace files say about where they come from."""

    model: str
    kernel: str  # "sglang" or "native"
    layer_types: tuple[str, ...] | None = None


@dataclass
class Budget:
    """The cap on bytes of all recordings of a run; what lies in scratch files counts as well."""

    most_bytes: int | None = None
    used_bytes: int = 0
    full: str = ""  # why nothing more is taken; "" while there is room

    def take(self, size_bytes: int) -> bool:
        """Whether so many bytes may still be written; from the first refusal on, none may."""
        if self.most_bytes is not None and self.used_bytes + size_bytes > self.most_bytes:
            self.full = self.full or f"the cap of {self.most_bytes:,} bytes is reached"
        if self.full:
            return False
        self.used_bytes += size_bytes
        return True


@dataclass
class _Request:
    """A request that is being recorded."""

    name: str
    start: str
    spool: Spool | None  # None if there was no room for one
    prompt_len: int = -1
    misses: list[NDArray[np.int32]] = field(default_factory=list)  # [layers] of every step
    spooled_bytes: int = 0
    steps: int | None = None  # that the server counted, once it has ended
    dropped: int = 0  # of those, the ones that were not kept
    cut: str = ""  # why it is recorded no further


class Recording:
    """Trace files of one server process.

    Attributes
    ----------
    written
        Paths of the trace files, in order.
    steps, steps_dropped
        Steps of requests in them, and those of the same requests that are not.
    cut
        Reasons for which requests were not recorded to their end, and how many each.
    """

    def __init__(
        self,
        folder: Path,
        facts: dict[str, Any],
        source: Source,
        budget: Budget,
        number: Callable[[], int],
    ) -> None:
        """`facts`: of the event that a server process sent first; `number()`: of the next file."""
        ring = facts["ring"]
        self._facts, self._source, self._budget, self._number = facts, source, budget, number
        self._folder = folder
        self.layers: tuple[int, ...] = tuple(ring["recorded"])
        self._ring = HostRing(
            Path(ring["path"]),
            ring["entries"],
            len(self.layers),
            facts["layers"],
            facts["top_k"],
            make=False,
        )
        self._open: dict[int, _Request] = {}
        self._pool = ThreadPoolExecutor(WRITERS)
        self._writing: deque[tuple[_Request, Path, Future[None]]] = deque()
        self._ending: list[tuple[int, int]] = []  # (entries to wait for, epoch)
        self._names: dict[str, int] = {}
        self._spooled_bytes = 0  # in scratch files
        self.written: list[Path] = []
        self.steps = self.steps_dropped = 0
        self.cut: dict[str, int] = {}

    def heard(self, event: dict[str, Any]) -> None:
        """Take an event of the server process."""
        if event["kind"] == events.ADMITTED:
            name = event["request"]
            seen = self._names[name] = self._names.get(name, 0) + 1
            # A request that was retracted and began again is another one here.
            name = name if seen == 1 else f"{name}.{seen}"
            spool = None
            try:
                spool = Spool(self._folder / "request", self._facts["top_k"], scores=False)
            except OSError as error:
                self._no_room(error)
            self._open[event["epoch"]] = _Request(name, event["start"], spool)
        elif event["kind"] == events.DIRECT and event["epoch"] in self._open:
            self._open[event["epoch"]].start = "direct"
        elif event["kind"] == events.ENDED and event["epoch"] in self._open:
            self._open[event["epoch"]].steps = event["steps"]
            self._ending.append((event["at"], event["epoch"]))

    def work(self) -> bool:
        """Take what waits in the ring and finish what has ended; whether there was anything."""
        busy = False
        for at in self._ring.waiting():
            busy = True
            self._take(self._ring.heads[at], self._ring.positions[at])
        for ending in [each for each in self._ending if each[0] <= self._ring.tail]:
            busy = True
            self._ending.remove(ending)
            self._finish(self._open.pop(ending[1]))
        while self._writing and self._writing[0][2].done():
            self._written_down(*self._writing.popleft())
        return busy

    def close(self, why: str) -> None:
        """The server has gone: finish what is open, remove the ring."""
        try:
            self.work()
            for request in self._open.values():
                request.cut = request.cut or why
                self._finish(request)
            self._open.clear()
            self._pool.shutdown()
            while self._writing:
                self._written_down(*self._writing.popleft())
        finally:
            self._ring.path.unlink(missing_ok=True)
            for request in [*self._open.values(), *(each[0] for each in self._writing)]:
                with request.spool or nullcontext():
                    pass  # a fault came before its file could be written

    def _take(self, head: NDArray[np.int64], positions: NDArray[np.int32]) -> None:
        request = self._open.get(int(head[EPOCH]))
        if request is None:
            return
        size, seq_len, spool = positions.nbytes, int(head[SEQ_LEN]), request.spool
        if free_bytes(self._folder) < self._spooled_bytes + size:
            self._budget.full = self._budget.full or NO_ROOM
        if not request.cut and not self._budget.take(size):
            request.cut = self._budget.full
        if request.prompt_len < 0:
            request.prompt_len = seq_len - 1
        if not request.cut and spool and seq_len != request.prompt_len + spool.steps + 1:
            request.cut = "a step was missing"
        if not request.cut and spool:
            try:
                spool.extend(self.layers, positions[None])
                request.spooled_bytes += size
                self._spooled_bytes += size
                request.misses.append(head[FACTS:].astype(np.int32))
                return
            except OSError as error:
                request.cut = self._no_room(error)
                self._budget.used_bytes -= size
        request.dropped += 1

    def _no_room(self, error: OSError) -> str:
        """Why nothing more is taken, from nobody."""
        why = f"scratch files cannot be written: {error.strerror or error}"
        self._budget.full = self._budget.full or why
        return self._budget.full

    def _finish(self, request: _Request) -> None:
        kept = len(request.misses)
        if request.steps is not None and kept + request.dropped < request.steps:
            request.dropped = request.steps - kept
            request.cut = request.cut or "the ring on the GPU was full"
        path = self._folder / f"request-{self._number():05}.parquet"
        # In a thread: the ring must not fill up meanwhile.
        self._writing.append((request, path, self._pool.submit(self._write, request, path)))

    def _written_down(self, request: _Request, path: Path, written: Future[None]) -> None:
        with request.spool or nullcontext():
            self._budget.used_bytes -= request.spooled_bytes
            self._spooled_bytes -= request.spooled_bytes
            try:
                written.result()
                if request.misses:
                    self.steps += len(request.misses)
                    self._budget.used_bytes += path.stat().st_size
                    self.written.append(path)
            except (OSError, TraceError) as error:
                self._budget.full = self._budget.full or str(error)
                request.cut = str(error)
                request.dropped += len(request.misses)
        self.steps_dropped += request.dropped
        if request.cut:
            self.cut[request.cut] = self.cut.get(request.cut, 0) + 1

    def _write(self, request: _Request, path: Path) -> None:
        if request.spool is None or not request.misses:
            return
        facts = self._facts
        notes = {
            "start": request.start,
            "device_buffer_size": facts["buffer"],
            "entry_bytes": facts["entry_bytes"],
            "kernel": self._source.kernel,
            "cut": request.cut,
            "steps_dropped": request.dropped,
        }
        metadata = Metadata(
            model=self._source.model,
            provenance="dsa-serving",
            top_k=facts["top_k"],
            num_layers=facts["layers"],
            source=f"SGLang {facts['engine']}, recorded in the server",
            layer_types=self._source.layer_types,
            order="indexer",
            prompt_len={request.name: request.prompt_len},
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            notes={NOTES: notes},
        )
        counted = path.parent / COUNTED / path.name
        counted.parent.mkdir(exist_ok=True)
        with atomic_path(counted) as temporary:
            pq.write_table(_counted(request, self.layers), temporary, compression="zstd")
        with TraceWriter(path, metadata) as writer:
            for demand in request.spool.demands(
                request.name, request.prompt_len, facts["top_k"], sort=False, following=False
            ):
                writer.write(demand)


def _counted(request: _Request, layers: Sequence[int]) -> pa.Table:
    """One row a call: the request, layer, step, and the misses that the server counted."""
    misses = np.stack(request.misses, 1)[list(layers)]  # [recorded layers, steps]
    steps = misses.shape[1]
    return pa.table(
        {
            "request": [request.name] * misses.size,
            "layer": np.repeat(np.array(layers, np.int16), steps),
            "step": np.tile(np.arange(steps, dtype=np.int32), len(layers)),
            "misses": misses.reshape(-1),
        }
    )


def free_bytes(folder: Path) -> int:
    """What may still be written there."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def read_counts(folder: Path) -> list[dict[str, Any]]:
    """The last counts of every server process."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("counts-*.json"))]
