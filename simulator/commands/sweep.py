"""The command sweep: parse, call one library function, print."""

from pathlib import Path
from typing import Any

import click

from hisparse_sim.simulator.commands.cost_options import model_option, swap_in_options
from hisparse_sim.simulator.commands.replay_options import (
    MODE,
    at_workers,
    end,
    judge,
    kept_beside,
    long_work,
    mode_options,
    open_traces_or_facts,
    refuse_start,
    replay_options,
    selection,
    traces_argument,
)
from hisparse_sim.simulator.commands.setting_options import machine_options
from hisparse_sim.traces.commands.options import chosen_requests, output_form, output_options
from hisparse_sim.traces.commands.values import Number, Renamed, refuse_without, several
from hisparse_sim.traces.files import refuse_input

COSTS = (  # options that say what costs are of
    "kv_dtype hardware layout mem_fraction_static device_pool_gib max_total_tokens host_gib"
    " host_memory_gib engine output_len"
).split()


@click.command()
@traces_argument
@replay_options(every="lru,fifo,clock,lfu,arc,random,belady, or with drafts the engine's and these")
@click.option("--per-layer", is_flag=True, help="One row per request and layer.")
@click.option(
    "--no-min",
    cls=Renamed,
    former=["--no-regret"],
    is_flag=True,
    help="Leave out the comparison with MIN (Belady).",
)
@click.option(
    "--ratio",
    "--host-to-device-ratio",
    "ratios",
    multiple=True,
    callback=several(int, least=1),
    help="host_to_device_ratio: add how many requests fit into memory, and the bytes over the "
    "link.  [default: with --model 2]",
)
@model_option
@machine_options
@click.option(
    "--output-len",
    type=Number(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="With --ratio: tokens that requests still generate after the trace.",
)
@swap_in_options
@mode_options
@output_options
def sweep(
    traces: tuple[str, ...],
    policies: tuple[str, ...] | None,
    buffers: tuple[int, ...] | None,
    no_min: bool,
    form: str | None,
    output: Path | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Count the misses of policies at several buffer sizes.

    TRACE: files, folders or globs; by default the bundled sample. With -o, the same command
    resumes an interrupted sweep: FILE.partial keeps the finished work.

    \b
    hisparse-sim sweep --buffer 4096 --ratio 8
    hisparse-sim sweep trace.parquet --policy lru,arc --buffer 2048,4096,6144
    hisparse-sim sweep trace.parquet --per-layer -o rows.parquet
    hisparse-sim sweep --link h200-pcie5 --batch 16
    hisparse-sim sweep --draft-tokens 4 --acceptance-length 2.7 --buffer 8192
    hisparse-sim sweep --engine vllm-0.33 --resident-tokens 4096
    """
    from hisparse_sim.simulator.serving import sweep_with_costs
    from hisparse_sim.simulator.views.tables import stamped, write_rows
    from hisparse_sim.simulator.views.terminal import show_sweep

    form = output_form(form, output)
    memory = bool(options["ratios"] or options["model"])
    link = options["link"] is not None
    refuse_without(
        *("--ratio", memory, "--hardware", "--layout", "--mem-fraction-static"),
        *("--device-pool-gib", "--max-total-tokens", "--host-memory", "--host-gib"),
        "--output-len",
    )
    refuse_without("--link", link, "--kernel", "--batch")
    refuse_without("--ratio or --link", memory or link, "--kv-dtype", "--profiles")
    refuse_start(options["start"], options["engine"])
    opened = open_traces_or_facts(traces, options.pop("provenance"))
    options["requests"] = chosen_requests(options["requests"], opened)
    if output is not None:
        refuse_input(output, (trace.path for trace in opened))
    keep = kept_beside(output)
    with long_work(keep, quiet) as report, at_workers(options):
        swept = sweep_with_costs.sweep(
            opened,
            policies,
            buffers,
            compare_min=not no_min,
            progress=report,
            keep=keep,
            **options,
        )
    judge(swept, keep, quiet)
    rows = swept.rows
    if form == "table":
        show_sweep(rows, output)
        if swept.interrupted:
            click.echo(f"Incomplete: {swept.finished} of {swept.parts} (request, layer) parts.")
    else:
        parameters = selection(swept, options)
        if "model" in rows or "link" in rows:
            parameters |= {name: options[name] for name in COSTS}
        if "rules" in rows:
            parameters |= {name: options[name] for name in MODE}
        write_rows(stamped(rows, swept.digests, options["seed"], parameters), form, output)
    end(swept, keep, quiet, output)
