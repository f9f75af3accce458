"""The load of a deployment, and its targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hisparse_sim.simulator.serving.served import Served
from hisparse_sim.simulator.serving.workload import Floats, Requests, Workload, drawn, poisson
from hisparse_sim.simulator.serving.workload_files import Recorded
from hisparse_sim.traces.arguments import whole_number
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
    recorded: Recorded | None = None  # lengths of real requests, instead of drawn ones
    by_times: bool = False  # open loop at the recorded times
    time_scale: float = 1.0  # which are multiplied by this: 2 is half the rate

    def __post_init__(self) -> None:
        for name in ("prompt", "output", "concurrency"):
            whole_number(name, getattr(self, name), 1)
        if self.requests is not None:
            whole_number("requests", self.requests, 1)
        whole_number("seed", self.seed, 0)
        for name in ("max_tpot_ms", "max_ttft_s", "gpu_hour"):
            value = getattr(self, name)
            if value is not None and not LEAST_AMOUNT <= value <= MOST_AMOUNT:
                raise ValueError(f"{name} must be above 0 and finite, not {value}")
        if self.max_miss_rate is not None and not 0 <= self.max_miss_rate <= 1:
            raise ValueError(f"max_miss_rate must be between 0 and 1, not {self.max_miss_rate}")
        if not 0 <= self.percentile <= 100:
            raise ValueError(f"percentile must lie between 0 and 100, not {self.percentile:g}")
        if not LEAST_AMOUNT <= self.time_scale <= MOST_AMOUNT:
            raise ValueError(f"time_scale must be above 0 and finite, not {self.time_scale}")
        if self.recorded is not None and self.range_ratio != 1:
            raise ValueError("a workload has its own lengths: give no range_ratio")
        _ = self.load

    def of_recorded(self, recorded: Recorded, pace_given: bool) -> Aim:
        """The same with recorded requests: at their times, if they have any and neither a
        concurrency nor a rate is given."""
        prompt, output = recorded.longest
        by_times = not pace_given and recorded.due_s is not None
        return replace(self, prompt=prompt, output=output, recorded=recorded, by_times=by_times)

    @property
    def open_loop(self) -> bool:
        """Whether requests come at times of their own, however many are inside."""
        return self.rate_per_s is not None or self.by_times

    @property
    def load(self) -> Workload | Requests:
        """The requests to serve."""
        clients, count = None if self.open_loop else self.concurrency, self.count
        if (drawn := self.drawn) is not None:
            if self.by_times and drawn.due_s is not None:
                return drawn.at(drawn.due_s * self.time_scale, None)
            return drawn.at(poisson(len(drawn), self.rate_per_s, self.seed), clients)
        assert count is not None
        return Workload(
            self.prompt, self.output, count, clients, self.rate_per_s, self.range_ratio, self.seed
        )

    @cached_property
    def lengths(self) -> tuple[Floats, Floats]:
        """[n] prompts and outputs of all requests, in tokens."""
        load = drawn(self.load)
        return load.prompt_len.astype(np.float64), load.output_len.astype(np.float64)

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return self.prompt + self.output

    @property
    def count(self) -> int | None:
        """Requests to serve; None: all that are recorded."""
        if self.requests is not None or self.by_times:
            return self.requests
        return OPEN_LOOP_REQUESTS if self.open_loop else 4 * self.concurrency

    @cached_property
    def drawn(self) -> Recorded | None:
        """The recorded requests that are served."""
        return None if self.recorded is None else self.recorded.sampled(self.count, self.seed)

    @property
    def sent_per_s(self) -> float | None:
        """Mean rate of an open loop; None in a closed one."""
        if self.by_times and self.drawn is not None:
            return self.drawn.rate_per_s / self.time_scale
        return self.rate_per_s

    @property
    def label(self) -> str:
        """The load in brief: the concurrency, or the rate."""
        rate = self.sent_per_s
        if rate is None:
            return str(self.concurrency)
        return f"{rate:.3g}/s recorded" if self.by_times else f"{rate:g}/s"

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


def not_met(missed: str) -> str:
    """What a row's `missed` says, in words: targets that are not met, and requests refused."""
    names = [name for name in missed.split(", ") if name != "length"]
    said = [f"{' and '.join(names)} target{'s' * (len(names) > 1)} not met"] if names else []
    if "length" in missed:
        said.append("requests refused for length")
    return ", ".join(said)
