"""The commands plan, serve and reproduce: parse, call one library function, print."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hisparse_sim.simulator.commands.answers import (
    asked,
    call_of,
    check_load,
    one_trace,
    say,
    scenario_of,
    write,
    write_document,
)
from hisparse_sim.simulator.commands.load_options import load_options, target_options
from hisparse_sim.simulator.commands.setting_options import (
    deployment_options,
    engine_option,
    policy_option,
    trace_options,
)
from hisparse_sim.simulator.views import FIGURE_SUFFIXES
from hisparse_sim.traces.commands.options import announcer, counter, output_form, output_options
from hisparse_sim.traces.commands.values import (
    Number,
    Output,
    RenamedChoice,
    RenamedChoices,
    refuse_without,
    several,
)
from hisparse_sim.traces.terminal import wrote

FORMER_MODES = {"oracle": "zero-cost"}
_MODES = RenamedChoices(
    RenamedChoice(["baseline", "hisparse", "prefetch", "overlap", "zero-cost"], FORMER_MODES)
)


@click.command()
@deployment_options
@click.option(
    "--concurrency",
    type=Number(1),
    help="Concurrent requests over all instances.  [default: 256]",
)
@load_options
@target_options
@click.option(
    "--buffer",
    "buffers",
    multiple=True,
    callback=several(int),
    help="Buffer sizes to try.  [default: five sizes]",
)
@click.option(
    "--ratio",
    "ratios",
    multiple=True,
    callback=several(int),
    help="Ratios to try.  [default: 1 to 20]",
)
@click.option("--any-layout", is_flag=True, help="Try every layout, not only --layout.")
@click.option(
    "--mode",
    type=RenamedChoice(["hisparse", "prefetch", "overlap", "zero-cost"], FORMER_MODES),
    default="hisparse",
    show_default=True,
    help="How swap-in and compute overlap; see `serve`.",
)
@policy_option
@click.option("--config", metavar="JSON", help="Check this --hisparse-config instead.")
@click.option("--candidates", is_flag=True, help="Serve and show every candidate.")
@output_options
def plan(
    buffers: tuple[int, ...] | None,
    ratios: tuple[int, ...] | None,
    config: str | None,
    candidates: bool,
    form: str | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Choose device_buffer_size and host_to_device_ratio, or check a configuration.

    The table shows the best candidates; their rates and latencies are those of `serve`.

    \b
    hisparse-sim plan --prompt 32768 --output-len 8192 --concurrency 256
    hisparse-sim plan --hardware h20 --disaggregated --max-tpot-ms 50
    hisparse-sim plan --max-tpot-ms 60 --max-ttft-s 30 --percentile 95 --gpu-hour 2.5
    hisparse-sim plan --config '{"top_k": 2048, "device_buffer_size": 4096}'
    """
    from hisparse_sim.simulator.serving import asking
    from hisparse_sim.simulator.serving.config_check import as_rows
    from hisparse_sim.simulator.views.plan_view import show_findings, show_plan
    from hisparse_sim.simulator.views.progress import compiling
    from hisparse_sim.simulator.views.tables import write_rows

    form = output_form(form, output)
    quiet = options["quiet"]
    check_load(options, options["concurrency"])
    refuse_without(
        *("a plan, not to --config", config is None),
        "--workload",
        *("--buffer", "--ratio", "--any-layout", "--candidates"),
        *("--max-tpot-ms", "--max-ttft-s", "--percentile", "--max-miss-rate", "--gpu-hour"),
        *("--rate", "--requests", "--range-ratio", "--seed"),
    )
    if config is not None:
        findings = asking.check_config(
            config,
            concurrency=options["concurrency"] or asking.DEFAULT_CONCURRENCY,
            **scenario_of(options),
        )
        if form == "table":
            show_findings(findings, output)
        else:
            write_rows(as_rows(findings), form, output)
        wrote(output, quiet)
        if any(finding.severity == "error" for finding in findings):
            sys.exit(1)
        return
    with compiling(quiet):
        found = asking.plan(
            buffers=buffers,
            ratios=ratios,
            candidates=candidates,
            progress=counter("candidates served", quiet),
            **asked(options),
        )
    if form != "table":
        say(found.notes, quiet)
    searched = {"buffer": buffers, "ratio": ratios, "candidates": candidates}
    again = "" if found.best is None else call_of(serve, _chosen(found.best, options["mode"]))
    if form == "table":
        rows = found.rows(candidates)
        show_plan(found, rows, found.setting, found.aim, again, found.notes, output)
    elif form == "json":
        document = found.document(candidates) | {"serve": again}
        write_document(document, found.origin, options | searched, output)
    else:
        write(found.table(candidates), found.origin, options | searched, form, output)
    wrote(output, quiet)
    if found.best is None and found.setting.steps is not None:
        sys.exit(1)


