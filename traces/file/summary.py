"""The contents of a trace, per layer and in all."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.drafts import first_queries
from hisparse_sim.traces.file.ahead import read_ahead
from hisparse_sim.traces.file.columns import QUERY
from hisparse_sim.traces.file.metadata import Metadata
from hisparse_sim.traces.file.reader import Trace
from hisparse_sim.traces.file.rules import stamp_keys
from hisparse_sim.traces.file.units import TOKEN
from hisparse_sim.traces.folders import name_of
from hisparse_sim.traces.terminal import printable

if TYPE_CHECKING:
    import pandas as pd

FIRST_POSITIONS = 4  # attention sinks: models look at the first tokens whatever the text
RECENT_POSITIONS = 256


@dataclass(frozen=True)
class LayerInfo:
    """Figures of one layer over all requests, or of the whole trace (`layer` is None)."""

    layer: int | None
    requests: int
    rows: int  # (request, layer, step)
    positions: int
    row_min: int  # positions in the shortest row
    row_max: int
    seq_len_min: int  # tokens
    seq_len_max: int
    # Mean over steps of |S_t and S_(t-1)| / |S_t|, with drafts of their first queries; None without
    # such a pair.
    overlap: float | None
    first_4_share: float | None  # of all positions; None if there are none
    recent_256_share: float | None  # of all positions: among the 256 newest tokens of their step


@dataclass(frozen=True)
class TraceInfo:
    """A trace file, described."""

    path: Path
    sha256: str
    size_bytes: int
    metadata: Metadata
    requests: tuple[str, ...]
    total: LayerInfo
    per_layer: tuple[LayerInfo, ...]  # ascending
    accepted_per_step: float | None  # mean tokens, of steps with one after; None: one query a step

    def table(self) -> "pd.DataFrame":
        """The layers and the whole, a row each: `trace, provenance`, the fields of `LayerInfo` and
        `trace_sha256`; a column `unit` if positions are no tokens."""
        import pandas as pd

        rows = pd.DataFrame([asdict(layer) for layer in (*self.per_layer, self.total)])
        rows = rows.astype({"layer": "Int64"})
        rows.insert(0, "trace", printable(name_of(self.path)))
        rows.insert(1, "provenance", self.metadata.provenance)
        if self.metadata.unit != TOKEN:
            rows.insert(2, "unit", self.metadata.unit)
        if self.metadata.draft_tokens > 1:
            rows["draft_tokens"] = self.metadata.draft_tokens
            rows["accepted_per_step"] = self.accepted_per_step
        rows["trace_sha256"] = self.sha256
        return rows


_ADDED = "rows positions overlap pairs first recent accepted accepting".split()


@dataclass
class _Sums:
    requests: set[str]
    rows: int = 0
    positions: int = 0
    row_min: int = 2**31
    row_max: int = 0
    seq_len_min: int = 2**31
    seq_len_max: int = 0
    overlap: float = 0.0
    pairs: int = 0
    first: int = 0
    recent: int = 0
    accepted: int = 0
    accepting: int = 0

    def add(self, other: "_Sums") -> None:
        self.requests |= other.requests
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.row_min = min(self.row_min, other.row_min)
        self.row_max = max(self.row_max, other.row_max)
        self.seq_len_min = min(self.seq_len_min, other.seq_len_min)
        self.seq_len_max = max(self.seq_len_max, other.seq_len_max)

    def info(self, layer: int | None) -> LayerInfo:
        return LayerInfo(
            layer,
            len(self.requests),
            self.rows,
            self.positions,
            self.row_min,
            self.row_max,
            self.seq_len_min,
            self.seq_len_max,
            self.overlap / self.pairs if self.pairs else None,
            self.first / self.positions if self.positions else None,
            self.recent / self.positions if self.positions else None,
        )


def info(trace: Trace) -> TraceInfo:
    """Read the whole trace once, part by part, and describe it.

    Raises TraceError if a part breaks a rule.
    """
    total = _Sums(set())
    per_layer = {layer: _Sums(set()) for layer in trace.layers}
    for part, demand in read_ahead(trace, trace.parts, {QUERY} & set(trace.optional)):
        sums = _sums(demand)
        total.add(sums)
        per_layer[part.layer].add(sums)
    return TraceInfo(
        path=trace.path,
        sha256=trace.sha256,
        size_bytes=trace.size_bytes,
        metadata=trace.metadata,
        requests=trace.requests,
        total=total.info(None),
        per_layer=tuple(sums.info(layer) for layer, sums in per_layer.items()),
        accepted_per_step=total.accepted / total.accepting if total.accepting else None,
    )


def _sums(demand: Demand) -> _Sums:
    from hisparse_sim.traces.file import passes

    def described(rows: Demand) -> tuple[float, int, int, int]:
        keys, stamp = stamp_keys(rows.positions)
        found: tuple[float, int, int, int] = passes.describe(
            rows.seq_len,
            rows.offsets,
            rows.positions,
            keys,
            stamp,
            FIRST_POSITIONS,
            RECENT_POSITIONS,
        )
        return found

    overlap, pairs, first, recent = described(demand)
    if demand.query is not None:  # the queries of a step select nearly the same
        overlap, pairs, _, _ = described(first_queries(demand))
    lengths = np.diff(demand.offsets)
    heads = demand.seq_len[demand.first_rows]
    several = demand.query is not None
    return _Sums(
        {demand.request},
        demand.rows,
        len(demand.positions),
        int(lengths.min()),
        int(lengths.max()),
        int(demand.seq_len[0]),
        int(demand.seq_len[-1]),
        overlap,
        pairs,
        first,
        recent,
        int(heads[-1] - heads[0]) if several else 0,
        len(heads) - 1 if several else 0,
    )
