"""What a swap-in costs: the kernels, their planning alone, and the copy alone.

Every step of a point misses exactly as often as asked. A fixed core of positions is demanded in
every step and always hit; the rest comes from sets that are used in turn, enough of them that a set
has been evicted by the time its turn comes again.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.harness.pools import Pools, make_pools
from hisparse_sim.gpu_replay.harness.timing import capture, interval, time_graphs, timer_us
from hisparse_sim.gpu_replay.kernels import get_kernel
from hisparse_sim.gpu_replay.kernels.build import GpuError, require_gpu
from hisparse_sim.gpu_replay.kernels.vllm import Vllm, pages_of

GATHER_BLOCKS = (8, 16, 32, 64, 132)  # grids tried for the copy alone
CONTEXT = 32768  # tokens of a request, or what a point needs
FEWEST_STEPS = 16  # launches of one graph: the more, the less its start weighs


@dataclass(frozen=True)
class Point:
    """One measurement: `batch` requests, each missing `misses` of its top_k positions."""

    batch: int
    misses: int
    buffer: int
    entry_bytes: int
    top_k: int = 2048


def steps_of(point: Point) -> int:
    """Steps of one turn through all sets of `steady_rows`."""
    if point.misses == 0:
        return FEWEST_STEPS
    core = point.top_k - point.misses
    # A set is gone once the sets after it have filled all slots that the core leaves.
    return max(FEWEST_STEPS, -(-(point.buffer - core) // point.misses) + 1)


def context_of(point: Point) -> int:
    """Tokens that a request needs for the point: every position demanded, and the newest."""
    return point.top_k - point.misses + steps_of(point) * point.misses + 1


def steady_rows(point: Point, context: int, seed: int = 0) -> NDArray[np.int32]:
    """Demanded positions, int32 [steps, batch, top_k], sorted within a row.

    Raises ValueError if `context` positions are too few for the point.
    """
    steps, core = steps_of(point), point.top_k - point.misses
    needed = context_of(point) - 1
    if needed > context - 1:
        raise ValueError(f"{point} needs a context of {needed + 1} tokens, got {context}")
    rng = np.random.default_rng(seed)
    rows = np.empty((steps, point.batch, point.top_k), np.int32)
    for request in range(point.batch):
        # The newest token, context - 1, is never demanded.
        drawn = rng.permutation(context - 1)[:needed].astype(np.int32)
        rows[:, request, :core] = drawn[:core]
        rows[:, request, core:] = drawn[core:].reshape(steps, point.misses)
    rows.sort(axis=2)
    return rows


class Bench:
    """Pools for one (batch, buffer, item size), used by all points that share them."""

    def __init__(
        self,
        batch: int,
        buffer: int,
        entry_bytes: int,
        top_k: int = 2048,
        context: int = CONTEXT,
        host_memory: Any = None,
        seed: int = 0,
        vllm: Path | None = None,
    ) -> None:
        """`vllm`: the file of vLLM's kernels, if they are wanted; their slots are their own."""
        torch = require_gpu()
        self.context, self.top_k, self.buffer = context, top_k, buffer
        self.pools: Pools = make_pools(
            [context] * batch, layers=1, buffer=buffer, entry_bytes=entry_bytes,
            seed=seed, host_memory=host_memory,
        )  # fmt: skip
        self.request = torch.arange(batch, dtype=torch.int64, device="cuda")
        self.row_requests = self.request.to(torch.int32)  # as vLLM wants them
        self.seq_lens = torch.full((batch,), context, dtype=torch.int64, device="cuda")
        self.out = torch.empty((batch, top_k), dtype=torch.int32, device="cuda")
        self.real = torch.full((1,), batch, dtype=torch.int32, device="cuda")
        self.one = torch.ones(1, dtype=torch.int32, device="cuda")
        self.timer_us = timer_us()
        if vllm is not None:
            self._vllm = self.vllm_state(vllm, top_k)

    def vllm_state(self, source: Path, most: int) -> Vllm:
        """Return the state of vLLM's kernels in these pools, see there for `most`."""
        places = self.pools.host_locs, self.pools.locs[0, :, : self.buffer]
        pages = pages_of(places[0], first=1), pages_of(places[1])
        entries = self.pools.host[0], self.pools.device[0]
        return Vllm(source, *entries, *pages, buffer=self.buffer, most=most)

    def swap_in(self, kernel: str, rows: Any, **options: Any) -> None:
        """Launch one swap-in for the demanded positions int32 [batch, top_k]."""
        if kernel == "vllm":
            self._vllm.swap_in(rows, self.row_requests, **options)
            return
        get_kernel(kernel).swap_in(
            top_k_tokens=rows,
            top_k_device_locs=self.out,
            req_pool_indices=self.request,
            seq_lens=self.seq_lens,
            num_top_k=self.top_k,
            num_real_reqs=self.real,
            **self.pools.arguments(0),
            **options,
        )

    def check(self, rows: Any, misses: int) -> tuple[Any, Any]:
        """Run one turn, check its miss counts, and return every step's plan as one flat list.

        Raises GpuError at the first step that misses more or less often.
        """
        torch = require_gpu()
        steps, batch, top_k = rows.shape
        source = torch.zeros((batch, top_k), dtype=torch.int64, device="cuda")
        target = torch.zeros((batch, top_k), dtype=torch.int32, device="cuda")
        count = torch.zeros(batch, dtype=torch.int32, device="cuda")
        sources, targets = [], []
        for step in range(steps):
            self.swap_in("native", rows[step], miss_src=source, miss_dst=target, miss_count=count)
            if bool((count != misses).any()):
                raise GpuError(f"step {step} missed {count.tolist()} positions, not {misses}")
            sources.append(source[:, :misses].reshape(1, -1).clone())
            targets.append(target[:, :misses].reshape(1, -1).clone())
        return torch.stack(sources), torch.stack(targets)

    def capture(
        self, point: Point, contenders: Mapping[str, tuple[str, dict[str, Any]]], seed: int = 0
    ) -> tuple[Any, dict[str, Any]]:
        """Bring the pools into the steady state of a point and capture a turn of every contender.

        Returns the demanded positions, int32 [steps, batch, top_k] on the GPU, and the graphs by
        name. Raises ValueError if the point does not fit these pools.
        """
        torch = require_gpu()
        if point.batch != len(self.request) or point.buffer != self.buffer:
            raise ValueError(f"{point} does not fit these pools")
        rows = torch.from_numpy(steady_rows(point, self.context, seed)).to("cuda")
        steps = len(rows)
        for _ in range(2):  # from whatever state to the steady one
            for step in range(steps):
                self.swap_in("native", rows[step], skip_io=True)
        for kernel, options in contenders.values():  # whatever a kernel loads, before a capture
            for _ in range(1 + (kernel == "vllm")):  # its slots are not those that were filled
                for step in range(steps):
                    self.swap_in(kernel, rows[step], **options)

        def turn(kernel: str, options: dict[str, Any]) -> None:
            for step in range(steps):
                self.swap_in(kernel, rows[step], **options)

        graphs = {
            name: capture(partial(turn, *contender)) for name, contender in contenders.items()
        }
        return rows, graphs

    def measure(
        self,
        point: Point,
        contenders: Mapping[str, tuple[str, dict[str, Any]]],
        repeats: int,
        gather: bool = True,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Time every contender at this point; `contenders` maps a name to (kernel, options).

        Returns one result row: the point, `steps`, and for each contender `<name>_us` (median of
        one swap-in), `<name>_low_us`, `<name>_high_us` (95 % interval) and `<name>_samples`.
        """
        rows, graphs = self.capture(point, contenders, seed)
        steps = len(rows)
        blocks = 0
        if gather and point.misses:
            blocks, graphs["gather"] = self._best_gather(*self.check(rows, point.misses))
        samples = time_graphs(graphs, repeats)
        result: dict[str, Any] = {**vars(point), "steps": steps, "gather_blocks": blocks}
        result["timer_us"] = self.timer_us
        for name, values in samples.items():
            each = (values - self.timer_us) / steps
            low, high = interval(each)
            result |= {
                f"{name}_us": float(np.median(each)),
                f"{name}_low_us": low,
                f"{name}_high_us": high,
                f"{name}_samples": [round(float(value), 3) for value in each],
            }
        return result

    def _best_gather(self, sources: Any, targets: Any) -> tuple[int, Any]:
        torch = require_gpu()
        copy = get_kernel("native").copy_planned
        count = torch.full((1,), sources.shape[2], dtype=torch.int32, device="cuda")

        def turn(blocks: int) -> None:
            for source, target in zip(sources, targets, strict=True):
                copy(
                    miss_src=source,
                    miss_dst=target,
                    miss_count=count,
                    num_real_reqs=self.one,
                    host_cache=self.pools.host[0],
                    device_buffer=self.pools.device[0],
                    item_size_bytes=self.pools.entry_bytes,
                    num_blocks=blocks,
                )

        turn(GATHER_BLOCKS[0])
        graphs = {str(blocks): capture(partial(turn, blocks)) for blocks in GATHER_BLOCKS}
        samples = time_graphs(graphs, 5)
        best = min(samples, key=lambda blocks: float(np.median(samples[blocks])))
        return int(best), graphs[best]


CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sglang": ("sglang", {}),
    "native": ("native", {}),
    "sglang_plan": ("sglang", {"skip_io": True}),
    "native_plan": ("native", {"skip_io": True}),
}
VLLM_CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm": ("vllm", {}),
    "vllm_plan": ("vllm", {"skip_io": True}),
}


def compare(row: Mapping[str, Any], one: str, other: str) -> tuple[float, float, float]:
    """Median of the paired ratios one / other, and its 95 % interval."""
    ratios = np.array(row[f"{one}_samples"]) / np.array(row[f"{other}_samples"])
    return (float(np.median(ratios)), *interval(ratios))


def pool_sets(
    batches: Sequence[int],
    misses: Sequence[int],
    buffers: Sequence[int],
    entry_bytes: Sequence[int],
    top_k: int = 2048,
) -> Iterator[tuple[list[Point], int]]:
    """All points of a grid, those that share pools together, with the tokens that these need.

    Raises ValueError for misses beyond top_k or a buffer below it, before anything else.
    """
    for count, buffer in itertools.product(misses, buffers):
        if not 0 <= count <= top_k <= buffer <= 32767:
            raise ValueError(
                f"a point needs 0 <= misses <= {top_k} <= buffer <= 32767, got {count} and {buffer}"
            )
    for size, batch, buffer in itertools.product(entry_bytes, batches, buffers):
        points = [Point(batch, count, buffer, size, top_k) for count in misses]
        yield points, max(CONTEXT, *map(context_of, points))


def run_grid(
    batches: Sequence[int],
    misses: Sequence[int],
    buffers: Sequence[int],
    entry_bytes: Sequence[int],
    *,
    contenders: Mapping[str, tuple[str, dict[str, Any]]] = CONTENDERS,
    repeats: int = 30,
    top_k: int = 2048,
    vllm: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Measure every point of the grid, one result row each. `vllm`: as in `Bench`, beside the
    `contenders`.

    Host memory bounds the grid: batch x CONTEXT items or more are pinned. Raises ValueError, before
    anything is measured, for misses beyond top_k or a buffer below it.
    """
    if vllm is not None:
        contenders = {**contenders, **VLLM_CONTENDERS}
    for points, context in pool_sets(batches, misses, buffers, entry_bytes, top_k):
        first = points[0]
        bench = Bench(first.batch, first.buffer, first.entry_bytes, top_k, context, vllm=vllm)
        for point in points:
            yield bench.measure(point, contenders, repeats)
