"""The command reproduce: parse, call one library function, print."""

from __future__ import annotations

from pathlib import Path

import click

from hisparse_sim.simulator.commands.answers import one_trace, write
from hisparse_sim.simulator.commands.setting_options import (
    engine_option,
    policy_option,
    trace_options,
)
from hisparse_sim.simulator.views import FIGURE_SUFFIXES
from hisparse_sim.traces.commands.options import announcer, output_form, output_options
from hisparse_sim.traces.commands.values import Output
from hisparse_sim.traces.terminal import wrote


@click.command()
@trace_options("synthetic, of each model")
@policy_option
@engine_option(None, replays=False)
@click.option(
    "--plot",
    type=Output(*FIGURE_SUFFIXES),
    help="Draw the modelled throughput curves and the published points.",
)
@click.option(
    "--scatter",
    type=Output(*FIGURE_SUFFIXES),
    help="Figure of ours over published, all of them.",
)
@output_options
def reproduce(
    traces: tuple[str, ...],
    provenance: str | None,
    quiet: bool,
    policy: str,
    engine: str | None,
    plot: Path | None,
    scatter: Path | None,
    form: str | None,
    output: Path | None,
) -> None:
    """Compare published figures with the model's: error, method, and unexplained difference.

    Figures that shaped a choice in the model are kept apart from those out of sample.

    \b
    hisparse-sim reproduce
    hisparse-sim reproduce -o reproduced.csv --plot rates.svg --scatter errors.svg
    """
    from hisparse_sim.simulator.serving import api
    from hisparse_sim.simulator.serving.published import published_rates
    from hisparse_sim.simulator.serving.reproduce import origin_of, throughput_curves
    from hisparse_sim.simulator.views import figures
    from hisparse_sim.simulator.views.reproduced_view import show_reproduced

    form = output_form(form, output)
    trace = one_trace(traces, provenance) if traces else None
    rows = api.reproduce(trace, policy=policy, engine=engine, progress=announcer(quiet))
    if form == "table":
        show_reproduced(rows, output)
    else:
        write(rows, origin_of(trace), {"policy": policy, "engine": engine}, form, output)
    wrote(output, quiet)
    if scatter:
        figures.save(figures.ours_over_published(rows), scatter)
        wrote(scatter, quiet)
    if plot:
        rates = throughput_curves(trace, policy)
        figures.save(figures.throughput_beside_published(rates, published_rates()), plot)
        wrote(plot, quiet)
