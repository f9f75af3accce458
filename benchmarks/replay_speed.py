"""Speed of replays on a real trace, paired with libCacheSim on the same accesses.

    python benchmarks/replay_speed.py [TRACE]

Both replay the same positions in the same order, on one core, in turns, so that a slow moment of
the machine hits both; the clock is processor time, which other programs disturb least (two
threads against one: wall time). libCacheSim runs twice: with the hash table that it takes by
default (2^24 buckets, which miss the CPU caches), and with the best of three that fit them. It
walks a binary file that lies in the page cache, made beforehand, next accesses for its Belady
included; ours holds the positions of a layer in memory, as a sweep does, and builds Belady's
table inside the time. The two miss rates differ because the definitions do: here a step's
positions are demanded at once and the buffer starts full; there they come one after the other
into an empty cache.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import click
import libcachesim_runner as libcachesim
import numpy as np
from machine import describe_machine, describe_versions

from hisparse_sim.simulator.replay import replay_part, sweep
from hisparse_sim.traces import Demand, Part, Trace, open_trace, sample_path

RESULT = Path(__file__).parent / "results" / "replay_speed.json"
BUFFERS = (4096, 6144)
HASHPOWERS = (16, 17, 18)
# The multiples of libCacheSim's rate to reach: with its default table, with its best one.
BARS = {
    "lru": (14, 7),
    "fifo": (14, 7),
    "clock": (14, 8),
    "arc": (7, 4),
    "lfu": (9, 6),
    "belady": (15, 10),
}
SWEEP_POLICIES = ("lru", "arc", "lfu")
SWEEP_BUFFERS = (2048, 4096, 6144)
SWEEP_BAR = 7
THREADS_BAR = 1.8
DEFAULT_TURNS = 2  # its default table takes seconds a turn, and is far behind


@dataclass(frozen=True)
class Layer:
    """One (request, layer) in the form that each side replays."""

    demand: Demand
    accesses: int
    file: Path  # the same accesses for libCacheSim


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, libCacheSim's loop included, on one core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def seconds(work: Callable[[], object], clock: Callable[[], float] = process_time) -> float:
    """Return what one call takes: of this process's processor time, or by another clock."""
    begin = clock()
    work()
    return clock() - begin


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Return median and extremes of samples."""
    return {
        "median": round(median(samples), 4),
        "min": round(min(samples), 4),
        "max": round(max(samples), 4),
    }


def choose_parts(trace: Trace, layers: Sequence[int], most: int) -> list[Part]:
    """Return the parts of the named layers, else at most `most`, evenly spread over the file."""
    if layers:
        return [part for part in trace.parts if part.layer in layers]
    count = min(most, len(trace.parts))
    return [trace.parts[i * len(trace.parts) // count] for i in range(count)]


def first_calls() -> dict[str, float]:
    """Return what the first replay with each policy takes: compiling, or loading from the cache.

    The demand is one row of 64 positions, so that nothing else counts.
    """
    demand = Demand(
        request="first",
        layer=0,
        prompt_len=64,
        step=np.zeros(1, np.int32),
        seq_len=np.full(1, 65, np.int32),
        offsets=np.array([0, 64]),
        positions=np.arange(64, dtype=np.int32),
    )
    return {policy: round(seconds(partial(replay_part, demand, policy, 64)), 3) for policy in BARS}


def first_calls_in_fresh_processes() -> dict[str, dict[str, float]]:
    """Return the first calls of a process without a compile cache, and of the next one."""
    with tempfile.TemporaryDirectory() as cache:
        found = {
            name: in_fresh_process("print(json.dumps(first_calls()))", NUMBA_CACHE_DIR=cache)
            for name in ("compiling_s", "cached_s")
        }
    return found


def in_fresh_process(statement: str, **environment: str) -> Any:
    """Run a statement that prints JSON, with the names of this file, and return what it says."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json; from replay_speed import *; {statement}"],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(done.stdout)


