"""Options of plan, serve and reproduce as arguments of functions, and answers as output."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.simulator.commands.replay_options import open_traces_or_facts
from hisparse_sim.simulator.replay.mode_names import EPOCH_CLOCK
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.traces.commands.options import in_options
from hisparse_sim.traces.commands.values import refuse_without
from hisparse_sim.traces.errors import without_credentials
from hisparse_sim.traces.terminal import note

if TYPE_CHECKING:
    import pandas as pd

    from hisparse_sim.simulator.serving.misses import Origin
    from hisparse_sim.simulator.serving.prediction import Setting
    from hisparse_sim.traces import Trace


def one_trace(traces: tuple[str, ...], provenance: str | None) -> Trace:
    """Return the given trace, or the bundled sample."""
    opened = open_traces_or_facts(traces, provenance)
    if len(opened) > 1:
        raise click.UsageError("give one --trace: predictions take the misses of a single file")
    return opened[0]


def asked(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as arguments, with the trace opened."""
    if options["step_times"] == "aiconfigurator":
        note("asking AIConfigurator for a table", options["quiet"])
    if options["miss_curve"] is not None and options["traces"]:
        raise click.UsageError("give --trace or --miss-curve, not both: misses come from one")
    if not options["traces"]:
        return given(options)
    return given(options) | {"trace": one_trace(options["traces"], options["provenance"])}


def check_load(options: dict[str, Any], concurrency: Any) -> None:
    """Refuse options of a load that exclude each other."""
    if options["rate"] is not None and concurrency:
        raise click.UsageError("give --concurrency (closed loop) or --rate (open loop), not both")
    refuse_without(
        *("a --workload", options["workload"] is not None),
        *("--time-scale", "--no-prefix-cache"),
    )
    refuse_without(
        *("requests with drawn lengths, not to a --workload", options["workload"] is None),
        *("--prompt", "--output-len", "--range-ratio"),
    )


def scenario_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that describe a scenario."""
    known = {field.name for field in fields(Scenario)}
    return {name: value for name, value in asked(options).items() if name in known}


def call_of(command: click.Command, chosen: Mapping[str, Any]) -> str:
    """Return a command line of another command: `chosen`, and the given options that both have."""
    context = click.get_current_context()
    taken = {option for each in command.params for option in each.opts}
    words = ["hisparse-sim", command.name or ""]
    values = dict(chosen)
    for each in context.command.params:
        option, name = each.opts[0], each.name or ""
        shared = option in taken and option not in ("--format", "--output", "--quiet", *chosen)
        value = context.params.get(name)
        if shared and value not in (None, ()) and value != each.get_default(context):
            values[option] = value
    for option, value in values.items():
        for one in value if isinstance(value, tuple) else (value,):
            text = f"{one:g}" if isinstance(one, float) else str(one)
            words += [option] if one is True else [option, shlex.quote(without_credentials(text))]
    return " ".join(words)


def say(notes: Iterable[str], quiet: bool) -> None:
    """Print notes for the reader of a result."""
    for each in optioned(notes):
        note("note: " + each, quiet)


def optioned(notes: Iterable[str]) -> tuple[str, ...]:
    """Return notes with the options of the command in place of arguments."""
    return tuple(in_options(each, click.get_current_context().command) for each in notes)


def given(options: dict[str, Any]) -> dict[str, Any]:
    left_out = ["traces", "provenance", "quiet"]
    if options.get("workload") is not None:
        left_out += ["prompt", "output_len", "range_ratio"]  # it has lengths of its own
    return {name: value for name, value in options.items() if name not in left_out}


def policy_of(setting: Setting, options: Mapping[str, Any]) -> str:
    """The policy whose misses are replayed: with drafts the engine's for them."""
    drafts = setting.speculation is not None and setting.speculation.replayed
    return EPOCH_CLOCK if drafts else str(options["policy"])


def write(
    rows: pd.DataFrame,
    origin: Origin,
    options: dict[str, Any],
    form: str,
    output: Path | None,
    seed: int = 0,
) -> None:
    """Write rows with what is needed to repeat them."""
    from hisparse_sim.simulator.views.tables import stamped, write_rows

    digests = {origin.name: origin.sha256}
    write_rows(stamped(rows, digests, seed, given(options)), form, output)


def write_document(
    found: dict[str, Any], origin: Origin, options: dict[str, Any], output: Path | None
) -> None:
    """Write a JSON object; first, what is needed to repeat it."""
    from hisparse_sim.simulator.views import tables

    stamp = {
        "trace": origin.name,
        "provenance": origin.provenance,
        "trace_sha256": origin.sha256,
        "parameters": {k: tables.shown(v) for k, v in given(options).items() if v is not None},
        "version": version("hisparse-sim"),
    }
    tables.write_document(stamp | found, output)
