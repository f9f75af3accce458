"""The command serve: parse, call one library function, print."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from hisparse_sim.simulator.commands.answers import (
    asked,
    check_load,
    optioned,
    policy_of,
    say,
    write,
)
from hisparse_sim.simulator.commands.load_options import load_options, mode_choice, target_options
from hisparse_sim.simulator.commands.setting_options import deployment_options, policy_option
from hisparse_sim.traces.commands.options import counter, in_options, output_form, output_options
from hisparse_sim.traces.commands.values import Name, Number, several
from hisparse_sim.traces.terminal import wrote

_MODES = mode_choice("baseline")


@click.command()
@deployment_options
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=Name(lambda: _MODES.choices, listed=True),
    metavar=f"[{'|'.join(_MODES.choices)}]",
    callback=several(partial(_MODES.convert, param=None, ctx=None)),
    help="Repeat, or separate by commas.  [default: baseline, the engine's, zero-cost]",
)
@click.option(
    "--buffer", type=Number(1), help="device_buffer_size.  [default: twice the model's top-k]"
)
@click.option("--ratio", type=Number(1), default=4, show_default=True, help="host_to_device_ratio.")
@click.option(
    "--resident-tokens",
    type=Number(0),
    default=0,
    show_default=True,
    help="Newest tokens of a request that stay on the GPU beside its buffer; no release of SGLang"
    " keeps any.",
)
@policy_option
@click.option(
    "--concurrency",
    "concurrencies",
    multiple=True,
    callback=several(int),
    help="Closed loop: concurrent requests over all instances; several values make a curve.  "
    "[default: 256]",
)
@load_options
@target_options
@output_options
def serve(
    modes: tuple[str, ...],
    concurrencies: tuple[int, ...] | None,
    form: str | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Simulate serving over time: throughput, latency, and where the time goes.

    `plan` finds a buffer and a ratio. Modes: baseline keeps the whole KV cache on the GPU; hisparse
    swaps in before every attention; prefetch copies ahead for layers that share an index, as SGLang
    does from 0.5.18 on without drafts; overlap hides copies behind attention; zero-cost is the
    bound at which copies take no time.

    \b
    hisparse-sim serve --concurrency 8,16,32,64,128,256
    hisparse-sim serve --mode hisparse --rate 0.2 --requests 500
    hisparse-sim serve --disaggregated --prefill-instances 3 --max-ttft-s 60
    """
    from hisparse_sim.simulator.serving import api
    from hisparse_sim.simulator.serving.prediction import CannotRun
    from hisparse_sim.simulator.views.plan_view import load_line
    from hisparse_sim.simulator.views.progress import compiling
    from hisparse_sim.simulator.views.served_view import show_served

    check_load(options, concurrencies)
    form = output_form(form, output)
    show = counter("requests served", options["quiet"])

    def progress(_: str, done: int, of: int) -> None:
        if show:
            show(done, of)

    try:
        with compiling(options["quiet"]):
            served = api.serve(
                modes=modes, concurrencies=concurrencies, progress=progress, **asked(options)
            )
    except CannotRun as error:
        command = click.get_current_context().command
        raise click.ClickException(in_options(str(error), command)) from error
    if form != "table":
        say(served.notes, options["quiet"])
    if form == "table":
        before = (
            f"{load_line(served.setting, served.aim, instances=True)};"
            f" B {served.buffer:,}, ratio {options['ratio']}{_share(options)},"
            f" {policy_of(served.setting, options)}\n\n"
        )
        show_served(served.rows, before, served.setting, served.aim, optioned(served.notes), output)
    else:
        seed = options.pop("seed")
        options["policy"] = policy_of(served.setting, options)
        options["buffer"] = served.buffer  # a default depends on the model
        write(served.rows, served.origin, options, form, output, seed)
    wrote(output, options["quiet"])


def _share(options: dict[str, Any]) -> str:
    tokens = options["resident_tokens"]
    return f", {tokens:,} resident tokens" if tokens else ""
