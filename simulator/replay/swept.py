"""What a sweep comes to: the misses of every part under every policy and buffer, and its rows."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.replay.coverage import Covered
from hisparse_sim.simulator.replay.kept import Finished
from hisparse_sim.simulator.replay.metrics import Misses
from hisparse_sim.traces import Part, Trace
from hisparse_sim.traces.file.layer_types import followers, stands_for
from hisparse_sim.traces.notebook import Shown


class Run(NamedTuple):
    """One line of a sweep."""

    policy: Policy
    buffer_size: int


@dataclass(eq=False)
class Piece:
    """The finished runs of one part."""

    trace: Trace
    name: str  # of the trace, in the rows
    part: Part
    first_step: int = 0
    last_seq_len: int = 0
    accesses: int = 0
    rows: int = 0  # all of the part, or as many as steps of it were replayed
    counts: dict[Run, dict[str, int]] = field(default_factory=dict)  # of a mode of replay
    misses: dict[Run, Misses] = field(default_factory=dict)

    @property
    def covered(self) -> Covered:
        return Covered(self.part, self.first_step, self.rows)

    def add(self, run: Run, done: Finished) -> None:
        self.first_step, self.last_seq_len, self.accesses = done[:3]
        self.misses[run], self.rows, self.counts[run] = done.misses, done.rows, done.counts


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Shown):
    """The result of a sweep.

    `rows`: the tidy table, columns as in docs/metrics.md. `steps`: misses of every single step
    (`trace, request, layer, policy, buffer, step, misses`). If the sweep was interrupted, both
    cover the (request, layer) parts that were finished under every policy and buffer, `finished` of
    `parts`. `stopped`: an interrupt came, perhaps when all parts were finished."""

    rows: pd.DataFrame
    per_layer: bool
    parts_per_row: npt.NDArray[np.int64]  # [rows] (request, layer) parts that each row sums up
    finished: int
    parts: int
    pieces: list[Piece] = field(repr=False)
    notes: tuple[str, ...] = ()  # what a reader must know, a sentence each
    stopped: bool = False
    counted: ClassVar[str] = "(request, layer) parts"  # what `finished` and `parts` are

    def _shown(self) -> tuple[str, Iterable[str], pd.DataFrame]:
        done = f" (interrupted: {self.finished} of {self.parts} parts)" * self.interrupted
        names = ", ".join(self.rows["trace"].drop_duplicates()) if len(self.rows) else "nothing"
        return f"Sweep of {names}{done}", self.notes, self.rows

    @property
    def interrupted(self) -> bool:
        return self.finished < self.parts

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of every trace file, by its name in the rows."""
        return {piece.name: piece.trace.sha256 for piece in self.pieces}

    @property
    def longest_request(self) -> int:
        """Positions of the longest request at its last step."""
        return max((piece.last_seq_len for piece in self.pieces), default=0)

    @property
    def longest_output(self) -> int:
        """Tokens that the longest request had generated at its last step, the last included."""
        longest = max(self.pieces, key=lambda piece: piece.last_seq_len, default=None)
        return longest.first_step + longest.covered.rows if longest else 0

    def misses_per_layer(self) -> npt.NDArray[np.float64]:
        """Return [rows] misses per step, mean over the layers of the model: a layer counts for
        those that repeat its index, too. With `per_layer`, of the one layer of a row."""
        by_trace: dict[str, set[int]] = {}
        for piece in self.pieces:
            by_trace.setdefault(piece.name, set()).add(piece.part.layer)
        if self.per_layer or not any(
            followers(piece.trace.metadata.layer_types) for piece in self.pieces
        ):
            return self.rows["misses_per_step"].to_numpy(float)
        sums: dict[tuple[Any, ...], list[float]] = {}
        for piece in self.pieces:
            standing = stands_for(piece.trace.metadata.layer_types, by_trace[piece.name])
            weight = standing[piece.part.layer]
            for run, misses in piece.misses.items():
                key = (piece.name, run.policy.name, run.buffer_size)
                total = sums.setdefault(key, [0.0, 0.0])
                total[0] += weight * int(misses.sum(dtype=np.int64))
                total[1] += weight * len(misses)
        keys = self.rows[["trace", "policy", "buffer"]].itertuples(index=False, name=None)
        return np.array([sums[key][0] / sums[key][1] for key in keys])

    @property
    def steps(self) -> pd.DataFrame:
        """Misses of every single step, for the policies and buffers of `rows`."""
        if not self.pieces:
            return pd.DataFrame()
        asked = dict.fromkeys(self.rows[["policy", "buffer"]].itertuples(index=False, name=None))
        frames = [
            pd.DataFrame(
                {
                    "trace": piece.name,
                    "request": piece.part.request,
                    "layer": pd.array([piece.part.layer], "Int64").repeat(len(misses)),
                    "policy": run.policy.name,
                    "buffer": run.buffer_size,
                    "step": np.arange(piece.first_step, piece.first_step + len(misses)),
                    "misses": misses,
                }
            )
            for piece in self.pieces
            for runs in [{(run.policy.name, run.buffer_size): run for run in piece.misses}]
            for run in map(runs.__getitem__, asked)  # not in the order in which they finished
            for misses in [piece.misses[run]]
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
