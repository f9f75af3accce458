"""Size and speed of the containers of traces: Parquet as written and encoded in other ways, Arrow.

    python benchmarks/containers.py TRACE...

Every container of the first TRACE is read (each rule and checksum checked) and swept by LRU at
4,096 slots, in turns, so that a slow moment of the machine hits all; the clock is processor time,
but wall time for two threads and for reading ahead. The nine-run sweep of replay_speed.py is paired
with libCacheSim's nine runs at its best. Then four encodings of Parquet are compared on every
TRACE.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import click
import libcachesim_runner as libcachesim
import pyarrow.parquet as pq
from machine import describe_machine, describe_versions
from replay_speed import Layer, compare_sweeps, one_core, seconds, spread

from hisparse_sim.simulator.replay import replay, replay_part, sweep
from hisparse_sim.traces import Trace, TraceWriter, open_trace
from hisparse_sim.traces.file import digest
from hisparse_sim.traces.file.checksum import crc32
from hisparse_sim.traces.importers.convert import convert

RESULT = Path(__file__).parent / "results" / "containers.json"
SLOTS = 4096
BARS = {"arrow_read_m_per_s": 600, "arrow_sweep_m_per_s": 250, "nine_runs_times": 7}
NUMBERS = ("step", "seq_len", "positions.list.element")
ENCODINGS: dict[str, dict[str, Any]] = {
    "delta, zstd (the default)": {
        "compression": "zstd",
        "column_encoding": dict.fromkeys(NUMBERS, "DELTA_BINARY_PACKED"),
    },
    "plain, zstd": {"compression": "zstd"},
    "plain, lz4": {"compression": "lz4"},
    "byte stream split, zstd": {
        "compression": "zstd",
        "column_encoding": dict.fromkeys(NUMBERS, "BYTE_STREAM_SPLIT"),
    },
}


def positions_of(trace: Trace) -> int:
    """Return how many positions a trace lists."""
    return sum(len(trace.read(part).positions) for part in trace.parts)


def read_all(trace: Trace) -> None:
    """Read every part, on this thread."""
    for part in trace.parts:
        trace.read(part)


def read_all_by_two(trace: Trace) -> None:
    """Read every part, on two threads."""
    with ThreadPoolExecutor(2) as threads:
        for _ in threads.map(trace.read, trace.parts):
            pass


def compare(traces: dict[str, Trace], positions: int, repeats: int) -> dict[str, Any]:
    """Return size and rates of every container."""
    ways: dict[str, tuple[Callable[[Trace], object], Callable[[], float]]] = {
        "read_m_per_s": (read_all, process_time),
        "read_by_two_m_per_s": (read_all_by_two, perf_counter),
        "sweep_m_per_s": (
            lambda trace: sweep(open_trace(trace.path), "lru", SLOTS, compare_min=False, jobs=1),
            process_time,
        ),
        "replay_ahead_m_per_s": (lambda trace: replay(trace, "lru", SLOTS), perf_counter),
        "replay_in_turns_m_per_s": (
            lambda trace: [replay_part(trace.read(part), "lru", SLOTS) for part in trace.parts],
            perf_counter,
        ),
    }
    samples: dict[str, dict[str, list[float]]] = {
        name: {way: [] for way in ways} for name in traces
    }
    for turn in range(repeats + 1):
        for name, trace in traces.items():
            for way, (work, clock) in ways.items():
                taken = seconds(lambda work=work, trace=trace: work(trace), clock)  # type: ignore[misc]
                if turn > 0:  # the first turn compiles, and fills the page cache
                    samples[name][way].append(positions / taken / 1e6)
    return {
        name: {
            "bytes": trace.size_bytes,
            "bytes_per_position": round(trace.size_bytes / positions, 3),
            **{way: spread(rates) for way, rates in samples[name].items()},
            "ahead_over_in_turns": spread(
                [
                    ahead / turns
                    for ahead, turns in zip(
                        samples[name]["replay_ahead_m_per_s"],
                        samples[name]["replay_in_turns_m_per_s"],
                        strict=True,
                    )
                ]
            ),
        }
        for name, trace in traces.items()
    }


@contextmanager
def encoded(options: dict[str, Any]) -> Iterator[None]:
    """Let the writer encode Parquet in another way."""
    usual = TraceWriter._open

    def other(self: Any) -> Any:
        stream = self._stack.enter_context(digest.sealed(self._temporary))
        file = pq.ParquetWriter(
            stream,
            self._schema,
            use_dictionary=["request"],
            write_statistics=True,
            write_page_checksum=True,
            **options,
        )
        return self._stack.enter_context(file)

    TraceWriter._open = other  # type: ignore[method-assign]
    try:
        yield
    finally:
        TraceWriter._open = usual  # type: ignore[method-assign]


def compare_encodings(path: Path, folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Return size and reading rate of Parquet, encoded in four ways."""
    traces = {}
    for number, (name, options) in enumerate(ENCODINGS.items()):
        with encoded(options):
            convert(path, folder / f"{number}.parquet")
        traces[name] = open_trace(folder / f"{number}.parquet")
    positions = positions_of(open_trace(path))
    rates: dict[str, list[float]] = {name: [] for name in traces}
    for turn in range(repeats + 1):
        for name, trace in traces.items():
            taken = seconds(lambda trace=trace: read_all(trace))  # type: ignore[misc]
            if turn > 0:
                rates[name].append(positions / taken / 1e6)
    return [
        {
            "trace": path.name,
            "encoding": name,
            "bytes_per_position": round(trace.size_bytes / positions, 3),
            "read_m_per_s": spread(rates[name]),
        }
        for name, trace in traces.items()
    ]


