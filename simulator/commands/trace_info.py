"""The command `trace info`: the views of this folder show what `traces` measures."""

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.simulator.commands.replay_options import at_workers, cluster_options
from hisparse_sim.simulator.views import FIGURE_SUFFIXES
from hisparse_sim.traces.commands.options import (
    open_traces,
    output_form,
    output_options,
    provenance_option,
    quiet_option,
)
from hisparse_sim.traces.commands.values import Output
from hisparse_sim.traces.files import refuse_input, refuse_same, refuse_unwritable
from hisparse_sim.traces.terminal import escaped, note, printable, wrote

if TYPE_CHECKING:
    from hisparse_sim.traces import Trace


@click.command()
@click.argument("paths", metavar="[TRACE]...", nargs=-1)
@provenance_option
@click.option("--full", is_flag=True, help="Show locality: overlap, reuse, working set, drift.")
@click.option(
    "--plot", type=Output(*FIGURE_SUFFIXES), help="Figure of the locality (.png, .svg, .pdf)."
)
@cluster_options
@output_options
@quiet_option
def info(
    paths: tuple[str, ...],
    provenance: str | None,
    full: bool,
    plot: Path | None,
    form: str | None,
    output: Path | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Describe a trace: its contents and how local its accesses are.

    With --full, several traces are compared, one line each.

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
        with at_workers(options):
            show_full_info(opened, plot, form, output, quiet, options["executor"])
        return
    if len(opened) > 1:
        raise click.UsageError("give --full to compare several traces")
    from hisparse_sim.simulator.views.tables import write_rows
    from hisparse_sim.simulator.views.terminal import show_trace_info
    from hisparse_sim.traces import info as describe

    described = describe(opened[0])
    if form == "table":
        show_trace_info(described, output)
        wrote(output, quiet)
        return
    write_rows(described.table(), form, output)
    wrote(output, quiet)


def show_full_info(
    opened: Sequence["Trace"],
    plot: Path | None,
    form: str,
    output: Path | None,
    quiet: bool,
    executor: Executor | None,
) -> None:
    """Measure, print and draw the locality of traces."""
    from hisparse_sim.simulator.replay.sweeping import trace_names
    from hisparse_sim.simulator.views import figures
    from hisparse_sim.simulator.views.locality_view import locality, show_localities, show_locality
    from hisparse_sim.simulator.views.mrc_view import shares_of_misses
    from hisparse_sim.simulator.views.tables import write_rows
    from hisparse_sim.traces.file.metadata import fit_caveat
    from hisparse_sim.traces.file.queries import has_drafts

    if plot is not None:
        refuse_unwritable(plot)
    for trace in filter(has_drafts, opened):
        note(
            f"{trace.name} has drafts: of every step only the first query is measured;"
            " `hisparse-sim sweep` and `curve` count the misses of all",
            quiet,
        )
    rows = locality(opened, executor=executor)
    if form != "table":
        digests = dict(zip(trace_names(opened), (trace.sha256 for trace in opened), strict=True))
        write_rows(rows.assign(trace_sha256=rows["trace"].map(digests)), form, output)
    elif len(opened) > 1:
        show_localities(rows, output)
    else:
        misses = "" if has_drafts(opened[0]) else shares_of_misses(opened[0])
        about = opened[0].metadata
        name = printable(opened[0].path.name)
        title = escaped(f"{name}: {about.model or 'unknown model'}, {about.provenance}")
        if caveat := fit_caveat(about):
            title += f"\nfit: {escaped(caveat)}"
        show_locality(title, rows, output, misses)
    wrote(output, quiet)
    if plot is not None:
        figures.save(figures.locality_page(rows), plot)
        wrote(plot, quiet)
