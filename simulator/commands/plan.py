"""The command plan: parse, call one library function, print."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hisparse_sim.simulator.commands.answers import (
    asked,
    call_of,
    check_load,
    optioned,
    policy_of,
    say,
    scenario_of,
    write,
    write_document,
)
from hisparse_sim.simulator.commands.load_options import load_options, mode_choice, target_options
from hisparse_sim.simulator.commands.serve import serve
from hisparse_sim.simulator.commands.setting_options import deployment_options, policy_option
from hisparse_sim.traces.commands.options import counter, output_form, output_options
from hisparse_sim.traces.commands.values import Number, refuse_without, several
from hisparse_sim.traces.terminal import wrote


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
@click.option(
    "--resident-tokens",
    "resident_tokens",
    multiple=True,
    callback=several(int),
    help="Newest tokens of a request that stay on the GPU beside its buffer, numbers to try;"
    " no release of SGLang keeps any.  [default: 0]",
)
@click.option("--any-layout", is_flag=True, help="Try every layout, not only --layout.")
@click.option(
    "--mode",
    type=mode_choice(),
    help="How swap-in and compute overlap; see `serve`.  [default: the engine's with this model]",
)
@policy_option
@click.option("--config", metavar="JSON", help="Check this --hisparse-config instead.")
@click.option("--candidates", is_flag=True, help="Serve and show every candidate.")
@output_options
def plan(
    buffers: tuple[int, ...] | None,
    ratios: tuple[int, ...] | None,
    resident_tokens: tuple[int, ...] | None,
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
    from hisparse_sim.simulator.serving import api
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
        *("--buffer", "--ratio", "--resident-tokens", "--any-layout", "--candidates"),
        *("--max-tpot-ms", "--max-ttft-s", "--percentile", "--max-miss-rate", "--gpu-hour"),
        *("--rate", "--requests", "--range-ratio", "--seed"),
    )
    if config is not None:
        findings = api.check_config(
            config,
            concurrency=options["concurrency"] or api.DEFAULT_CONCURRENCY,
            **scenario_of(options),
        )
        findings = [
            replace(one, text=text)
            for one, text in zip(findings, optioned(one.text for one in findings), strict=True)
        ]
        if form == "table":
            show_findings(findings, output)
        else:
            write_rows(as_rows(findings), form, output)
        wrote(output, quiet)
        if any(finding.severity == "error" for finding in findings):
            sys.exit(1)
        return
    with compiling(quiet):
        found = api.plan(
            buffers=buffers,
            ratios=ratios,
            resident_tokens=resident_tokens,
            candidates=candidates,
            progress=counter("candidates served", quiet),
            **asked(options),
        )
    if form != "table":
        say(found.notes, quiet)
    searched: dict[str, Any] = {"buffer": buffers, "ratio": ratios, "candidates": candidates}
    searched["policy"] = policy_of(found.setting, options)
    if resident_tokens is not None:
        searched["resident_tokens"] = resident_tokens
    again = "" if found.best is None else call_of(serve, _chosen(found.best, found.setting.mode))
    if form == "table":
        rows = found.rows(candidates)
        show_plan(found, rows, found.setting, found.aim, again, optioned(found.notes), output)
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
        "--resident-tokens": best["resident_tokens"] or (),  # in place of all that were tried
    }
    if best["prefill_instances"]:
        chosen["--prefill-instances"] = best["prefill_instances"]
        chosen["--decode-instances"] = best["decode_instances"]
    return chosen
