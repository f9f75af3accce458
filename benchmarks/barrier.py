"""What waiting for the busiest request of a batch costs, and what spreading misses would save.

    python benchmarks/barrier.py smollm2-32k-*.parquet

A continuous batch has requests of the traces of one kind of selection, each at a random step of
its document and followed by the next when it ends. Misses of a request do not depend on the others,
so that they are replayed once. Times are those of `swap_in_us`, for one layer and step.
"""

import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from machine import describe_versions
from moving_buffers import alike, by_misses, replay_moving, to_busiest

from hisparse_sim.simulator.mrc.budgeting import spread
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.simulator.serving.costs import SwapIn
from hisparse_sim.simulator.serving.latency import KERNELS, load_link, swap_in_us
from hisparse_sim.simulator.study.barrier import least_barrier
from hisparse_sim.simulator.study.batches import least_us_of
from hisparse_sim.simulator.study.least import least_misses
from hisparse_sim.simulator.study.reuse import reuse_of
from hisparse_sim.traces import Demand, Trace, open_trace

RESULT = Path(__file__).parent / "results" / "barrier.json"
ENTRY_BYTES = 1152  # bf16
SIZES = np.arange(2048, 8193, 256)
STEPS = 512
BATCHES = (8, 64)
DRAWS = 4
Floats = npt.NDArray[np.float64]
Batches = list[Floats]  # misses [requests, steps] of one layer and draw


def us(batches: Batches, size: int, kernel: str = "sglang", *, flat: bool = False) -> float:
    """Return the mean time of a swap-in; `flat`: with the mean misses in all requests."""
    mean = np.concatenate([each.mean(axis=0) for each in batches])
    peak = mean if flat else np.concatenate([each.max(axis=0) for each in batches])
    times = swap_in_us(
        load_link("h200-pcie5"), kernel, len(batches[0]), mean, size, ENTRY_BYTES, peak
    )
    return float(times.mean())


def gap(batches: Batches, size: int) -> dict[str, float]:
    """Return the mean misses and the busiest's, and times as they are and with all alike."""
    found = {
        "mean": float(np.mean([each.mean() for each in batches])),
        "busiest": float(np.mean([each.max(axis=0).mean() for each in batches])),
    }
    for kernel in KERNELS:
        found[f"{kernel}_us"] = us(batches, size, kernel)
        found[f"{kernel}_us_alike"] = us(batches, size, kernel, flat=True)
    return found


def levelled(misses: Floats, window: int) -> Floats:
    """Return misses of which every request has the batch's mean in every window of steps."""
    parts = np.split(misses, range(window, misses.shape[1], window), axis=1)
    means = [np.maximum(part.mean(axis=1, keepdims=True), 1e-9) for part in parts]
    return np.hstack([part * part.mean() / mean for part, mean in zip(parts, means, strict=True)])


def fetched_ahead(misses: Floats, known: int, copies: int) -> Floats:
    """Return what is fetched in each step if every request but the busiest fetches ahead what it
    misses in the next `known` steps, with so many copies for each that is right, up to as many as
    the busiest fetches."""
    left, fetched = misses.copy(), np.zeros_like(misses)
    steps = misses.shape[1]
    for step in range(steps):
        room = (left[:, step].max() - left[:, step]) / copies
        fetched[:, step] = left[:, step]
        for later in range(step + 1, min(step + 1 + known, steps)):
            early = np.minimum(room, left[:, later])
            fetched[:, step] += early * copies
            left[:, later] -= early
            room = room - early
    return fetched


def best_sizes(curves: Floats, size: int) -> npt.NDArray[np.int64]:
    """Return places in SIZES for misses [requests, sizes, steps], of as many slots in all as equal
    buffers, such that the time falls no more if slots move from one request to another."""
    every = np.arange(len(curves))
    at = np.full(len(curves), np.searchsorted(SIZES, size))
    best = us([curves[every, at]], size)
    while True:
        tried = [
            at + places * ((every == to).astype(int) - (every == source))
            for to, source in permutations(every, 2)
            for places in (1, 2, 4)
        ]
        tried = [moved for moved in tried if moved.min() >= 0 and moved.max() < len(SIZES)]
        times = [us([curves[every, moved]], size) for moved in tried]
        if min(times) >= best:
            return at
        best, at = min(times), tried[int(np.argmin(times))]


