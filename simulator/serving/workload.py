"""The load of a server: requests with their lengths and the times at which they are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.traces.documents import LEAST_AMOUNT, MOST_AMOUNT

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

MOST_REQUESTS = 10_000_000


class Blocks(NamedTuple):
    """The prompts of requests as blocks: equal ids mean equal prompts up to and with that block."""

    ids: Longs  # [blocks of all requests]
    ends: Longs  # [n + 1] those of request i lie in [ends[i], ends[i + 1])
    tokens: int  # of a block

    def row(self, i: int) -> list[int]:
        """The ids of one request."""
        found: list[int] = self.ids[self.ends[i] : self.ends[i + 1]].tolist()
        return found

    def of(self, kept: npt.NDArray[np.intp]) -> Blocks:
        """Those of some requests, in this order."""
        parts = [self.ids[self.ends[i] : self.ends[i + 1]] for i in kept]
        ends = np.cumsum([0, *map(len, parts)])
        ids = np.concatenate(parts) if parts else self.ids[:0]
        return Blocks(ids, ends.astype(np.int64), self.tokens)


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in the order in which they are sent.

    With `concurrency`, no more are in the system at once: one that is due waits for a free client,
    and its latency counts from the time it is sent.
    """

    arrival_s: Floats  # [n] when due, ascending
    prompt_len: Longs  # [n] tokens
    output_len: Longs  # [n] tokens
    concurrency: int | None = None
    blocks: Blocks | None = None  # of the prompts, if known

    def __post_init__(self) -> None:
        if self.blocks is not None and len(self.blocks.ends) != len(self.arrival_s) + 1:
            raise ValueError("blocks must be those of as many requests")
        if not len(self.arrival_s) == len(self.prompt_len) == len(self.output_len):
            raise ValueError("arrival_s, prompt_len and output_len must have the same length")
        if len(self.arrival_s) and (
            np.min(self.arrival_s) < 0 or np.any(np.diff(self.arrival_s) < 0)
        ):
            raise ValueError("arrival_s must be 0 or more, and ascend")
        if len(self.prompt_len) and min(self.prompt_len.min(), self.output_len.min()) < 1:
            raise ValueError("prompt_len and output_len must be at least 1")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")

    def __len__(self) -> int:
        return len(self.arrival_s)


def poisson(requests: int, rate_per_s: float | None, seed: int) -> Floats:
    """Arrival times of a Poisson process, the same for the same seed; None: all at 0."""
    if rate_per_s is None:
        return np.zeros(requests)
    stream = np.random.default_rng(seed)
    return np.cumsum(stream.exponential(1 / rate_per_s, requests))


@dataclass(frozen=True)
class Workload:
    """Drawn requests: closed loop at `concurrency`, or open loop at `rate_per_s` (Poisson).

    Lengths are uniform in [range_ratio * length, length], as the engine's benchmark draws them;
    1.0 makes all equal.
    """

    prompt: int
    output: int
    requests: int
    concurrency: int | None = None
    rate_per_s: float | None = None
    range_ratio: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt", "output", "requests"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.requests <= MOST_REQUESTS:
            raise ValueError(f"requests must be at most {MOST_REQUESTS:,}")
        if (self.concurrency is None) == (self.rate_per_s is None):
            raise ValueError("give either a concurrency (closed loop) or a rate (open loop)")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.rate_per_s is not None and not LEAST_AMOUNT <= self.rate_per_s <= MOST_AMOUNT:
            raise ValueError(f"rate must be above 0 and finite, not {self.rate_per_s}")
        if not 0 < self.range_ratio <= 1:
            raise ValueError(f"range_ratio must be in (0, 1], not {self.range_ratio}")

    def draw(self) -> Requests:
        """Return the requests, the same for the same seed."""
        stream = np.random.default_rng(self.seed)

        def lengths(longest: int) -> Longs:
            shortest = max(1, round(longest * self.range_ratio))
            return stream.integers(shortest, longest + 1, self.requests)

        prompts, outputs = lengths(self.prompt), lengths(self.output)
        if self.rate_per_s is None:
            arrivals = np.zeros(self.requests)
        else:
            arrivals = np.cumsum(stream.exponential(1 / self.rate_per_s, self.requests))
        return Requests(arrivals, prompts, outputs, self.concurrency)


def drawn(load: Workload | Requests) -> Requests:
    """The requests of a load."""
    return load.draw() if isinstance(load, Workload) else load
