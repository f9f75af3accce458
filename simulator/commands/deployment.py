"""The commands plan, serve and reproduce: parse, call one library function, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hisparse_sim.simulator.commands.answers import asked, one_trace, say, write, write_document
from hisparse_sim.simulator.commands.setting_options import (
    POSITIVE,
    deployment_options,
    engine_option,
    policy_option,
    trace_options,
)
from hisparse_sim.simulator.views import FIGURE_SUFFIXES
from hisparse_sim.traces.commands.options import announcer, output_form, output_options
from hisparse_sim.traces.commands.values import (
    Number,
    Output,
    Real,
    RenamedChoice,
    refuse_without,
    several,
)
from hisparse_sim.traces.terminal import wrote

FORMER_MODES = {"oracle": "zero-cost"}


@click.command()
@deployment_options
@click.option(
    "--concurrency",
    type=Number(1),
    default=256,
    show_default=True,
    help="Requests at a time, over all ranks.",
)
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
    type=RenamedChoice(["hisparse", "prefetch", "overlap", "zero-cost"], FORMER_MODES),
    default="hisparse",
    show_default=True,
    help="How copies are waited for.",
)
@policy_option
@click.option("--max-tpot-ms", type=POSITIVE, help="Latency target.")
@click.option("--max-miss-rate", type=Real(0, 1), help="Miss target, 0 to 1.")
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
    from hisparse_sim.simulator.serving import asking
    from hisparse_sim.simulator.serving.config_check import as_rows
    from hisparse_sim.simulator.views.plan_view import show_findings, show_plan
    from hisparse_sim.simulator.views.tables import write_rows

    form = output_form(form, output)
    refuse_without(
        *("a plan, not to --config", config is None),
        *("--buffer", "--ratio", "--max-tpot-ms", "--max-miss-rate", "--candidates"),
    )
    scenario = asked(options)
    if config is not None:
        findings = asking.check_config(config, concurrency=concurrency, **scenario)
        if form == "table":
            show_findings(findings, output)
        else:
            write_rows(as_rows(findings), form, output)
        wrote(output, options["quiet"])
        if any(finding.severity == "error" for finding in findings):
            sys.exit(1)
        return
    found = asking.plan(
        concurrency=concurrency,
        buffers=buffers,
        ratios=ratios,
        mode=mode,
        policy=policy,
        max_tpot_ms=max_tpot_ms,
        max_miss_rate=max_miss_rate,
        **scenario,
    )
    say(found.notes, options["quiet"])
    given = {
        "buffer": buffers,
        "ratio": ratios,
        "mode": mode,
        "policy": policy,
        "concurrency": concurrency,
        "max_tpot_ms": max_tpot_ms,
        "max_miss_rate": max_miss_rate,
        "candidates": candidates,
    }
    if form == "table":
        show_plan(found, found.rows(candidates), found.setting, found.aim, output)
    elif form == "json":
        write_document(found.document(candidates), found.origin, options | given, output)
    else:
        write(found.table(candidates), found.origin, options | given, form, output)
    wrote(output, options["quiet"])
    if found.best is None:
        sys.exit(1)


@click.command()
@deployment_options
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=RenamedChoice(["baseline", "hisparse", "prefetch", "overlap", "zero-cost"], FORMER_MODES),
    help="May be repeated.  [default: baseline, hisparse, zero-cost]",
)
@click.option(
    "--buffer", type=Number(1), default=4096, show_default=True, help="device_buffer_size."
)
@click.option("--ratio", type=Number(1), default=4, show_default=True, help="host_to_device_ratio.")
@policy_option
@click.option(
    "--concurrency",
    "concurrencies",
    multiple=True,
    callback=several(int),
    help="Closed loop; several values make a curve.  [default: 256]",
)
@click.option("--rate", type=POSITIVE, help="Open loop: requests a second.")
@click.option("--requests", type=Number(1), help="[default: four times the concurrency, or 1000]")
@click.option(
    "--range-ratio",
    type=Real(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Lengths are uniform in [this x length, length].",
)
@click.option("--seed", type=Number(0, 2**63 - 1), default=0, show_default=True)
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

    `plan` finds the buffer and ratio to give. Modes: baseline has the whole KV on the GPU; hisparse
    swaps in before every attention, as the engine does; prefetch and overlap hide copies; zero-cost
    is the bound in which copies take no time.

    \b
    hisparse-sim serve --concurrency 8,16,32,64,128,256
    hisparse-sim serve --mode hisparse --rate 0.2 --requests 500
    """
    from hisparse_sim.simulator.serving import asking
    from hisparse_sim.simulator.views.plan_view import load_line, show_served

    if rate is not None and concurrencies:
        raise click.UsageError("give --concurrency (closed loop) or --rate (open loop), not both")
    form = output_form(form, output)
    served = asking.serve(
        modes=modes,
        buffer=buffer,
        ratio=ratio,
        policy=policy,
        concurrencies=concurrencies,
        rate=rate,
        requests=requests,
        range_ratio=range_ratio,
        seed=seed,
        **asked(options),
    )
    say(served.notes, options["quiet"])
    if form == "table":
        load = load_line(served.setting, options["prompt"], options["output_len"])
        show_served(
            served.rows, f"{load}; B {buffer:,}, ratio {ratio}, {policy}\n", served.setting, output
        )
    else:
        chosen = {
            "buffer": buffer,
            "ratio": ratio,
            "policy": policy,
            "range_ratio": range_ratio,
            "requests": requests,
        }
        write(served.rows, served.origin, options | chosen, form, output, seed)
    wrote(output, options["quiet"])


@click.command()
@trace_options("sample")
@policy_option
@engine_option("")
@click.option("--plot", type=Output(*FIGURE_SUFFIXES), help="Curves beside published points.")
@output_options
def reproduce(
    traces: tuple[str, ...],
    provenance: str | None,
    quiet: bool,
    policy: str,
    engine: str,
    plot: Path | None,
    form: str | None,
    output: Path | None,
) -> None:
    """Redo published figures: published, ours, error, how, and what is unexplained.

    \b
    hisparse-sim reproduce
    hisparse-sim reproduce -o reproduced.csv --plot rates.svg
    """
    from hisparse_sim.simulator.serving import asking
    from hisparse_sim.simulator.serving.missing import Origin
    from hisparse_sim.simulator.serving.reproduce import published_rates, throughput_curves
    from hisparse_sim.simulator.views import figures
    from hisparse_sim.simulator.views.plan_view import show_reproduced

    form = output_form(form, output)
    trace = one_trace(traces, provenance)
    rows = asking.reproduce(trace, policy=policy, engine=engine or None, progress=announcer(quiet))
    if form == "table":
        show_reproduced(rows, output)
    else:
        write(rows, Origin.of(trace), {"policy": policy, "engine": engine or None}, form, output)
    wrote(output, quiet)
    if plot:
        rates = throughput_curves(trace, policy)
        figures.save(figures.throughput_beside_published(rates, published_rates()), plot)
        wrote(plot, quiet)
