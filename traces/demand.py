"""The demand of one (request, layer): what the reader returns and the writer takes."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class Ragged(NamedTuple):
    """One list of positions per row; row i is `values[offsets[i] : offsets[i + 1]]`."""

    offsets: Longs  # [n + 1]
    values: Ints  # [offsets[n]]


@dataclass(frozen=True, eq=False)
class Demand:
    """The decode steps of one layer of one request, n rows, C-contiguous arrays.

    What the reader returns follows the rules of the trace file: steps without gaps, `seq_len`
    at least 1 and never shrinking, positions distinct and in `[0, seq_len)`, no padding. With
    `query` a step has several rows, one per query that speculative decoding verifies: its queries
    count from 0, `seq_len` grows by one from each to the next, and the first of the following step
    tells how many tokens were accepted.
    """

    request: str
    layer: int
    prompt_len: int  # positions; smaller than the first seq_len of the request, except with c4
    step: Ints  # [n]
    seq_len: Ints  # [n] tokens, the newest included
    offsets: Longs  # [n + 1]
    positions: Ints  # [offsets[n]], selected together within a row, in the order of the row
    scores: NDArray[np.float16] | None = None  # [offsets[n]]
    next_positions: Ragged | None = None  # ranked below the selected ones, best first
    query: Ints | None = None  # [n] of the step, from 0; None: one a step

    @property
    def rows(self) -> int:
        """Number of rows: of decode steps, unless there are several queries a step."""
        return len(self.step)

    @property
    def first_rows(self) -> Longs:
        """The first row of every step, [steps]."""
        if self.query is None:
            return np.arange(self.rows, dtype=np.int64)
        return np.flatnonzero(self.query == 0)

    def row(self, index: int) -> Ints:
        """Return the positions of one row (a view)."""
        return self.positions[self.offsets[index] : self.offsets[index + 1]]

    def cut(self, first: int, stop: int) -> "Demand":
        """Return the rows with first <= step < stop, as views."""
        begin, end = np.searchsorted(self.step, [first, stop]).tolist()
        end = max(begin, end)
        low, high = self.offsets[begin], self.offsets[end]
        following = self.next_positions
        if following is not None:
            edges = following.offsets[begin : end + 1]
            following = Ragged(edges - edges[0], following.values[edges[0] : edges[-1]])
        return replace(
            self,
            step=self.step[begin:end],
            seq_len=self.seq_len[begin:end],
            offsets=self.offsets[begin : end + 1] - low,
            positions=self.positions[low:high],
            scores=None if self.scores is None else self.scores[low:high],
            next_positions=following,
            query=None if self.query is None else self.query[begin:end],
        )
