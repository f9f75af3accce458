"""Both swap-in kernels against the copy alone, paired in one run, and what our kernel promises.

    python benchmarks/swap_in.py -o benchmarks/results/swap-in-h200.json

Needs an NVIDIA GPU, nvcc, PyTorch and `pip install --no-deps sglang apache-tvm-ffi`. Prints every
point and then every promise with the worst case found; exits with 1 if one is broken. `--from`
judges an earlier result again and needs nothing.
"""

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from hisparse_sim.gpu_replay.bench.grid import compare, run_grid
from hisparse_sim.gpu_replay.bench.lines import heading, point_line
from hisparse_sim.gpu_replay.bench.results import read_machine, read_rows, write_result
from hisparse_sim.gpu_replay.harness.machine import describe_machine
from hisparse_sim.gpu_replay.kernels.native_library import compile_native
from hisparse_sim.gpu_replay.kernels.sglang import compile_sglang

BATCHES = (1, 8, 32, 64)
MISSES = (0, 64, 256, 512, 1024)
BUFFERS = (2048, 4096, 6144)
ENTRY_BYTES = (1152, 656)

Row = Mapping[str, Any]


def faster(row: Row) -> float:
    """The engine's time over ours, lower end of the interval."""
    return compare(row, "sglang", "native")[1]


def over_floor(row: Row) -> float:
    """Our time over the copy alone plus our planning alone."""
    floor: float = row["gather_us"] + row["native_plan_us"]
    return float(row["native_us"]) / floor


def copy_alone_allows(row: Row) -> float:
    """How much faster than the engine a kernel would be that decided nothing and only copied."""
    return compare(row, "sglang", "gather")[0] if row["misses"] else float("inf")


# (what, points, figure of a point, least or most)
PROMISES: tuple[tuple[str, Callable[[Row], bool], Callable[[Row], float], str, float], ...] = (
    ("batch 1, 1024 misses: faster by", lambda r: _at(r, 1, 1024), faster, ">=", 2.2),
    ("batch 1, 512 misses: faster by", lambda r: _at(r, 1, 512), faster, ">=", 1.7),
    (
        "batch 8, 256 misses or more, where the copy alone would be 1.25 times as fast: faster by",
        lambda r: r["batch"] == 8 and r["misses"] >= 256 and copy_alone_allows(r) >= 1.25,
        faster,
        ">=",
        1.2,
    ),
    (
        "batch 8 and more, 256 misses or more: over copy + planning",
        lambda r: r["batch"] >= 8 and r["misses"] >= 256,
        over_floor,
        "<=",
        1.06,
    ),
    ("everywhere: faster by", lambda r: True, faster, ">=", 1.0),
)


def _at(row: Row, batch: int, misses: int) -> bool:
    return bool(row["batch"] == batch and row["misses"] == misses)


def build_all(arch: str) -> None:
    """Build every library that the grid needs, several at a time."""
    with ThreadPoolExecutor(8) as pool:
        jobs = [
            pool.submit(compile_sglang, 2048, buffer, 960, False, skip_io, arch)
            for buffer in BUFFERS
            for skip_io in (False, True)
        ]
        sizes = [(2048, buffer, item) for buffer in BUFFERS for item in ENTRY_BYTES]
        sizes += [(1, 1, item) for item in (*ENTRY_BYTES, 16)]
        jobs += [pool.submit(compile_native, *size, arch) for size in sizes]
        for job in jobs:
            job.result()


def judge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every promise with the worst point found."""
    promises = []
    for what, applies, figure, relation, bound in PROMISES:
        figures = [(figure(row), row) for row in rows if applies(row)]
        worst, row = (min if relation == ">=" else max)(figures, key=lambda pair: pair[0])
        met = sum(value >= bound if relation == ">=" else value <= bound for value, _ in figures)
        place = {name: row[name] for name in ("batch", "misses", "buffer", "entry_bytes")}
        line = {"promise": f"{what} {relation} {bound}", "worst": round(worst, 3), **place}
        promises.append({**line, "met": met, "points": len(figures)})
    return promises


def measure(repeats: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The machine, and the result row of every point, printed as they come."""
    machine = describe_machine()
    build_all(machine["compute_capability"].replace(".", ""))
    rows: list[dict[str, Any]] = []
    for row in run_grid(BATCHES, MISSES, BUFFERS, ENTRY_BYTES, repeats=repeats):
        if not rows:
            click.echo(heading(row))
        click.echo(point_line(row))
        rows.append(row)
    return machine, rows


@click.command()
@click.option("--repeats", default=30, show_default=True)
@click.option("--from", "earlier", type=click.Path(path_type=Path), help="Judge this result.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(repeats: int, earlier: Path | None, output: Path) -> None:
    machine, rows = (
        (read_machine(earlier), read_rows(earlier)) if earlier is not None else measure(repeats)
    )
    promises = judge(rows)
    kept = True
    for promise in promises:
        good = promise["met"] == promise["points"]
        click.echo(f"{'kept  ' if good else 'BROKEN'} {promise}")
        kept = kept and good
    samples = len(rows[0]["native_samples"])
    parameters = {"repeats": samples, "unit": "us", "top_k": 2048, "block_size": 960}
    write_result(output, machine, parameters, rows, promises=promises)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
