"""Fast-slow against LRU in the native kernel, on a trace: plan time, swap-in time, every slot.

    python benchmarks/fast_slow.py TRACE -o benchmarks/results/fast-slow-h200.json

Needs an NVIDIA GPU, nvcc and PyTorch, and a trace with scores and the positions ranked behind its
rows. Both rules replay the same steps; parts of the trace stand in for requests. Every step is
timed alone, in a graph of one swap-in; the plan is the same launch that moves no bytes. Misses are
those of the timed steps, per request and step, by the simulator.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from hisparse_sim.gpu_replay.harness.batch import Batch
from hisparse_sim.gpu_replay.harness.fast_slow import FastSlowReplayer
from hisparse_sim.gpu_replay.harness.machine import describe_machine
from hisparse_sim.gpu_replay.harness.replayer import Replayer
from hisparse_sim.gpu_replay.harness.timing import elapsed_us, hold_stream, record, timer_us
from hisparse_sim.gpu_replay.harness.trace_replay import run_verified
from hisparse_sim.gpu_replay.kernels.kernel import Kernel
from hisparse_sim.gpu_replay.kernels.native import NATIVE
from hisparse_sim.simulator.replay.replaying import replay_part
from hisparse_sim.traces import Demand, open_trace

KINDS: dict[str, Any] = {"lru": Replayer, "fast-slow": FastSlowReplayer}


def planning() -> Kernel:
    """The native kernel, moving nothing."""

    def swap_in(**arguments: Any) -> None:
        NATIVE.swap_in(**arguments, skip_io=True)

    return replace(NATIVE, swap_in=swap_in)


def replayer_of(rule: str, batch: Batch, buffer: int, kernel: Kernel, **options: Any) -> Replayer:
    made: Replayer = KINDS[rule](kernel=kernel, batch=batch, buffer=buffer, top_k=2048, **options)
    return made


def verified(rule: str, batch: Batch, buffer: int) -> int:
    """Replay with every check on; return the misses."""
    return run_verified(replayer_of(rule, batch, buffer, NATIVE, check=True))


def timed(rule: str, batch: Batch, buffer: int, kernel: Kernel, skip: int) -> np.ndarray:
    """Return the microseconds of every step from `skip` on."""
    import torch

    replayer = replayer_of(rule, batch, buffer, kernel)
    replayer.capture()
    events = []
    for step in range(batch.steps):
        replayer.load_step(step)
        torch.cuda.synchronize()
        hold_stream(60)
        events.append(record(replayer.run_step))
    torch.cuda.synchronize()
    return elapsed_us(events)[skip:] - timer_us()


def missed(rule: str, cells: Sequence[Demand], buffer: int, steps: range) -> list[float]:
    """Return the misses per step of every cell."""
    replayed = [replay_part(cell, rule, buffer).misses for cell in cells]
    return [float(misses[steps.start : steps.stop].mean()) for misses in replayed]


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@click.option("--batches", default="1,8,32,64", show_default=True)
@click.option("--buffers", default="4096,6144", show_default=True)
@click.option("--steps", default=96, show_default=True)
@click.option("--skip", default=16, show_default=True, help="Steps that are not timed.")
@click.option("--verify", default=24, show_default=True, help="Steps of which all is checked.")
def main(
    path: Path, output: Path, batches: str, buffers: str, steps: int, skip: int, verify: int
) -> None:
    """Verify, then time."""
    trace = open_trace(path)
    cells = [trace.read(part, ("scores", "next_positions")) for part in trace.parts]
    rows: list[dict[str, Any]] = []
    for buffer in map(int, buffers.split(",")):
        few = Batch((tuple(cells[:4]),), verify)
        checked = {rule: verified(rule, few, buffer) for rule in KINDS}
        click.echo(f"B {buffer}: every slot of {verify} steps agrees, misses {checked}")
        misses = {rule: missed(rule, cells, buffer, range(skip, steps)) for rule in KINDS}
        for size in map(int, batches.split(",")):
            batch = Batch((tuple(cells[i % len(cells)] for i in range(size)),), steps)
            row: dict[str, Any] = {"batch": size, "buffer": buffer, "checked_misses": checked}
            for rule in KINDS:
                each = [misses[rule][i % len(cells)] for i in range(size)]
                row[f"{rule} misses"] = round(float(np.mean(each)), 2)
            for name, kernel in (("plan", planning()), ("swap_in", NATIVE)):
                for rule in KINDS:
                    samples = timed(rule, batch, buffer, kernel, skip)
                    row[f"{rule} {name}_us"] = round(float(np.median(samples)), 2)
                    row[f"{rule} {name}_mean_us"] = round(float(samples.mean()), 2)
            rows.append(row)
            click.echo(json.dumps(row))
    result = {
        "machine": describe_machine(), "trace": trace.sha256, "steps": [skip, steps], "rows": rows
    }  # fmt: skip
    output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
