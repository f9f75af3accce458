"""Speed and memory of reading a trace with every rule checked, beside pyarrow's own reading.

    python benchmarks/read_trace.py [TRACE]

Each round reads the file once by every way, in turns, so that a slow moment of the machine hits
all of them. Time of the processor is kept beside the clock's: on a machine with other work it is
the steadier one, and ratios of single-threaded ways are taken from it. pyarrow alone decodes the
column of positions and drops it: nothing that reads the file through it can be faster. The same
rows are also read from a copy in another program's layout: all parts in one row group, plain
strings, 64-bit numbers.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import click
import pyarrow as pa
import pyarrow.parquet as pq
from machine import describe_machine, describe_versions

from hisparse_sim.traces import Trace, open_trace, sample_path
from hisparse_sim.traces.demand import Ragged
from hisparse_sim.traces.file.rules import check_rows

RESULT = Path(__file__).parent / "results" / "read_trace.json"

# Reads every part in a process of its own; prints by how much its peak memory exceeds what it held
# before. What loading Numba took for a moment is forgotten first (Linux: man 5 proc, clear_refs).
PEAK = """
import sys
from pathlib import Path
from hisparse_sim.traces import open_trace, sample_path
def held_bytes(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
small = open_trace(sample_path())
small.read(small.parts[0], steps=(0, 1))
Path("/proc/self/clear_refs").write_text("5")
before = held_bytes("VmRSS")
trace = open_trace(sys.argv[1])
for part in trace.parts:
    trace.read(part)
print(held_bytes("VmHWM") - before)
"""


class Taken(NamedTuple):
    """What one pass over the file took, in seconds."""

    clock: float
    processor: float  # of all threads, the kernel's share included


def taken(work: Callable[[], object]) -> Taken:
    """Return how long one call takes."""
    clock, processor = perf_counter(), process_time()
    work()
    return Taken(perf_counter() - clock, process_time() - processor)


def read_positions(path: Path) -> None:
    """Decode the column of positions, group by group, and nothing else."""
    with pq.ParquetFile(path) as file:
        for group in range(file.metadata.num_row_groups):
            file.read_row_group(group, columns=["positions"], use_threads=False)


def read_parts(trace: Trace) -> None:
    """Read every part as a replay gets it."""
    for part in trace.parts:
        trace.read(part)


def read_in_threads(trace: Trace, threads: int) -> None:
    """Read every part, in several threads."""
    with ThreadPoolExecutor(threads) as executor:
        for _ in executor.map(lambda part: trace.read(part).rows, trace.parts):
            pass


def check_parts(trace: Trace) -> Taken:
    """Return what the rules alone take of reading every part."""
    passes = []
    for part in trace.parts:
        demand = trace.read(part)
        listed = Ragged(demand.offsets, demand.positions)
        passes.append(
            taken(partial(check_rows, demand.step, demand.seq_len, listed, trace.metadata.top_k))
        )
    return Taken(sum(each.clock for each in passes), sum(each.processor for each in passes))


def write_foreign(source: Path, target: Path) -> Path:
    """Copy a trace into one row group of plain, wide columns."""
    rows = pq.read_table(source)
    wide = pa.schema(
        [
            ("request", pa.string()),
            ("layer", pa.int64()),
            ("step", pa.int64()),
            ("seq_len", pa.int64()),
            ("positions", pa.list_(pa.int64())),
        ],
        rows.schema.metadata,
    )
    pq.write_table(rows.select(wide.names).cast(wide), target, row_group_size=rows.num_rows)
    return target


def peak_bytes(path: Path) -> int:
    """Return by how much reading all parts raises the peak memory of a process."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def measure(trace: Trace, foreign: Trace, rounds: int) -> dict[str, Any]:
    """Return the samples of every way to read, and the rates of the medians."""
    ways: dict[str, Callable[[], Taken]] = {
        "pyarrow, positions only": lambda: taken(lambda: read_positions(trace.path)),
        "read": lambda: taken(lambda: read_parts(trace)),
        "read, 2 threads": lambda: taken(lambda: read_in_threads(trace, 2)),
        "rules alone": lambda: check_parts(trace),
        "pyarrow, one row group": lambda: taken(lambda: read_positions(foreign.path)),
        "read, one row group": lambda: taken(lambda: read_parts(foreign)),
        "open": lambda: taken(lambda: open_trace(trace.path)),
    }
    samples: dict[str, list[Taken]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            each = way()
            if number > 0:  # the first round compiles
                samples[name].append(each)
    positions = sum(len(trace.read(part).positions) for part in trace.parts)
    size_bytes = trace.path.stat().st_size
    rates = {}
    for name, passes in samples.items():
        clock = median(each.clock for each in passes)
        processor = median(each.processor for each in passes)
        rates[name] = {
            "seconds": clock,
            "processor_seconds": processor,
            "rows_per_s": trace.rows / clock,
            "positions_per_s": positions / clock,
            "file_bytes_per_s": size_bytes / clock,
            "positions_per_processor_s": positions / processor,
        }
    return {
        "rows": trace.rows,
        "positions": positions,
        "file_bytes": size_bytes,
        "foreign_file_bytes": foreign.path.stat().st_size,
        "rates": rates,
        "read_to_pyarrow": _ratio(samples, "read", "pyarrow, positions only", "processor"),
        "rules_to_read": _ratio(samples, "rules alone", "read", "processor"),
        "threads_gain": _ratio(samples, "read", "read, 2 threads", "clock"),
        "samples_seconds": samples,
    }


def _ratio(samples: dict[str, list[Taken]], upper: str, lower: str, of: str) -> float:
    """Return the median of the ratios within a round."""
    return median(
        getattr(a, of) / getattr(b, of) for a, b in zip(samples[upper], samples[lower], strict=True)
    )


@click.command()
@click.argument("trace_path", type=click.Path(exists=True, path_type=Path), default=sample_path())
@click.option("--rounds", default=7, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=RESULT)
def main(trace_path: Path, rounds: int, output: Path) -> None:
    """Measure reading TRACE_PATH and write the result as JSON."""
    trace = open_trace(trace_path)
    largest = max(len(trace.read(part).positions) for part in trace.parts)
    with tempfile.TemporaryDirectory() as folder:
        foreign = open_trace(write_foreign(trace_path, Path(folder) / "foreign.parquet"))
        result = {
            "trace": trace.name,
            "sha256": trace.sha256,
            "machine": describe_machine(),
            "versions": describe_versions("numpy", "numba", "pyarrow", "hisparse-sim"),
            **measure(trace, foreign, rounds),
            "largest_part_bytes": 4 * largest,
            "peak_growth_bytes": peak_bytes(trace.path),
            "peak_growth_bytes_one_row_group": peak_bytes(foreign.path),
        }
    result["all_positions_bytes"] = 4 * result["positions"]
    output.write_text(json.dumps(result, indent=1) + "\n")
    for name, rate in result["rates"].items():
        click.echo(
            f"{name:26} {rate['seconds'] * 1e3:9.1f} ms {rate['rows_per_s'] / 1e3:8.1f} k rows/s "
            f"{rate['positions_per_s'] / 1e6:7.1f} M positions/s "
            f"{rate['file_bytes_per_s'] / 1e6:6.1f} MB/s of the file, "
            f"{rate['positions_per_processor_s'] / 1e6:6.1f} M positions per processor second"
        )
    for name in ("read_to_pyarrow", "rules_to_read", "threads_gain"):
        click.echo(f"{name:26} {result[name]:.3f}")
    for name in (
        "largest_part_bytes",
        "all_positions_bytes",
        "peak_growth_bytes",
        "peak_growth_bytes_one_row_group",
    ):
        click.echo(f"{name:32} {result[name] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
