"""The commands plan, serve and reproduce: parse, call one library function, print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    import pandas as pd

    from hisparse_sim.simulator.missing import LayerMisses
    from hisparse_sim.simulator.prediction import Setting

Command = TypeVar("Command", bound=Callable[..., Any])


def _numbers(
    ctx: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> tuple[int, ...]:
    values = []
    for text in ",".join(given).split(",") if given else []:
        try:
            values.append(int(text))
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a whole number") from None
    return tuple(dict.fromkeys(values))


def _deployment_options(command: Command) -> Command:
    positive = click.FloatRange(0, min_open=True)
    options = (
        click.option("--model", default="glm-5.1", show_default=True, help="Model profile."),
        click.option("--hardware", default="h200", show_default=True, help="Machine profile."),
        click.option(
            "--layout",
            type=click.Choice(["dp8-tp8", "dp8-ep8", "tp8"]),
            default="dp8-tp8",
            show_default=True,
            help="Attention over 8 ranks with experts split (tp) or spread (ep), or all split.",
        ),
        click.option(
            "--kv-dtype",
            type=click.Choice(["bf16", "fp8", "fp8-raw"]),
            default="bf16",
            show_default=True,
        ),
        click.option("--mem-fraction-static", type=positive, default=0.85, show_default=True),
        click.option(
            "--device-pool-gib", type=positive, help="GPU memory for KV.  [default: what is left]"
        ),
        click.option(
            "--host-gib", type=positive, help="Host memory a GPU.  [default: the machine's]"
        ),
        click.option(
            "--disaggregated", is_flag=True, help="Prefill runs on another instance like this."
        ),
        click.option(
            "--max-running-requests", type=click.IntRange(1), default=480, show_default=True
        ),
        click.option(
            "--chunked-prefill-size", type=click.IntRange(64), default=65_536, show_default=True
        ),
        click.option("--profiles", type=click.Path(), help="TOML file with your own profiles."),
        click.option(
            "--step-times",
            metavar="FILE|aiconfigurator",
            help="Compute times.  [default: the shipped table]",
        ),
        click.option("--trace", type=click.Path(), help="Trace to replay.  [default: sample]"),
        click.option("--provenance", help="Of a trace that does not say."),
        click.option("--prompt", type=click.IntRange(1), default=32_768, show_default=True),
        click.option("--output-len", type=click.IntRange(1), default=8192, show_default=True),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _output_options(command: Command) -> Command:
    form = click.option(
        "--format",
        "form",
        type=click.Choice(["table", "csv", "json", "jsonl", "parquet"]),
        help="[default: the suffix of -o, else table]",
    )
    output = click.option(
        "-o", "--output", type=click.Path(path_type=Path), help="Write to this file."
    )
    return form(output(command))


def _form(form: str | None, output: Path | None) -> str:
    suffix = output.suffix.lstrip(".") if output else ""
    return form or (suffix if suffix in ("csv", "json", "jsonl", "parquet") else "table")


def _setting(options: dict[str, Any], mode: str) -> tuple[Setting, Callable[..., LayerMisses]]:
    """The setting that the options describe (default B and ratio), and its source of misses."""
    from hisparse_sim.simulator.deployment import Deployment
    from hisparse_sim.simulator.hardware import load_hardware
    from hisparse_sim.simulator.missing import layer_misses
    from hisparse_sim.simulator.models import load_model
    from hisparse_sim.simulator.prediction import Setting, steps_for
    from hisparse_sim.simulator.steptimes import LAYOUTS
    from hisparse_sim.traces import open_trace, sample_path

    model = load_model(options["model"], options["profiles"])
    hardware = load_hardware(options["hardware"], options["profiles"])
    gib = 1 << 30
    pool, host = options["device_pool_gib"], options["host_gib"]
    deployment = Deployment(
        model,
        hardware,
        LAYOUTS[options["layout"]],
        options["kv_dtype"],
        options["mem_fraction_static"],
        round(pool * gib) if pool else None,
        round(host * gib) if host else None,
    )
    deployment.check_weights()
    steps = steps_for(
        model, hardware, options["layout"], options["kv_dtype"], options["step_times"]
    )
    trace = open_trace(options["trace"] or sample_path(), options["provenance"])
    if trace.metadata.model != model.name:
        click.echo(
            f"note: misses from {trace.name} ({trace.metadata.model},"
            f" {trace.metadata.provenance}), not from {model.name}",
            err=True,
        )
    start = "direct" if options["disaggregated"] else "staged"

    @cache
    def misses_of(policy: str, size: int) -> LayerMisses:
        return layer_misses(trace, policy, size, start)

    setting = Setting(
        deployment,
        steps,
        mode,
        disaggregated=options["disaggregated"],
        max_running_requests=options["max_running_requests"],
        chunked_prefill_size=options["chunked_prefill_size"],
    )
    return setting, misses_of


def _write(rows: pd.DataFrame, form: str, output: Path | None) -> None:
    from hisparse_sim.simulator.tables import write_rows

    write_rows(rows, form, output)
    if output:
        click.echo(f"wrote {output}", err=True)


@click.command()
@_deployment_options
@click.option("--concurrency", type=click.IntRange(1), default=256, show_default=True)
@click.option(
    "--buffer", "buffers", multiple=True, callback=_numbers, help="Candidates.  [default: 5 sizes]"
)
@click.option(
    "--ratio", "ratios", multiple=True, callback=_numbers, help="Candidates.  [default: 1 to 20]"
)
@click.option("--policy", default="lru", show_default=True, help="The engine's own is lru.")
@click.option("--max-tpot-ms", type=click.FloatRange(0, min_open=True), help="Latency target.")
@click.option("--max-miss-rate", type=click.FloatRange(0, 1), help="Miss target, 0 to 1.")
@click.option("--config", metavar="JSON", help="Check this --hisparse-config instead.")
@click.option("--candidates", is_flag=True, help="Show every candidate, not the Pareto front.")
@_output_options
def plan(
    concurrency: int,
    buffers: tuple[int, ...],
    ratios: tuple[int, ...],
    policy: str,
    max_tpot_ms: float | None,
    max_miss_rate: float | None,
    config: str | None,
    candidates: bool,
    form: str | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Choose device_buffer_size and host_to_device_ratio, or check a configuration.

    \b
    hisparse-sim plan --prompt 32768 --output-len 8192 --concurrency 256
    hisparse-sim plan --hardware h20 --disaggregated --max-tpot-ms 50
    hisparse-sim plan --config '{"top_k": 2048, "device_buffer_size": 4096}'
    """
    from hisparse_sim.simulator.hardware import load_hardware
    from hisparse_sim.simulator.plan import (
        DEFAULT_BUFFERS,
        DEFAULT_RATIOS,
        Aim,
        check_config,
        make_plan,
    )
    from hisparse_sim.simulator.plan_view import extras, show_findings, show_plan

    setting, misses_of = _setting(options, "hisparse")
    aim = Aim(options["prompt"], options["output_len"], concurrency, max_tpot_ms, max_miss_rate)
    if config is not None:
        findings = check_config(config, setting, aim)
        show_findings(findings)
        if any(finding.severity == "error" for finding in findings):
            sys.exit(1)
        return
    found = make_plan(
        setting, aim, misses_of, policy, buffers or DEFAULT_BUFFERS, ratios or DEFAULT_RATIOS
    )
    form = _form(form, output)
    if form != "table":
        _write(found.candidates if candidates else found.pareto, form, output)
        return
    grace = load_hardware("gh200", options["profiles"])
    after = extras(found, setting, aim, misses_of, policy, grace)
    show_plan(found, found.candidates if candidates else found.pareto, after, output)
    if found.best is None:
        sys.exit(1)


