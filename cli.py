"""The command line: parses, calls one library function, prints.

Data goes to stdout, notes and progress to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.traces.files import refuse_input, refuse_same
from hisparse_sim.traces.options import (
    Group,
    chosen_requests,
    expand,
    force_option,
    note,
    open_traces,
    output_form,
    output_options,
    provenance_option,
    refuse_replacing,
    selection_options,
    trace_output_option,
)
from hisparse_sim.traces.units import TOKEN

if TYPE_CHECKING:
    from hisparse_sim.traces import Trace

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
@click.argument("paths", metavar="[TRACE]...", nargs=-1)
@provenance_option
@click.option(
    "--full", is_flag=True, help="How positions are used again: overlap, reuse, working set, drift."
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Figure of that (.png, .svg, .pdf); --full."
)
@output_options
def info(
    paths: tuple[str, ...],
    provenance: str | None,
    full: bool,
    plot: Path | None,
    form: str | None,
    output: Path | None,
) -> None:
    """Describe a trace: what it holds, how local its demand is.

    With --full several traces are compared, a line each.

    \b
    hisparse-sim trace info
    hisparse-sim trace info trace.parquet --format json
    hisparse-sim trace info trace.parquet --full --plot locality.png
    """
    form = output_form(form, output)
    refuse_same(output, plot)
    opened = open_traces(paths, provenance)
    for written in (output, plot):
        if written is not None:
            refuse_input(written, (trace.path for trace in opened))
    if full or plot is not None:
        show_full_info(opened, plot, form, output)
        return
    if len(opened) > 1:
        raise click.UsageError("several traces are compared with --full")
    from dataclasses import asdict

    import pandas as pd

    from hisparse_sim.simulator.tables import write_rows
    from hisparse_sim.simulator.views import show_trace_info
    from hisparse_sim.traces import info as describe

    described = describe(opened[0])
    if form == "table":
        show_trace_info(described, output)
        return
    rows = pd.DataFrame([asdict(layer) for layer in (*described.per_layer, described.total)])
    rows = rows.astype({"layer": "Int64"})
    rows.insert(0, "trace", described.path.stem)
    rows.insert(1, "provenance", described.metadata.provenance)
    if described.metadata.unit != TOKEN:
        rows.insert(2, "unit", described.metadata.unit)
    rows["trace_sha256"] = described.sha256
    write_rows(rows, form, output)


def show_full_info(
    opened: Sequence["Trace"], plot: Path | None, form: str, output: Path | None
) -> None:
    """Measure, print and draw the locality of traces."""
    from hisparse_sim.simulator import figures
    from hisparse_sim.simulator.locality_view import locality, show_localities, show_locality
    from hisparse_sim.simulator.sweeping import trace_names
    from hisparse_sim.simulator.tables import write_rows
    from hisparse_sim.simulator.views import fit_caveat

    if plot is not None:
        figures.check_suffix(plot)
        output_form(None, plot)
    rows = locality(opened)
    if form != "table":
        digests = dict(zip(trace_names(opened), (trace.sha256 for trace in opened), strict=True))
        write_rows(rows.assign(trace_sha256=rows["trace"].map(digests)), form, output)
    elif len(opened) > 1:
        show_localities(rows, output)
    else:
        about = opened[0].metadata
        title = f"{opened[0].path.name}: {about.model or 'unknown model'}, {about.provenance}"
        if caveat := fit_caveat(about):
            title += f"\nfit: {caveat}"
        show_locality(title, rows, output)
    if plot is not None:
        figures.save(figures.locality_page(rows), plot)
        note(f"wrote {plot}", quiet=False)


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
@trace_output_option
@force_option
@selection_options
@provenance_option
def sample(path: str, output: Path, force: bool, provenance: str | None, **selection: Any) -> None:
    """Cut a trace by request, layer and step.

    \b
    hisparse-sim trace sample trace.parquet --layer 0,20,40 --steps 0:256 -o small.parquet
    """
    from hisparse_sim.traces import sample as cut

    refuse_replacing(output, force, expand([path]))
    opened = open_traces([path], provenance)
    selection["requests"] = chosen_requests(selection["requests"], opened)
    cut(opened[0], output, **selection)
    note(f"wrote {output}", quiet=False)


if __name__ == "__main__":
    cli()
