"""Collects rows in any order and returns them one (request, layer) after the other.

They are kept in memory, up to a bound, and then in a scratch file: rows are usually written step by
step over all layers, and a trace needs all steps of a layer.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hisparse_sim.traces.demand import Ints, Longs, Ragged
from hisparse_sim.traces.importers.importer import scratch_errors

BUFFER_BYTES = 64 << 20


class _Group:
    """The rows of one (request, layer): those in memory, and where the others lie in the file."""

    __slots__ = ("chunks", "heads", "positions")

    def __init__(self) -> None:
        self.heads = array("i")  # step, seq_len and number of positions of every row
        self.positions = array("i")
        self.chunks: list[tuple[int, int, int]] = []  # offset, numbers in heads, in positions


class RowSpool:
    """Collects rows; memory is bounded by the largest (request, layer) and BUFFER_BYTES."""

    def __init__(self, scratch: Path) -> None:
        """`scratch`: a folder for the file."""
        self._path = scratch / "rows"
        self._waiting_bytes = 0
        self._size_bytes = 0  # of the file
        self._groups: dict[str, dict[int, _Group]] = {}

    def add(
        self, request: str, layer: int, step: int, seq_len: int, positions: "array[int]"
    ) -> None:
        """Take one row; all numbers are int32."""
        group = self._groups.setdefault(request, {}).setdefault(layer, _Group())
        group.heads.extend((step, seq_len, len(positions)))
        group.positions.extend(positions)
        self._waiting_bytes += 4 * (3 + len(positions))
        if self._waiting_bytes >= BUFFER_BYTES:
            self._flush()

    def parts(self) -> Iterator[tuple[str, int]]:
        """Yield every (request, layer): requests as they first came, layers ascending."""
        for request, layers in self._groups.items():
            for layer in sorted(layers):
                yield request, layer

    def first_parts(self) -> Iterator[tuple[str, int]]:
        """Yield every request with its lowest layer."""
        for request, layers in self._groups.items():
            yield request, min(layers)

    def read(self, request: str, layer: int) -> tuple[Ints, Ints, Ragged]:
        """Return step, seq_len and positions of one (request, layer), by step."""
        group = self._groups[request][layer]
        heads: list[Ints] = []
        positions: list[Ints] = []
        if group.chunks:
            with scratch_errors(self._path.parent), self._path.open("rb") as file:
                for offset, *counts in group.chunks:
                    file.seek(offset)
                    for pieces, count in zip((heads, positions), counts, strict=True):
                        pieces.append(np.frombuffer(file.read(4 * count), np.int32))
        heads.append(np.array(group.heads, np.int32))
        positions.append(np.array(group.positions, np.int32))
        step, seq_len, counts_of = np.concatenate(heads).reshape(-1, 3).T
        values = np.concatenate(positions)
        order = np.argsort(step, kind="stable")
        ends = np.cumsum(counts_of, dtype=np.int64)
        if (order[1:] < order[:-1]).any():
            values = np.concatenate([values[ends[i] - counts_of[i] : ends[i]] for i in order])
            ends = np.cumsum(counts_of[order], dtype=np.int64)
        offsets: Longs = np.concatenate([np.zeros(1, np.int64), ends])
        return step[order], seq_len[order], Ragged(offsets, values)

    def _flush(self) -> None:
        with scratch_errors(self._path.parent), self._path.open("ab") as file:
            for layers in self._groups.values():
                for group in layers.values():
                    if not group.heads:
                        continue
                    sizes = len(group.heads), len(group.positions)
                    group.chunks.append((self._size_bytes, *sizes))
                    for numbers in (group.heads, group.positions):
                        file.write(numbers)
                        self._size_bytes += 4 * len(numbers)
                    group.heads, group.positions = array("i"), array("i")
        self._waiting_bytes = 0
