"""How long a decode step waits for swap-ins.

The misses come from a replay, the time of a swap-in from the latency model; this module combines
them into the time by which a step of a batch exceeds its compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.simulator.serving.foresight import Guess
from hisparse_sim.simulator.serving.misses import LayerMisses
from hisparse_sim.simulator.serving.model import Model
from hisparse_sim.traces.machine_code import rule

GUESSES = ("prefetch-layer", "prefetch-step")
MODES = ("baseline", "hisparse", "prefetch", *GUESSES, "overlap", "zero-cost")
MODE_SUMMARIES = {
    "baseline": "the whole KV on the GPU, no swap-in, few requests",
    "hisparse": "swap-in before the attention of every layer, as the engine does",
    "prefetch": "shared layers fetch while the layers before them compute (needs shared layers)",
    "prefetch-layer": "what the layer before selects is fetched while it computes (stated recall)",
    "prefetch-step": "what the step before ranks high is fetched while it computes (stated recall)",
    "overlap": "attention over the hits runs while the misses are copied (upper bound)",
    "zero-cost": "zero-cost swap-in: as many requests as HiSparse, copies take no time",
}

Floats = NDArray[np.float64]
# (requests, their mean misses, misses of the one with most) -> us; arrays that broadcast
SwapIn = Callable[[Floats, Floats, Floats], Floats]


class Ahead(NamedTuple):
    """What is copied before its layer needs it, and what hides it. Shares of all layers."""

    share: float  # of the needed copies
    traffic: float  # all copies ahead over the needed ones: with those in vain
    window: float  # of the compute that can hide them
    plan_us: float  # of a step's copying time, what is never ahead: finding out the other misses


@dataclass(frozen=True)
class Exposure:
    """Waiting time of a decode step for copies, in us.

    `replayed` holds the misses of one request in each replayed layer, at the trace's context.
    They scale with the share of the tokens of a context that are outside the buffer: exact at the
    context of the trace and at the buffer size, where there are no misses; elsewhere an assumption.
    """

    mode: str
    model: Model
    held_tokens: int  # of a request on the GPU: the buffer, and what is resident
    replayed: LayerMisses | None
    swap_in: SwapIn
    accepted: float = 1.0  # tokens a step yields; `replayed` are the misses of all of its rows
    guess: Guess | None = None  # for the modes of GUESSES
    longest: float = inf  # tokens of a request that is served

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown mode {self.mode!r}; known: {', '.join(MODES)}")
        if self.copies and self.replayed is None:
            raise ValueError(f"mode {self.mode} needs the misses of a replay")
        if self.mode == "prefetch" and self.model.indexer_layers == self.model.layers:
            raise ValueError(
                f"mode prefetch needs layers that share an indexer; {self.model.name} has none"
            )
        if self.mode in GUESSES and self.guess is None:
            raise ValueError(f"mode {self.mode} needs prefetch_recall: how many misses it foresees")
        if (
            self.copies
            and self.replayed
            and self.replayed.context <= self.held_tokens < self.longest
        ):
            raise ValueError(
                f"the requests of this trace ({self.replayed.context:,.0f} tokens on average) fit"
                f" into a buffer of {self.held_tokens:,} slots, so none can miss; use longer"
                " requests or a smaller buffer"
            )

    @property
    def copies(self) -> bool:
        return self.mode not in ("baseline", "zero-cost")

    @cached_property
    def ahead(self) -> Ahead:
        """What may overlap with the compute of earlier layers.

        The copies of a shared layer start after those of its anchor and must end before the layer;
        those for the next layer must end with this one's compute, and those for the next step with
        the step. No guess is of the first layer.
        """
        layers = self.model.layers
        if self.mode == "prefetch":
            shared = 1 - self.model.indexer_layers / layers
            return Ahead(shared, shared, shared, 0.0)
        if self.mode not in GUESSES or self.guess is None:
            return Ahead(0.0, 0.0, 0.0, 0.0)
        guessed = (layers - 1) / layers if self.mode == "prefetch-layer" else 1.0
        share = guessed * self.guess.recall
        none = np.zeros(1)
        plan_us = layers * float(self.swap_in(none + 1, none, none)[0]) / self.accepted
        return Ahead(share, share * (1 + self.guess.waste), guessed, plan_us)

    def misses(self, context: float) -> float:
        """Mean misses of one request, layer and step at `context`."""
        if self.replayed is None:
            return 0.0
        return self.replayed.mean * float(self._context_factor(np.array([context]))[0])

    def _context_factor(self, context: Floats) -> Floats:
        """[c] misses at each context over those of the replay."""
        assert self.replayed is not None
        return _context_factor(self.replayed, self.held_tokens, context)

    def copies_us(
        self, requests: Floats, context: Floats, attention_us: Floats
    ) -> tuple[Floats, Floats]:
        """[n, c] copying time of a decode step of a rank for each token that it yields, and what is
        left of it if attention hides some.

        So many `requests` [n] decode on the rank at a mean `context` [c], all longer than what the
        GPU holds; `attention_us` [n, c] is the attention of the step, all layers together.
        """
        if not self.copies:
            none = np.zeros((len(requests), len(context)))
            return none, none
        assert self.replayed is not None
        layers, factor = self.model.layers, self._context_factor(context)[:, None]
        mean = np.asarray(self.replayed.per_layer) * factor
        most = np.stack([self.replayed.largest_of(int(count)) * factor for count in requests])
        us = np.broadcast_to(self.swap_in(requests[:, None, None], mean, most), most.shape)
        whole = layers * self.replayed.over_layers(us) / self.accepted
        if self.mode != "overlap":
            return whole, whole
        step_us = self.accepted * attention_us
        left = np.maximum(us - step_us[..., None] / layers, 0.0)
        return whole, layers * self.replayed.over_layers(left) / self.accepted

    def step_us(
        self, requests: int, context: float, compute_us: float, attention_us: float
    ) -> float:
        """Time that one decode step of a rank waits for copies, for each token that it yields;
        `compute_us` is the whole step's compute."""
        if requests == 0:
            return 0.0
        _, left = self.copies_us(
            np.array([float(requests)]), np.array([context]), np.array([[attention_us]])
        )
        return exposed_us(float(left[0, 0]), self.ahead, compute_us)


def miss_rate(replayed: LayerMisses, held_tokens: int, prompt: Floats, output: Floats) -> float:
    """Misses over selected positions, of requests [n] of these lengths in tokens: each misses in
    the part of its steps in which it is longer than what the GPU holds. At most 1: where a short
    trace stands for long requests, the assumption of `Exposure` goes beyond."""
    end = prompt + output
    low, high = np.maximum(prompt, held_tokens), np.maximum(end, held_tokens)
    beyond = (high - low) * _context_factor(replayed, held_tokens, (low + high) / 2)
    return min(replayed.rate * float(beyond.sum() / output.sum()), 1.0)


def _context_factor(replayed: LayerMisses, held_tokens: int, context: Floats) -> Floats:
    """[c] misses at each context over those of the replay."""
    if replayed.context <= held_tokens:  # it says nothing of what is longer, see `longest`
        return np.zeros_like(context)
    outside = 1 - held_tokens / np.maximum(context, held_tokens)
    return np.asarray(outside / (1 - held_tokens / replayed.context))


@rule
def exposed_us(copying_us: float, ahead: Ahead, compute_us: float) -> float:
    """What a step waits for, of its copying time, if some is ahead of need while it computes."""
    copied = max(copying_us - ahead.plan_us, 0.0)
    late = max(ahead.traffic * copied - ahead.window * compute_us, 0.0)
    return copying_us - ahead.share * copied + late
