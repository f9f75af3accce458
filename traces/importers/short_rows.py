"""Rows that list fewer positions than a decode step could: kept, counted and reported.

An engine's top-k may drop entries on ties, and rows of the prompt have less to choose from.
"""

from dataclasses import dataclass

import numpy as np

from hisparse_sim.traces.demand import Ints, Longs

SHORT = "short_rows"  # in the notes of a trace: (request, layer, step) rows
TIES = "the engine's top-k drops entries where scores tie (SGLang's pull request 30645)"


@dataclass
class ShortRows:
    """Counts them over the (request, layer) of a file."""

    rows: int = 0
    of: int = 0
    first: str = ""  # a clause on the first of them

    def add(self, counts: Longs, seq_len: Longs | Ints, width: int, place: str) -> None:
        """Take the rows of one (request, layer), which `place` names.

        counts: [rows] positions listed; seq_len: [rows] positions there were; width: the most that
        a row lists.
        """
        expected = np.minimum(width, seq_len)
        short = counts < expected
        if short.any() and not self.rows:
            row = int(short.argmax())
            self.first = (
                f"{place}, row {row} lists {counts[row]:,} positions, and a decode step could list "
                f"{expected[row]:,}"
            )
        self.rows += int(short.sum())
        self.of += len(counts)

    def __add__(self, other: "ShortRows") -> "ShortRows":
        return ShortRows(self.rows + other.rows, self.of + other.of, self.first or other.first)

    def doubts(self, file: str, way_out: str) -> tuple[str, ...]:
        """Return a sentence on them, none if there are none."""
        if not self.rows:
            return ()
        return (
            f"{file}: {self.first} ({self.rows:,} of {self.of:,} rows are short, and kept so): "
            f"{way_out}",
        )

    @property
    def notes(self) -> dict[str, int]:
        """What the metadata says of them."""
        return {SHORT: self.rows} if self.rows else {}
