"""Lays the parts of a trace out as a batch of requests over several layers.

A serving batch is many requests, each with all layers. Traces are shorter: where a file has fewer
requests than the batch has rows, its (request, layer) parts stand in for requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.kernels.kernel import Kernel
from hisparse_sim.traces import Demand, Part, Trace

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Batch:
    """Demands for every (layer, row of the batch), all with at least `steps` steps.

    `stand_in` is empty if every row is a request of its own, else a sentence saying what is not.
    """

    cells: tuple[tuple[Demand, ...], ...]  # [layers][size]
    steps: int
    stand_in: str = ""

    @property
    def layers(self) -> int:
        return len(self.cells)

    @property
    def size(self) -> int:
        return len(self.cells[0])

    @property
    def context(self) -> int:
        """Tokens of the longest request at its last step."""
        return max(int(c.seq_len[self.steps - 1]) for layer in self.cells for c in layer)

    @property
    def widest_row(self) -> int:
        """Largest number of positions in a step."""
        return max(
            int(np.diff(c.offsets[: self.steps + 1]).max()) for layer in self.cells for c in layer
        )

    def dealt(self, rank: int, gpus: int) -> "Batch":
        """The rows of one GPU when they are distributed round-robin: rank, rank + gpus, ...

        Raises ValueError if there are fewer rows than GPUs.
        """
        if self.size < gpus:
            raise ValueError(f"a batch of {self.size} cannot be distributed over {gpus} GPUs")
        return replace(self, cells=tuple(layer[rank::gpus] for layer in self.cells))

    def seq_lens(self, layer: int) -> Ints:
        """Tokens of every row at every step, int32 [steps, size]."""
        lens = [cell.seq_len[: self.steps] for cell in self.cells[layer]]
        return np.ascontiguousarray(np.stack(lens, axis=1))

    def positions(self, layer: int, top_k: int) -> Ints:
        """Selected positions, int32 [steps, size, top_k], padded with -1 at the end of a row."""
        table = np.full((self.steps, self.size, top_k), -1, np.int32)
        for column, cell in enumerate(self.cells[layer]):
            counts = np.diff(cell.offsets[: self.steps + 1])
            filled = np.arange(top_k) < counts[:, None]
            table[:, column][filled] = cell.positions[: cell.offsets[self.steps]]
        return table


def make_batch(
    trace: Trace,
    size: int,
    layers: int = 1,
    steps: int | None = None,
    parts: Sequence[Part] | None = None,
) -> Batch:
    """Choose parts for a batch of `size` rows and `layers` layers.

    With as many requests as rows, row b is request b with its first layers. Otherwise the parts are
    dealt out in file order, over and over, layer by layer.

    Raises ValueError if size or layers is below 1, or no part has a step.
    """
    if size < 1 or layers < 1:
        raise ValueError(f"a batch needs 1 row and 1 layer at least, got {size} and {layers}")
    chosen = list(trace.parts if parts is None else parts)
    if not chosen:
        raise ValueError(f"{trace.path} has no parts to replay")
    by_request: dict[str, list[Part]] = {}
    for part in chosen:
        by_request.setdefault(part.request, []).append(part)
    whole = [request for request in by_request.values() if len(request) >= layers]
    note = ""
    if len(whole) >= size:
        grid = [[whole[row][layer] for row in range(size)] for layer in range(layers)]
    else:
        dealt = [chosen[i % len(chosen)] for i in range(layers * size)]
        grid = [dealt[layer * size : (layer + 1) * size] for layer in range(layers)]
        used = min(len(chosen), len(dealt))
        note = (
            f"{used} (request, layer) parts of {trace.name} stand in for "
            f"{size} requests x {layers} layers"
        )
    read = {part: trace.read(part) for layer in grid for part in layer}
    cells = tuple(tuple(read[part] for part in layer) for layer in grid)
    shortest = min(demand.rows for demand in read.values())
    return Batch(cells, min(shortest, steps or shortest), note)


def check_rows(kernel: Kernel, batch: Batch, buffer: int, top_k: int) -> None:
    """Raise ValueError for rows that the buffer, the row table or the kernel cannot take."""
    widest = batch.widest_row
    if not widest <= top_k <= buffer <= 32767:
        raise ValueError(
            f"a step has up to {widest:,} positions: need {widest} <= top_k <= buffer <= 32767, "
            f"got top_k {top_k} and buffer {buffer}"
        )
    if kernel.pads_rows:
        return
    for layer in batch.cells:
        for cell in layer:
            counts = np.diff(cell.offsets[: batch.steps + 1])
            short = (counts < top_k) & (cell.seq_len[: batch.steps] > buffer)
            if short.any():
                step = int(cell.step[int(np.argmax(short))])
                raise ValueError(
                    f"the {kernel.name} kernel reads top_k = {top_k:,} positions from every "
                    f"request longer than the buffer, but {cell.request}, layer {cell.layer}, "
                    f"step {step} has fewer; use `kernel` native"
                )
