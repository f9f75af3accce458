"""Settings from which a plan chooses: all are estimated, the best are served."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil, floor
from typing import Any

import pandas as pd

from hisparse_sim.simulator.serving.deployment import pinned_bytes
from hisparse_sim.simulator.serving.estimate import estimate
from hisparse_sim.simulator.serving.launch import launch_flags
from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.serving_rows import ServedOnce

NEARLY_EQUAL = 0.01  # closer rates count as equal: the smaller memory wins
FINALISTS = 8  # with the best estimates: served at once, and as many again while none will do
PATIENCE = 3  # so many times
MOST_INSTANCES = 8
MOST_REPLAYS = 200
MOST_PAIRS = 5000

Progress = Callable[[int, int], None]  # (settings served, known so far)


@dataclass
class Candidates:
    """Settings with their estimates, and the rows of those that were served."""

    settings: list[Setting]
    aim: Aim
    progress: Progress | None = None
    served: ServedOnce = field(default_factory=ServedOnce)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)  # by place in `settings`

    def __post_init__(self) -> None:
        self.estimates = [estimate(setting, self.aim) for setting in self.settings]
        self.able = [i for i, found in enumerate(self.estimates) if found.requests]

    def serve(self, places: Iterable[int]) -> None:
        """Serve those that were not served yet."""
        new = [i for i in dict.fromkeys(places) if i not in self.rows and i in self.able]
        before, done = len(self.rows), count(1)

        def report() -> None:
            if self.progress:
                self.progress(before + next(done), before + len(new))

        found = self.served.rows([self.settings[i] for i in new], self.aim, report)
        for i, row in zip(new, found, strict=True):
            setting = self.settings[i]
            batch = round(row["running"] / (setting.ranks * setting.instances))
            self.rows[i] = self.describe(i) | row | {"batch": batch}

    def describe(self, place: int) -> dict[str, Any]:
        """What is known of a candidate before it is served: what it is, what it pins, how many
        requests a rank runs if more always wait and what limits them, or why it cannot run. `batch`
        are those that decode on a rank, the mean over time once it is served."""
        setting, found = self.settings[place], self.estimates[place]
        hierarchical = setting.mode != "baseline"
        pinned = setting.instances * pinned_bytes(setting.deployment, setting.ratio) / 1e9
        return {
            "buffer": setting.device_buffer_size if hierarchical else 0,
            "ratio": setting.ratio if hierarchical else 0,
            "resident_tokens": setting.resident_tokens if hierarchical else 0,
            "layout": setting.deployment.layout.name,
            "prefill_instances": setting.prefill_instances if setting.disaggregated else 0,
            "decode_instances": setting.instances,
            "gpus": setting.gpus,
            "miss_rate": setting.miss_rate(self.aim.lengths),
            "host_gb": pinned if hierarchical else 0.0,
            "requests": found.requests,
            "limit": found.limit,
            "batch": 0,
            "tokens_per_s": 0.0,
            "tokens_per_s_per_gpu": 0.0,
            "reason": found.reason,
            "meets": False,
            "flags": launch_flags(setting),
        }

    def search(self) -> int | None:
        """Serve finalists until the best that meets the targets is known; its place, or None."""
        self.serve(self._finalists())
        for _ in range(PATIENCE):
            if self.best() is not None:
                break
            rest = [i for i in self.able if i not in self.rows]
            rest.sort(key=lambda i: self.estimates[i].tpot_ms)
            self.serve(rest[:FINALISTS])
        best = self.best()
        while best is not None:
            near = [i for _, i in self.beside(best) if i not in self.rows]
            if not near:
                break
            self.serve(near)
            best = self.best()
        return best

    def _finalists(self) -> list[int]:
        """The best estimates, the best of every buffer, and those that no other beats."""

        def rate(i: int) -> float:
            return self.estimates[i].tokens_per_s / self.settings[i].gpus

        def may_do(i: int) -> bool:
            aim = self.aim
            return (aim.max_tpot_ms is None or self.estimates[i].tpot_ms <= aim.max_tpot_ms) and (
                aim.max_miss_rate is None
                or self.settings[i].miss_rate(aim.lengths) <= aim.max_miss_rate
            )

        promising = [i for i in self.able if may_do(i)]
        ranked = sorted(promising, key=rate, reverse=True)
        found = ranked[:FINALISTS]
        for size in {self.settings[i].device_buffer_size for i in ranked}:
            found.append(next(i for i in ranked if self.settings[i].device_buffer_size == size))
        return found + front([(rate(i), -self.estimates[i].tpot_ms, i) for i in ranked])

    def best(self) -> int | None:
        """The served candidate that meets the targets at the highest rate for each GPU: of those
        that are alike the one that pins the least host memory. Cut outputs count against it."""
        meets = [i for i, row in self.rows.items() if not row["missed"]]
        meets = [i for i in meets if not self.rows[i]["cut"]] or meets
        if not meets:
            return None

        def rate(i: int) -> float:
            return float(self.rows[i]["tokens_per_s_per_gpu"])

        top = max(map(rate, meets))
        alike = [i for i in meets if rate(i) >= top * (1 - NEARLY_EQUAL)]
        return min(
            alike,
            key=lambda i: (
                self.rows[i]["host_gb"] / self.settings[i].gpus,
                -rate(i),
                self.settings[i].device_buffer_size,
            ),
        )

    def fastest(self) -> int:
        """The one served with the highest rate for each GPU, targets or not."""
        return max(self.rows, key=lambda i: float(self.rows[i]["tokens_per_s_per_gpu"]))

    def beside(self, place: int) -> list[tuple[str, int]]:
        """(what differs, place) of the candidates next to one in buffer, ratio, instances or
        layout."""
        found = []
        one = _coordinates(self.settings[place])
        for name, value in one.items():
            line = {}
            for i in self.able:
                other = _coordinates(self.settings[i])
                if other | {name: value} == one:
                    line[other[name]] = i
            values = sorted(line)
            at = values.index(value)
            near = values[max(at - 1, 0) : at] + values[at + 1 : at + 2]
            found += [(name, line[each]) for each in near]
        return found

    def table(self) -> pd.DataFrame:
        """Rows of those served, the best rate for each GPU first, then of those that cannot run, or
        of all where nothing is served."""
        served = sorted(self.rows, key=lambda i: self.rows[i]["tokens_per_s_per_gpu"], reverse=True)
        unable = [i for i in range(len(self.settings)) if i not in self.able or not self.rows]
        rows = [self.rows[i] for i in served]
        rows += [self.describe(i) for i in unable]
        return pd.DataFrame(rows, index=[*served, *unable])


def _coordinates(setting: Setting) -> dict[str, Any]:
    """Where a setting stands among the candidates."""
    prefill = setting.prefill_instances / setting.decode_instances if setting.disaggregated else 0
    return {
        "buffer": setting.device_buffer_size,
        "ratio": setting.ratio,
        "resident tokens": setting.resident_tokens,
        "instances": prefill,
        "layout": setting.deployment.layout.name,
    }


def check_number(replays: int, ratios: int) -> None:
    """Raise ValueError if there are more buffers to replay, or pairs, than a plan tries."""
    pairs = replays * ratios
    for given, most, what in (
        (replays, MOST_REPLAYS, "buffers, each of which is replayed"),
        (pairs, MOST_PAIRS, "pairs of buffer and ratio"),
    ):
        if given > most:
            raise ValueError(f"{given:,} {what}: try {most:,} at most, then some near the best")


def instance_pairs(setting: Setting, aim: Aim) -> list[tuple[int, int]]:
    """(prefill, decode) instances that are about in balance, one of either kind at least.

    What decode can take is estimated with as many prefill instances as it can use.
    """
    one = estimate(_with(setting, MOST_INSTANCES, 1), aim)
    other = estimate(_with(setting, 1, MOST_INSTANCES), aim)
    if not one.requests or not other.requests:
        return [(1, 1)]
    wanted = one.tokens_per_s / max(other.tokens_per_s, 1e-9)  # prefill instances for a decode one
    if wanted >= 1:
        pairs = [(floor(wanted), 1), (ceil(wanted), 1)]
    else:
        pairs = [(1, floor(1 / wanted)), (1, ceil(1 / wanted))]
    clipped = [(min(p, MOST_INSTANCES), min(d, MOST_INSTANCES)) for p, d in [(1, 1), *pairs]]
    return list(dict.fromkeys(clipped))


def _with(setting: Setting, prefill: int, decode: int) -> Setting:
    return replace(setting, prefill_instances=prefill, decode_instances=decode)


def front(points: Iterable[tuple[Any, ...]]) -> list[int]:
    """Last items of the points (values to be large, ..., item) that no other beats in all values.

    Of equal points the first stays.
    """
    found: list[tuple[Any, ...]] = []
    for point in sorted(points, key=lambda one: one[:-1], reverse=True):
        if not any(all(a >= b for a, b in zip(o, point[:-1], strict=False)) for o in found):
            found.append(point)
    return [point[-1] for point in found]
