"""The command curve: parse, call one library function, print."""

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
from hisparse_sim.simulator.commands.setting_options import engine_option, kv_dtype_option
from hisparse_sim.simulator.views import FIGURE_SUFFIXES
from hisparse_sim.traces.commands.options import (
    FILE_FORMATS,
    chosen_requests,
    output_form,
    output_option,
)
from hisparse_sim.traces.commands.values import AnyOutput, Number, refuse_without
from hisparse_sim.traces.files import refuse_input


@click.command()
@traces_argument
@replay_options()
@click.option("--window", type=Number(1), default=100, show_default=True, help="Steps per mean.")
@click.option(
    "--skip-steps",
    type=Number(0),
    default=0,
    show_default=True,
    help="Leave out the first steps of every request (the start-up burst).",
)
@engine_option()
@mode_options
@model_option
@kv_dtype_option
@swap_in_options
@click.option(
    "--format",
    "form",
    type=click.Choice(FILE_FORMATS),
    help="Write data instead of a figure.",
)
@output_option(
    AnyOutput(),
    "Figure (.png, .svg, .pdf) or data file (.csv, .json, .jsonl, .parquet).  "
    "[default: curve.png; with --format: stdout]",
)
def curve(
    traces: tuple[str, ...],
    policies: tuple[str, ...] | None,
    buffers: tuple[int, ...] | None,
    window: int,
    skip_steps: int,
    form: str | None,
    output: Path | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Draw the misses of decode steps, or their time, as a rolling mean.

    One line per policy and buffer: the mean over layers, with a band for their spread. The default
    policy is lru, or with drafts the engine's.

    \b
    hisparse-sim curve -o curve.svg
    hisparse-sim curve trace.parquet --policy lru,belady --buffer 4096 --format csv
    hisparse-sim curve --link h200-pcie5 --kernel native -o time.png
    """
    from hisparse_sim.simulator.serving.curves import curve as run
    from hisparse_sim.simulator.views import figures
    from hisparse_sim.simulator.views.tables import stamped, write_rows

    path = output or Path("curve.png")
    form = output_form(form, path if form is None else output, FIGURE_SUFFIXES)
    priced = ("--model", "--kv-dtype", "--kernel", "--batch", "--profiles")
    refuse_without("--link", options["link"] is not None, *priced)
    refuse_start(options["start"], options["engine"])
    opened = open_traces_or_facts(traces, options.pop("provenance"))
    options["requests"] = chosen_requests(options["requests"], opened)
    if len(opened) > 1:
        raise click.UsageError("curve takes one trace")
    refuse_input(path, [opened[0].path])
    keep = kept_beside(path if form == "table" else output)
    with long_work(keep, quiet) as report, at_workers(options):
        curves = run(
            opened[0],
            policies,
            buffers,
            window=window,
            skip_steps=skip_steps,
            progress=report,
            keep=keep,
            **options,
        )
    swept = curves.swept
    judge(swept, keep, quiet)
    if form == "table":
        drawn = figures.rolling_misses(curves.rows, window=window, provenance=curves.origin)
        figures.save(drawn, path)
    else:
        parameters = selection(swept, options)
        parameters |= {
            "window": window,
            "skip_steps": skip_steps,
            "start": curves.rows["start"].iloc[0],
        }
        if "rules" in curves.rows:
            parameters |= {name: options[name] for name in MODE}
        write_rows(stamped(curves.rows, swept.digests, options["seed"], parameters), form, output)
    end(swept, keep, quiet, path if form == "table" else output)
