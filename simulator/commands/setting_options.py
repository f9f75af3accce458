"""Options that plan and serve share: those of a `Scenario`, with its defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.simulator.serving.engines import ENGINES, NEWEST, load_engine
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.traces.commands.options import (
    combined,
    in_options,
    open_traces,
    provenance_option,
    quiet_option,
)
from hisparse_sim.traces.commands.values import Name, Number
from hisparse_sim.traces.terminal import note

if TYPE_CHECKING:
    import pandas as pd

    from hisparse_sim.simulator.serving.missing import Origin
    from hisparse_sim.traces import Trace


def known_profiles(section: str) -> Callable[[], Iterable[str]]:
    """Return a function that names the shipped profiles: of models, hardware or links."""

    def names() -> Iterable[str]:
        from hisparse_sim.simulator.serving.profiles import read_profiles

        return read_profiles(section)

    return names


def known_policies() -> Iterable[str]:
    """Return the names of all policies."""
    from hisparse_sim.policies import ALIASES, POLICIES

    return (*POLICIES, *ALIASES)


def policy_name(text: str) -> str:
    """Return the name that results give a policy: belady for min, which is the same."""
    from hisparse_sim.policies import ALIASES

    return ALIASES.get(text.lower(), text)


policy_option = click.option(
    "--policy",
    type=Name(known_policies),
    callback=lambda ctx, parameter, given: policy_name(given),
    default="lru",
    show_default=True,
    help="The engine's own is lru.",
)
kv_dtype_option = click.option(
    "--kv-dtype",
    type=click.Choice(["bf16", "fp8", "fp8-raw"]),
    default=Scenario.kv_dtype,
    show_default=True,
    help="KV cache entries: 1152, 656 or 576 bytes per token and layer.",
)
kernel_option = click.option(
    "--kernel",
    type=click.Choice(["sglang", "native"]),
    default=Scenario.kernel,
    show_default=True,
    help="The swap-in kernel: the engine's or ours.",
)

POSITIVE = click.FloatRange(0, min_open=True)


def engine_option(default: str = NEWEST.name) -> Callable[[Any], Any]:
    """--engine, the name of a release, and the option that it replaced."""
    key = "hisparse_sim.engine"

    def remember(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta[key] = {"once": "sglang-0.5.16", "all": NEWEST.name}[value]

    def chosen(context: click.Context, _: click.Parameter, value: str | None) -> str:
        try:
            return load_engine(value).name if value else context.meta.get(key, default)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return combined(
        click.option(
            "--engine",
            type=Name(lambda: ENGINES),
            metavar="RELEASE",
            callback=chosen,
            help=f"{next(iter(ENGINES))} to {NEWEST.name}: memory and admission rules."
            f"  [default: {default or 'that of each figure'}]",
        ),
        click.option(
            "--keys-budgeted",
            type=click.Choice(["all", "once"]),
            hidden=True,
            is_eager=True,
            expose_value=False,
            callback=remember,
        ),
    )


trace_options = combined(
    click.option(
        "--trace",
        "traces",
        multiple=True,
        help="Trace to replay.  [default: synthetic demand of the model]",
    ),
    provenance_option,
    quiet_option,
)


_UNITS = {"GiB": 1.0, "TiB": 1024.0, "GB": 1e9 / (1 << 30), "TB": 1e12 / (1 << 30)}


def in_gib(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """A size with its unit, such as 512GiB or 2TB, in GiB."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(GiB|TiB|GB|TB)", value)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{value!r} is no size such as 512GiB or 2TB")
    return float(found[1]) * _UNITS[found[2]]


host_options = combined(
    click.option(
        "--host-memory",
        "host_memory_gib",
        metavar="SIZE",
        callback=in_gib,
        help="Host memory of the machine, all GPUs together, such as 512GiB or 2TB."
        "  [default: the profile's]",
    ),
    click.option(
        "--host-gib",
        type=POSITIVE,
        help="Host memory for the pool of one GPU.  [default: its share of the machine's]",
    ),
)
deployment_options = combined(
    click.option(
        "--model",
        type=Name(known_profiles("models")),
        default=Scenario.model,
        show_default=True,
        help="Model profile.",
    ),
    click.option(
        "--hardware",
        type=Name(known_profiles("hardware")),
        default=Scenario.hardware,
        show_default=True,
        help="Machine profile.",
    ),
    click.option(
        "--layout",
        type=click.Choice(["dp8-tp8", "dp8-ep8", "tp8", "dp16-ep16"]),
        default=Scenario.layout,
        show_default=True,
        help="Data-parallel attention (dp) with the experts TP or EP, or TP for everything.",
    ),
    kv_dtype_option,
    click.option(
        "--mem-fraction-static",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        default=Scenario.mem_fraction_static,
        show_default=True,
        help="Share of the GPU for weights and KV.",
    ),
    click.option(
        "--device-pool-gib", type=POSITIVE, help="GPU memory for KV.  [default: what is left]"
    ),
    click.option(
        "--max-total-tokens",
        type=click.IntRange(1),
        help="Most tokens of a rank's pool, as the engine's option.",
    ),
    host_options,
    engine_option(),
    click.option(
        "--early-stops",
        is_flag=True,
        help="Requests may end before their limit (no ignore_eos): admitted by an estimate.",
    ),
    click.option(
        "--disaggregated",
        is_flag=True,
        help="Prefill runs on instances of its own, each like one that decodes.",
    ),
    click.option(
        "--prefill-instances",
        type=Number(1),
        help="So many of them.  [default: plan tries what decode can use, serve 1]",
    ),
    click.option(
        "--decode-instances",
        type=Number(1),
        help="Instances that decode, where prefill is apart.  [default: as above]",
    ),
    click.option(
        "--transfer-gb-s",
        type=POSITIVE,
        default=Scenario.transfer_gb_s,
        show_default=True,
        help="From prefill to decode, each GPU.",
    ),
    click.option(
        "--max-running-requests",
        type=Number(1),
        default=Scenario.max_running_requests,
        show_default=True,
        help="Over all ranks.",
    ),
    click.option(
        "--chunked-prefill-size",
        type=Number(64),
        default=Scenario.chunked_prefill_size,
        show_default=True,
        help="Over all ranks.",
    ),
    kernel_option,
    click.option("--profiles", type=click.Path(), help="TOML file with your own profiles."),
    click.option(
        "--step-times",
        metavar="FILE|aiconfigurator|roofline",
        help="Compute times.  [default: the shipped table, else a roofline]",
    ),
    click.option(
        "--prompt",
        type=Number(1),
        default=Scenario.prompt,
        show_default=True,
        help="Tokens; k counts 1,024: 64k is 65,536.",
    ),
    click.option(
        "--output-len",
        type=Number(1),
        default=Scenario.output_len,
        show_default=True,
        help="Tokens.",
    ),
    trace_options,
    click.option(
        "--miss-curve",
        type=click.Path(),
        help="Rows of a sweep (buffer, miss_rate) for this load, instead of a replay.",
    ),
)


