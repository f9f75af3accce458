"""A buffer for ranked positions between a model and a trace file.

A forward pass gives all layers of a few steps; a trace file needs all steps of a layer. In between,
the ranks are kept in an unnamed file beside the trace, so that a long capture needs the memory of
one layer. Such a file disappears when it is closed.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.traces.demand import Demand, Ints, Longs, Ragged
from hisparse_sim.traces.errors import TraceError


class Ranked(NamedTuple):
    """What a few consecutive steps of one layer select, best first."""

    positions: Ints  # [rows, width], -1 where there are fewer
    scores: NDArray[np.float16] | None  # [rows, width]


class Spool:
    """Collects the ranks of one request step by step, and returns them layer by layer."""

    def __init__(self, path: str | os.PathLike[str], width: int, scores: bool) -> None:
        """`path`: the trace file beside which the ranks wait; `width`: ranks per step."""
        self.path = Path(path)
        self.width = width
        self.steps = 0
        self.layers: tuple[int, ...] = ()
        self._positions = _beside(self.path)
        self._scores = _beside(self.path) if scores else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._positions.close()
        if self._scores is not None:
            self._scores.close()

    def append(self, ranked: Mapping[int, Ranked]) -> None:
        """Add the next steps: the same layers every time, each with the same number of rows."""
        layers = tuple(sorted(ranked))
        blocks = [ranked[layer] for layer in layers]
        scores = None
        if self._scores is not None and blocks:
            scores = np.stack([_given(block) for block in blocks], 1)
        positions = [block.positions for block in blocks]
        self.extend(layers, np.stack(positions, 1) if blocks else np.empty((0, 0, 0)), scores)

    def extend(
        self, layers: tuple[int, ...], positions: NDArray[Any], scores: NDArray[Any] | None = None
    ) -> None:
        """As `append`, with the next steps of all layers, ascending, as one array: [steps, layers,
        width]. After an OSError the steps before are there and can be read."""
        if self.steps == 0:
            self.layers = layers
        if layers != self.layers or not layers:
            raise TraceError(
                f"{self.path}: step {self.steps} came from the layers {list(layers)}, "
                f"expected {list(self.layers)}"
            )
        _append(self._positions, positions, np.int32)
        if self._scores is not None:
            _append(self._scores, scores, np.float16)
        self.steps += len(positions)

    def demands(
        self, request: str, prompt_len: int, top_k: int, *, sort: bool, following: bool
    ) -> Iterator[Demand]:
        """Yield one demand per layer, of step 0 and `seq_len` `prompt_len + 1` on.

        `sort`: positions ascend within a row, else they stay best first. `following`: the ranks
        behind `top_k` become `next_positions`.
        """
        steps = np.arange(self.steps, dtype=np.int32)
        for index, layer in enumerate(self.layers):
            ranks = self._layer(self._positions, index, np.int32)
            scores = None if self._scores is None else self._layer(self._scores, index, np.float16)
            listed, marks = _listed(
                ranks[:, :top_k], None if scores is None else scores[:, :top_k], sort
            )
            behind = _listed(ranks[:, top_k:], None, False)[0] if following else None
            yield Demand(
                request, layer, prompt_len, steps, steps + (prompt_len + 1), *listed, marks, behind
            )

    def _layer(self, file: IO[bytes], index: int, dtype: Any) -> Any:
        shape = (self.steps, len(self.layers), self.width)
        return np.array(np.memmap(file, dtype, "r", shape=shape)[:, index])


def _beside(path: Path) -> IO[bytes]:
    folder = path.parent if path.parent.is_dir() else None
    # Without a buffer: on a full disk it could be neither written nor given up.
    return tempfile.TemporaryFile(dir=folder, prefix=f".{path.stem}-", buffering=0)


def _append(file: IO[bytes], block: Any, dtype: Any) -> None:
    """Write all of it or none."""
    before = file.seek(0, os.SEEK_END)
    rest = np.ascontiguousarray(block, dtype).reshape(-1).view(np.uint8).data
    try:
        while len(rest):
            rest = rest[file.write(rest) :]
    except OSError:
        file.truncate(before)
        raise


def _given(block: Ranked) -> NDArray[np.float16]:
    if block.scores is None:
        raise TraceError("scores were asked for, and the model gives none")
    return block.scores


def _listed(
    ranks: Ints, scores: NDArray[np.float16] | None, sort: bool
) -> tuple[Ragged, NDArray[np.float16] | None]:
    """Return the rows of a padded matrix as lists, and their scores."""
    if sort:
        # Read as unsigned, padding (-1) is larger than every position and stays behind.
        order = np.argsort(ranks.view(np.uint32), axis=1, kind="stable")
        ranks = np.take_along_axis(ranks, order, 1)
        scores = None if scores is None else np.take_along_axis(scores, order, 1)
    kept = ranks >= 0
    offsets: Longs = np.zeros(len(ranks) + 1, np.int64)
    np.cumsum(kept.sum(1), out=offsets[1:])
    return Ragged(offsets, ranks[kept]), None if scores is None else scores[kept]
