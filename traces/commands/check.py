"""The commands `trace validate` and `trace sample`."""

from pathlib import Path
from typing import Any

import click

from hisparse_sim.traces.commands.options import (
    chosen_requests,
    expand,
    force_option,
    open_traces,
    provenance_option,
    quiet_option,
    refuse_replacing,
    selection_options,
    trace_output_option,
)
from hisparse_sim.traces.terminal import escaped, note, wrote


@click.command()
@click.argument("paths", metavar="TRACE...", nargs=-1, required=True)
@provenance_option
def validate(paths: tuple[str, ...], provenance: str | None) -> None:
    """Read whole files and report what is wrong with them.

    The exit code is 1 if a file is faulty.

    \b
    hisparse-sim trace validate captured/*.parquet
    """
    from hisparse_sim.traces import validate as check

    failed = False
    for path in expand(paths):
        found = check(path, provenance)
        for warning in found.warnings:
            note(f"warning: {warning}", quiet=False)
        for problem in found.problems:
            note(f"error: {problem}", quiet=False)
        if not found.complete:
            note(f"error: {path}: gave up after {len(found.problems)} problems", quiet=False)
        failed = failed or not found.ok
        click.echo(escaped(f"{path}: {'ok' if found.ok else 'cannot be used'}"))
    if failed:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("path", metavar="TRACE")
@trace_output_option
@force_option
@selection_options
@provenance_option
@quiet_option
def sample(
    path: str,
    output: Path,
    force: bool,
    provenance: str | None,
    quiet: bool,
    **selection: Any,
) -> None:
    """Cut a trace by request, layer and step.

    \b
    hisparse-sim trace sample trace.parquet --layer 0,20,40 --steps 0:256 -o small.parquet
    """
    from hisparse_sim.traces import sample as cut

    refuse_replacing(output, force, expand([path]))
    opened = open_traces([path], provenance)
    selection["requests"] = chosen_requests(selection["requests"], opened)
    cut(opened[0], output, **selection)
    wrote(output, quiet)
