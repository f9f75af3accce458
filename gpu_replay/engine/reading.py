"""A thread of the server process that copies out what the device has counted and recorded.

On a stream of its own: the GPU is never stopped and the engine's thread never waits. It starts
with the first request, since CUDA forbids what it does while the engine captures its graphs.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hisparse_sim.gpu_replay.engine.device_ring import DeviceRing
from hisparse_sim.gpu_replay.engine.host_ring import HostRing
from hisparse_sim.gpu_replay.kernels.build import import_torch

RECORDING_WAIT_S = 0.02  # between two looks at the ring on the device
COUNTING_WAIT_S = 1.0  # between two looks at the counters


class Stream:
    """A side stream of the device; nothing but the order of calls on the CPU."""

    def __init__(self, device: str) -> None:
        torch = import_torch()
        self._cuda: Any = torch.cuda if torch.device(device).type == "cuda" else None
        self._stream: Any = None if self._cuda is None else self._cuda.Stream(device)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run a block's work on it, and wait for that."""
        if self._cuda is None:
            yield
            return
        with self._cuda.stream(self._stream):
            yield
        self._stream.synchronize()

    def mark(self) -> Callable[[], bool]:
        """Whether all that the caller's own stream now holds has run, to be asked later."""
        if self._cuda is None:
            return lambda: True
        event = self._cuda.Event()
        event.record()
        return lambda: bool(event.query())


def rehearse(
    swapped_in: Callable[[Any, Any, Any, int], None], layers: int, top_k: int, device: str
) -> None:
    """A step of nobody, and another inside a CUDA graph that is thrown away.

    What is wrong with counting shows here, before the engine captures graphs that it could spoil.
    """
    torch = import_torch()
    row = torch.zeros(1, dtype=torch.int64, device=device)
    listed = torch.full((1, top_k), -1, dtype=torch.int32, device=device)

    def step() -> None:
        for layer in range(layers):
            swapped_in(row, row, listed, layer)

    step()
    if torch.device(device).type == "cuda":
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            step()


# Memory that CUDA knows must stay where it is: what the engine allocates in its place would fail.
_pinned: list[HostRing] = []


def pin(ring: HostRing, device: str) -> bool:
    """Register the ring's memory, so that copies from the device are direct; whether that worked.

    Where it did not, copies are only slower. A registered ring lives as long as the process.
    """
    torch = import_torch()
    if torch.device(device).type != "cuda":
        return False
    memory = ring.memory
    failed = int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
    if failed:
        # The error waits for the next launch to report it: that must not be one of the engine's.
        with suppress(RuntimeError):
            torch.zeros(1, device=device) + 1
    else:
        _pinned.append(ring)
    return not failed


class RingReader:
    """Moves entries from the ring on the device to the one in host memory."""

    def __init__(self, source: DeviceRing, target: HostRing, stream: Stream) -> None:
        torch = import_torch()
        self.source, self.target, self._stream = source, target, stream
        self._heads = torch.from_numpy(target.heads)
        self._positions = torch.from_numpy(target.positions)
        self._tail = 0  # of the device's ring
        self.seen = 0  # entries ever written to it, as of the last look

    def move(self) -> None:
        """Copy what is there and fits."""
        with self._stream():
            head = self.source.head.to("cpu", non_blocking=True)
        self.seen = int(head)
        count = min(self.seen - self._tail, self.target.room)
        while count > 0:
            at = self._tail % self.source.entries
            to = self.target.head % self.target.entries
            size = min(count, self.source.entries - at, self.target.entries - to)
            with self._stream():
                self._heads[to : to + size].copy_(
                    self.source.heads[at : at + size], non_blocking=True
                )
                self._positions[to : to + size].copy_(
                    self.source.positions[at : at + size], non_blocking=True
                )
            self.target.head += size
            self._tail += size
            count -= size
            with self._stream():
                self.source.tail.fill_(self._tail)


def write_whole(path: Path, values: Any) -> None:
    """Replace a JSON file at once, so that a reader never meets half of it."""
    temporary = path.with_suffix(".new")
    try:
        temporary.write_text(json.dumps(values), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


class Reader(threading.Thread):
    """Again and again: `look`, then what waited until the device had come so far, then `tell`."""

    def __init__(
        self,
        look: Callable[[], None],
        tell: Callable[[], None],
        wait_s: float,
        failed: Callable[..., None],
    ) -> None:
        """`failed(what, error)` is called for a fault, which ends the thread."""
        super().__init__(name="hisparse-sim", daemon=True)
        self._look, self._tell, self._wait_s, self._failed = look, tell, wait_s, failed
        self._later: deque[tuple[Callable[[], bool], Callable[[], None]]] = deque()
        self._ended = threading.Event()

    def when(self, ready: Callable[[], bool], then: Callable[[], None]) -> None:
        """Call `then` in this thread, after a look, once `ready` says so; in the order of calls."""
        self._later.append((ready, then))

    def step(self) -> None:
        """One round; what has become ready by its beginning is done after the look."""
        ready = 0
        for is_ready, _ in tuple(self._later):
            if not is_ready():
                break
            ready += 1
        self._look()
        for _ in range(ready):
            self._later.popleft()[1]()
        self._tell()

    def run(self) -> None:
        """Until `end`; a fault ends it and is reported."""
        try:
            while not self._ended.wait(self._wait_s):
                self.step()
            self.step()
        except Exception as error:
            self._failed("reading", error)

    def end(self) -> None:
        """Look once more, then end."""
        self._ended.set()

    def finish(self) -> None:
        """Look once more, end, and wait for the end, at most five seconds."""
        self.end()
        if self.is_alive():
            self.join(5)
