"""The command policies: list them, or the prefetchers."""

from pathlib import Path

import click

from hisparse_sim.traces.commands.options import output_form, output_options, quiet_option
from hisparse_sim.traces.terminal import wrote


@click.command("policies")
@click.option("--prefetchers", is_flag=True, help="List the prefetchers of `study` instead.")
@output_options
@quiet_option
def list_policies(prefetchers: bool, form: str | None, output: Path | None, quiet: bool) -> None:
    """List the policies with a description and a reference."""
    from hisparse_sim.policies import table as policy_table
    from hisparse_sim.simulator.prefetch import table as prefetcher_table
    from hisparse_sim.simulator.views.tables import write_rows
    from hisparse_sim.simulator.views.terminal import show_policies

    rows = prefetcher_table() if prefetchers else policy_table()
    form = output_form(form, output)
    if form == "table":
        show_policies(rows, output)
    else:
        write_rows(rows, form, output)
    wrote(output, quiet)