load_options = combined(
    click.option("--rate", type=POSITIVE, help="Open loop instead: requests a second."),
    click.option(
        "--requests", type=Number(1), help="[default: four times the concurrency, or 1000]"
    ),
    click.option(
        "--range-ratio",
        type=click.FloatRange(0, 1, min_open=True),
        default=1.0,
        show_default=True,
        help="Lengths are uniform in [this x length, length].",
    ),
    click.option("--seed", type=int, default=0, show_default=True),
)
target_options = combined(
    click.option("--max-tpot-ms", type=POSITIVE, help="Target: time per output token."),
    click.option("--max-ttft-s", type=POSITIVE, help="Target: time to the first token."),
    click.option(
        "--percentile",
        type=click.FloatRange(0, 100),
        default=50.0,
        show_default=True,
        help="Of the requests, that must meet these two.",
    ),
    click.option(
        "--max-miss-rate", type=click.FloatRange(0, 1), help="Target: misses, a share of 1."
    ),
    click.option("--gpu-hour", type=POSITIVE, help="Price of a GPU, for the cost of the output."),
)


def one_trace(traces: tuple[str, ...], provenance: str | None) -> Trace:
    """The one trace named, or the bundled sample."""
    opened = open_traces(traces, provenance)
    if len(opened) > 1:
        raise click.UsageError("give one --trace: predictions take the misses of a single file")
    return opened[0]


def asked(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a scenario as its functions take them: the trace is open, if one is needed."""
    if options["step_times"] == "aiconfigurator":
        note("asking AIConfigurator for a table", options["quiet"])
    if options["miss_curve"] is not None:
        if options["traces"]:
            raise click.UsageError("give --trace or --miss-curve, not both: misses come from one")
        return given(options)
    trace = one_trace(options["traces"], options["provenance"]) if options["traces"] else None
    return given(options) | {"trace": trace}


def scenario_of(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that describe a scenario."""
    known = {field.name for field in fields(Scenario)}
    return {name: value for name, value in asked(options).items() if name in known}


def call_of(command: click.Command, chosen: Mapping[str, Any]) -> str:
    """The call of another command with `chosen` options, and those that this one was given and
    both have."""
    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    taken = {option for each in command.params for option in each.opts}
    words = ["hisparse-sim", command.name or ""]
    values = dict(chosen)
    for each in context.command.params:
        option, name = each.opts[0], each.name or ""
        shared = option in taken and option not in ("--format", "--output", "--quiet", *chosen)
        if shared and context.get_parameter_source(name) != default:
            values[option] = context.params[name]
    for option, value in values.items():
        several = value if isinstance(value, tuple) else (value,)
        for one in several:
            text = f"{one:g}" if isinstance(one, float) else str(one)
            words += [option] if one is True else [option, shlex.quote(text)]
    return " ".join(words)


def say(notes: Iterable[str], quiet: bool) -> None:
    """Print what a reader of the result must know."""
    for each in notes:
        note("note: " + in_options(each, click.get_current_context().command), quiet)


def given(options: dict[str, Any]) -> dict[str, Any]:
    left_out = ("traces", "provenance", "quiet")
    return {name: value for name, value in options.items() if name not in left_out}


def write(
    rows: pd.DataFrame,
    origin: Origin,
    options: dict[str, Any],
    form: str,
    output: Path | None,
    seed: int = 0,
) -> None:
    """Write rows with what is needed to compute them again."""
    from hisparse_sim.simulator.views.tables import stamped, write_rows

    digests = {origin.name: origin.sha256}
    write_rows(stamped(rows, digests, seed, given(options)), form, output)


def write_document(
    found: dict[str, Any], origin: Origin, options: dict[str, Any], output: Path | None
) -> None:
    """Write a JSON object, with what is needed to compute it again first."""
    from hisparse_sim.simulator.views import tables

    stamp = {
        "trace": origin.name,
        "provenance": origin.provenance,
        "trace_sha256": origin.sha256,
        "parameters": {k: v for k, v in given(options).items() if v is not None},
        "version": version("hisparse-sim"),
    }
    tables.write_document(stamp | found, output)
