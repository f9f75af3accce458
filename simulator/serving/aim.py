"""The load of a deployment, and its targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hisparse_sim.simulator.serving.served import Served
from hisparse_sim.simulator.serving.workload import Workload
from hisparse_sim.traces.documents import LEAST_AMOUNT, MOST_AMOUNT

OPEN_LOOP_REQUESTS = 1000  # served if no number is given; of a closed loop four times its clients


@dataclass(frozen=True)
class Aim:
    """The load to serve and the targets. A target of None always holds."""

    prompt: int  # tokens, of the longest request
    output: int
    concurrency: int  # over all ranks
    max_tpot_ms: float | None = None
    max_miss_rate: float | None = None
    max_ttft_s: float | None = None
    percentile: float = 50.0  # of TPOT and TTFT
    rate_per_s: float | None = None  # open loop, instead of the concurrency
    requests: int | None = None  # None: four times the concurrency, or OPEN_LOOP_REQUESTS
    range_ratio: float = 1.0  # lengths are uniform in [this * length, length]
    seed: int = 0
    gpu_hour: float | None = None  # price of one GPU

    def __post_init__(self) -> None:
        for name in ("prompt", "output", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_tpot_ms", "max_ttft_s", "gpu_hour"):
            value = getattr(self, name)
            if value is not None and not LEAST_AMOUNT <= value <= MOST_AMOUNT:
                raise ValueError(f"{name} must be above 0 and finite, not {value}")
        if self.max_miss_rate is not None and not 0 <= self.max_miss_rate <= 1:
            raise ValueError(f"max_miss_rate must be between 0 and 1, not {self.max_miss_rate}")
        if not 0 <= self.percentile <= 100:
            raise ValueError(f"percentile must lie between 0 and 100, not {self.percentile:g}")
        _ = self.load

    @property
    def load(self) -> Workload:
        """The requests to serve."""
        clients = None if self.rate_per_s is not None else self.concurrency
        count = self.requests
        if count is None:
            count = 4 * clients if clients else OPEN_LOOP_REQUESTS
        return Workload(
            self.prompt, self.output, count, clients, self.rate_per_s, self.range_ratio, self.seed
        )

    @property
    def label(self) -> str:
        """The load in brief: the concurrency, or the rate."""
        return str(self.concurrency) if self.rate_per_s is None else f"{self.rate_per_s:g}/s"

    @property
    def phrase(self) -> str:
        """The load in words, to follow "at"."""
        if self.rate_per_s is not None:
            return f"{self.rate_per_s:g} requests/s"
        return f"{self.concurrency:,} concurrent request{'s' * (self.concurrency > 1)}"

    @property
    def has_targets(self) -> bool:
        return not self.max_tpot_ms is self.max_ttft_s is self.max_miss_rate is None

    def missed(self, served: Served, miss_rate: float) -> tuple[str, ...]:
        """The targets that are missed; "length" if requests were refused."""
        found = []
        if served.refused:
            found.append("length")
        # Requests of one token have a TPOT of nan: no target.
        if self.max_tpot_ms is not None and served.tpot_ms(self.percentile) > self.max_tpot_ms:
            found.append("TPOT")
        if self.max_ttft_s is not None and served.ttft_s(self.percentile) > self.max_ttft_s:
            found.append("TTFT")
        if self.max_miss_rate is not None and miss_rate > self.max_miss_rate:
            found.append("miss rate")
        return tuple(found)

    def goodput_per_s(self, served: Served) -> float:
        """Requests per second whose own TPOT and TTFT meet the targets."""
        good = np.ones(len(served.finished), bool)
        if self.max_tpot_ms is not None:
            good &= ~(served.tpots_ms > self.max_tpot_ms)
        if self.max_ttft_s is not None:
            good &= served.ttfts_s <= self.max_ttft_s
        return float(good.sum()) / served.makespan if served.makespan else 0.0
