"""The command line: parses, calls one library function, prints.

Data goes to stdout, notes and progress to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

from pathlib import Path
from typing import Any

import click

from hisparse_sim.traces.files import refuse_input
from hisparse_sim.traces.options import (
    Group,
    chosen_requests,
    expand,
    note,
    open_traces,
    output_form,
    output_options,
    provenance_option,
    selection_options,
)

_SIMULATOR = "hisparse_sim.simulator.commands"
_SWEEP = "hisparse_sim.simulator.sweep_commands"
_TRACES = "hisparse_sim.traces.commands"


_ELSEWHERE = {
    "curve": (f"{_SWEEP}:curve", "Draw misses per step, or their time, over a rolling window."),
    "gpu": ("hisparse_sim.gpu_replay.commands:gpu", "Replay and measure on an NVIDIA GPU."),
    "policies": (f"{_SWEEP}:list_policies", "List the policies, one line each."),
    "plan": (f"{_SIMULATOR}:plan", "Choose device_buffer_size and host_to_device_ratio."),
    "report": ("hisparse_sim.simulator.report_commands:report", "One HTML page of what was found."),
    "reproduce": (f"{_SIMULATOR}:reproduce", "Redo published figures."),
    "serve": (f"{_SIMULATOR}:serve", "Simulate serving: throughput, latency, break-even."),
    "sweep": (f"{_SWEEP}:sweep", "Misses of every policy at every buffer size."),
}


@click.group(
    cls=Group,
    elsewhere=_ELSEWHERE,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="hisparse-sim")
def cli() -> None:
    """Simulate the hot buffer of sparse-attention serving (HiSparse) offline.

    \b
    How many misses has my workload at this buffer size?   hisparse-sim sweep
    How do they develop as a request goes on?              hisparse-sim curve
    What is in a trace of top-k positions?                 hisparse-sim trace info
    """


_CAPTURE = {
    "capture": (f"{_TRACES}:capture", "Capture a trace from a running engine or a model."),
    "convert": (f"{_TRACES}:convert", "Make a trace file of what other tools saved."),
    "export": (f"{_TRACES}:export", "Write a trace in the formats of other simulators."),
    "synth": (f"{_TRACES}:synth", "Make a synthetic trace."),
}


@cli.group(cls=Group, elsewhere=_CAPTURE)
def trace() -> None:
    """Look into, check, cut, capture and convert trace files."""


@trace.command()
@click.argument("path", metavar="[TRACE]", required=False)
@provenance_option
@click.option(
    "--full", is_flag=True, help="How positions are used again: overlap, reuse, working set, drift."
)
@output_options
def info(
    path: str | None, provenance: str | None, full: bool, form: str | None, output: Path | None
) -> None:
    """Describe a trace: what it holds, how local its demand is.

    \b
    hisparse-sim trace info
    hisparse-sim trace info trace.parquet --format json
    hisparse-sim trace info trace.parquet --full
    """
    if full:
        show_full_info(path, provenance, form, output)
        return
    from dataclasses import asdict

    import pandas as pd

    from hisparse_sim.simulator.tables import write_rows
    from hisparse_sim.simulator.views import show_trace_info
    from hisparse_sim.traces import info as describe

    form = output_form(form, output)
    opened = open_traces([] if path is None else [path], provenance)
    if output is not None:
        refuse_input(output, (trace.path for trace in opened))
    described = describe(opened[0])
    if form == "table":
        show_trace_info(described, output)
        return
    rows = pd.DataFrame([asdict(layer) for layer in (*described.per_layer, described.total)])
    rows = rows.astype({"layer": "Int64"})
    rows.insert(0, "trace", described.path.stem)
    rows.insert(1, "provenance", described.metadata.provenance)
    rows["trace_sha256"] = described.sha256
    write_rows(rows, form, output)


def show_full_info(
    path: str | None, provenance: str | None, form: str | None, output: Path | None
) -> None:
    """Measure and print the locality of a trace."""
    from hisparse_sim.simulator.locality_view import locality_rows, show_locality
    from hisparse_sim.simulator.tables import write_rows
    from hisparse_sim.traces.locality import measure_locality

    form = output_form(form, output)
    opened = open_traces([path] if path else [], provenance)[0]
    found = measure_locality(opened)
    if form == "table":
        about = opened.metadata
        title = f"{opened.path.name}: {about.model or 'unknown model'}, {about.provenance}"
        show_locality(title, found, output)
        return
    rows = locality_rows(found)
    rows.insert(0, "trace", opened.name)
    rows.insert(1, "provenance", opened.metadata.provenance)
    rows["trace_sha256"] = opened.sha256
    write_rows(rows, form, output)


@trace.command()
@click.argument("paths", metavar="TRACE...", nargs=-1, required=True)
@provenance_option
def validate(paths: tuple[str, ...], provenance: str | None) -> None:
    """Read whole files and say what is wrong with them.

    Exit code 1 if anything is.

    \b
    hisparse-sim trace validate captured/*.parquet
    """
    from hisparse_sim.traces import validate as check

    failed = False
    for path in expand(paths):
        found = check(path, provenance)
        for warning in found.warnings:
            click.echo(f"warning: {warning}", err=True)
        for problem in found.problems:
            click.echo(f"error: {problem}", err=True)
        if not found.complete:
            click.echo(f"error: {path}: gave up after {len(found.problems)} problems", err=True)
        failed = failed or not found.ok
        click.echo(f"{path}: {'ok' if found.ok else 'cannot be used'}")
    if failed:
        raise click.exceptions.Exit(1)


@trace.command()
@click.argument("path", metavar="TRACE")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The new trace file."
)
@selection_options
@provenance_option
def sample(path: str, output: Path, provenance: str | None, **selection: Any) -> None:
    """Cut a trace by request, layer and step.

    \b
    hisparse-sim trace sample trace.parquet --layer 0,20,40 --steps 0:256 -o small.parquet
    """
    from hisparse_sim.traces import sample as cut

    opened = open_traces([path], provenance)
    selection["requests"] = chosen_requests(selection["requests"], opened)
    cut(opened[0], output, **selection)
    note(f"wrote {output}", quiet=False)


if __name__ == "__main__":
    cli()
