"""Options that plan and serve share: those of a `Scenario`, with its defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from reprlib import repr as clipped
from typing import Any

import click

from hisparse_sim.simulator.serving.engines import ENGINES, NEWEST, load_engine
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.traces.commands.options import combined, provenance_option, quiet_option
from hisparse_sim.traces.commands.values import Name, Number, Real


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

POSITIVE = Real(0, min_open=True)


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


def trace_options(default: str) -> Callable[[Any], Any]:
    """--trace with what is replayed where none is given, and how it is said."""
    return combined(
        click.option(
            "--trace", "traces", multiple=True, help=f"Trace to replay.  [default: {default}]"
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
        raise click.BadParameter(f"{clipped(value)} is no size such as 512GiB or 2TB")
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
machine_options = combined(
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
        type=Real(0, 1, min_open=True, max_open=True),
        default=Scenario.mem_fraction_static,
        show_default=True,
        help="Share of the GPU for weights and KV.",
    ),
    click.option(
        "--device-pool-gib", type=POSITIVE, help="GPU memory for KV.  [default: what is left]"
    ),
    click.option(
        "--max-total-tokens",
        type=Number(1),
        help="Limit of a rank's pool in tokens, as the engine's option.",
    ),
    host_options,
    engine_option(),
)
deployment_options = combined(
    click.option(
        "--model",
        type=Name(known_profiles("models")),
        default=Scenario.model,
        show_default=True,
        help="Model profile.",
    ),
    machine_options,
    click.option(
        "--early-stops",
        is_flag=True,
        help="Requests may end before their limit (no ignore_eos): admitted by an estimate.",
    ),
    click.option(
        "--disaggregated", is_flag=True, help="Prefill runs on another instance like this."
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
    trace_options("synthetic, of the model"),
    click.option(
        "--miss-curve",
        type=click.Path(),
        help="Rows of a sweep (buffer, miss_rate) for this load, instead of a replay.",
    ),
)
