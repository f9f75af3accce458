"""How much of the swap-in a decode step has to wait for.

The misses come from a replay, the time of a swap-in from the latency model; this module combines
them into the time that a step of a whole batch takes longer than its compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from hisparse_sim.simulator.models import FULL, Model

MODES = ("baseline", "hisparse", "prefetch", "overlap", "oracle")
MODE_SUMMARIES = {
    "baseline": "the whole KV on the GPU, no swap-in, few requests",
    "hisparse": "swap-in before the attention of every layer, as the engine does",
    "prefetch": "shared layers fetch while the layers before them compute (needs shared layers)",
    "overlap": "attention over the hits runs while the misses are copied (upper bound)",
    "oracle": "as many requests as HiSparse, copies free",
}

SwapIn = Callable[[int, float], float]  # (requests, misses of each) -> us for one layer


@dataclass(frozen=True)
class Exposure:
    """Waiting time of a decode step for copies, in us.

    `layer_misses` are the mean misses a step of one request in each replayed layer, at a context of
    about `trace_context` tokens. Another context changes them by the share of its tokens that lie
    outside the buffer: exact at the trace's own context and at the buffer's size, where nothing
    misses; between and beyond an assumption, since no trace of other lengths exists.
    """

    mode: str
    model: Model
    device_buffer_size: int
    layer_misses: tuple[float, ...]
    trace_context: float
    swap_in: SwapIn

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown mode {self.mode!r}; known: {', '.join(MODES)}")
        if self.mode not in ("baseline", "oracle") and not self.layer_misses:
            raise ValueError(f"mode {self.mode} needs the misses of a replay")
        if self.mode == "prefetch" and self.model.indexer_layers == self.model.layers:
            raise ValueError(
                f"mode prefetch needs layers that share an indexer; {self.model.name} has none"
            )
        if self.layer_misses and self.trace_context <= self.device_buffer_size:
            raise ValueError(
                f"the trace's context of {self.trace_context:.0f} tokens fits the buffer of"
                f" {self.device_buffer_size}: it says nothing about misses"
            )

    @property
    def copies(self) -> bool:
        return self.mode not in ("baseline", "oracle")

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
        share = sum(self.layer_misses) / len(self.layer_misses) if self.layer_misses else 0.0
        return share * self._context_factor(context)

    def _context_factor(self, context: float) -> float:
        if context <= self.device_buffer_size:
            return 0.0
        outside = 1 - self.device_buffer_size / context
        return outside / (1 - self.device_buffer_size / self.trace_context)

    def step_us(
        self, requests: int, context: float, compute_us: float, attention_us: float
    ) -> float:
        """Time that one decode step of a rank waits for copies.

        `requests` decode on the rank at a mean `context`, all longer than the buffer; `compute_us`
        is the whole step's compute and `attention_us` the part of it in attention.
        """
        if not self.copies or requests == 0:
            return 0.0
        factor = self._context_factor(context)
        layers = self.model.layers
        waits = [self.swap_in(requests, misses * factor) for misses in self.layer_misses]
        swap = sum(waits) / len(waits)  # us a layer, the replayed layers standing for all
        if self.mode == "hisparse":
            return layers * swap
        if self.mode == "overlap":
            hidden = attention_us / layers
            return layers / len(waits) * sum(max(wait - hidden, 0.0) for wait in waits)
        # A shared layer's copies start behind those of its anchor and have until their layer.
        between = compute_us / layers
        return sum(swap + shared * max(swap - between, 0.0) for shared in self._groups)