def places(curves: Floats, size: int) -> npt.NDArray[np.int64]:
    """Return places in SIZES that `spread` chooses for misses [n, sizes, steps]."""
    return np.searchsorted(SIZES, spread(SIZES, curves.sum(axis=-1).astype(np.int64), size))


class Sources:
    """Traces of one kind of selection, with the misses at the layers that all have."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        layers = set.intersection(*({part.layer for part in trace.parts} for trace in traces))
        self.demands = [
            [trace.read(*trace.select(None, layer), (), (0, STEPS)) for trace in traces]
            for layer in sorted(layers)
        ]
        self.lru = [[replays(each, "lru") for each in layer] for layer in self.demands]

    def lru_at(self, size: int) -> list[list[Floats]]:
        """Return the misses of every step at one of SIZES, of each layer and trace."""
        place = int(np.searchsorted(SIZES, size))
        return [[misses[place] for misses in layer] for layer in self.lru]


def late(requests: int) -> list[npt.NDArray[np.int64]]:
    """Return the steps that requests are late by, in every draw."""
    return [np.random.default_rng(draw).integers(0, STEPS, requests) for draw in range(DRAWS)]


def mixed(of: Sequence[Sequence[Floats]], requests: int) -> Batches:
    """Return continuous batches, [requests, ..., steps] for each draw and layer, of what the traces
    have in each layer, [..., steps]."""
    return [
        np.stack([np.roll(layer[r % len(layer)], by, axis=-1) for r, by in enumerate(steps)])
        for steps in late(requests)
        for layer in of
    ]


def replays(demand: Demand, policy: str, sizes: Sequence[int] = tuple(SIZES)) -> Floats:
    """Return the misses of every step, [sizes, steps]."""
    return np.array([replay_part(demand, policy, int(size)).misses for size in sizes], np.float64)


def busiest_of(sources: Sources) -> dict[str, Any]:
    """Return where the difference between the busiest request and the mean comes from."""
    misses = sources.lru_at(4096)
    calm = [[np.r_[each[1:].mean(), each[1:]] for each in layer] for layer in misses]
    found = {}
    for requests in BATCHES:
        batches = mixed(misses, requests)
        started = mixed(calm, requests)
        found[str(requests)] = {
            "as it is": us(batches, 4096),
            "no burst at the start": us(started, 4096),
            "requests alike": us([levelled(each, STEPS) for each in started], 4096),
            "requests alike in 32 steps": us([levelled(each, 32) for each in started], 4096),
            "alike in every step": us(started, 4096, flat=True),
        }
    return found


def budgets(sources: Sources, size: int) -> dict[str, Any]:
    """Return what sizes per layer and per request save, in misses and time, with as many slots."""
    layers, half = len(sources.lru), STEPS // 2
    equal = int(np.searchsorted(SIZES, size))
    found: dict[str, Any] = {}
    for requests in BATCHES:
        batches = mixed(sources.lru, requests)

        def saved(chosen: Batches, of: Batches) -> dict[str, float]:
            alike = [each[:, equal] for each in of]
            misses = sum(each.sum() for each in chosen) / sum(each.sum() for each in alike)
            return {"misses": 1 - misses, "us": 1 - us(chosen, size) / us(alike, size)}

        per_layer = []
        for draw in range(0, len(batches), layers):
            drawn = np.stack(batches[draw : draw + layers])  # [layers, requests, sizes, steps]
            at = places(drawn.sum(axis=1), size)
            per_layer += [each[:, place] for each, place in zip(drawn, at, strict=True)]
        every = np.arange(requests)
        later = [each[..., half:] for each in batches]
        before = [places(each[..., :half], size) for each in batches]
        found[str(requests)] = {
            "per layer": saved(per_layer, batches),
            "per request": saved([each[every, places(each, size)] for each in batches], batches),
            "per request, of the steps before": saved(
                [each[every, at] for each, at in zip(later, before, strict=True)], later
            ),
        }
        if requests == min(BATCHES):
            best = [each[every, best_sizes(each, size)] for each in batches[:layers]]
            found[str(requests)]["per request, best for time"] = saved(best, batches[:layers])
    return found


def moving(sources: Sources) -> dict[str, float]:
    """Return the time that buffers save which change while they run, in batches of eight."""

    def batches(rule: Any) -> Batches:
        return [replay_moving(each, late(8)[0], 4096, rule) for each in sources.demands]

    before = batches(alike)
    fixed = mixed(sources.lru_at(4096), 8)
    np.testing.assert_array_equal(before, fixed[: len(before)])
    rules = {
        "one pool": None,
        "by the root of the misses": by_misses(0.5),
        "64 slots to the busiest": to_busiest(64),
    }
    return {name: 1 - us(batches(rule), 4096) / us(before, 4096) for name, rule in rules.items()}


def least(sources: Sources) -> dict[str, float]:
    """Return LRU, MIN and the bound for eight requests of 128 steps that start together."""
    cuts = [(begin, begin + 128) for begin in (0, 128, 256)]
    lru, optimum, bounds = [], [], []
    for layer in sources.demands:
        demands = [demand.cut(*cut) for cut in cuts for demand in layer][:8]
        reuses = [reuse_of(demand, 4096) for demand in demands]
        lru.append(np.vstack([replays(demand, "lru", [4096]) for demand in demands]))
        optimum.append(np.vstack([least_misses(each) for each in reuses]).astype(float))
        bounds.append(least_barrier(reuses) / 128)
    swap_in = SwapIn(load_link("h200-pcie5"), "sglang", 8, ENTRY_BYTES)
    times = [
        least_us_of(swap_in, 8, each.mean(), bound, 4096)
        for each, bound in zip(optimum, bounds, strict=True)
    ]
    return {
        "bound_busiest": float(np.mean(bounds)),
        "bound_us": float(np.mean(times)),
        **{f"lru_{name}": value for name, value in gap(lru, 4096).items()},
        **{f"min_{name}": value for name, value in gap(optimum, 4096).items()},
    }


def warm(sources: Sources, size: int) -> dict[str, Any]:
    """Return the time of the same steps, all but the first, with a staged and with a warm start."""
    staged, warmed = (
        [
            [replay_part(each.cut(first, STEPS), "lru", size, start).misses for each in layer]
            for layer in sources.demands
        ]
        for first, start in ((1, "staged"), (0, "warm"))
    )
    return {
        str(requests): {
            f"{kernel}_us": [us(mixed(of, requests), size, kernel) for of in (staged, warmed)]
            for kernel in KERNELS
        }
        for requests in BATCHES
    }


def study_of(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return all that is measured of traces of one kind of selection."""
    sources = Sources(traces)
    found: dict[str, Any] = {"traces": [trace.name for trace in traces]}
    for size in (4096, 6144):
        own: dict[str, Any] = {}
        for policy in ("lru", "belady"):
            misses = [[replays(each, policy, [size])[0] for each in row] for row in sources.demands]
            own[policy] = {str(n): gap(mixed(misses, n), size) for n in BATCHES}
            own[policy]["together"] = gap([np.stack(layer) for layer in misses], size)
        eight = mixed(sources.lru_at(size), 8)
        own["ahead"] = {
            f"{known} steps, {copies} copies": 1
            - us([fetched_ahead(each, known, copies) for each in eight], size) / us(eight, size)
            for known, copies in ((1, 1), (8, 1), (1, 2))
        }
        own["budgets"] = budgets(sources, size)
        own["warm"] = warm(sources, size)
        found[str(size)] = own
    return found | {
        "from": busiest_of(sources),
        "moving": moving(sources),
        "least": least(sources),
    }


