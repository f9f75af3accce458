"""Time vLLM's swap-in plan by the size of its hash table, beside SGLang's, on real selections.

    python benchmarks/vllm_table.py VLLM_SOURCE TRACE -o benchmarks/results/vllm-table-h200.json

vLLM sizes the table for the most positions that a step can select, (1 + drafts) x top_k, so that
without drafts it is full: a search for a position that is not in it passes through runs of taken
entries. Here one query selects top_k positions, as in a step without drafts, whatever the table was
sized for. Parts of the trace stand in for requests; nothing is copied. Needs an NVIDIA GPU, nvcc
and the sglang package.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from hisparse_sim.gpu_replay.bench.grid import Bench
from hisparse_sim.gpu_replay.harness.machine import describe_machine
from hisparse_sim.gpu_replay.harness.timing import capture, interval, time_graphs, timer_us
from hisparse_sim.gpu_replay.kernels.vllm import Vllm
from hisparse_sim.traces import open_trace


def plans(bench: Bench, source: Path, rows: Any, sizes: list[int]) -> dict[str, Any]:
    """Return what plans every step once, by name: SGLang's, ours, and vLLM's by table size."""

    def turn(swap_in: Any) -> None:
        for step in rows:
            swap_in(step, skip_io=True)

    found = {name: partial(turn, partial(bench.swap_in, name)) for name in ("sglang", "native")}
    for most in sizes:
        state = bench.vllm_state(source, most)

        def swap_in(step: Any, state: Vllm = state, **options: Any) -> None:
            state.swap_in(step, bench.row_requests, **options)

        found[f"vllm {most + 1}"] = partial(turn, swap_in)
    return found


@click.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@click.option("--batches", default="1,8,32", show_default=True)
@click.option("--buffer", default=8192, show_default=True)
@click.option("--queries", default="1,2,4", show_default=True, help="That tables are sized for.")
@click.option("--steps", default=32, show_default=True)
@click.option("--repeats", default=30, show_default=True)
def main(
    source: Path, path: Path, output: Path, batches: str, buffer: int, queries: str, steps: int,
    repeats: int,
) -> None:  # fmt: skip
    """Time plans of one query."""
    import torch

    trace = open_trace(path)
    top_k = trace.metadata.top_k
    cells = [trace.read(part) for part in trace.parts]
    # The newest token is never demanded, so rows of full width only.
    listed = [[cell.row(step) for step in range(steps)] for cell in cells]
    listed = [rows for rows in listed if all(len(row) == top_k for row in rows)]
    context = 1 + max(int(row.max()) for rows in listed for row in rows) + 1
    sizes = [top_k * int(number) for number in queries.split(",")]
    result: list[dict[str, Any]] = []
    for batch in map(int, batches.split(",")):
        chosen = [listed[i % len(listed)] for i in range(batch)]
        rows = np.stack([np.stack(step) for step in zip(*chosen, strict=True)]).astype(np.int32)
        bench = Bench(batch, buffer, 1152, top_k, context)
        turns = plans(bench, source, torch.from_numpy(rows).to("cuda"), sizes)
        for turn in turns.values():
            turn()
        samples = time_graphs({name: capture(turn) for name, turn in turns.items()}, repeats)
        row: dict[str, Any] = {"batch": batch, "buffer": buffer, "top_k": top_k}
        for name, values in samples.items():
            each = (values - timer_us()) / steps
            row[f"{name} plan_us"] = round(float(np.median(each)), 2)
            row[f"{name} interval_us"] = [round(end, 2) for end in interval(each)]
        click.echo(json.dumps(row))
        result.append(row)
    document = {"machine": describe_machine(), "trace": trace.sha256, "rows": result}
    output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
