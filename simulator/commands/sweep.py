"""The commands sweep, curve and policies: parse, call one library function, print."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.simulator.commands.cost_options import (
    choose_model,
    choose_swap_in,
    model_option,
    swap_in_options,
)
from hisparse_sim.simulator.commands.setting_options import (
    known_policies,
    kv_dtype_option,
    policy_name,
)
from hisparse_sim.simulator.views import FIGURE_SUFFIXES
from hisparse_sim.traces.commands.group import Interrupted
from hisparse_sim.traces.commands.options import (
    FILE_FORMATS,
    chosen_requests,
    combined,
    open_traces,
    output_form,
    output_options,
    provenance_option,
    quiet_option,
    selection_options,
)
from hisparse_sim.traces.commands.values import Name, Number, Renamed, refuse_without, several
from hisparse_sim.traces.file.units import TOKEN, plural
from hisparse_sim.traces.files import is_file, refuse_input
from hisparse_sim.traces.terminal import note, wrote

if TYPE_CHECKING:
    from hisparse_sim.simulator.replay.sweeping import Sweep
    from hisparse_sim.traces import Trace

traces_argument = click.argument("traces", nargs=-1, metavar="[TRACE]...")
replay_options = combined(
    click.option(
        "--policy",
        "policies",
        type=Name(known_policies, listed=True),
        multiple=True,
        callback=several(policy_name),
        help="Policies, see `hisparse-sim policies`; repeat or separate by commas.",
    ),
    click.option(
        "--buffer",
        "--device-buffer-size",
        "buffers",
        multiple=True,
        callback=several(int, least=1),
        help="Hot buffer sizes in slots per request and layer: 4096,6k or 2048:8192:1024 (k is "
        "1,024).  [default: 1, 2, 3 times the top_k of the trace, the largest of several]",
    ),
    click.option(
        "--start",
        type=click.Choice(["staged", "direct"]),
        default="staged",
        show_default=True,
        help="staged: prefill on the same GPU; direct: KV arrived in host memory.",
    ),
    selection_options,
    provenance_option,
    click.option(
        "--seed",
        type=Number(0, 2**63 - 1),
        default=0,
        show_default=True,
        help="For the policy random.",
    ),
    click.option("--jobs", type=Number(1), help="Threads.  [default: all cores]"),
    quiet_option,
)


@click.command()
@traces_argument
@replay_options
@click.option("--per-layer", is_flag=True, help="One row per request and layer.")
@click.option(
    "--no-min",
    cls=Renamed,
    former=["--no-regret"],
    is_flag=True,
    help="Leave out the comparison with MIN (Belady).",
)
@click.option(
    "--ratio",
    "--host-to-device-ratio",
    "ratios",
    multiple=True,
    callback=several(int, least=1),
    help="host_to_device_ratio: adds what fits into memory and the bytes over the link.",
)
@model_option
@kv_dtype_option
@click.option(
    "--device-pool-gib",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="GPU memory left for KV, per GPU.",
)
@click.option(
    "--host-gib",
    type=click.FloatRange(0, min_open=True),
    default=250.0,
    show_default=True,
    help="Host memory for the KV pool, per GPU.",
)
@click.option(
    "--output-len",
    type=Number(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Tokens that a request still grows by after the trace, for memory.",
)
@swap_in_options
@output_options
def sweep(
    traces: tuple[str, ...],
    policies: tuple[str, ...] | None,
    buffers: tuple[int, ...] | None,
    per_layer: bool,
    no_min: bool,
    ratios: tuple[int, ...] | None,
    form: str | None,
    output: Path | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Misses of every policy at every buffer size.

    TRACE: trace files or globs; the bundled sample if there is none. With -o an interrupted sweep
    goes on with the same command: FILE.partial keeps what is finished.

    \b
    hisparse-sim sweep --buffer 4096 --ratio 8
    hisparse-sim sweep trace.parquet --policy lru,arc --buffer 2048,4096,6144
    hisparse-sim sweep trace.parquet --per-layer -o rows.parquet
    hisparse-sim sweep --link h200-pcie5 --batch 16
    """
    from hisparse_sim.simulator.serving.costs import add_costs, add_swap_in, check_costs
    from hisparse_sim.simulator.serving.memory import check_buffer
    from hisparse_sim.simulator.views.tables import stamped, write_rows
    from hisparse_sim.simulator.views.terminal import show_sweep

    costs = {
        name: options.pop(name)
        for name in ("kv_dtype", "device_pool_gib", "host_gib", "output_len")
    }
    form = output_form(form, output)
    opened = open_traces(traces, options.pop("provenance"))
    options["requests"] = chosen_requests(options["requests"], opened)
    if output is not None:
        refuse_input(output, (trace.path for trace in opened))
    model_name, link = options.pop("model"), options.pop("link")
    memory = bool(ratios or model_name)
    refuse_without("--ratio", memory, "--device-pool-gib", "--host-gib", "--output-len")
    refuse_without("--ratio or --link", memory or link is not None, "--kv-dtype", "--profiles")
    model = (
        choose_model(model_name, opened, options["profiles"], quiet)
        if ratios or model_name or link
        else None
    )
    swap_in = choose_swap_in(link, options, model, costs["kv_dtype"])
    ratios = ratios or ((2,) if model_name else ())
    check_costs(ratios, costs["device_pool_gib"], costs["host_gib"])
    buffers = buffers or buffers_of(opened)
    if ratios and model is not None:
        for size in buffers:
            check_buffer(model, size)
    options |= {"compare_min": not no_min, "per_layer": per_layer, "keep": kept_beside(output)}
    swept = run_sweep(opened, policies, buffers, quiet, **options)
    rows = swept.rows
    if ratios and model is not None:
        rows = add_costs(swept, model, ratios, **costs)
    if swap_in is not None:
        rows = add_swap_in(swept, rows, swap_in)
    if form == "table":
        show_sweep(rows, output)
        if swept.interrupted:
            click.echo(f"Incomplete: {swept.finished} of {swept.parts} (request, layer) parts.")
    else:
        parameters = selection(swept, options)
        if model is not None:
            parameters |= costs
        write_rows(stamped(rows, swept.digests, options["seed"], parameters), form, output)
    wrote(output, quiet)
    end(swept, options["keep"])


