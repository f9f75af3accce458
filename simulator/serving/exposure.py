"""How long a decode step waits for swap-ins.

The misses come from a replay, the time of a swap-in from the latency model; this module combines
them into the time by which a step of a batch exceeds its compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.simulator.serving.missing import LayerMisses
from hisparse_sim.simulator.serving.models import Model
from hisparse_sim.traces.machine_code import rule

MODES = ("baseline", "hisparse", "prefetch", "overlap", "zero-cost")
MODE_SUMMARIES = {
    "baseline": "the whole KV on the GPU, no swap-in, few requests",
    "hisparse": "swap-in before the attention of every layer, as the engine does",
    "prefetch": "shared layers fetch while the layers before them compute (needs shared layers)",
    "overlap": "attention over the hits runs while the misses are copied (upper bound)",
    "zero-cost": "zero-cost swap-in: as many requests as HiSparse, copies take no time",
}

Floats = NDArray[np.float64]
# (requests, their mean misses, misses of the one with most) -> us; arrays that broadcast
SwapIn = Callable[[Floats, Floats, Floats], Floats]


@dataclass(frozen=True)
class Exposure:
    """Waiting time of a decode step for copies, in us.

    `replayed` holds the misses of one request in each replayed layer, at the trace's context.
    They scale with the share of the tokens of a context that are outside the buffer: exact at the
    context of the trace and at the buffer size, where there are no misses; elsewhere an assumption.
    """

    mode: str
    model: Model
    device_buffer_size: int
    replayed: LayerMisses | None
    swap_in: SwapIn
    accepted: float = 1.0  # tokens a step yields; `replayed` are the misses of all of its rows

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
                f"the requests of this trace ({self.replayed.context:,.0f} tokens on average) fit"
                f" into a buffer of {self.device_buffer_size:,} slots, so none can miss; use longer"
                " requests or a smaller buffer"
            )

    @property
    def copies(self) -> bool:
        return self.mode not in ("baseline", "zero-cost")

    @cached_property
    def hideable(self) -> float:
        """Share of the layers whose copies may overlap with the compute of earlier layers.

        The copies of a shared layer start after those of its anchor and must end before the layer.
        """
        if self.mode != "prefetch":
            return 0.0
        return 1 - self.model.indexer_layers / self.model.layers

    def misses(self, context: float) -> float:
        """Mean misses of one request, layer and step at `context`."""
        if self.replayed is None:
            return 0.0
        return self.replayed.mean * float(self._context_factor(np.array([context]))[0])

    def _context_factor(self, context: Floats) -> Floats:
        """[c] misses at each context over those of the replay."""
        assert self.replayed is not None
        outside = 1 - self.device_buffer_size / np.maximum(context, self.device_buffer_size)
        return outside / (1 - self.device_buffer_size / self.replayed.context)

    def waits_us(self, requests: Floats, context: Floats, attention_us: Floats) -> Floats:
        """[n, c] copying time of a decode step of a rank that no compute of other layers hides, for
        each token that it yields.

        So many `requests` [n] decode on the rank at a mean `context` [c], all longer than the
        buffer; `attention_us` [n, c] is the attention of the step, all layers together.
        """
        if not self.copies:
            return np.zeros((len(requests), len(context)))
        assert self.replayed is not None
        layers, factor = self.model.layers, self._context_factor(context)[:, None]
        mean = np.asarray(self.replayed.per_layer) * factor
        most = np.stack([self.replayed.largest_of(int(count)) * factor for count in requests])
        waits = np.broadcast_to(self.swap_in(requests[:, None, None], mean, most), most.shape)
        if self.mode == "overlap":
            step_us = self.accepted * attention_us
            waits = np.maximum(waits - step_us[..., None] / layers, 0.0)
        return layers * self.replayed.over_layers(waits) / self.accepted

    def step_us(
        self, requests: int, context: float, compute_us: float, attention_us: float
    ) -> float:
        """Time that one decode step of a rank waits for copies.

        As `waits_us`, for one context; `compute_us` is the whole step's compute.
        """
        if requests == 0:
            return 0.0
        waits = self.waits_us(
            np.array([float(requests)]), np.array([context]), np.array([[attention_us]])
        )
        return step_wait_us(float(waits[0, 0]), self.hideable, compute_us)


@rule
def step_wait_us(wait_us: float, hideable: float, compute_us: float) -> float:
    """What remains of `wait_us` if a share of the layers copies while the step computes."""
    return (1 - hideable) * wait_us + hideable * max(wait_us - compute_us, 0.0)