@click.command()
@_deployment_options
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(["baseline", "hisparse", "prefetch", "overlap", "oracle"]),
    help="May be repeated.  [default: baseline, hisparse, oracle]",
)
@click.option("--buffer", type=int, default=4096, show_default=True, help="device_buffer_size.")
@click.option("--ratio", type=int, default=8, show_default=True, help="host_to_device_ratio.")
@click.option("--policy", default="lru", show_default=True)
@click.option(
    "--concurrency",
    "concurrencies",
    multiple=True,
    callback=_numbers,
    help="Closed loop; several values make a curve.  [default: 256]",
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Open loop: requests a second."
)
@click.option(
    "--requests", type=click.IntRange(1), help="[default: four times the concurrency, or 1000]"
)
@click.option(
    "--range-ratio",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Lengths are uniform in [this x length, length].",
)
@click.option("--seed", default=0, show_default=True)
@_output_options
def serve(
    modes: tuple[str, ...],
    buffer: int,
    ratio: int,
    policy: str,
    concurrencies: tuple[int, ...],
    rate: float | None,
    requests: int | None,
    range_ratio: float,
    seed: int,
    form: str | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Simulate serving over time: throughput, latency, and where the time goes.

    \b
    hisparse-sim serve --concurrency 8,16,32,64,128,256
    hisparse-sim serve --mode hisparse --rate 0.2 --requests 500
    """
    from hisparse_sim.simulator.plan_view import show_served
    from hisparse_sim.simulator.prediction import serve_all

    if rate is not None and concurrencies:
        raise click.UsageError("give --concurrency (closed loop) or --rate (open loop), not both")
    setting, misses_of = _setting(options, "baseline")
    rows = serve_all(
        setting,
        misses_of,
        modes or ("baseline", "hisparse", "oracle"),
        buffer,
        ratio,
        policy,
        options["prompt"],
        options["output_len"],
        concurrencies=concurrencies or ((256,) if rate is None else ()),
        rate_per_s=rate,
        requests=requests,
        range_ratio=range_ratio,
        seed=seed,
    )
    form = _form(form, output)
    if form == "table":
        show_served(rows, output)
    else:
        _write(rows, form, output)


@click.command()
@click.option("--trace", type=click.Path(), help="Trace to replay.  [default: sample]")
@click.option("--provenance", help="Of a trace that does not say.")
@click.option("--policy", default="lru", show_default=True)
@click.option("--plot", type=click.Path(path_type=Path), help="Curves beside published points.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@_output_options
def reproduce(
    trace: str | None,
    provenance: str | None,
    policy: str,
    plot: Path | None,
    quiet: bool,
    form: str | None,
    output: Path | None,
) -> None:
    """Redo published figures: published, ours, error, how, and what stays open."""
    from hisparse_sim.simulator.plan_view import show_reproduced
    from hisparse_sim.simulator.reproduce import plot_throughput, table
    from hisparse_sim.simulator.reproduce import reproduce as redo
    from hisparse_sim.traces import open_trace, sample_path

    opened = open_trace(trace or sample_path(), provenance)
    progress = None if quiet else lambda what: click.echo(f"  {what}", err=True)
    rows = table(list(redo(opened, policy, progress)))
    form = _form(form, output)
    if form == "table":
        show_reproduced(rows, output)
    else:
        _write(rows, form, output)
    if plot:
        plot_throughput(opened, policy, plot)
        click.echo(f"wrote {plot}", err=True)
