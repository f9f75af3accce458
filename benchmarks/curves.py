"""Miss-ratio curves in one pass: exactness, time against replays, and what budgets save.

    python benchmarks/curves.py TRACE...

The first TRACE is timed, all layers, curves and replays in turns, so that a slow moment of the
machine hits both; the clock is processor time. Ten parts of the traces are compared with replays:
the LRU curve with a textbook LRU at every `--every`th size, MIN with Belady's at twenty. Then every
trace: how far the engine's LRU is from the curve, how large its facts are, and what buffers of
different sizes save, chosen by its own curves or by those of another trace with the same layers.
"""

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from machine import describe_machine, describe_versions
from replay_speed import one_core, seconds, spread

from hisparse_sim.simulator.mrc import budget, lru, mrc, optimum
from hisparse_sim.simulator.mrc.curves import engine_difference
from hisparse_sim.simulator.mrc.facts import write_facts
from hisparse_sim.simulator.mrc.names import ONE_PASS
from hisparse_sim.simulator.mrc.one_pass import part_curve
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.simulator.replay.replaying import rows_of
from hisparse_sim.traces import Demand, Trace, open_trace

RESULT = Path(__file__).parent / "results" / "curves.json"
SLOTS, LARGEST = 4096, 16384
SIZES = np.linspace(2048, LARGEST, 20).astype(int).tolist()
BARS = {"lru_replays": 3, "min_replays": 20, "lru_m_per_s": 100}
BUDGETS = (4096, 6144, 8192)


def time_curves(demands: list[Demand], repeats: int) -> dict[str, Any]:
    """Time each curve and the replays that it must not take longer than."""
    accesses = sum(len(demand.positions) for demand in demands)
    works = {
        "lru_curve": lambda demand: part_curve(demand, "textbook-lru", LARGEST),
        "lru_three_replays": lambda demand: [replay_part(demand, "lru", SLOTS) for _ in range(3)],
        "min_curve": lambda demand: part_curve(demand, "belady", LARGEST),
        "min_twenty_replays": lambda demand: [
            replay_part(demand, "belady", size) for size in SIZES
        ],
    }
    taken: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            spent = sum(seconds(partial(work, demand)) for demand in demands)
            if turn > 0:  # the first compiles
                taken[name].append(spent)
    ratios = {
        "lru_curve_in_replays": ("lru_curve", "lru_three_replays", 3),
        "min_curve_in_replays": ("min_curve", "min_twenty_replays", 20),
    }
    return {
        "accesses": accesses,
        "seconds": {name: spread(each) for name, each in taken.items()},
        "lru_m_accesses_per_s": spread([accesses / each / 1e6 for each in taken["lru_curve"]]),
        "min_m_accesses_per_s": spread([accesses / each / 1e6 for each in taken["min_curve"]]),
        **{
            name: spread([count * a / b for a, b in zip(taken[curve], taken[replays], strict=True)])
            for name, (curve, replays, count) in ratios.items()
        },
    }


def state_bytes(demand: Demand) -> dict[str, Any]:
    """Return the memory of the passes over one part, beside its positions."""
    rows, positions = rows_of(demand, LARGEST)
    stack = lru.new_stack(rows, positions, LARGEST)
    levels = optimum.new_levels(rows, positions, LARGEST, filled=True)
    arrays = [each for each in levels if isinstance(each, np.ndarray)]
    return {
        "accesses": len(demand.positions),
        "positions": positions,
        "lru_bytes": sum(each.nbytes for each in stack),
        "min_bytes": sum(each.nbytes for each in arrays) - levels.next_access.nbytes,
        "min_look_ahead_bytes": levels.next_access.nbytes,
    }


def check(demand: Demand, every: int) -> dict[str, int]:
    """Compare both curves of a part with replays; raise AssertionError for any difference."""
    curve = part_curve(demand, "textbook-lru", LARGEST)
    sizes = [*range(2048, LARGEST, every), LARGEST]
    for size in sizes:
        assert curve[size] == replay_part(demand, "textbook-lru", size).misses.sum(), size
    curve = part_curve(demand, "belady", LARGEST)
    for size in SIZES:
        assert curve[size] == replay_part(demand, "belady", size).misses.sum(), size
    return {"lru_sizes": len(sizes), "min_sizes": len(SIZES)}


