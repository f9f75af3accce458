"""Speculative decoding with the model's own draft layer (MTP), in time and memory.

A step verifies several tokens of every request at once, the drafts, and yields those that are
accepted. The figures are stated by the user, or a trace with drafts tells them:

- verified rows cost as much as that many requests of one row each: an upper bound, since the rows
  of a request read the same indexer keys;
- a draft costs one layer's share of a step: what the output head takes is left out;
- the misses of a step are those of the union of its rows: replayed, with the engine's policy for
  drafts, or a stated multiple of those of one row.

Memory follows SGLang 0.5.23: a scratch area beside every hot buffer, which is then held whole
however short the request (managers/hisparse_coordinator.py, mem_cache/allocator/hisparse.py), and
the KV of the draft layer, under HiSparse for all P * R tokens
(model_executor/pool_configurator.py). The weights of the draft layer come out of the reserve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hisparse_sim.simulator.serving.engines import Engine
from hisparse_sim.simulator.serving.lengths import pages

MOST_ROWS = 16


@dataclass(frozen=True)
class Speculation:
    """The drafts, and what becomes of them; means over requests and steps."""

    draft_tokens: int  # rows that a step verifies for each request
    acceptance_length: float  # tokens that a step yields
    union_misses: float | None = None  # misses of a step over those of one row; None: as many as
    # that many steps one after the other have
    replayed: bool = False  # whether the misses at hand are those of the union already

    def __post_init__(self) -> None:
        rows = self.draft_tokens
        if not 2 <= rows <= MOST_ROWS:
            raise ValueError(f"`draft_tokens` must be from 2 to {MOST_ROWS}, not {rows}")
        for name in ("acceptance_length", "union_misses"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= rows:
                raise ValueError(
                    f"`{name}` must be from 1 to `draft_tokens` ({rows}), not {value:g}"
                )

    @property
    def misses_times(self) -> float:
        if self.replayed:
            return 1.0
        return float(self.draft_tokens if self.union_misses is None else self.union_misses)

    def scratch_tokens(self, top_k: int, device_buffer_size: int) -> int:
        """Device tokens of a request beside its hot buffer."""
        # Here and below, not above: the command line imports this module and loads nothing heavy.
        from hisparse_sim.simulator.replay.modes.sglang import scratch_tokens

        return pages(scratch_tokens(self.draft_tokens, top_k, device_buffer_size))

    def check(self, engine: Engine, top_k: int, device_buffer_size: int, running: int) -> None:
        """Raise ValueError if the engine does not start HiSparse with it.

        `running`: requests that one rank may run at once.
        """
        from hisparse_sim.simulator.replay.modes.sglang import SGLANG

        if not engine.drafts:
            raise ValueError(f"{engine.name} has no speculative decoding under HiSparse")
        for reason in SGLANG.refused(self.draft_tokens, top_k, device_buffer_size):
            raise ValueError(f"under HiSparse {reason}")
        if running + 1 > device_buffer_size:
            raise ValueError(
                f"with drafts SGLang wants no more slots for requests, {running:,} on a rank and"
                f" one, than device_buffer_size, {device_buffer_size:,}: give fewer"
                f" `max_running_requests`"
            )

    def __str__(self) -> str:
        if self.replayed:
            misses = "as replayed"
        else:
            misses = f"{self.misses_times:g} times those of a row, " + (
                "as stated"
                if self.union_misses
                else f"as many as {self.draft_tokens} steps have one after the other"
            )
        return (
            f"speculative decoding, modelled: {self.draft_tokens} rows verified a step,"
            f" {self.acceptance_length:.3g} tokens accepted, misses of their union {misses}"
        )


class Stated(NamedTuple):
    """What a user says of speculative decoding."""

    draft_tokens: int | None = None
    acceptance_length: float | None = None
    union_misses: float | None = None

    def speculation(self) -> Speculation | None:
        """What it means; None if nothing is said, ValueError if a part is missing."""
        if self == Stated():
            return None
        if self.draft_tokens is None or self.acceptance_length is None:
            raise ValueError("`draft_tokens` and `acceptance_length` belong together: give both")
        return Speculation(self.draft_tokens, self.acceptance_length, self.union_misses)
