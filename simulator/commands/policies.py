"""The command policies: list them."""

from pathlib import Path

import click

from hisparse_sim.traces.commands.options import output_form, output_options, quiet_option
from hisparse_sim.traces.terminal import wrote


@click.command("policies")
@output_options
@quiet_option
def list_policies(form: str | None, output: Path | None, quiet: bool) -> None:
    """List the policies with a description and a reference."""
    from hisparse_sim.policies import table
    from hisparse_sim.simulator.views.tables import write_rows
    from hisparse_sim.simulator.views.terminal import show_policies

    rows = table()
    form = output_form(form, output)
    if form == "table":
        show_policies(rows, output)
    else:
        write_rows(rows, form, output)
    wrote(output, quiet)