def nine_runs(trace: Trace, folder: Path, repeats: int) -> dict[str, Any]:
    """Return the nine-run sweep of six layers of a trace beside libCacheSim's."""
    parts = [trace.parts[each * len(trace.parts) // 6] for each in range(6)]
    layers = []
    for number, part in enumerate(parts):
        demand = trace.read(part)
        file = folder / f"{number}.oracleGeneral.bin"
        libcachesim.write_oracle_general(file, demand.positions)
        layers.append(Layer(demand, len(demand.positions), file))
    return compare_sweeps(trace, parts, layers, repeats)


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--repeats", default=5, show_default=True)
@click.option("--note", default="", help="What to say about the machine, such as that it was busy.")
@click.option("-o", "output", default=RESULT, show_default=True, type=click.Path(path_type=Path))
def main(paths: tuple[Path, ...], repeats: int, note: str, output: Path) -> None:
    """Measure containers of traces and write the figures as JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        convert(paths[0], folder / "plain.parquet")
        convert(paths[0], folder / "plain.arrow")
        convert(paths[0], folder / "lz4.arrow", lz4=True)
        traces = {
            "parquet": open_trace(folder / "plain.parquet"),
            "arrow": open_trace(folder / "plain.arrow"),
            "arrow, lz4": open_trace(folder / "lz4.arrow"),
        }
        result = {
            "machine": describe_machine(),
            "note": note,
            "crc32": crc32.__module__ or "isal",
            "versions": describe_versions(
                "hisparse-sim", "isal", "libcachesim", "numba", "pyarrow"
            ),
            "trace": paths[0].name,
            "positions": positions_of(traces["parquet"]),
            "bars": BARS,
        }
        with one_core():
            read_all(traces["arrow"])
        result["containers"] = compare(traces, result["positions"], repeats)
        result["nine_runs"] = nine_runs(traces["arrow"], folder, repeats)
        result["encodings"] = [
            row for path in paths for row in compare_encodings(path, folder, repeats)
        ]
    output.write_text(json.dumps(result, indent=1) + "\n")
    for container, found in result["containers"].items():
        rates = "  ".join(
            f"{way[:-8]} {found[way]['median']:.0f}" for way in found if way.endswith("m_per_s")
        )
        click.echo(
            f"{container:>10}: {found['bytes_per_position']:.2f} B/position  {rates} M/s;"
            f" reading ahead {found['ahead_over_in_turns']['median']:.2f}x"
        )
    runs = result["nine_runs"]
    click.echo(f"nine runs: {runs['times_best']['median']:.1f}x libCacheSim's best (bar 7)")
    for row in result["encodings"]:
        click.echo(
            f"{row['trace']}: {row['encoding']:26} {row['bytes_per_position']:.3f} B/position"
            f" {row['read_m_per_s']['median']:.0f} M/s"
        )


if __name__ == "__main__":
    main()
