"""Fit the generator's profiles to published figures, and say how far off the others land.

    python benchmarks/fit_synth.py [PROFILE...]      # writes traces/data/synth_profiles.json

Each profile has as many free parameters as figures to fit, or fewer; damped Gauss-Newton steps in
the logarithm of the parameters, always with the same random numbers, on a few layers. The
parameters found are then measured on all layers, and everything published is put beside what
achieved, the figures that took no part in the fit included.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.traces import Demand
from hisparse_sim.traces.locality.measure import adjacent_overlap
from hisparse_sim.traces.synth.generator import PROFILES_PATH, Parameters, Profile, generate

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Figure:
    """One published number and how it is measured on the layers of a trace."""

    name: str
    published: float
    measure: Callable[[list[Demand]], float]
    fitted: bool


@dataclass(frozen=True)
class Task:
    """What to fit: the profile to start from, its free parameters, the figures, their source."""

    profile: Profile
    free: tuple[str, ...]
    figures: tuple[Figure, ...]
    layers: tuple[int, ...]  # that the figures are about
    source: str
    inherited: tuple[str, ...] = ()  # parameters taken from the fit of glm-5.1
    sample: int | None = None  # so many layers are fitted on first; they cover the spread evenly


def miss_percent(policy: str, buffer_size: int) -> Callable[[list[Demand]], float]:
    """Misses per access over all steps, the buffer filled with the first prompt tokens."""

    def measure(parts: list[Demand]) -> float:
        misses = sum(int(replay_part(part, policy, buffer_size).misses.sum()) for part in parts)
        return 100 * misses / sum(len(part.positions) for part in parts)

    return measure


def warm_miss_percent(buffer_size: int) -> Callable[[list[Demand]], float]:
    """LRU misses per access from the second step on; the first one fills an empty buffer."""

    def measure(parts: list[Demand]) -> float:
        misses = accesses = 0
        for part in parts:
            misses += int(replay_part(part, "lru", buffer_size, "direct").misses[1:].sum())
            accesses += len(part.positions) - int(part.offsets[1])
        return 100 * misses / accesses

    return measure


def overlap_percent(
    choose: Callable[[Vector], Any], layers: range
) -> Callable[[list[Demand]], float]:
    """Mean adjacent overlap per layer, and one number of those layers."""

    def measure(parts: list[Demand]) -> float:
        each = [100 * adjacent_overlap(part) for part in parts if part.layer in layers]
        return float(choose(np.array(each)))

    return measure


# Layers differ as they do in traces of a small trained indexer, where adjacent overlap goes from
# .55 to .86 over 30 layers; no figures per layer are published for GLM-5.1 or QSA.
_SPREAD = 0.4


@cache
def tasks() -> dict[str, Task]:
    """Return the profiles that can be fitted. Segments, sinks and recency are not fitted."""
    start = Parameters(
        noise=0.25, drift=1.1, shortest_life=1, longest_life=2e3, layer_spread=_SPREAD
    )
    glm = Profile("glm-5.1", "GLM-5.1", 78, 2048, 100_384, 1000, start)
    deepseek = Profile(
        "deepseek-v3.2",
        "DeepSeek-V3.2",
        61,
        2048,
        131_072,
        1000,
        # The two lowest layers overlap as much as independent draws would: pure noise.
        replace(start, early_layers=2, early_noise=100, layer_spread=0.1, noise=0.7),
    )
    qsa = Profile("qsa", "Qwen QSA", 12, 512, 38_185, 767, start, tokens_per_position=4)
    qsa = replace(qsa, parameters=replace(start, noise=0.35, layer_spread=0.9, sinks=1, window=64))
    deep = range(20, 61)
    return {
        "glm-5.1": Task(
            glm,
            ("noise", "drift", "longest_life"),
            (
                Figure("LRU miss % at 2048", 30.0, miss_percent("lru", 2048), True),
                Figure("LRU miss % at 4096", 13.4, miss_percent("lru", 4096), True),
                Figure("LRU miss % at 8192", 6.7, miss_percent("lru", 8192), True),
                Figure("FIFO miss % at 4096", 17.2, miss_percent("fifo", 4096), False),
                Figure("random miss % at 4096", 16.1, miss_percent("random", 4096), False),
                Figure("Belady miss % at 4096", 8.2, miss_percent("belady", 4096), False),
            ),
            tuple(range(78)),
            "HiSparse paper, arXiv 2608.07009: LongBench v2, mean over 78 layers and 1,000 steps",
            sample=13,
        ),
        "deepseek-v3.2": Task(
            deepseek,
            ("noise", "layer_spread"),
            (
                Figure("adjacent overlap %, layers 20-60, mean", 44.0,
                       overlap_percent(np.mean, deep), True),
                Figure("adjacent overlap %, layers 20-60, lowest", 35.0,
                       overlap_percent(np.min, deep), True),
                Figure("adjacent overlap %, layers 20-60, highest", 50.0,
                       overlap_percent(np.max, deep), True),
                Figure("adjacent overlap %, layers 0-1, mean", 1.5,
                       overlap_percent(np.mean, range(2)), False),
            ),
            (0, 1, *deep),
            "published adjacent overlap of DeepSeek-V3.2; layers 2-19 are taken to be as 20-60, "
            "life times and drift as fitted for glm-5.1, the context as 131,072",
            inherited=("drift", "longest_life"),
        ),
        "qsa": Task(
            qsa,
            ("noise", "layer_spread", "longest_life"),
            (
                Figure("LRU miss % at 512", 33.564, warm_miss_percent(512), True),
                Figure("LRU miss % at 1024", 16.564, warm_miss_percent(1024), True),
                Figure("LRU miss % at 1536", 10.307, warm_miss_percent(1536), False),
                Figure("LRU miss % at 2048", 7.107, warm_miss_percent(2048), False),
                Figure("LRU miss % at 4096", 2.414, warm_miss_percent(4096), True),
            ),
            tuple(range(12)),
            "Qwen QSA: prompt of 38,185 tokens, 767 steps, 12 layers, 512 blocks of 4 tokens; "
            "first step not counted; drift as fitted for glm-5.1",
            inherited=("drift",),
        ),
    }  # fmt: skip


def fit(task: Task, layers: Sequence[int], rounds: int = 6) -> Profile:
    """Return the profile with the free parameters that come closest on `layers`."""
    figures = [figure for figure in task.figures if figure.fitted]

    def with_values(logs: Vector) -> Profile:
        values = dict(zip(task.free, np.exp(logs).tolist(), strict=True))
        return replace(task.profile, parameters=replace(task.profile.parameters, **values))

    def errors(logs: Vector) -> Vector:
        achieved = measure(with_values(logs), layers, figures)
        aims = np.array([figure.published for figure in figures])
        logs_apart: Vector = np.log(achieved / aims)
        return logs_apart

    logs = np.log([getattr(task.profile.parameters, name) for name in task.free])
    found = errors(logs)
    for number in range(rounds):
        columns = [(errors(logs + 0.1 * unit) - found) / 0.1 for unit in np.eye(len(logs))]
        change = -np.linalg.lstsq(np.stack(columns, axis=1), found, rcond=None)[0]
        change *= min(1, 1 / np.abs(change).max())
        better = False
        for _ in range(3):
            tried = errors(logs + change)
            better = bool((tried**2).sum() < 0.98 * (found**2).sum())
            if better:
                logs, found = logs + change, tried
                break
            change /= 2
        print(f"  round {number}: {np.exp(logs).round(4)} off by {found.round(4)}", file=sys.stderr)
        if not better or np.abs(found).max() < 0.002:
            break
    rounded: dict[str, Any] = {
        name: float(f"{value:.4g}") for name, value in zip(task.free, np.exp(logs), strict=True)
    }
    return replace(task.profile, parameters=replace(task.profile.parameters, **rounded))


def measure(profile: Profile, layers: Sequence[int], figures: Sequence[Figure]) -> Vector:
    """Return every figure as it comes out on these layers."""
    parts = [generate(profile, layer) for layer in layers]
    return np.array([figure.measure(parts) for figure in figures])


def achieved(task: Task, profile: Profile) -> Profile:
    """Return the profile with its fit: all figures over all layers they are about."""
    values = measure(profile, task.layers, task.figures)
    figures = [
        {
            "figure": figure.name,
            "published": figure.published,
            "achieved": round(float(value), 3),
            "fitted": figure.fitted,
        }
        for figure, value in zip(task.figures, values, strict=True)
    ]
    return replace(profile, fit={"source": task.source, "figures": figures})


def corrected(task: Task, profile: Profile, layers: Sequence[int]) -> Task:
    """Return the task with aims that make up for `layers` being only some of all."""
    fitted = [figure for figure in task.figures if figure.fitted]
    ratios = measure(profile, layers, fitted) / measure(profile, task.layers, fitted)
    aims = [
        replace(figure, published=figure.published * ratio)
        for figure, ratio in zip(fitted, ratios.tolist(), strict=True)
    ]
    return replace(task, profile=profile, figures=tuple(aims))


def with_inherited(task: Task, shipped: dict[str, Any]) -> Task:
    """Return the task starting from what glm-5.1, the best documented one, was fitted to."""
    known = shipped["glm-5.1"]["parameters"]
    values = {name: known[name] for name in task.inherited}
    parameters = replace(task.profile.parameters, **values)
    return replace(task, profile=replace(task.profile, parameters=parameters))


def main(names: Sequence[str]) -> None:
    """Fit the named profiles, or all, and rewrite the file that ships them."""
    shipped: dict[str, Any] = {}
    if PROFILES_PATH.exists():
        shipped = json.loads(PROFILES_PATH.read_text())
    for name in names or list(tasks()):
        task = tasks()[name]
        if task.inherited:
            task = with_inherited(task, shipped)
        print(name, file=sys.stderr)
        some = task.layers[: task.sample]
        profile = fit(task, some)
        if len(some) < len(task.layers):
            profile = fit(corrected(task, profile, some), some, rounds=3)
        profile = achieved(task, profile)
        for row in profile.fit["figures"]:
            kind = "fitted" if row["fitted"] else "held out"
            print(f"  {row['figure']:42} {row['published']:8} {row['achieved']:8} {kind}")
        values = asdict(profile) | {"aliases": shipped.get(name, {}).get("aliases", [])}
        del values["name"]
        shipped[name] = values
        PROFILES_PATH.write_text(json.dumps(shipped, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
