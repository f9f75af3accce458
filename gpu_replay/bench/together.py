"""The cost of swap-ins while several GPUs of one host read at once.

There is one process per GPU. Before every measurement all wait for each other, and those that take
part replay the same number of graphs; the others stay idle. The rate of a GPU is the median over
its replays, the sum is that of the rates, and `overlap` is the share of the time in which all were
busy.
"""

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from hisparse_sim.gpu_replay.bench.grid import CONTENDERS, Bench, Point, pool_sets
from hisparse_sim.gpu_replay.harness.host_memory import (
    fill_random,
    numa_node,
    pin_to_node,
    pinned_memory,
    shared_file,
    used_bytes,
)
from hisparse_sim.gpu_replay.harness.machine import COPY_BYTES, describe_machine
from hisparse_sim.gpu_replay.harness.several import Member, run_together
from hisparse_sim.gpu_replay.harness.timing import (
    QUEUE_US,
    capture,
    elapsed_us,
    hold_stream,
    interval,
    record,
    timer_us,
)
from hisparse_sim.gpu_replay.kernels import get_kernel
from hisparse_sim.gpu_replay.kernels.build import require_gpu
from hisparse_sim.gpu_replay.kernels.kernel import PAGE
from hisparse_sim.gpu_replay.kernels.native_library import ANY_SIZES, load_native

WINDOW_US = 60_000.0  # a measurement lasts so long at least: starts that differ do not count
MOST_REPLAYS = 900  # what the driver queues before it makes the host wait


