"""The command budget: parse, call one library function, print."""

from pathlib import Path
from typing import Any

import click

from hisparse_sim.simulator.commands.setting_options import policy_option
from hisparse_sim.traces.commands.options import (
    layer_option,
    open_traces,
    output_form,
    output_options,
    provenance_option,
    quiet_option,
    start_option,
)
from hisparse_sim.traces.commands.values import Number, Seed
from hisparse_sim.traces.terminal import wrote


@click.command()
@click.argument("trace", metavar="[TRACE]", required=False)
@click.option(
    "--buffer",
    "--device-buffer-size",
    "buffer",
    type=Number(1),
    help="Slots per buffer if all layers had the same.  [default: 2 times top_k]",
)
@policy_option
@click.option("--per-request", is_flag=True, help="Choose a size for each (request, layer).")
@click.option("--on", metavar="TRACE", help="Replay another trace with the chosen sizes.")
@click.option("--largest", type=Number(1), help="Largest buffer.  [default: 8 times top_k]")
@layer_option
@start_option
@provenance_option
@click.option(
    "--seed",
    type=Seed(0),
    default=0,
    show_default=True,
    help="Seed of policies that draw at random.",
)
@click.option("--jobs", type=Number(1), help="Threads.  [default: all cores]")
@quiet_option
@output_options
def budget(
    trace: str | None,
    buffer: int | None,
    on: str | None,
    provenance: str | None,
    quiet: bool,
    form: str | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Choose a buffer size per layer, with the same total number of slots.

    The sizes follow from the miss-ratio curves; the policy is then replayed with them and with
    equal sizes. The engine supports one size only; this shows what per-layer sizes would save.

    \b
    hisparse-sim budget --buffer 4096
    hisparse-sim budget trace.parquet --buffer 6144 --on other.parquet
    """
    from hisparse_sim.simulator.mrc import budget as choose
    from hisparse_sim.simulator.views.mrc_view import show_budget
    from hisparse_sim.simulator.views.tables import write_rows

    form = output_form(form, output)
    (opened,) = open_traces([trace] if trace else [], provenance)
    other = open_traces([on], provenance)[0] if on else None
    found = choose(opened, buffer, on=other, **options)
    if form == "table":
        show_budget(found, output)
    else:
        write_rows(found.rows.assign(policy=found.policy, trace=found.trace), form, output)
    wrote(output, quiet)
