"""The command profiles: parse, call one library function, print."""

from __future__ import annotations

from pathlib import Path

import click

from hisparse_sim.traces.commands.options import output_form, output_options


@click.command("profiles")
@click.argument("table", required=False)
@click.argument("name", required=False)
@click.option("--profiles", "own", type=click.Path(), help="TOML file with your own profiles.")
@output_options
def list_profiles(
    table: str | None, name: str | None, own: str | None, form: str | None, output: Path | None
) -> None:
    """Models, machines, links, engines and step times, with figures and sources.

    TABLE is models, hardware, links, engines or step_times; NAME one of its rows.

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
