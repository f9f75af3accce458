"""The command observe: parse, call one library function, print."""

from collections.abc import Iterable
from pathlib import Path

import click

from hisparse_sim.simulator.commands.setting_options import POSITIVE, kv_dtype_option
from hisparse_sim.traces.commands.options import (
    counter,
    open_traces,
    output_form,
    output_options,
    provenance_option,
    quiet_option,
)
from hisparse_sim.traces.commands.values import Name, Number, refuse_without
from hisparse_sim.traces.files import refuse_input
from hisparse_sim.traces.terminal import note, wrote


def _profiles() -> Iterable[str]:
    from hisparse_sim.simulator.serving.demand import profile_names

    return profile_names()


@click.command()
@click.argument("source")
@click.argument("later", required=False)
@click.option(
    "--window",
    "window_s",
    type=POSITIVE,
    default=120.0,
    show_default=True,
    help="Seconds between two readings of an address.",
)
@click.option("--model-name", help="Which of several models the endpoint counts.")
@click.option("--trace", "path", help="Trace to replay beside the counters.")
@click.option(
    "--profile",
    type=Name(_profiles),
    help="Synthetic model to replay beside the counters, and to fit to them.",
)
@click.option("--context", type=Number(1), help="With --profile: mean tokens of a request.")
@click.option(
    "--buffer",
    type=Number(1),
    help="device_buffer_size of the server, which it does not tell.  [default: the engine's]",
)
@click.option(
    "--resident-tokens",
    type=Number(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Tokens of a request that stay on the GPU.",
)
@click.option(
    "--ranks",
    type=Number(1),
    default=1,
    show_default=True,
    help="Ranks of tensor parallelism: each of them counts.",
)
@click.option(
    "--model",
    help="Model profile of the server, for bytes and layers.  [default: that which it names, else "
    "that of the trace or the profile]",
)
@kv_dtype_option
@provenance_option
@output_options
@quiet_option
def observe(
    source: str,
    later: str | None,
    window_s: float,
    model_name: str | None,
    path: str | None,
    profile: str | None,
    context: int | None,
    buffer: int | None,
    resident_tokens: int,
    ranks: int,
    model: str | None,
    kv_dtype: str,
    provenance: str | None,
    form: str | None,
    output: Path | None,
    quiet: bool,
) -> None:
    """Put what a running server counts of its hot buffers beside a simulation.

    SOURCE is the address of its /metrics, read twice, or a file of saved text: then what was
    counted since the server started, or up to LATER, a file saved later. vLLM counts by itself,
    SGLang with `hisparse-sim engine run --count` and --enable-metrics. Needs
    `pip install '.[observe]'`.

    \b
    hisparse-sim observe http://localhost:8000/metrics --window 300
    hisparse-sim observe before.txt after.txt --trace trace.parquet --ranks 8
    hisparse-sim observe before.txt after.txt --profile glm-5.1 -o observed.json
    """
    from hisparse_sim.simulator.serving import counters, fitting, observing
    from hisparse_sim.simulator.serving.demand import profile_called
    from hisparse_sim.simulator.serving.models import load_model
    from hisparse_sim.simulator.views.observed_view import show_observed
    from hisparse_sim.simulator.views.tables import write_document, write_rows

    form = output_form(form, output)
    if path is not None and profile is not None:
        raise click.UsageError("choose --trace or --profile, not both")
    refuse_without("--profile", profile is not None, "--context")
    given = path is not None or profile is not None
    refuse_without("--trace or --profile", given, "--buffer", "--resident-tokens", "--ranks")
    address = counters.is_address(source)
    if address and later is not None:
        raise click.UsageError("an address is read twice by itself: leave out the second argument")
    trace = None if path is None else open_traces([path], provenance)[0]
    chosen = None if profile is None else profile_called(profile)
    if output is not None:
        refuse_input(output, [Path(each) for each in (source, later) if each and not address])
    if address:
        note(f"counting for {window_s:g} s", quiet)
        observed = counters.observe(source, window_s, model_name)
    else:
        first = counters.read(source, model_name)
        last = None if later is None else counters.read(later, model_name)
        observed = counters.between(None if last is None else first, last or first)
    setting = observing.Setting(buffer, resident_tokens, ranks, kv_dtype)
    fit = found = None
    if trace is not None:
        found = observing.simulated(observed, trace, setting)
    elif chosen is not None:
        rounds = counter("rounds", quiet)
        fit, found = fitting.fitted(observed, chosen, setting, context, rounds)
    own = trace.metadata.model if trace else chosen.model if chosen else ""
    served = load_model(model) if model else observing.model_called([observed.model_name, own])
    rows = observing.compared(observed, found, setting, served)
    doubts = observing.doubts(observed, found, own, served)
    for doubt in doubts:
        note(doubt, quiet)
    if fit is not None and not fit.reached:
        note(
            f"no scale of {fit.profile} has a hit rate of {fit.observed_hit_rate:.1%}: the nearest"
            f" is {fit.hit_rate:.1%}; check --buffer, --resident-tokens and --context",
            quiet,
        )
    if form == "table":
        show_observed(observed, rows, fit, output)
    elif form == "json":
        write_document(observing.document(observed, rows, setting, fit, found, doubts), output)
    else:
        write_rows(rows, form, output)
    wrote(output, quiet)
