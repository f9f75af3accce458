"""`gpu replay`: a trace on a GPU or on several, step by step, timed or checked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.harness.batch import Batch, make_batch
from hisparse_sim.gpu_replay.harness.replayer import Mismatch, Replayer
from hisparse_sim.gpu_replay.harness.several import Member, run_together
from hisparse_sim.gpu_replay.harness.timing import (
    QUEUE_US,
    elapsed_us,
    hold_stream,
    record,
    timer_us,
)
from hisparse_sim.gpu_replay.kernels import get_kernel
from hisparse_sim.gpu_replay.kernels.build import require_gpu
from hisparse_sim.simulator.replay import PartReplay, replay_part
from hisparse_sim.traces import Trace
from hisparse_sim.traces.file.units import refuse_blocks


@dataclass(frozen=True, eq=False)
class GpuReplay:
    """The result of a replay on the GPU.

    `steps`: one row per step with `step`, `misses` (simulated, all rows and layers), `peak_misses`
    (of one request, mean over layers), `bytes`, `us` (measured, all layers; absent after a check)
    and `gb_s`. On several GPUs `us` is that of the slowest, for which the others wait, and
    `fastest_us` that of the fastest.
    `parameters`: what was run. `checked`: whether every step was compared.
    """

    steps: pd.DataFrame
    parameters: dict[str, Any]
    checked: bool
    stand_in: str = ""
    misses: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0, 0), np.int32))

    def summary(self) -> dict[str, Any]:
        """Totals, and median and 95th percentile of a step."""
        steps = self.steps
        result: dict[str, Any] = {
            "steps": len(steps),
            "misses": int(steps["misses"].sum()),
            "bytes": int(steps["bytes"].sum()),
        }
        if "us" in steps:
            result["p50_us"] = float(steps["us"].median())
            result["p95_us"] = float(steps["us"].quantile(0.95))
            result["gb_s"] = float(steps["bytes"].sum() / steps["us"].sum() / 1e3)
        return result


def replay_trace(
    trace: Trace,
    kernel: str,
    *,
    buffer: int,
    batch: int = 1,
    layers: int = 1,
    steps: int | None = None,
    start: str = "staged",
    entry_bytes: int = 1152,
    padding: int = 0,
    check: bool = False,
    share: tuple[int, int] = (0, 1),
    together: Callable[[], None] | None = None,
) -> GpuReplay:
    """Replay a trace on the GPU.

    With `check` every step is compared with the simulator (tokens per slot, LRU order, page table,
    misses, victims, plan and bytes; Mismatch at the first difference) and nothing is timed.
    Otherwise every step's graph is timed, with the simulator's miss counts beside it.

    `share`, (rank, gpus), replays only the rows of the batch that fall to one of several GPUs;
    `together` is called before every timed step and waits for the others.

    Raises ValueError for sizes that do not fit, GpuError if something is missing, TraceError for a
    trace whose positions are not tokens.
    """
    refuse_blocks([trace], "a replay on a GPU needs")
    require_gpu()
    chosen = get_kernel(kernel)
    demands = make_batch(trace, batch, layers, steps).dealt(*share)
    top_k = max(trace.metadata.top_k, demands.widest_row)
    simulated = _simulate(demands, buffer, start)
    replayer = Replayer(
        chosen, demands, buffer=buffer, top_k=top_k, entry_bytes=entry_bytes, start=start,
        padding=padding, check=check,
    )  # fmt: skip
    replayer.capture()
    misses = _misses(demands, simulated)
    if check:
        _check_steps(replayer, simulated)
        us = None
    else:
        us = _time_steps(replayer, together)
    parameters = {
        "trace": trace.name, "sha256": trace.sha256, "provenance": trace.metadata.provenance,
        "kernel": kernel, "buffer": buffer, "top_k": top_k, "batch": batch, "layers": layers,
        "start": start, "entry_bytes": entry_bytes, "padding": padding,
    }  # fmt: skip
    table = _tabulate(misses, entry_bytes, us)
    return GpuReplay(table, parameters, check, demands.stand_in, misses)


def replay_on_gpus(trace: Trace, kernel: str, devices: Sequence[int], **options: Any) -> GpuReplay:
    """Replay a data-parallel batch, its rows distributed round-robin over one process per device.

    All GPUs start every step together. `options` are those of `replay_trace`, and so are the
    errors; a batch with fewer rows than devices is a ValueError.
    """
    refuse_blocks([trace], "a replay on a GPU needs")
    (parts,) = run_together(devices, _replay_share, trace, kernel, len(devices), options)
    return merge_replays(parts)


def _replay_share(
    member: Member, trace: Trace, kernel: str, gpus: int, options: dict[str, Any]
) -> Iterator[GpuReplay]:
    require_gpu().cuda.set_device(member.device)
    yield replay_trace(
        trace, kernel, share=(member.rank, gpus), together=member.together, **options
    )


def merge_replays(parts: Sequence[GpuReplay]) -> GpuReplay:
    """The replay of a whole batch from its parts, which were distributed round-robin."""
    first = parts[0]
    size = sum(part.misses.shape[2] for part in parts)
    misses = np.empty((*first.misses.shape[:2], size), np.int32)
    for rank, part in enumerate(parts):
        misses[:, :, rank :: len(parts)] = part.misses
    times = None if first.checked else np.stack([part.steps["us"].to_numpy() for part in parts])
    us = None if times is None else times.max(axis=0)
    table = _tabulate(misses, first.parameters["entry_bytes"], us)
    if times is not None:
        table["fastest_us"] = times.min(axis=0)
    parameters = {**first.parameters, "gpus": len(parts)}
    return GpuReplay(table, parameters, first.checked, first.stand_in, misses)


def _simulate(batch: Batch, buffer: int, start: str) -> dict[int, PartReplay]:
    """The result of the simulator for every demand of the batch, by identity of the demand."""
    distinct = {id(cell): cell for layer in batch.cells for cell in layer}
    return {
        key: replay_part(cell, "lru", buffer, start, victims=True) for key, cell in distinct.items()
    }


def _misses(batch: Batch, simulated: dict[int, PartReplay]) -> NDArray[np.int32]:
    """Simulated misses, int32 [steps, layers, size]."""
    columns = [
        [simulated[id(cell)].misses[: batch.steps] for cell in layer] for layer in batch.cells
    ]
    return np.ascontiguousarray(np.moveaxis(np.array(columns, np.int32), 2, 0))


def run_verified(replayer: Replayer) -> int:
    """Replay the whole batch, verify every step, and return the misses.

    The replayer is a fresh one that checks. Mismatch names the first difference.
    """
    replayer.capture()
    misses = 0
    for step in range(replayer.batch.steps):
        replayer.load_step(step)
        replayer.run_step()
        expected = replayer.expect_step(step)
        replayer.verify(step, expected)
        misses += sum(len(outcome.missed) for layer in expected for outcome in layer)
    return misses


def _check_steps(replayer: Replayer, simulated: dict[int, PartReplay]) -> None:
    batch = replayer.batch
    taken = {key: 0 for key in simulated}  # misses before the step
    for step in range(batch.steps):
        replayer.load_step(step)
        replayer.run_step()
        expected = replayer.expect_step(step)
        for layer, outcomes in zip(batch.cells, expected, strict=True):
            for cell, outcome in zip(layer, outcomes, strict=True):
                verdict = simulated[id(cell)]
                first = taken[id(cell)]
                victims = (verdict.victims if verdict.victims is not None else np.empty(0))[
                    first : first + int(verdict.misses[step])
                ]
                if not np.array_equal(victims, outcome.victims):
                    raise Mismatch(
                        f"step {step}: the simulator and its plain form disagree on "
                        f"{cell.request}, layer {cell.layer}"
                    )
        replayer.verify(step, expected)
        for key, verdict in simulated.items():
            taken[key] += int(verdict.misses[step])


def _time_steps(replayer: Replayer, together: Callable[[], None] | None) -> NDArray[np.float64]:
    """Microseconds of the graph of every step, without the cost of timing."""
    torch = require_gpu()
    overhead = timer_us()
    events = []
    for step in range(replayer.batch.steps):
        if together is not None:
            together()
        hold_stream(QUEUE_US * (1 + replayer.batch.layers))
        replayer.load_step(step)
        events.append(record(replayer.run_step))
        torch.cuda.synchronize()
    return elapsed_us(events) - overhead


def _tabulate(
    misses: NDArray[np.int32], entry_bytes: int, us: NDArray[np.float64] | None
) -> pd.DataFrame:
    table = pd.DataFrame(
        {
            "step": np.arange(len(misses)),
            "misses": misses.sum(axis=(1, 2)),
            "peak_misses": misses.max(axis=2).mean(axis=1),
        }
    )
    table["bytes"] = table["misses"] * entry_bytes
    if us is not None:
        table["us"] = us
        table["gb_s"] = table["bytes"] / us / 1e3
    return table
