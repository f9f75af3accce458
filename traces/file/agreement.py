"""Whether the layers of a request agree with each other, as those of one replayed request must."""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.file.layer_types import SHARED
from hisparse_sim.traces.file.parts import Part
from hisparse_sim.traces.terminal import counted

_MOST_NAMED = 3


class Agreement:
    """Compares the parts of a trace, which are added one after the other in file order."""

    def __init__(self, layer_types: Sequence[str] | None = None) -> None:
        self._types = layer_types or ()
        self._anchor: Demand | None = None  # the last layer with an index of its own
        self._steps: dict[str, int] = {}  # digest of those of the first layer
        self._uneven: dict[str, int] = {}
        self._changed: dict[str, int] = {}

    def add(self, demand: Demand) -> None:
        """Compare a part with those before it."""
        request, layer = demand.request, demand.layer
        steps = hash((demand.step.tobytes(), demand.seq_len.tobytes()))
        if self._steps.setdefault(request, steps) != steps:
            self._uneven.setdefault(request, layer)
        if layer >= len(self._types) or self._types[layer] != SHARED:
            self._anchor = demand
        elif self._anchor is not None and self._anchor.request == request:
            between = self._types[self._anchor.layer + 1 : layer]
            if set(between) <= {SHARED} and not _same_rows(self._anchor, demand):
                self._changed.setdefault(request, layer)

    def sentences(self) -> list[str]:
        """Return what does not agree, a sentence each."""
        return [
            *_told(self._uneven, "steps or seq_len differ from its first layer"),
            *_told(self._changed, "is marked as shared, and its rows are not those of its index"),
        ]


def layers_absent(parts: Iterable[Part]) -> list[str]:
    """Return which requests lack a layer that others have, a sentence each."""
    layers: dict[str, set[int]] = {}
    for part in parts:
        layers.setdefault(part.request, set()).add(part.layer)
    every = set().union(*layers.values())
    absent = {request: min(every - own) for request, own in layers.items() if every - own}
    return _told(absent, "has no rows, which other requests have")


def _told(found: dict[str, int], what: str) -> list[str]:
    told = [f"request {r!r}, layer {n}: {what}" for r, n in islice(found.items(), _MOST_NAMED)]
    more = len(found) - _MOST_NAMED
    return told + [f"the same holds for {counted(more, 'more request')}"] * (more > 0)


def _same_rows(one: Demand, other: Demand) -> bool:
    """Whether two parts list the same positions in every row, in any order."""
    if not np.array_equal(one.offsets, other.offsets):
        return False
    if np.array_equal(one.positions, other.positions):
        return True
    rows = np.repeat(np.arange(one.rows), np.diff(one.offsets))
    ours, theirs = (each.positions[np.lexsort((each.positions, rows))] for each in (one, other))
    return np.array_equal(ours, theirs)