@dataclass(frozen=True)
class Grid:
    """What to measure: every combination, in the order given."""

    batches: Sequence[int]
    misses: Sequence[int]
    buffers: Sequence[int]
    entry_bytes: Sequence[int]
    counts: Sequence[int]  # GPUs at once
    kernels: Sequence[str] = ("native",)
    pin_numa: bool = False
    repeats: int = 30
    top_k: int = 2048

    def sets(self) -> Iterator[tuple[list[Point], int]]:
        """Points that share pools, and the tokens that a request needs for them."""
        return pool_sets(self.batches, self.misses, self.buffers, self.entry_bytes, self.top_k)

    def host_bytes(self) -> int:
        """Bytes of the largest host pool of one GPU."""
        return max(
            points[0].batch * -(-context // PAGE) * PAGE * points[0].entry_bytes
            for points, context in self.sets()
        )


def measure_together(
    grid: Grid, devices: Sequence[int], share_host_pool: bool = False
) -> Iterator[dict[str, Any]]:
    """Measure the grid with one process for each of `devices`; rows as they come.

    The first row describes the `machine` and its `gpus`. Then `what` is `pools` (host memory) or
    what was timed: `copy` (one large copy from the host pool) or a kernel, with the point and
    `gpus` (how many at once), lists by GPU of `us`, `low_us`, `high_us` (95 %) and `gb_s`, and
    `sum_gb_s` and `overlap`.

    Raises ValueError for a grid that does not fit, GpuError for what is missing.
    """
    if not grid.counts or max(grid.counts) != len(devices) or min(grid.counts) < 1:
        raise ValueError(f"{len(devices)} processes cannot measure {list(grid.counts)} GPUs")
    host_bytes = grid.host_bytes()
    with shared_file(host_bytes) if share_host_pool else nullcontext() as path:
        for parts in run_together(devices, _measure, grid, host_bytes, path):
            kind = parts[0].pop("kind")
            if kind == "gpu":
                names = ("device", "pci", "numa_node", "processors")
                gpus = [{name: part[name] for name in names} for part in parts]
                yield {"machine": parts[0]["machine"], "gpus": gpus}
            else:
                pool = "shared" if share_host_pool else "private"
                merged = parts[0] if kind == "pools" else merge_parts(parts)
                yield {"what": kind, "host_pool": pool, **merged}


def merge_parts(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row from what every process says of one measurement; idle ones have no `us`."""
    busy = [part for part in parts if "us" in part]
    starts = [part["start_ns"] for part in busy]
    ends = [part["end_ns"] for part in busy]
    lists = ("us", "low_us", "high_us", "gb_s", "replays")
    common = ("kind", *lists, "start_ns", "end_ns")
    place = {name: value for name, value in busy[0].items() if name not in common}
    both = max(0, min(ends) - max(starts))
    return {
        **place,
        "gpus": len(busy),
        "sum_gb_s": round(sum(part["gb_s"] for part in busy), 3),
        "overlap": round(both / (max(ends) - min(starts)), 4),
        **{name: [part[name] for part in busy] for name in lists},
    }


def _measure(
    member: Member, grid: Grid, host_bytes: int, path: str | None
) -> Iterator[dict[str, Any]]:
    """What one process does; every process yields the same sequence of kinds."""
    torch = require_gpu()
    torch.cuda.set_device(member.device)
    address = load_native(*ANY_SIZES, member.device).pci_address(member.device)
    node = numa_node(address)
    if grid.pin_numa and node is not None:
        pin_to_node(node)
    if member.rank == 0:
        _build(grid)
    member.together()
    yield {
        "kind": "gpu",
        "machine": describe_machine() if member.rank == 0 else None,
        "device": member.device,
        "pci": address,
        "numa_node": node,
        "processors": len(os.sched_getaffinity(0)),
    }

    before = used_bytes()
    member.together()
    began = time.perf_counter()
    memory = pinned_memory(host_bytes, path)
    seconds = time.perf_counter() - began
    if path is None or member.rank == 0:
        fill_random(memory, "cuda")
    member.together()
    yield {
        "kind": "pools",
        "pool_bytes": host_bytes,
        "pools": 1 if path else member.barrier.parties,
        "used_bytes": used_bytes() - before,
        "pin_s": round(seconds, 2),
    }

    overhead = timer_us()
    part = min(COPY_BYTES, host_bytes // member.barrier.parties)
    # From a shared pool every GPU copies other bytes, or a cache could serve the second.
    host = memory[member.rank * part :][:part] if path else memory[:part]
    device = torch.empty(part, dtype=torch.uint8, device="cuda")
    device.copy_(host)
    graph = capture(lambda: device.copy_(host, non_blocking=True))
    for count in grid.counts:
        row = _time(member, graph, count, grid.repeats, overhead, 1, part)
        yield {"kind": "copy", "bytes": part, **row}

    for points, context in grid.sets():
        first = points[0]
        bench = Bench(
            first.batch, first.buffer, first.entry_bytes, first.top_k, context,
            host_memory=memory, seed=member.rank,
        )  # fmt: skip
        for point in points:
            contenders = {name: CONTENDERS[name] for name in grid.kernels}
            rows, graphs = bench.capture(point, contenders, seed=member.rank)
            bench.check(rows, point.misses)
            moved = point.batch * point.misses * point.entry_bytes
            for name, count in itertools.product(graphs, grid.counts):
                timed = _time(member, graphs[name], count, grid.repeats, overhead, len(rows), moved)
                yield {"kind": name, **vars(point), "steps": len(rows), **timed}


def _build(grid: Grid) -> None:
    """Build what the grid needs, several libraries at a time."""
    jobs = list(itertools.product(grid.kernels, grid.buffers, grid.entry_bytes))
    with ThreadPoolExecutor(len(jobs)) as pool:
        waiting = [
            pool.submit(get_kernel(kernel).prepare, grid.top_k, buffer, item)
            for kernel, buffer, item in jobs
        ]
        for job in waiting:
            job.result()


def _time(
    member: Member,
    graph: Any,
    count: int,
    repeats: int,
    overhead_us: float,
    steps: int,
    step_bytes: int,
) -> dict[str, Any]:
    """Replay a graph of `steps` launches on the first `count` GPUs at once."""
    torch = require_gpu()
    busy = member.rank < count
    replays = repeats
    if busy:
        graph.replay()
        started = [record(graph.replay) for _ in range(3)]
        torch.cuda.synchronize()
        once_us = float(np.median(elapsed_us(started)))
        replays = min(MOST_REPLAYS, max(repeats, int(WINDOW_US / once_us) + 1))
    member.together()
    result: dict[str, Any] = {}
    if busy:
        start_ns = time.perf_counter_ns()
        hold_stream(QUEUE_US)
        events = [record(graph.replay) for _ in range(replays)]
        torch.cuda.synchronize()
        end_ns = time.perf_counter_ns()
        each = (elapsed_us(events) - overhead_us) / steps
        us = float(np.median(each))
        low, high = interval(each)
        result = {
            "us": round(us, 3), "low_us": round(low, 3), "high_us": round(high, 3),
            "gb_s": round(step_bytes / us / 1e3, 3), "replays": replays,
            "start_ns": start_ns, "end_ns": end_ns,
        }  # fmt: skip
    member.together()  # nobody prepares the next one while others still measure
    return result
