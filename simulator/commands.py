"""The commands plan, serve and reproduce: parse, call one library function, print."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.traces.options import (
    combined,
    note,
    open_traces,
    output_form,
    output_options,
    provenance_option,
    several,
)

if TYPE_CHECKING:
    import pandas as pd

    from hisparse_sim.simulator.missing import LayerMisses, MissesOf
    from hisparse_sim.simulator.prediction import Setting
    from hisparse_sim.traces import Trace

_POSITIVE = click.FloatRange(0, min_open=True)
trace_options = combined(
    click.option("--trace", "traces", multiple=True, help="Trace to replay.  [default: sample]"),
    provenance_option,
    click.option("--quiet", is_flag=True, help="No progress and no notes on stderr."),
)
deployment_options = combined(
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
        help="KV cache entries: 1152, 656 or 576 bytes per token and layer.",
    ),
    click.option(
        "--mem-fraction-static",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        default=0.85,
        show_default=True,
        help="Share of the GPU for weights and KV.",
    ),
    click.option(
        "--device-pool-gib", type=_POSITIVE, help="GPU memory for KV.  [default: what is left]"
    ),
    click.option("--host-gib", type=_POSITIVE, help="Host memory a GPU.  [default: the machine's]"),
    click.option(
        "--keys-budgeted",
        type=click.Choice(["all", "once"]),
        default="all",
        show_default=True,
        help="Indexer keys in the pool's size; once: engines before SGLang's pull request 31992.",
    ),
    click.option(
        "--disaggregated", is_flag=True, help="Prefill runs on another instance like this."
    ),
    click.option(
        "--max-running-requests",
        type=click.IntRange(1),
        default=480,
        show_default=True,
        help="Over all ranks.",
    ),
    click.option(
        "--chunked-prefill-size",
        type=click.IntRange(64),
        default=65_536,
        show_default=True,
        help="Over all ranks.",
    ),
    click.option(
        "--kernel",
        type=click.Choice(["sglang", "native"]),
        default="sglang",
        show_default=True,
        help="Swap-in kernel: the engine's or ours.",
    ),
    click.option("--profiles", type=click.Path(), help="TOML file with your own profiles."),
    click.option(
        "--step-times",
        metavar="FILE|aiconfigurator",
        help="Compute times.  [default: the shipped table]",
    ),
    click.option(
        "--prompt", type=click.IntRange(1), default=32_768, show_default=True, help="Tokens."
    ),
    click.option(
        "--output-len", type=click.IntRange(1), default=8192, show_default=True, help="Tokens."
    ),
    trace_options,
    click.option(
        "--miss-curve",
        type=click.Path(),
        help="Rows of a sweep (buffer, miss_rate) for this load, instead of a replay.",
    ),
)


def one_trace(traces: tuple[str, ...], provenance: str | None) -> Trace:
    """The one trace named, or the bundled sample."""
    opened = open_traces(traces, provenance)
    if len(opened) > 1:
        raise click.UsageError("give one --trace: predictions take the misses of a single file")
    return opened[0]


def prepare(options: dict[str, Any], mode: str, policy: str) -> tuple[Setting, MissesOf, Trace]:
    """The setting that the options describe (default B and ratio), and its source of misses."""
    from hisparse_sim.simulator.deployment import Deployment
    from hisparse_sim.simulator.hardware import load_hardware
    from hisparse_sim.simulator.missing import layer_misses, read_miss_curve
    from hisparse_sim.simulator.models import load_model
    from hisparse_sim.simulator.prediction import Setting, steps_for
    from hisparse_sim.simulator.steptimes import LAYOUTS

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
        keys_budgeted=options["keys_budgeted"],
    )
    deployment.check_weights()
    if options["step_times"] == "aiconfigurator":
        note("asking AIConfigurator for a table; this takes some minutes", options["quiet"])
    steps = steps_for(
        model, hardware, options["layout"], options["kv_dtype"], options["step_times"]
    )
    trace = one_trace(options["traces"], options["provenance"])
    curve = options["miss_curve"]
    if curve is None and trace.metadata.model != model.name:
        note(
            f"note: misses from {trace.name} ({trace.metadata.model},"
            f" {trace.metadata.provenance}), not from {model.name}",
            options["quiet"],
        )
    start = "direct" if options["disaggregated"] else "staged"

    @cache
    def misses_of(policy: str, size: int) -> LayerMisses:
        return layer_misses(trace, policy, size, start)

    given: MissesOf = misses_of
    if curve is not None:
        context = options["prompt"] + options["output_len"] / 2
        given = read_miss_curve(curve, policy, context, model.top_k)
    setting = Setting(
        deployment,
        steps,
        mode,
        disaggregated=options["disaggregated"],
        max_running_requests=options["max_running_requests"],
        chunked_prefill_size=options["chunked_prefill_size"],
        kernel=options["kernel"],
        profiles=options["profiles"],
    )
    return setting, given, trace


def write(
    rows: pd.DataFrame,
    trace: Trace,
    options: dict[str, Any],
    form: str,
    output: Path | None,
    seed: int = 0,
) -> None:
    """Write rows with what is needed to compute them again."""
    from hisparse_sim.simulator.tables import stamped, write_rows

    left_out = ("traces", "provenance", "quiet")
    given = {name: value for name, value in options.items() if name not in left_out}
    write_rows(stamped(rows.assign(trace=trace.name), [trace], seed, given), form, output)


@click.command()
@deployment_options
@click.option("--concurrency", type=click.IntRange(1), default=256, show_default=True)
@click.option(
    "--buffer",
    "buffers",
    multiple=True,
    callback=several(int),
    help="Candidates.  [default: 5 sizes]",
)
@click.option(
    "--ratio",
    "ratios",
    multiple=True,
    callback=several(int),
    help="Candidates.  [default: 1 to 20]",
)
@click.option(
    "--mode",
    type=click.Choice(["hisparse", "prefetch", "overlap", "oracle"]),
    default="hisparse",
    show_default=True,
    help="How copies are waited for.",
)
@click.option("--policy", default="lru", show_default=True, help="The engine's own is lru.")
@click.option("--max-tpot-ms", type=_POSITIVE, help="Latency target.")
@click.option("--max-miss-rate", type=click.FloatRange(0, 1), help="Miss target, 0 to 1.")
@click.option("--config", metavar="JSON", help="Check this --hisparse-config instead.")
@click.option("--candidates", is_flag=True, help="Show every candidate, not the Pareto front.")
@output_options
def plan(
    concurrency: int,
    buffers: tuple[int, ...] | None,
    ratios: tuple[int, ...] | None,
    mode: str,
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

    form = output_form(form, output)
    setting, misses_of, trace = prepare(options, mode, policy)
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
    rows = found.candidates if candidates else found.pareto
    if form != "table":
        write(
            rows,
            trace,
            options | {"mode": mode, "policy": policy, "concurrency": concurrency},
            form,
            output,
        )
        return
    grace = load_hardware("gh200", options["profiles"])
    others = () if options["miss_curve"] else ("fifo", "lru", "arc", "belady")
    after = extras(found, setting, aim, misses_of, (policy, *others), grace)
    show_plan(found, rows, after, output)
    if found.best is None:
        sys.exit(1)


@click.command()
@deployment_options
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
    callback=several(int),
    help="Closed loop; several values make a curve.  [default: 256]",
)
@click.option("--rate", type=_POSITIVE, help="Open loop: requests a second.")
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
@output_options
def serve(
    modes: tuple[str, ...],
    buffer: int,
    ratio: int,
    policy: str,
    concurrencies: tuple[int, ...] | None,
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
    form = output_form(form, output)
    setting, misses_of, trace = prepare(options, "baseline", policy)
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
    if form == "table":
        show_served(rows, output)
    else:
        chosen = {"buffer": buffer, "ratio": ratio, "policy": policy, "range_ratio": range_ratio}
        write(rows, trace, options | chosen, form, output, seed)


@click.command()
@trace_options
@click.option("--policy", default="lru", show_default=True, help="The engine's own is lru.")
@click.option("--plot", type=click.Path(path_type=Path), help="Curves beside published points.")
@output_options
def reproduce(
    traces: tuple[str, ...],
    provenance: str | None,
    quiet: bool,
    policy: str,
    plot: Path | None,
    form: str | None,
    output: Path | None,
) -> None:
    """Redo published figures: published, ours, error, how, and what stays open.

    \b
    hisparse-sim reproduce
    hisparse-sim reproduce -o reproduced.csv --plot rates.svg
    """
    from hisparse_sim.simulator.figures import check_suffix
    from hisparse_sim.simulator.plan_view import show_reproduced
    from hisparse_sim.simulator.reproduce import plot_throughput, table
    from hisparse_sim.simulator.reproduce import reproduce as redo

    form = output_form(form, output)
    if plot:
        check_suffix(plot)
    trace = one_trace(traces, provenance)
    rows = table(list(redo(trace, policy, lambda what: note(f"  {what}", quiet))))
    if form == "table":
        show_reproduced(rows, output)
    else:
        write(rows, trace, {"policy": policy}, form, output)
    if plot:
        plot_throughput(trace, policy, plot)
        note(f"wrote {plot}", quiet)
