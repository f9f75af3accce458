"""The command report: parse, call one library function, print."""

from pathlib import Path

import click

from hisparse_sim.traces.commands.options import expand, output_option, quiet_option
from hisparse_sim.traces.commands.values import Output
from hisparse_sim.traces.remote import place_of
from hisparse_sim.traces.terminal import note


@click.command()
@click.argument("results", metavar="RESULT...", nargs=-1, required=True)
@output_option(
    Output(".html", ".htm", ""),
    "The page to write.",
    default=Path("report.html"),
    show_default=True,
)
@click.option("--title", help="Heading of the page.  [default: names the trace]")
@click.option(
    "--profiles",
    type=click.Path(),
    help="TOML file with profiles of models and links that are not shipped.",
)
@quiet_option
def report(
    results: tuple[str, ...], output: Path, title: str | None, profiles: str | None, quiet: bool
) -> None:
    """Write one HTML page of results: curves, policies, layers, cost, plan.

    RESULT: files that sweep, curve, plan, serve, reproduce and gpu bench wrote with -o (csv, json,
    jsonl, parquet), and facts of mrc, in any number and mixture. The page works offline and can be
    sent by mail.

    \b
    hisparse-sim sweep --per-layer --ratio 8 -o rows.parquet
    hisparse-sim curve -o curve.parquet
    hisparse-sim report rows.parquet curve.parquet -o report.html
    """
    from hisparse_sim.simulator.views.report import read_results, write_report
    from hisparse_sim.traces.files import refuse_unwritable

    refuse_unwritable(output)
    read = read_results([place_of(path) for path in expand(results)])
    for left_out in write_report(read, output, title, profiles):
        note(left_out, quiet)
    note(f"wrote {output} ({output.stat().st_size / 1e6:.2f} MB)", quiet)
