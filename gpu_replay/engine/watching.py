"""One coordinator of the engine, watched: what it is asked, request by request and step by step.

The engine calls these methods, by the plugin's hooks, in the order of its own work and on its own
streams. `swap_in` runs inside CUDA graphs, where a call happens once, when a graph is captured, and
its operations happen every step; the others run on the CPU around the steps.
"""

import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any
from zlib import crc32

from hisparse_sim.gpu_replay.engine import events
from hisparse_sim.gpu_replay.engine.counters import AGE_BUCKETS, MISS_BUCKETS, STEPS, Counters
from hisparse_sim.gpu_replay.engine.device_ring import DeviceRing
from hisparse_sim.gpu_replay.engine.host_ring import SHARED_MEMORY, HostRing, entries_within
from hisparse_sim.gpu_replay.engine.metrics import Metrics
from hisparse_sim.gpu_replay.engine.options import Options
from hisparse_sim.gpu_replay.engine.reading import (
    COUNTING_WAIT_S,
    RECORDING_WAIT_S,
    Reader,
    RingReader,
    Stream,
    pin,
    rehearse,
    write_whole,
)
from hisparse_sim.gpu_replay.engine.releases import EngineError, Release
from hisparse_sim.gpu_replay.kernels.build import import_torch


class Watch:
    """Counts and records for one coordinator."""

    def __init__(
        self,
        coordinator: Any,
        release: Release,
        options: Options,
        failed: Callable[..., None],
        version: str = "",
        shared_index_layers: Sequence[bool] | None = None,
    ) -> None:
        """Start to watch; `shared_index_layers` is what the coordinator was made with.

        `failed(what, error)` is called for faults of the reading thread.

        Raises EngineError for other layouts than latent attention's, and speculative decoding.
        """
        if coordinator.is_dsv4_hisparse or getattr(coordinator, "is_m3_hisparse", False):
            raise EngineError(
                "only the hot buffer of DeepSeek-V3.2 and GLM-5 models is counted, not that of "
                "DeepSeek-V4 or MiniMax-M3"
            )
        spec = getattr(coordinator, "spec_swap", None)
        if spec is not None and spec.enabled:
            raise EngineError("speculative decoding is not counted: its steps have several rows")
        self.options, self._release, self._failed = options, release, failed
        self.process, self._folder = os.getpid(), Path(options.folder)
        self._real = coordinator.num_real_reqs
        self._tokens = coordinator.req_device_buffer_tokens
        self._device = str(coordinator.device)
        self.layers, self.rows = int(self._tokens.shape[0]), int(self._tokens.shape[1])
        self.rank = _rank(coordinator.tp_group)
        self.entry_bytes = int(coordinator.item_size_bytes)
        # Layers that copy by the plan of the one before have no state of their own to compare.
        by_plan = (release.plans and coordinator.enable_prefetch and shared_index_layers) or ()
        self.planned = tuple(layer for layer, shared in enumerate(by_plan) if shared)
        self.counters = Counters(
            self._tokens,
            coordinator.device_buffer_size,
            coordinator.top_k,
            reported=options.kernel == "native",
            device=self._device,
            planned=self.planned,
        )
        self._stream = Stream(self._device)
        self._epochs: dict[int, tuple[int, str]] = {}  # row -> number and id of its request
        self._admitted = self._recorded = 0
        self._since = time.time()
        self._written: dict[str, Any] = {}
        self._ended_requests = 0
        self._by_steps, self._by_misses_per_step = [0] * AGE_BUCKETS, [0] * MISS_BUCKETS
        self._step: tuple[Any, Any, Any] | None = None
        self.ring: DeviceRing | None = None
        self._ring_reader: RingReader | None = None
        if options.record and self.rank == 0:
            self.ring = self._device_ring(coordinator.top_k)
        rehearse(self.swapped_in, self.layers, coordinator.top_k, self._device)
        if self.ring is not None:
            self.host_ring = self._host_ring(self.ring)
            self._ring_reader = RingReader(self.ring, self.host_ring, self._stream)
        self.metrics = Metrics(self.rank)
        self._events = events.EventWriter(self._folder, self.process)
        self._events.write(events.STARTED, **self._facts(version, coordinator))
        wait_s = COUNTING_WAIT_S if self.ring is None else RECORDING_WAIT_S
        self._reader = Reader(self._look, self._tell, wait_s, failed)

    def _device_ring(self, top_k: int) -> DeviceRing:
        options = self.options
        shared = {*options.shared, *self.planned}
        chosen = range(self.layers) if options.layers is None else options.layers
        recorded = [layer for layer in chosen if layer not in shared and layer < self.layers]
        if not recorded:
            raise EngineError("none of the layers to record has an indexer of its own")
        entries = entries_within(options.device_ring_bytes, len(recorded), self.layers, top_k)
        return DeviceRing(recorded, self.layers, self.rows, top_k, entries, self._device)

    def _host_ring(self, source: DeviceRing) -> HostRing:
        sizes = len(source.recorded), self.layers, source.top_k
        entries = entries_within(self.options.host_ring_bytes, *sizes)
        folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else self._folder
        # Not by the process alone: in a container every run has the same numbers.
        path = folder / f"hisparse-sim-{self.process}-{secrets.token_hex(4)}"
        ring = HostRing(path, entries, *sizes, make=True)
        pin(ring, self._device)
        return ring

    def _facts(self, version: str, coordinator: Any) -> dict[str, Any]:
        found: dict[str, Any] = {
            "process": self.process,
            "rank": self.rank,
            "engine": version,
            "layers": self.layers,
            "planned": self.planned,
            "top_k": coordinator.top_k,
            "buffer": coordinator.device_buffer_size,
            "entry_bytes": self.entry_bytes,
            "device_bytes": self.counters.device_bytes,
        }
        if self.ring is not None:
            found["ring"] = {
                "path": str(self.host_ring.path),
                "entries": self.host_ring.entries,
                "recorded": self.ring.recorded,
            }
        return found

    # --- called by the engine --------------------------------------------------------------------

    def swapped_in(self, request: Any, seq_len: Any, top_k: Any, layer: int) -> None:
        """The swap-in of one layer is behind us on this stream."""
        if layer == 0:
            rows = request.long()
            self._step = rows, seq_len.long(), self.counters.live(rows, self._real)
            if self.ring is not None:
                self.ring.begin(rows, self._step[2])
        if self._step is None:
            return
        rows, lengths, live = self._step
        if self.ring is not None:
            self.ring.take(layer, top_k[: len(rows)])
        if layer == self.layers - 1:
            misses = self.counters.count(rows, lengths, live)
            if self.ring is not None:
                self.ring.end(rows, lengths, misses)
            self._step = None

    def reported(self, layer: int) -> Any:
        """Where the kernel reports the misses of every row, int32 [rows]; None if it need not."""
        found = self.counters.reported
        return None if found is None else found[layer]

    def admit(self, request: Any) -> None:
        """The request has its slots, filled with its first tokens."""
        row = self.row(request)
        self._admitted += 1
        self.counters.admit(row)
        self._epochs[row] = self._admitted, str(request.rid)
        record = self.ring is not None and self._chosen(str(request.rid))
        if self.ring is not None:
            self.ring.admit(row, self._admitted, record)
        if record:
            self._recorded += 1
            self._events.write(
                events.ADMITTED, epoch=self._admitted, request=str(request.rid), start="staged"
            )
        if not self._reader.is_alive() and self._reader.ident is None:
            self._reader.start()

    def admit_direct(self, request: Any) -> None:
        """As `admit`, which came first, but a long prompt left the slots empty."""
        row = self.row(request)
        self.counters.admit(row)
        if row in self._epochs and self.ring is not None:
            self._events.write(events.DIRECT, epoch=self._epochs[row][0])

    def released(self, row: int) -> None:
        """The request has left the row; the engine's stream waits for its last step."""
        held = self._epochs.pop(row, None)
        if held is None:
            return  # it was aborted before it decoded
        counted = self.counters.by_row[row].clone()
        self.counters.release(row)
        epoch = held[0]
        self._reader.when(self._stream.mark(), lambda: self._ended(epoch, counted))

    # --- in the reading thread -------------------------------------------------------------------

    def _look(self) -> None:
        if self._ring_reader is not None:
            self._ring_reader.move()

    def _ended(self, epoch: int, counted: Any) -> None:
        with self._stream():
            steps, _, misses = counted.tolist()
        calls = max(1, steps * self.layers)
        self._ended_requests += 1
        self._by_steps[_bucket(steps, AGE_BUCKETS)] += 1
        self._by_misses_per_step[_bucket(misses // calls, MISS_BUCKETS)] += 1
        at = 0 if self._ring_reader is None else self._ring_reader.seen
        self._events.write(events.ENDED, epoch=epoch, at=at, steps=steps)

    def _tell(self) -> None:
        now = time.time()
        if now - self._since < COUNTING_WAIT_S:
            return
        self._since = now
        self._events.again()
        found = self.counted()
        if found != self._written:
            self.metrics.show(found["by_layer"])
            with suppress(OSError):  # a full disk: again in a second
                write_whole(events.counts_path(self._folder, self.process), found)
                self._written = found

    def counted(self) -> dict[str, Any]:
        """All counts as they are now, ready for JSON."""
        counters = self.counters
        with self._stream():
            layers = counters.by_layer.tolist()
            by_misses = counters.by_misses.sum(0).tolist()
            by_age = [[steps * self.layers, misses] for steps, misses in counters.by_age.tolist()]
            dropped = 0 if self.ring is None else int(self.ring.dropped)
        anchor = 0
        by_layer = []
        for layer in range(self.layers):
            anchor = anchor if layer in self.planned else layer
            _, accesses, misses = layers[anchor]
            by_layer.append(
                {
                    "layer": layer,
                    "accesses": accesses,
                    "misses": misses,
                    "bytes": misses * self.entry_bytes,
                    "planned": layer in self.planned,
                }
            )
        return {
            "process": self.process,
            "steps": layers[0][STEPS],
            "by_layer": by_layer,
            "steps_by_misses": by_misses,
            "by_age": by_age,
            "requests_ended": self._ended_requests,
            "requests_by_steps": list(self._by_steps),
            "requests_by_misses_per_step": list(self._by_misses_per_step),
            "steps_dropped": dropped,
        }

    def stop(self) -> None:
        """Look once more, write what there is, end the thread; at most five seconds."""
        self._since = 0.0
        self._reader.finish()

    def abandon(self) -> None:
        """Count and record no more; what has come so far is still written. Does not wait."""
        self._since = 0.0
        self._reader.end()

    # --- helpers ---------------------------------------------------------------------------------

    def row(self, request: Any) -> int:
        """The request's row in the coordinator's tables."""
        return int(reduce(getattr, self._release.row.split("."), request))

    def _chosen(self, request: str) -> bool:
        options = self.options
        if options.requests is not None and self._recorded >= options.requests:
            return False
        return crc32(request.encode()) < options.share * 2**32


def _rank(group: Any) -> int:
    """Place of this process among those that hold the same requests."""
    distributed = import_torch().distributed
    if group is None or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank(group))


def _bucket(value: int, buckets: int) -> int:
    return min(value.bit_length(), buckets - 1)
