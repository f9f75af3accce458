"""The command profiles: parse, call one library function, print."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from hisparse_sim.traces.commands.options import output_form, output_options, quiet_option
from hisparse_sim.traces.commands.values import Name
from hisparse_sim.traces.terminal import wrote


def _tables() -> Iterable[str]:
    from hisparse_sim.simulator.serving.profiles.listing import TABLES

    return TABLES


@click.command("profiles")
@click.argument("table", type=Name(_tables), required=False)
@click.argument("name", required=False)
@click.option("--profiles", "own", type=click.Path(), help="TOML file with your own profiles.")
@output_options
@quiet_option
def list_profiles(
    table: str | None,
    name: str | None,
    own: str | None,
    form: str | None,
    output: Path | None,
    quiet: bool,
) -> None:
    """Show models, machines, links, engines and step times, with their figures and sources.

    TABLE is models, blocks, hardware, links, engines or step_times; NAME one of its rows.

    \b
    hisparse-sim profiles
    hisparse-sim profiles hardware h20
    hisparse-sim profiles engines --format csv
    """
    from hisparse_sim.simulator.serving.profiles.listing import profiles
    from hisparse_sim.simulator.views.profiles_view import show_profiles, write_profiles

    form = output_form(form, output)
    rows = profiles(own, table=table, name=name)
    if form == "table":
        show_profiles(rows, output, figures=name is not None)
    else:
        write_profiles(rows, form, output)
    wrote(output, quiet)
