"""How much of the swap-in a decode step has to wait for.

The misses come from a replay, the time of a swap-in from the latency model; this module combines
them into the time that a step of a whole batch takes longer than its compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.simulator.serving.memory import PAGE_TOKENS
from hisparse_sim.simulator.serving.missing import LayerMisses
from hisparse_sim.simulator.serving.models import FULL, Model

MODES = ("baseline", "hisparse", "prefetch", "overlap", "zero-cost")
MODE_SUMMARIES = {
    "baseline": "the whole KV on the GPU, no swap-in, few requests",
    "hisparse": "swap-in before the attention of every layer, as the engine does",
    "prefetch": "shared layers fetch while the layers before them compute (needs shared layers)",
    "overlap": "attention over the hits runs while the misses are copied (upper bound)",
    "zero-cost": "zero-cost swap-in: as many requests as HiSparse, copies take no time",
}

Floats = NDArray[np.float64]
# (requests, their mean misses [layers], misses of the one with most [layers]) -> us [layers]
SwapIn = Callable[[int, Floats, Floats], Floats]


@dataclass(frozen=True)
class Exposure:
    """Waiting time of a decode step for copies, in us.

    `replayed` holds the misses of one request in each replayed layer, at the trace's context.
    Another context changes them by the share of its tokens that lie outside the buffer: exact at
    the trace's own context and at the buffer's size, where nothing misses; between and beyond an
    assumption, since no trace of other lengths exists.
    """

    mode: str
    model: Model
    device_buffer_size: int
    replayed: LayerMisses | None
    swap_in: SwapIn
    _known: dict[tuple[int, int], Floats] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown mode {self.mode!r}; known: {', '.join(MODES)}")
        if self.copies and self.replayed is None:
            raise ValueError(f"mode {self.mode} needs the misses of a replay")
        if self.mode == "prefetch" and self.model.indexer_layers == self.model.layers:
            raise ValueError(
                f"mode prefetch needs layers that share an indexer; {self.model.name} has none"
            )
        if self.copies and self.replayed and self.replayed.context <= self.device_buffer_size:
            raise ValueError(
                f"the trace's context of {self.replayed.context:.0f} tokens fits the buffer of"
                f" {self.device_buffer_size}: it says nothing about misses"
            )

    @property
    def copies(self) -> bool:
        return self.mode not in ("baseline", "zero-cost")

    @cached_property
    def _groups(self) -> tuple[int, ...]:
        """Number of shared layers behind each layer with an indexer."""
        groups: list[int] = []
        for kind in self.model.layer_types:
            if kind == FULL:
                groups.append(0)
            else:
                groups[-1] += 1
        return tuple(groups)

    def misses(self, context: float) -> float:
        """Mean misses of one request, layer and step at `context`."""
        return self.replayed.mean * self._context_factor(context) if self.replayed else 0.0

    def _context_factor(self, context: float) -> float:
        if self.replayed is None or context <= self.device_buffer_size:
            return 0.0
        outside = 1 - self.device_buffer_size / context
        return outside / (1 - self.device_buffer_size / self.replayed.context)

    def _waits_us(self, requests: int, context: float) -> Floats:
        """Swap-in time of every replayed layer, kept for each page of context."""
        assert self.replayed is not None
        page = round(context / PAGE_TOKENS)
        if (requests, page) not in self._known:
            factor = self._context_factor(page * PAGE_TOKENS)
            mean = np.asarray(self.replayed.per_layer) * factor
            most = self.replayed.largest_of(requests) * factor
            self._known[requests, page] = self.swap_in(requests, mean, most)
        return self._known[requests, page]

    def step_us(
        self, requests: int, context: float, compute_us: float, attention_us: float
    ) -> float:
        """Time that one decode step of a rank waits for copies.

        `requests` decode on the rank at a mean `context`, all longer than the buffer; `compute_us`
        is the whole step's compute and `attention_us` the part of it in attention.
        """
        if not self.copies or requests == 0:
            return 0.0
        layers = self.model.layers
        waits = self._waits_us(requests, context)
        if self.mode == "hisparse":
            return layers * float(waits.mean())  # the replayed layers stand for all
        if self.mode == "overlap":
            return layers * float(np.maximum(waits - attention_us / layers, 0.0).mean())
        # A shared layer's copies start behind those of its anchor and have until their layer.
        swap, between = float(waits.mean()), compute_us / layers
        return sum(swap + shared * max(swap - between, 0.0) for shared in self._groups)