def _chosen(best: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Options of `serve` that run a plan's best, and none for comparison."""
    chosen = {
        "--mode": ("baseline", mode),
        "--buffer": best["buffer"],
        "--ratio": best["ratio"],
        "--layout": best["layout"],
    }
    if best["prefill_instances"]:
        chosen["--prefill-instances"] = best["prefill_instances"]
        chosen["--decode-instances"] = best["decode_instances"]
    return chosen


@click.command()
@deployment_options
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=_MODES,
    metavar=_MODES.metavar,
    callback=_MODES.chosen,
    help="Repeat, or separate by commas.  [default: baseline, hisparse, zero-cost]",
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
    help="Closed loop: concurrent requests over all instances; several values make a curve.  "
    "[default: 256]",
)
@load_options
@target_options
@output_options
def serve(
    modes: tuple[str, ...],
    concurrencies: tuple[int, ...] | None,
    form: str | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Simulate serving over time: throughput, latency, and where the time goes.

    `plan` finds a buffer and a ratio. Modes: baseline keeps the whole KV cache on the GPU; hisparse
    swaps in before every attention, as the engine does; prefetch and overlap hide copies behind
    compute; zero-cost is the bound at which copies take no time.

    \b
    hisparse-sim serve --concurrency 8,16,32,64,128,256
    hisparse-sim serve --mode hisparse --rate 0.2 --requests 500
    hisparse-sim serve --disaggregated --prefill-instances 3 --max-ttft-s 60
    """
    from hisparse_sim.simulator.serving import asking
    from hisparse_sim.simulator.views.plan_view import load_line, show_served
    from hisparse_sim.simulator.views.progress import compiling

    check_load(options, concurrencies)
    form = output_form(form, output)
    show = counter("requests served", options["quiet"])

    def progress(_: str, done: int, of: int) -> None:
        if show:
            show(done, of)

    with compiling(options["quiet"]):
        served = asking.serve(
            modes=modes, concurrencies=concurrencies, progress=progress, **asked(options)
        )
    if form != "table":
        say(served.notes, options["quiet"])
    if form == "table":
        before = (
            f"{load_line(served.setting, served.aim, instances=True)};"
            f" B {options['buffer']:,}, ratio {options['ratio']}, {options['policy']}\n\n"
        )
        show_served(served.rows, before, served.setting, served.aim, served.notes, output)
    else:
        seed = options.pop("seed")
        write(served.rows, served.origin, options, form, output, seed)
    wrote(output, options["quiet"])


@click.command()
@trace_options("synthetic, of each model")
@policy_option
@engine_option(None)
@click.option(
    "--plot",
    type=Output(*FIGURE_SUFFIXES),
    help="Draw the modelled throughput curves and the published points.",
)
@click.option(
    "--scatter",
    type=Output(*FIGURE_SUFFIXES),
    help="Figure of ours over published, all of them.",
)
@output_options
def reproduce(
    traces: tuple[str, ...],
    provenance: str | None,
    quiet: bool,
    policy: str,
    engine: str | None,
    plot: Path | None,
    scatter: Path | None,
    form: str | None,
    output: Path | None,
) -> None:
    """Compare published figures with the model's: error, method, and unexplained difference.

    Figures that shaped a choice in the model are kept apart from those out of sample.

    \b
    hisparse-sim reproduce
    hisparse-sim reproduce -o reproduced.csv --plot rates.svg --scatter errors.svg
    """
    from hisparse_sim.simulator.serving import asking
    from hisparse_sim.simulator.serving.published import published_rates
    from hisparse_sim.simulator.serving.reproduce import origin_of, throughput_curves
    from hisparse_sim.simulator.views import figures
    from hisparse_sim.simulator.views.reproduced_view import show_reproduced

    form = output_form(form, output)
    trace = one_trace(traces, provenance) if traces else None
    rows = asking.reproduce(trace, policy=policy, engine=engine, progress=announcer(quiet))
    if form == "table":
        show_reproduced(rows, output)
    else:
        write(rows, origin_of(trace), {"policy": policy, "engine": engine}, form, output)
    wrote(output, quiet)
    if scatter:
        figures.save(figures.ours_over_published(rows), scatter)
        wrote(scatter, quiet)
    if plot:
        rates = throughput_curves(trace, policy)
        figures.save(figures.throughput_beside_published(rates, published_rates()), plot)
        wrote(plot, quiet)