def compare(policy: str, buffer_size: int, layers: list[Layer], repeats: int) -> dict[str, Any]:
    """Replay all layers on both sides, in turns, and return rates and their multiples.

    In every turn each side replays a layer twice and the second time counts: neither pays for what
    the other left in the caches.
    """
    accesses = sum(layer.accesses for layer in layers)
    turns: dict[int, list[tuple[float, float]]] = {
        hashpower: [] for hashpower in (libcachesim.DEFAULT_HASHPOWER, *HASHPOWERS)
    }
    misses = their_misses = 0
    for turn in range(repeats):
        for hashpower, samples in turns.items():
            if hashpower == libcachesim.DEFAULT_HASHPOWER and turn >= DEFAULT_TURNS:
                continue
            own = 0.0
            replays, runs = [], []
            for layer in layers:
                replay_part(layer.demand, policy, buffer_size)
                begin = process_time()
                replays.append(replay_part(layer.demand, policy, buffer_size))
                own += process_time() - begin
            for layer in layers:
                libcachesim.run(policy, layer.file, buffer_size, hashpower)
                runs.append(libcachesim.run(policy, layer.file, buffer_size, hashpower))
            samples.append((own, sum(run.seconds for run in runs)))
            misses = sum(int(replay.misses.sum()) for replay in replays)
            their_misses = sum(run.misses for run in runs)
    default = turns[libcachesim.DEFAULT_HASHPOWER]
    best_hashpower = min(
        HASHPOWERS, key=lambda hashpower: median(theirs for _, theirs in turns[hashpower])
    )
    best = turns[best_hashpower]
    every_turn = [turn for samples in turns.values() for turn in samples]
    return {
        "policy": policy,
        "buffer": buffer_size,
        "accesses": accesses,
        "ours_m_per_s": spread([accesses / own / 1e6 for own, _ in every_turn]),
        "libcachesim_default_m_per_s": spread([accesses / theirs / 1e6 for _, theirs in default]),
        "libcachesim_best_m_per_s": spread([accesses / theirs / 1e6 for _, theirs in best]),
        "best_hashpower": best_hashpower,
        "times_default": spread([theirs / own for own, theirs in default]),
        "times_best": spread([theirs / own for own, theirs in best]),
        "bar_default": BARS[policy][0],
        "bar_best": BARS[policy][1],
        "miss_rate": round(misses / accesses, 5),
        "libcachesim_miss_rate": round(their_misses / accesses, 5),
    }


def run_sweep(trace: Trace, parts: list[Part], jobs: int) -> None:
    """Run the sweep of the bars, reading included, counts only."""
    sweep(
        [trace],
        SWEEP_POLICIES,
        SWEEP_BUFFERS,
        compare_min=False,
        jobs=jobs,
        requests=sorted({part.request for part in parts}),
        layers=sorted({part.layer for part in parts}),
    )


def compare_sweeps(
    trace: Trace, parts: list[Part], layers: list[Layer], repeats: int
) -> dict[str, Any]:
    """Time the whole sweep, libCacheSim's nine runs at its best, and the read-only pass."""
    swept: list[float] = []
    read: list[float] = []
    nine: list[float] = []
    tables = {
        (policy, slots): min(
            HASHPOWERS,
            key=lambda power: sum(
                libcachesim.run(policy, layer.file, slots, power).seconds for layer in layers
            ),
        )
        for policy in SWEEP_POLICIES
        for slots in SWEEP_BUFFERS
    }
    with one_core():
        for _ in range(repeats):
            run_sweep(trace, parts, jobs=1)
            swept.append(seconds(partial(run_sweep, trace, parts, jobs=1)))
            read.append(seconds(lambda: [trace.read(part) for part in parts]))
            nine.append(
                sum(
                    libcachesim.run(policy, layer.file, slots, power).seconds
                    for (policy, slots), power in tables.items()
                    for layer in layers
                )
            )
    positions = sum(layer.accesses for layer in layers)
    return {
        "policies": SWEEP_POLICIES,
        "buffers": SWEEP_BUFFERS,
        "sweep_s": spread(swept),
        "libcachesim_best_s": spread(nine),
        "times_best": spread([theirs / own for own, theirs in zip(swept, nine, strict=True)]),
        "bar_best": SWEEP_BAR,
        "read_only_s": spread(read),
        "read_only_m_positions_per_s": round(positions / median(read) / 1e6, 1),
        "sweep_over_read_only": spread([own / only for own, only in zip(swept, read, strict=True)]),
    }


def compare_threads(trace: Trace, parts: list[Part], repeats: int) -> dict[str, Any]:
    """Time the sweep with one thread and with two, in turns, free to use every core."""
    samples: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for jobs, taken in samples.items():
            taken.append(seconds(partial(run_sweep, trace, parts, jobs), perf_counter))
    return {
        "one_s": spread(samples[1]),
        "two_s": spread(samples[2]),
        "times": spread([one / two for one, two in zip(samples[1], samples[2], strict=True)]),
        "bar": THREADS_BAR,
    }


def peak_memory(trace: Trace) -> list[dict[str, float]]:
    """Return the peak memory of sweeps in fresh processes: nothing read, one part, every part."""
    return [
        in_fresh_process(f"print(json.dumps(sweep_and_peak({str(trace.path)!r}, {count})))")
        for count in (0, 1, len(trace.parts))
    ]


