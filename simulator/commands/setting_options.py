"""Options that plan and serve share, and the setting they describe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.traces.commands.options import (
    combined,
    open_traces,
    provenance_option,
    quiet_option,
)
from hisparse_sim.traces.commands.values import Name, Number
from hisparse_sim.traces.file.units import refuse_blocks
from hisparse_sim.traces.terminal import note

if TYPE_CHECKING:
    import pandas as pd

    from hisparse_sim.simulator.serving.missing import LayerMisses, MissesOf
    from hisparse_sim.simulator.serving.prediction import Setting
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
    default="bf16",
    show_default=True,
    help="KV cache entries: 1152, 656 or 576 bytes per token and layer.",
)
kernel_option = click.option(
    "--kernel",
    type=click.Choice(["sglang", "native"]),
    default="sglang",
    show_default=True,
    help="The swap-in kernel: the engine's or ours.",
)

POSITIVE = click.FloatRange(0, min_open=True)
trace_options = combined(
    click.option("--trace", "traces", multiple=True, help="Trace to replay.  [default: sample]"),
    provenance_option,
    quiet_option,
)
deployment_options = combined(
    click.option(
        "--model",
        type=Name(known_profiles("models")),
        default="glm-5.1",
        show_default=True,
        help="Model profile.",
    ),
    click.option(
        "--hardware",
        type=Name(known_profiles("hardware")),
        default="h200",
        show_default=True,
        help="Machine profile.",
    ),
    click.option(
        "--layout",
        type=click.Choice(["dp8-tp8", "dp8-ep8", "tp8"]),
        default="dp8-tp8",
        show_default=True,
        help="Data-parallel attention over 8 ranks with TP or EP experts, or TP for the model.",
    ),
    kv_dtype_option,
    click.option(
        "--mem-fraction-static",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        default=0.85,
        show_default=True,
        help="Share of the GPU for weights and KV.",
    ),
    click.option(
        "--device-pool-gib", type=POSITIVE, help="GPU memory for KV.  [default: what is left]"
    ),
    click.option("--host-gib", type=POSITIVE, help="Host memory a GPU.  [default: the machine's]"),
    click.option(
        "--keys-budgeted",
        type=click.Choice(["all", "once"]),
        default="all",
        show_default=True,
        help="Indexer keys in the pool's size; once: engines before SGLang's pull request 31992,"
        " which also admitted more.",
    ),
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
        default=480,
        show_default=True,
        help="Over all ranks.",
    ),
    click.option(
        "--chunked-prefill-size",
        type=Number(64),
        default=65_536,
        show_default=True,
        help="Over all ranks.",
    ),
    kernel_option,
    click.option("--profiles", type=click.Path(), help="TOML file with your own profiles."),
    click.option(
        "--step-times",
        metavar="FILE|aiconfigurator",
        help="Compute times.  [default: the shipped table]",
    ),
    click.option(
        "--prompt",
        type=Number(1),
        default=32_768,
        show_default=True,
        help="Tokens; k counts 1,024: 64k is 65,536.",
    ),
    click.option("--output-len", type=Number(1), default=8192, show_default=True, help="Tokens."),
    trace_options,
    click.option(
        "--miss-curve",
        type=click.Path(),
        help="Rows of a sweep (buffer, miss_rate) for this load, instead of a replay.",
    ),
)


def one_trace(traces: tuple[str, ...], provenance: str | None) -> Trace:
    """The one trace named, or the bundled sample; a TraceError if it does not count tokens."""
    opened = open_traces(traces, provenance)
    if len(opened) > 1:
        raise click.UsageError("give one --trace: predictions take the misses of a single file")
    refuse_blocks(opened, "serving models price")
    return opened[0]


def prepare(options: dict[str, Any], mode: str, policy: str) -> tuple[Setting, MissesOf, Trace]:
    """The setting that the options describe (default B and ratio), and its source of misses."""
    from hisparse_sim.simulator.serving.deployment import Deployment
    from hisparse_sim.simulator.serving.hardware import load_hardware
    from hisparse_sim.simulator.serving.missing import layer_misses, read_miss_curve
    from hisparse_sim.simulator.serving.models import load_model
    from hisparse_sim.simulator.serving.prediction import Setting, steps_for
    from hisparse_sim.simulator.serving.steptimes import LAYOUTS

    model = load_model(options["model"], options["profiles"])
    hardware = load_hardware(options["hardware"], options["profiles"])
    gib = 1 << 30
    pool, host = options["device_pool_gib"], options["host_gib"]
    deployment = Deployment(
        model,
        hardware,
        LAYOUTS[options["layout"]],
        options["kv_dtype"],
        options["mem_fraction_static"],
        round(pool * gib) if pool else None,
        round(host * gib) if host else None,
        keys_budgeted=options["keys_budgeted"],
    )
    deployment.check_weights()
    if options["step_times"] == "aiconfigurator":
        note("asking AIConfigurator for a table; this takes some minutes", options["quiet"])
    steps = steps_for(
        model, hardware, options["layout"], options["kv_dtype"], options["step_times"]
    )
    trace = one_trace(options["traces"], options["provenance"])
    curve = options["miss_curve"]
    if curve is None and trace.metadata.model != model.name:
        note(
            f"note: misses from {trace.name} ({trace.metadata.model},"
            f" {trace.metadata.provenance}), not from {model.name}",
            options["quiet"],
        )
    start = "direct" if options["disaggregated"] else "staged"

    @cache
    def misses_of(policy: str, size: int) -> LayerMisses:
        return layer_misses(trace, policy, size, start)

    given: MissesOf = misses_of
    if curve is not None:
        context = options["prompt"] + options["output_len"] / 2
        given = read_miss_curve(curve, policy, context, model.top_k)
    setting = Setting(
        deployment,
        steps,
        mode,
        disaggregated=options["disaggregated"],
        max_running_requests=options["max_running_requests"],
        chunked_prefill_size=options["chunked_prefill_size"],
        ignore_eos=not options["early_stops"],
        kernel=options["kernel"],
        profiles=options["profiles"],
    )
    return setting, given, trace


def _given(options: dict[str, Any]) -> dict[str, Any]:
    left_out = ("traces", "provenance", "quiet")
    return {name: value for name, value in options.items() if name not in left_out}


def write(
    rows: pd.DataFrame,
    trace: Trace,
    options: dict[str, Any],
    form: str,
    output: Path | None,
    seed: int = 0,
) -> None:
    """Write rows with what is needed to compute them again."""
    from hisparse_sim.simulator.views.tables import stamped, write_rows

    named = rows.assign(trace=trace.name, provenance=trace.metadata.provenance)
    digests = {trace.name: trace.sha256}
    write_rows(stamped(named, digests, seed, _given(options)), form, output)


def write_document(
    found: dict[str, Any], trace: Trace, options: dict[str, Any], output: Path | None
) -> None:
    """Write a JSON object, with what is needed to compute it again first."""
    from hisparse_sim.simulator.views import tables

    stamp = {
        "trace": trace.name,
        "provenance": trace.metadata.provenance,
        "trace_sha256": trace.sha256,
        "parameters": {k: v for k, v in _given(options).items() if v is not None},
        "version": version("hisparse-sim"),
    }
    tables.write_document(stamp | found, output)
