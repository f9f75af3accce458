"""What a study measured: every (request, layer) under every setting, and sums over groups."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.simulator.prefetch import NO_PREFETCH
from hisparse_sim.simulator.replay.metrics import Misses
from hisparse_sim.simulator.replay.swept import Piece, Sweep

Longs = npt.NDArray[np.int64]


class Setting(NamedTuple):
    """A line of the study."""

    policy: str
    prefetcher: str  # NO_PREFETCH: without
    budget: int  # entries ahead per step
    buffer: int


@dataclass
class Measured:
    """`pieces` are the (request, layer) parts, in one order everywhere.

    `misses` of every step and `counts` of every setting: a list over the parts.
    """

    pieces: Sequence[Piece]
    misses: dict[Setting, list[Misses]] = field(default_factory=dict)
    counts: dict[Setting, list[Mapping[str, int]]] = field(default_factory=dict)

    def add(self, swept: Sweep, prefetcher: str = NO_PREFETCH, budget: int = 0) -> None:
        """Add the runs of a sweep over the same parts."""
        for run in swept.pieces[0].misses:
            setting = Setting(run.policy.name, prefetcher, budget, run.buffer_size)
            self.misses[setting] = [piece.misses[run] for piece in swept.pieces]
            self.counts[setting] = [piece.counts[run] for piece in swept.pieces]

    @property
    def accesses(self) -> Longs:
        """[parts]"""
        return np.array([piece.accesses for piece in self.pieces])

    @property
    def requests(self) -> Longs:
        """Numbers of the requests, [parts]; one in two traces (of two indexers) is one."""
        numbers: dict[str, int] = {}
        names = (piece.part.request for piece in self.pieces)
        return np.array([numbers.setdefault(name, len(numbers)) for name in names])

    def sums(self, setting: Setting) -> Longs:
        """Return the misses of each part, [parts]."""
        return np.array([misses.sum(dtype=np.int64) for misses in self.misses[setting]])

    def counted(self, setting: Setting, name: str) -> Longs:
        """Return another count of each part, [parts]."""
        return np.array([each[name] for each in self.counts[setting]])

    def groups(self) -> dict[str, list[int]]:
        """Return the parts of each trace, and, if there are several, of all under the name ""."""
        found: dict[str, list[int]] = {}
        for number, piece in enumerate(self.pieces):
            found.setdefault(piece.name, []).append(number)
        if len(found) > 1:
            found[""] = list(range(len(self.pieces)))
        return found

    def batches(self, parts: Iterable[int]) -> list[list[int]]:
        """Return the parts that are computed at once: those of one layer, of several requests."""
        layers: dict[int, list[int]] = {}
        for number in parts:
            layers.setdefault(self.pieces[number].part.layer, []).append(number)
        return [batch for batch in layers.values() if len(batch) > 1]