def layers_of(trace: Trace) -> dict[str, float]:
    """Return the gap of a batch of eight layers of one trace, spaced evenly."""
    chosen = np.linspace(0, len(trace.parts) - 1, 8).round().astype(int)
    demands = [trace.read(trace.parts[part], (), (0, STEPS)) for part in chosen]
    return gap([np.vstack([replays(demand, "lru", [4096]) for demand in demands])], 4096)


@click.command()
@click.argument("paths", metavar="TRACE...", nargs=-1, required=True)
@click.option("-o", "output", default=RESULT, show_default=True, type=click.Path(path_type=Path))
def main(paths: tuple[str, ...], output: Path) -> None:
    """Measure the traces of each kind of selection together and write JSON."""
    kinds: dict[str, list[Trace]] = {}
    for trace in map(open_trace, paths):
        kinds.setdefault(trace.metadata.provenance, []).append(trace)
    result = {
        "versions": describe_versions("hisparse-sim", "numba", "numpy"),
        "layers as requests": {
            trace.name: layers_of(trace) for traces in kinds.values() for trace in traces
        },
        **{kind: study_of(traces) for kind, traces in kinds.items()},
    }
    output.write_text(json.dumps(rounded(result), indent=1) + "\n")


def rounded(value: Any) -> Any:
    """Return numbers with five figures."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
