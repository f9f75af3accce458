"""Options that plan and serve share: the fields of a `Scenario`, with its defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from reprlib import repr as clipped
from typing import Any

import click
from click.core import ParameterSource

from hisparse_sim.simulator.serving.engines import ENGINES, KNOWN, NEWEST, SGLANG, VLLM, load_engine
from hisparse_sim.simulator.serving.scenario import DEFAULT_MODEL, MOST_INSTANCES, Scenario
from hisparse_sim.traces.commands.options import combined, provenance_option, quiet_option
from hisparse_sim.traces.commands.values import Name, Number, Real


def known_profiles(*sections: str) -> Callable[[], Iterable[str]]:
    """Return a function that names the shipped profiles: of models, blocks, hardware or links."""

    def names() -> Iterable[str]:
        from hisparse_sim.simulator.serving.profiles import read_profiles

        return [name for section in sections for name in read_profiles(section)]

    return names


def known_policies() -> Iterable[str]:
    """Return the names of all policies."""
    from hisparse_sim.policies import ALIASES, POLICIES

    return (*POLICIES, *ALIASES)


def policy_name(text: str) -> str:
    """Return the name of a policy in results: belady for min, which is another name of it."""
    from hisparse_sim.policies import ALIASES

    return ALIASES.get(text.lower(), text)


policy_option = click.option(
    "--policy",
    type=Name(known_policies),
    callback=lambda ctx, parameter, given: policy_name(given),
    default="lru",
    show_default=True,
    help="Eviction policy; the engine has lru.",
)
kv_dtype_option = click.option(
    "--kv-dtype",
    type=click.Choice(["bf16", "fp8", "fp8-raw"]),
    default=Scenario.kv_dtype,
    show_default=True,
    help="KV entries of 1152, 656 or 576 bytes per token and layer.",
)
kernel_option = click.option(
    "--kernel",
    type=click.Choice(["sglang", "native"]),
    default=Scenario.kernel,
    show_default=True,
    help="The swap-in kernel: the engine's or ours.",
)

POSITIVE = Real(0, min_open=True)


_FORMER_BUDGETS = {"once": "sglang-0.5.16", "all": NEWEST.name}


def engine_option(
    default: str | None = NEWEST.name, *, replays: bool = True
) -> Callable[[Any], Any]:
    """--engine, the name of a release, and --keys-budgeted, the option that it replaced; where
    nothing `replays` by its rules, of those whose memory and admission are known."""

    def remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta[str(parameter.name)] = _FORMER_BUDGETS[value]

    def chosen(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
        former: str | None = context.meta.get("keys_budgeted")
        if former and context.get_parameter_source("engine") is ParameterSource.DEFAULT:
            return former
        try:
            return load_engine(value, memory=not replays).name if value else None
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return combined(
        click.option(
            "--engine",
            type=Name(lambda: ENGINES if replays else SGLANG),
            metavar="RELEASE",
            default=default,
            show_default=default is not None,
            callback=chosen,
            help=f"{KNOWN}: memory and admission rules"
            + f"; or, for replays, {VLLM.name}" * replays
            + "."
            + "  [default: that of each figure]" * (default is None),
        ),
        click.option(
            "--keys-budgeted",
            type=click.Choice(list(_FORMER_BUDGETS)),
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
        raise click.BadParameter(f"{clipped(value)} is not a size such as 512GiB or 2TB")
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
        help="Host memory for the pool of one GPU.  [default: its share of the machine]",
    ),
)
_machine_options = combined(
    click.option(
        "--hardware",
        type=Name(known_profiles("hardware")),
        default=Scenario.hardware,
        show_default=True,
        help="Machine profile; see `hisparse-sim profiles`.",
    ),
    click.option(
        "--layout",
        type=click.Choice(["dp8-tp8", "dp8-ep8", "tp8", "dp16-ep16"]),
        default=Scenario.layout,
        show_default=True,
        help="Data-parallel attention (dp) with TP or EP experts, or TP for the whole model.",
    ),
    kv_dtype_option,
    click.option(
        "--mem-fraction-static",
        type=Real(0, 1, min_open=True, max_open=True),
        default=Scenario.mem_fraction_static,
        show_default=True,
        help="Share of GPU memory for weights and KV cache, as in the engine.",
    ),
    click.option(
        "--device-pool-gib",
        type=POSITIVE,
        help="GPU memory for the KV cache.  [default: what the weights leave]",
    ),
    click.option(
        "--max-total-tokens",
        type=Number(1),
        help="Largest device pool of a rank, in tokens, as in the engine.",
    ),
    host_options,
)
machine_options = combined(_machine_options, engine_option())
deployment_options = combined(
    click.option(
        "--model",
        type=Name(known_profiles("models", "blocks")),
        help="Model profile; see `hisparse-sim profiles`.  [default: that of --trace, else"
        f" {DEFAULT_MODEL}]",
    ),
    _machine_options,
    engine_option(replays=False),
    click.option(
        "--early-stops",
        is_flag=True,
        help="Requests may end before their limit (no ignore_eos), so admission estimates their "
        "length.",
    ),
    click.option(
        "--disaggregated",
        is_flag=True,
        help="Prefill runs on separate instances of the same kind.",
    ),
    click.option(
        "--prefill-instances",
        type=Number(1, MOST_INSTANCES),
        help="Prefill instances; implies --disaggregated.  [default: plan searches, serve takes 1]",
    ),
    click.option(
        "--decode-instances",
        type=Number(1, MOST_INSTANCES),
        help="Decode instances; implies --disaggregated.  [default: as for prefill]",
    ),
    click.option(
        "--transfer-gb-s",
        type=POSITIVE,
        default=Scenario.transfer_gb_s,
        show_default=True,
        help="KV transfer from prefill to decode, GB/s per GPU.",
    ),
    click.option(
        "--max-running-requests",
        type=Number(1),
        default=Scenario.max_running_requests,
        show_default=True,
        help="Most requests that run at once, over all ranks.",
    ),
    click.option(
        "--chunked-prefill-size",
        type=Number(64),
        default=Scenario.chunked_prefill_size,
        show_default=True,
        help="Prompt tokens prefilled per step, over all ranks.",
    ),
    click.option(
        "--draft-tokens",
        type=Number(2),
        help="Speculative decoding (MTP): tokens that a step verifies for each request.  [default:"
        " those of the trace]",
    ),
    click.option(
        "--acceptance-length",
        type=Real(1),
        help="With --draft-tokens: tokens that a step yields on average.  [default: those of a"
        " trace with drafts]",
    ),
    click.option(
        "--union-misses",
        type=Real(1),
        help="With --draft-tokens: misses of a step over those of one token.  [default: replayed;"
        " with a miss curve or facts, as many as the drafts]",
    ),
    click.option(
        "--prefetch-recall",
        type=Real(0, 1),
        help="With a mode that guesses misses: the share of them that it foresees.",
    ),
    click.option(
        "--prefetch-waste",
        type=Real(0),
        help="With --prefetch-recall: copies in vain for each foreseen miss.  [default: 0]",
    ),
    kernel_option,
    click.option("--profiles", type=click.Path(), help="TOML file with your own profiles."),
    click.option(
        "--step-times",
        metavar="FILE|aiconfigurator|roofline",
        help="Source of compute times.  [default: the shipped table, else a roofline]",
    ),
    click.option(
        "--prompt",
        type=Number(1),
        default=Scenario.prompt,
        show_default=True,
        help="Tokens per prompt; k is 1,024, so 64k is 65,536.",
    ),
    click.option(
        "--output-len",
        type=Number(1),
        default=Scenario.output_len,
        show_default=True,
        help="Tokens per output.",
    ),
    trace_options("synthetic, of the model"),
    click.option(
        "--miss-curve",
        type=click.Path(),
        help="Miss rates by buffer, from `sweep -o`, instead of replaying a trace.",
    ),
)
