"""Speculative decoding with the model's own draft layer (MTP), in time and memory.

A step verifies several tokens of every request at once, the drafts, and yields those that are
accepted. All three figures are stated by the user, none is replayed:

- verified rows cost as much as that many requests of one row each: an upper bound, since the rows
  of a request read the same indexer keys;
- a draft costs one layer's share of a step: what the output head takes is left out;
- the misses of a step are those of the union of its rows, a stated multiple of those of one row.

Memory follows SGLang 0.5.23: a scratch area beside every hot buffer, which is then held whole
however short the request (managers/hisparse_coordinator.py, mem_cache/allocator/hisparse.py), and
the KV of the draft layer, under HiSparse for all P * R tokens
(model_executor/pool_configurator.py). The weights of the draft layer come out of the reserve.
"""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_sim.simulator.serving.engines import Engine
from hisparse_sim.simulator.serving.lengths import pages

MOST_ROWS = 16
MOST_HIERARCHICAL_ROWS, MOST_SELECTED = 4, 8192  # the engine's swap-in under speculation
LEAST_SCRATCH = 1024


@dataclass(frozen=True)
class Speculation:
    """The drafts, and what becomes of them; means over requests and steps."""

    draft_tokens: int  # rows that a step verifies for each request
    acceptance_length: float  # tokens that a step yields
    union_misses: float | None = None  # misses of a step over those of one row; None: as many as
    # that many steps one after the other have

    def __post_init__(self) -> None:
        rows = self.draft_tokens
        if not 2 <= rows <= MOST_ROWS:
            raise ValueError(f"draft_tokens must be from 2 to {MOST_ROWS}, not {rows}")
        for name in ("acceptance_length", "union_misses"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= rows:
                raise ValueError(f"{name} must be from 1 to draft_tokens ({rows}), not {value}")

    @property
    def misses_times(self) -> float:
        return float(self.draft_tokens if self.union_misses is None else self.union_misses)

    def scratch_tokens(self, top_k: int, device_buffer_size: int) -> int:
        """Device tokens of a request beside its hot buffer."""
        selected = self.draft_tokens * top_k
        return min(selected, pages(max(LEAST_SCRATCH, selected - device_buffer_size)))

    def check(self, engine: Engine, top_k: int) -> None:
        """Raise ValueError if the engine does not start HiSparse with it."""
        rows = self.draft_tokens
        if not engine.drafts:
            raise ValueError(f"{engine.name} has no speculative decoding under HiSparse")
        if rows > MOST_HIERARCHICAL_ROWS or rows * top_k > MOST_SELECTED:
            raise ValueError(
                f"under HiSparse draft_tokens may be at most {MOST_HIERARCHICAL_ROWS}, and select"
                f" at most {MOST_SELECTED:,} positions: {rows} of {top_k:,} do not"
            )

    def __str__(self) -> str:
        return (
            f"speculative decoding, modelled: {self.draft_tokens} rows verified a step,"
            f" {self.acceptance_length:g} tokens accepted, misses of their union"
            f" {self.misses_times:g} times those of a row, as stated"
        )
