"""`hisparse-sim gpu`: parses, calls one function of this package, prints."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.traces.commands.group import Group
from hisparse_sim.traces.commands.options import output_option, quiet_option, start_option
from hisparse_sim.traces.commands.values import Number, Output, Renamed, several
from hisparse_sim.traces.terminal import note, wrote

if TYPE_CHECKING:
    from hisparse_sim.gpu_replay.bench.together import Grid

RESULT = click.Path(dir_okay=False, path_type=Path)
KERNEL = click.Choice(["sglang", "native"])


class GpuGroup(Group):
    """A group that says in one sentence what is missing."""

    def invoke(self, ctx: click.Context) -> Any:
        from hisparse_sim.gpu_replay.kernels.build import GpuError

        try:
            return super().invoke(ctx)
        except GpuError as error:
            raise click.ClickException(self.said(ctx, error)) from error


def _number(name: str, default: int, help: str) -> Callable[[Any], Any]:
    return click.option(name, type=Number(1), default=default, show_default=True, help=help)


def _several(
    *names: str, default: str, help: str, former: Sequence[str] = (), least: int = 1
) -> Callable[[Any], Any]:
    return click.option(
        *names,
        cls=Renamed,
        former=former,
        multiple=True,
        default=[default],
        callback=several(int, least=least),
        help=f"{help}  [default: {default}]",
    )


OVERSUBSCRIBE = click.option(
    "--oversubscribe",
    is_flag=True,
    help="With --gpus: let several processes share one GPU, for a trial run on fewer GPUs.",
)


@click.group(cls=GpuGroup)
def gpu() -> None:
    """Replay and measure on an NVIDIA GPU."""


@gpu.command()
def info() -> None:
    """Show the GPU, its host link and which kernels can run.

    Example: hisparse-sim gpu info
    """
    from hisparse_sim.gpu_replay.harness.machine import describe_machine
    from hisparse_sim.gpu_replay.kernels import available_kernels

    described = describe_machine()
    described |= {
        f"kernel {name}": missing or "available" for name, missing in available_kernels().items()
    }
    width = max(map(len, described))
    for name, value in described.items():
        click.echo(f"{name:{width}}  {value}")


@gpu.command()
@click.argument("trace", type=click.Path())
@click.option("--kernel", type=KERNEL, default="native", show_default=True, help="Swap-in kernel.")
@_number("--buffer", 4096, "Hot buffer size in slots per request and layer.")
@_number("--batch", 1, "Requests per batch.")
@_number("--layers", 1, "Layers captured in one CUDA graph.")
@click.option("--steps", type=Number(1), help="Replay only the first N steps.  [default: all]")
@start_option
@click.option(
    "--kv-entry-bytes",
    "entry_bytes",
    cls=Renamed,
    former=["--item-bytes"],
    type=Number(1),
    default=1152,
    show_default=True,
    help="Bytes per KV entry (one token in one layer): 1152 for bf16, 656 for fp8.",
)
@click.option(
    "--check", is_flag=True, help="Compare every step with the simulator instead of timing it."
)
@_number("--gpus", 1, "GPUs over which the batch is distributed.")
@OVERSUBSCRIBE
@output_option(Output(".json", ".parquet", ""), "Write all steps here.")
@quiet_option
def replay(
    trace: str,
    kernel: str,
    buffer: int,
    batch: int,
    layers: int,
    steps: int | None,
    start: str,
    entry_bytes: int,
    check: bool,
    gpus: int,
    oversubscribe: bool,
    output: Path | None,
    quiet: bool,
) -> None:
    """Replay a trace through a swap-in kernel and time it.

    Example: hisparse-sim gpu replay sample.parquet --kernel native --batch 16
    """
    from hisparse_sim.gpu_replay.bench.results import write_result
    from hisparse_sim.gpu_replay.harness.machine import describe_machine
    from hisparse_sim.gpu_replay.harness.several import find_devices
    from hisparse_sim.gpu_replay.harness.trace_replay import replay_on_gpus, replay_trace
    from hisparse_sim.traces import atomic_path
    from hisparse_sim.traces.commands.options import open_traces

    options: dict[str, Any] = {
        "buffer": buffer, "batch": batch, "layers": layers, "steps": steps, "start": start,
        "entry_bytes": entry_bytes, "check": check,
    }  # fmt: skip
    opened = open_traces([trace], None)[0]
    if gpus == 1:
        done = replay_trace(opened, kernel, **options)
    else:
        done = replay_on_gpus(opened, kernel, find_devices(gpus, oversubscribe), **options)
    if done.stand_in:
        note(f"note: {done.stand_in}", quiet)
    for name, value in done.summary().items():
        click.echo(f"{name:8} {value:.1f}" if isinstance(value, float) else f"{name:8} {value}")
    if check:
        click.echo(
            f"{kernel} agrees with the simulator in every step: slots, order, page table, misses, "
            "victims, plan and bytes."
        )
    if output is None:
        return
    if output.suffix == ".parquet":
        with atomic_path(output) as path:
            done.steps.to_parquet(path, index=False)
    else:
        parameters = {**done.parameters, "checked": check, "stand_in": done.stand_in}
        rows = [{str(k): v for k, v in row.items()} for row in done.steps.to_dict("records")]
        write_result(output, describe_machine(), parameters, rows, summary=done.summary())
    wrote(output, quiet)


@gpu.command()
@_several("--batch", default="1,8,32,64", help="Requests per batch.")
@_several("--misses", default="0,64,256,512,1024", help="Misses per request.", least=0)
@_several("--buffer", default="2048,4096,6144", help="Hot buffer sizes in slots.")
@_several(
    *("--kv-entry-bytes", "entry_bytes"),
    default="1152,656",
    help="Bytes per KV entry.",
    former=["--item-bytes"],
)
@click.option("--kernel", "kernels", type=KERNEL, multiple=True, help="[default: all installed]")
@click.option("--vllm-source", "vllm", type=RESULT, help="Also time vLLM's hisparse_kernels.cu.")
@_number("--repeats", 30, "Timed rounds per point.")
@click.option(
    "--gpus",
    multiple=True,
    callback=several(int, least=1),
    help="Numbers of GPUs that work at once, one process per GPU, such as 1,2,4.",
)
@click.option("--share-host-pool", is_flag=True, help="With --gpus: all GPUs share one host pool.")
@click.option(
    "--pin-numa", is_flag=True, help="With --gpus: pin each process to the NUMA node of its GPU."
)
@OVERSUBSCRIBE
@output_option(Output(".json", ""), "Write all samples here.")
@quiet_option
def bench(
    batch: tuple[int, ...],
    misses: tuple[int, ...],
    buffer: tuple[int, ...],
    entry_bytes: tuple[int, ...],
    kernels: tuple[str, ...],
    vllm: Path | None,
    repeats: int,
    gpus: tuple[int, ...],
    share_host_pool: bool,
    pin_numa: bool,
    oversubscribe: bool,
    output: Path | None,
    quiet: bool,
) -> None:
    """Time the swap-in kernels on a grid of points.

    The kernels, their planning alone, and the copy alone. With --gpus: one large copy and the
    kernels, on one or more GPUs at once.

    Example: hisparse-sim gpu bench --batch 1,8 --misses 256,1024 --buffer 4096
    """
    from hisparse_sim.gpu_replay.bench.grid import CONTENDERS, run_grid
    from hisparse_sim.gpu_replay.bench.lines import heading, point_line
    from hisparse_sim.gpu_replay.bench.results import write_result
    from hisparse_sim.gpu_replay.harness.machine import describe_machine

    grid = (batch, misses, buffer, entry_bytes)
    if gpus:
        if vllm is not None:
            raise click.UsageError("--vllm-source times one GPU: leave --gpus out")
        from hisparse_sim.gpu_replay.bench.together import Grid
        from hisparse_sim.gpu_replay.kernels import installed_kernels

        chosen = Grid(*grid, gpus, kernels or installed_kernels(), pin_numa, repeats)
        _bench_together(chosen, share_host_pool, oversubscribe, output, quiet)
        return
    if share_host_pool or pin_numa or oversubscribe:
        raise click.UsageError("--share-host-pool, --pin-numa and --oversubscribe go with --gpus")
    contenders = {
        name: contender
        for name, contender in CONTENDERS.items()
        if not kernels or contender[0] in kernels
    }
    machine: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for row in run_grid(*grid, contenders=contenders, repeats=repeats, vllm=vllm):
        if not rows:
            click.echo(heading(row))
            machine = describe_machine()
        click.echo(point_line(row))
        rows.append(row)
        if output is not None:  # after every row: a run that is cut short keeps what it has
            write_result(output, machine, {"repeats": repeats, "unit": "us"}, rows)
    wrote(output, quiet)


def _bench_together(
    grid: "Grid", share: bool, oversubscribe: bool, output: Path | None, quiet: bool
) -> None:
    """Measure on several GPUs; the result file is rewritten after every row."""
    from hisparse_sim.gpu_replay.bench.lines import together_line
    from hisparse_sim.gpu_replay.bench.results import write_result
    from hisparse_sim.gpu_replay.bench.together import measure_together
    from hisparse_sim.gpu_replay.harness.several import find_devices

    devices = find_devices(max(grid.counts), oversubscribe)
    measured = measure_together(grid, devices, share)
    described = next(measured)
    parameters = {
        "host_pool": "shared" if share else "private", "pin_numa": grid.pin_numa,
        "repeats": grid.repeats, "unit": "us", "top_k": grid.top_k, "devices": devices,
    }  # fmt: skip
    if grid.pin_numa and all(gpu["numa_node"] is None for gpu in described["gpus"]):
        note("note: this machine names no NUMA node for its GPUs; none was pinned", quiet)
    rows: list[dict[str, Any]] = []
    for row in measured:
        click.echo(together_line(row))
        rows.append(row)
        if output is not None:
            write_result(output, described["machine"], parameters, rows, gpus=described["gpus"])
    wrote(output, quiet)


@gpu.command()
@click.option("--name", default="here", show_default=True, help="Name of the profile.")
@click.option(
    "--from",
    "source",
    type=RESULT,
    help="Fit this result of `gpu bench` instead of measuring.",
)
@output_option(Output(".toml", ""), "The profile to write.", required=True)
@quiet_option
def calibrate(name: str, source: Path | None, output: Path, quiet: bool) -> None:
    """Measure this machine's host link and write its profile, for --profiles.

    Example: hisparse-sim gpu calibrate --name my-server -o links.toml
    """
    from hisparse_sim.gpu_replay.bench.calibrate import (
        calibrate_from,
        calibrate_here,
        write_profile,
    )

    if source is None:
        link, errors = calibrate_here(name)
    else:
        link, errors = calibrate_from(source, name)
    write_profile(link, output)
    for kernel, (median, high) in errors.items():
        click.echo(f"{kernel:7} median error {median:.1%}, 95th percentile {high:.1%}")
    wrote(output, quiet)