@click.command()
@traces_argument
@replay_options
@click.option("--window", type=Number(1), default=100, show_default=True, help="Steps.")
@click.option(
    "--skip-steps",
    type=Number(0),
    default=0,
    show_default=True,
    help="Leave out the first steps of every request (the start-up burst).",
)
@model_option
@kv_dtype_option
@swap_in_options
@click.option(
    "--format",
    "form",
    type=click.Choice(FILE_FORMATS),
    help="Data instead of a figure.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Figure (.png, .svg, .pdf) or data file (.csv, .json, .jsonl, .parquet).  "
    "[default: curve.png; with --format: stdout]",
)
def curve(
    traces: tuple[str, ...],
    policies: tuple[str, ...] | None,
    buffers: tuple[int, ...] | None,
    window: int,
    skip_steps: int,
    form: str | None,
    output: Path | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Draw misses per step, or their time, over a rolling window.

    One line per policy and buffer, the mean over layers, with a band over them. The default policy
    is lru.

    \b
    hisparse-sim curve -o curve.svg
    hisparse-sim curve trace.parquet --policy lru,belady --buffer 4096 --format csv
    hisparse-sim curve --link h200-pcie5 --kernel native -o time.png
    """
    from hisparse_sim.simulator.replay.curves import check_window, rolling_curves
    from hisparse_sim.simulator.replay.sweeping import rows_kept
    from hisparse_sim.simulator.views import figures
    from hisparse_sim.simulator.views.tables import stamped, write_rows

    path = output or Path("curve.png")
    form = output_form(form, path if form is None else output, FIGURE_SUFFIXES)
    opened = open_traces(traces, options.pop("provenance"))
    options["requests"] = chosen_requests(options["requests"], opened)
    if len(opened) > 1:
        raise click.UsageError("curve takes one trace")
    refuse_input(path, [opened[0].path])
    model_name, link, kv_dtype = (options.pop(name) for name in ("model", "link", "kv_dtype"))
    refuse_without("--link", link is not None, "--model", "--kv-dtype", "--profiles")
    model = choose_model(model_name, opened, options["profiles"], quiet) if link else None
    swap_in = choose_swap_in(link, options, model, kv_dtype)
    parts = [
        (trace, part)
        for trace in opened
        for part in trace.select(options["requests"], options["layers"])
    ]
    longest = max((rows_kept(*each, options["steps"]) for each in parts), default=0)
    check_window(longest, window, skip_steps)
    options["keep"] = kept_beside(path if form == "table" else output)
    buffers = buffers or buffers_of(opened)
    swept = run_sweep(opened, policies or ("lru",), buffers, quiet, compare_min=False, **options)
    curves = rolling_curves(swept, window, skip_steps, swap_in)
    if form == "table":
        metadata = opened[0].metadata
        model_name = metadata.model or "model unknown"
        origin = f"{metadata.provenance} trace {opened[0].name} ({model_name}); simulated"
        if swap_in is not None:
            origin += f"; {swap_in.kernel} kernel over {link}, batch {swap_in.batch}"
        if metadata.unit != TOKEN:
            origin += f"; positions are {plural(metadata.unit)}"
        figures.save(figures.rolling_misses(curves, window=window, provenance=origin), path)
    else:
        parameters = selection(swept, options)
        parameters |= {"window": window, "skip_steps": skip_steps, "start": options["start"]}
        if swap_in is not None:
            curves = curves.assign(
                link=link, swap_in_kernel=swap_in.kernel, batch=swap_in.batch, kv_dtype=kv_dtype
            )
        write_rows(stamped(curves, swept.digests, options["seed"], parameters), form, output)
    wrote(path if form == "table" else output, quiet)
    end(swept, options["keep"])


@click.command("policies")
@output_options
@quiet_option
def list_policies(form: str | None, output: Path | None, quiet: bool) -> None:
    """List the policies: name, what it does, reference."""
    import pandas as pd

    from hisparse_sim.policies import POLICIES
    from hisparse_sim.simulator.views.tables import write_rows
    from hisparse_sim.simulator.views.terminal import show_policies

    rows = pd.DataFrame(
        [
            {"policy": policy.name, "summary": policy.summary, "reference": policy.reference}
            for policy in POLICIES.values()
        ]
    )
    form = output_form(form, output)
    if form == "table":
        show_policies(rows, output)
    else:
        write_rows(rows, form, output)
    wrote(output, quiet)


def buffers_of(opened: Sequence["Trace"]) -> tuple[int, ...]:
    """Return the buffer sizes of traces for which none are given."""
    from hisparse_sim.simulator.replay.replaying import default_buffers

    return default_buffers(max(trace.metadata.top_k for trace in opened))


def run_sweep(
    opened: Sequence["Trace"],
    policies: Sequence[str] | None,
    buffers: Sequence[int],
    quiet: bool,
    keep: Path | None,
    **options: Any,
) -> "Sweep":
    """Sweep with progress on stderr; fail if it was interrupted and there is nothing to show, or a
    file that goes on."""
    from hisparse_sim.policies import POLICIES
    from hisparse_sim.simulator.replay import sweep as run
    from hisparse_sim.simulator.views.progress import progress

    for size in buffers:
        if size % 64:
            note(f"buffer {size} is no multiple of 64, which the engine requires", quiet)
    policies = policies or tuple(POLICIES)
    if keep is not None and keep.exists():
        note(f"going on from what {keep} holds of this sweep", quiet)
    with progress(quiet) as report:
        swept = run(opened, policies, buffers, progress=report, keep=keep, **options)
    if swept.interrupted and (keep is not None or not swept.finished):
        done = (
            f"interrupted: {swept.finished} of {swept.parts} (request, layer) parts were finished"
        )
        way = f"; {keep} keeps the work, and the same command goes on from there" if keep else ""
        raise Interrupted(done + way)
    return swept


def kept_beside(output: Path | None) -> Path | None:
    """Return the file that keeps the work of a sweep until `output` is written."""
    if output is None or not is_file(output):
        return None
    return output.with_name(f"{output.name}.partial")


def end(swept: "Sweep", keep: Path | None) -> None:
    """Remove what the output has made superfluous; exit with 1 if Ctrl-C ended the sweep, whose
    finished rows are on stdout by then."""
    if keep is not None:
        keep.unlink(missing_ok=True)
    if swept.interrupted:
        raise Interrupted(
            f"interrupted: {swept.finished} of {swept.parts} (request, layer) parts were finished "
            "and are all that is shown; with -o FILE an interrupted sweep can go on"
        )


def selection(swept: "Sweep", options: dict[str, Any]) -> dict[str, Any]:
    """Return which part of the traces the rows are about."""
    chosen = {name: options[name] for name in ("requests", "layers", "steps")}
    if swept.interrupted:
        chosen["interrupted"] = f"{swept.finished} of {swept.parts} parts"
    return chosen