def sweep_and_peak(path: str, count: int) -> dict[str, float]:
    """Sweep the first parts of a file on one thread; return the peak memory of this process."""
    trace = open_trace(path)
    parts = list(trace.parts[:count])
    if parts:
        run_sweep(trace, parts, jobs=1)
    else:
        first_calls()
    # Not ru_maxrss: Linux hands that of the parent on to a new program.
    status = Path("/proc/self/status").read_text()
    peak_kib = int(status.split("VmHWM:")[1].split()[0])
    return {"parts": count, "peak_mib": round(peak_kib / 1024, 1)}


def report(result: dict[str, Any]) -> None:
    """Print what the result says, the bars beside the multiples."""
    click.echo(f"{result['machine']['cpu']}, {result['machine']['cores']} cores")
    click.echo("M accesses/s; multiples of libCacheSim with its default / its best hash table")
    for row in result["replays"]:
        click.echo(
            f"{row['policy']:>7} {row['buffer']}: {row['ours_m_per_s']['median']:6.1f}"
            f" ({row['ours_m_per_s']['min']:.0f}-{row['ours_m_per_s']['max']:.0f})"
            f"  libCacheSim {row['libcachesim_default_m_per_s']['median']:5.1f}"
            f" / {row['libcachesim_best_m_per_s']['median']:5.1f} (2^{row['best_hashpower']})"
            f"  {row['times_default']['median']:5.1f}x (bar {row['bar_default']})"
            f" / {row['times_best']['median']:5.1f}x (bar {row['bar_best']})"
            f"  misses {row['miss_rate']:.2%} / {row['libcachesim_miss_rate']:.2%}"
        )
    whole, threads = result["sweep"], result["threads"]
    click.echo(
        f"sweep, reading included: {whole['sweep_s']['median']:.3f} s, libCacheSim's nine runs"
        f" {whole['libcachesim_best_s']['median']:.3f} s: {whole['times_best']['median']:.1f}x"
        f" (bar {whole['bar_best']})"
    )
    click.echo(
        f"read-only pass: {whole['read_only_s']['median']:.3f} s"
        f" ({whole['read_only_m_positions_per_s']:.0f} M positions/s); the sweep takes"
        f" {whole['sweep_over_read_only']['median']:.1f} times that"
    )
    click.echo(f"two threads against one: {threads['times']['median']:.2f}x (bar {threads['bar']})")
    for peak in result["peak_memory"]:
        click.echo(f"peak memory, {peak['parts']} parts: {peak['peak_mib']:.0f} MiB")
    for name, first in result["first_calls"].items():
        click.echo(f"first calls, {name}: {sum(first.values()):.2f} s in all")


@click.command()
@click.argument(
    "trace_file",
    metavar="[TRACE]",
    default=sample_path,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--layer", "layer_names", type=int, multiple=True, help="Layers to replay.")
@click.option("--most", default=6, show_default=True, help="Parts to replay without --layer.")
@click.option("--repeats", default=5, show_default=True, help="Turns of each comparison.")
@click.option("-o", "output", default=RESULT, show_default=True, type=click.Path(path_type=Path))
def main(
    trace_file: Path, layer_names: tuple[int, ...], most: int, repeats: int, output: Path
) -> None:
    """Measure replays of TRACE (default: the bundled sample) and write the figures as JSON."""
    trace = open_trace(trace_file)
    parts = choose_parts(trace, layer_names, most)
    with tempfile.TemporaryDirectory() as folder:
        layers = []
        for number, part in enumerate(parts):
            demand = trace.read(part)
            file = Path(folder) / f"{number}.oracleGeneral.bin"
            libcachesim.write_oracle_general(file, demand.positions)
            layers.append(Layer(demand, len(demand.positions), file))
        first_calls()
        with one_core():
            replays = [
                compare(policy, buffer_size, layers, repeats)
                for policy in BARS
                for buffer_size in BUFFERS
            ]
        result = {
            "machine": describe_machine(),
            "versions": describe_versions(
                "hisparse-sim", "libcachesim", "numba", "numpy", "pyarrow"
            ),
            "trace": {
                "file": trace.path.name,
                "sha256": trace.sha256,
                "parts": len(parts),
                "layers": [part.layer for part in parts],
                "rows": sum(part.rows for part in parts),
                "accesses": sum(layer.accesses for layer in layers),
                "largest_part_mib": round(max(layer.accesses for layer in layers) * 4 / 2**20, 1),
            },
            "first_calls": first_calls_in_fresh_processes(),
            "replays": replays,
            "sweep": compare_sweeps(trace, parts, layers, repeats),
            "threads": compare_threads(trace, list(trace.parts), repeats),
            "peak_memory": peak_memory(trace),
        }
    report(result)
    output.write_text(json.dumps(result, indent=2) + "\n")
    click.echo(f"wrote {output}", err=True)


if __name__ == "__main__":
    main()
