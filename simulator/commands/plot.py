"""The command plot: parse, call one library function, print."""

from collections.abc import Iterable
from pathlib import Path

import click

from hisparse_sim.simulator.views import FIGURE_SUFFIXES
from hisparse_sim.traces.commands.options import expand, output_option, quiet_option
from hisparse_sim.traces.commands.values import Name, Output, several
from hisparse_sim.traces.remote import place_of
from hisparse_sim.traces.terminal import wrote


def _kinds() -> Iterable[str]:
    from hisparse_sim.simulator.views.figures.kinds import KINDS

    return KINDS


@click.command()
@click.argument("kind", type=Name(_kinds))
@click.argument("results", metavar="RESULT...", nargs=-1, required=True)
@output_option(Output(*FIGURE_SUFFIXES), "The figure to write (.png, .svg, .pdf).", required=True)
@click.option(
    "--buffer",
    "buffers",
    multiple=True,
    callback=several(int, least=1),
    help="Only these buffer sizes.  [default: all of the result]",
)
@click.option(
    "--paper", is_flag=True, help="For a paper: one column wide, no title, embedded fonts."
)
@click.option("--wide", is_flag=True, help="With --paper: as wide as both columns.")
@quiet_option
def plot(
    kind: str,
    results: tuple[str, ...],
    output: Path,
    buffers: tuple[int, ...] | None,
    paper: bool,
    wide: bool,
    quiet: bool,
) -> None:
    """Draw a result as a figure, for the screen or for a paper.

    KIND: mrc and policies (of sweep or mrc), curve, study, gap and prefetch (of study), pareto (of
    plan), throughput, tpot, ttft and shares (of serve), latency (of gpu bench). RESULT: files that
    these commands wrote with -o. The origin of the data is in the file's metadata, too.

    \b
    hisparse-sim mrc -o facts.parquet && hisparse-sim plot mrc facts.parquet --paper -o mrc.pdf
    hisparse-sim plot throughput served.csv -o throughput.svg
    """
    from hisparse_sim.simulator.views import figures
    from hisparse_sim.traces.files import refuse_input, refuse_unwritable

    if wide and not paper:
        raise click.UsageError("--wide is for --paper")
    refuse_unwritable(output)
    paths = [place_of(path) for path in expand(results)]
    refuse_input(output, paths)
    style = "screen" if not paper else "paper-wide" if wide else "paper"
    figures.save(figures.plot(kind, paths, buffers=buffers, style=style), output)
    wrote(output, quiet)