def describe(trace: Trace, folder: Path) -> dict[str, Any]:
    """Return how far the engine is from the textbook, and the size of the facts of a trace."""
    apart = engine_difference(mrc(trace, ("textbook-lru", "lru")))
    assert apart is not None
    facts = write_facts(mrc(trace, ONE_PASS, window=64), folder / "facts.parquet")
    return {
        "trace": trace.path.name,
        "engine_minus_textbook": round(apart[0], 6),
        "at_slots": apart[1],
        "trace_bytes": trace.size_bytes,
        "facts_bytes": facts.stat().st_size,
    }


def budgets(traces: list[Trace]) -> list[dict[str, Any]]:
    """Return what buffers by layer save of the engine's misses, on the trace itself and others."""
    rows = []
    for trace in traces:
        for size in BUDGETS:
            found = budget(trace, size)
            others = {
                other.path.name: round(budget(other, size, on=trace).saved, 4)
                for other in traces
                if other is not trace and set(other.layers) == set(trace.layers)
            }
            rows.append(
                {
                    "trace": trace.path.name,
                    "buffer": size,
                    "saved": round(found.saved, 4),
                    "smallest": int(found.rows["buffer"].min()),
                    "largest": int(found.rows["buffer"].max()),
                    "saved_by_the_curves_of": others,
                }
            )
    return rows


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--every", default=16, show_default=True, help="Sizes between compared ones.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--note", default="", help="What to say about the machine, such as that it was busy.")
@click.option("-o", "output", default=RESULT, show_default=True, type=click.Path(path_type=Path))
def main(paths: tuple[Path, ...], every: int, repeats: int, note: str, output: Path) -> None:
    """Measure and compare curves of traces and write the figures as JSON."""
    traces = [open_trace(path) for path in paths]
    demands = [traces[0].read(part) for part in traces[0].parts]
    result: dict[str, Any] = {
        "machine": describe_machine(),
        "note": note,
        "versions": describe_versions("hisparse-sim", "numba", "numpy"),
        "trace": traces[0].path.name,
        "bars": BARS,
    }
    with one_core():
        result["time"] = time_curves(demands, repeats)
    result["memory"] = state_bytes(demands[0])
    del demands
    every_part = [(trace, part) for trace in traces for part in trace.parts]
    chosen = [every_part[each * len(every_part) // 10] for each in range(10)]
    replay_part(traces[0].read(traces[0].parts[0]), "textbook-lru", SLOTS)  # compiles
    with ThreadPoolExecutor() as threads:
        compared = list(threads.map(lambda each: check(each[0].read(each[1]), every), chosen))
    result["equal_to_replays"] = {"parts": len(compared), **compared[0]}
    with tempfile.TemporaryDirectory() as folder:
        result["traces"] = [describe(trace, Path(folder)) for trace in traces]
    result["budgets"] = budgets(traces)
    output.write_text(json.dumps(result, indent=1) + "\n")
    taken = result["time"]
    click.echo(
        f"LRU curve: {taken['lru_m_accesses_per_s']['median']:.0f} M accesses/s, as long as"
        f" {taken['lru_curve_in_replays']['median']:.2f} replays (bar {BARS['lru_replays']})"
    )
    click.echo(
        f"MIN curve: {taken['min_m_accesses_per_s']['median']:.0f} M accesses/s, as long as"
        f" {taken['min_curve_in_replays']['median']:.2f} replays (bar {BARS['min_replays']})"
    )
    click.echo(f"equal to replays: {result['equal_to_replays']}")
    for row in result["traces"]:
        click.echo(
            f"{row['trace']}: the engine is {100 * row['engine_minus_textbook']:+.2f} points from"
            f" the curve, at {row['at_slots']}; facts are"
            f" {row['trace_bytes'] / row['facts_bytes']:.0f} times smaller"
        )
    for row in result["budgets"]:
        others = [share for share in row["saved_by_the_curves_of"].values()]
        click.echo(
            f"{row['trace']} at {row['buffer']}: {row['saved']:.1%} saved"
            + (f", by curves of others {median(others):.1%}" if others else "")
        )


if __name__ == "__main__":
    main()
