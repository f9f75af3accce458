"""The command mrc: parse, call one library function, print."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.simulator.commands.replay_options import (
    at_workers,
    open_traces_or_facts,
    traces_argument,
    workers_options,
)
from hisparse_sim.simulator.commands.setting_options import known_policies, policy_name
from hisparse_sim.simulator.views import FIGURE_SUFFIXES
from hisparse_sim.traces.commands.options import (
    FILE_FORMATS,
    TABLE_SUFFIXES,
    chosen_requests,
    counter,
    output_form,
    output_option,
    provenance_option,
    quiet_option,
    selection_options,
    start_option,
)
from hisparse_sim.traces.commands.values import AnyOutput, Name, Number, Real, Seed, several
from hisparse_sim.traces.files import refuse_input
from hisparse_sim.traces.terminal import wrote


def _policies() -> Iterable[str]:
    from hisparse_sim.simulator.mrc.counting import POLICIES

    return dict.fromkeys((*POLICIES, *known_policies()))


if TYPE_CHECKING:
    from pandas import DataFrame

    from hisparse_sim.traces import Trace


@click.command()
@traces_argument
@click.option(
    "--policy",
    "policies",
    type=Name(_policies, listed=True),
    multiple=True,
    callback=several(policy_name),
    help="textbook-lru, belady and compulsory (misses that no policy avoids) are counted at every"
    " size; others are replayed.  [default: textbook-lru, belady, lru]",
)
@click.option(
    "--buffer",
    "--device-buffer-size",
    "buffers",
    multiple=True,
    callback=several(int, least=1),
    help="Sizes for the policies that are replayed.  [default: ten from top_k to 8 times top_k]",
)
@click.option("--largest", type=Number(1), help="Largest buffer.  [default: 8 times top_k]")
@start_option
@click.option("--per-layer", is_flag=True, help="One row per request and layer.")
@click.option("--window", type=Number(1), help="One row per window of this many steps.")
@click.option(
    "--skip-steps",
    type=Number(0),
    default=0,
    show_default=True,
    help="Leave out the first steps of every request (the start-up burst).",
)
@click.option(
    "--sample-requests",
    type=Real(0, 1, min_open=True),
    help="Estimate from this share of the requests, with 95 % intervals.",
)
@click.option(
    "--sample-steps",
    type=Real(0, 1, min_open=True),
    help="Estimate textbook-lru from this share of windows of 16 steps.",
)
@selection_options
@provenance_option
@click.option(
    "--seed",
    type=Seed(0),
    default=0,
    show_default=True,
    help="Seed of policies that draw at random.",
)
@workers_options
@quiet_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", *FILE_FORMATS]),
    help="[default: by the suffix of -o, else table]",
)
@output_option(
    AnyOutput(), "Figure (.png, .svg, .pdf), rows (.csv, .json, .jsonl) or facts (.parquet)."
)
def mrc(
    traces: tuple[str, ...],
    policies: tuple[str, ...] | None,
    buffers: tuple[int, ...] | None,
    quiet: bool,
    form: str | None,
    output: Path | None,
    provenance: str | None,
    **options: Any,
) -> None:
    """Count misses at all buffer sizes in one pass over the trace.

    The textbook LRU and MIN (belady) are exact at every size. The engine's LRU orders the slots of
    a step in its own way; it is replayed for comparison. See docs/miss-ratio-curves.md.

    A facts file (-o FILE.parquet) holds the curves of every request, layer and window of steps.
    sweep, curve, plan, report and mrc read it instead of the trace; mrc merges several into one.

    \b
    hisparse-sim mrc
    hisparse-sim mrc trace.parquet -o curve.svg
    hisparse-sim mrc trace.parquet --policy textbook-lru,fifo,clock --format csv
    hisparse-sim mrc trace.parquet -o facts.parquet
    """
    from hisparse_sim.simulator.mrc import mrc as count
    from hisparse_sim.simulator.mrc.counted import counted_only
    from hisparse_sim.simulator.mrc.facts import WINDOW, merge_facts, write_facts
    from hisparse_sim.simulator.mrc.names import ONE_PASS
    from hisparse_sim.simulator.views import figures
    from hisparse_sim.simulator.views.mrc_view import show_mrc, show_sample
    from hisparse_sim.simulator.views.tables import stamped, write_rows

    form = output_form(form, output, (*TABLE_SUFFIXES, *FIGURE_SUFFIXES))
    opened = open_traces_or_facts(traces, provenance)
    options["requests"] = chosen_requests(options["requests"], opened)
    if output is not None:
        refuse_input(output, (trace.path for trace in opened))
    shares = {name: options[name] for name in ("sample_requests", "sample_steps")}
    if shares != dict.fromkeys(shares):
        rows = sampled(opened, policies, buffers, options)
        if output is not None and form == "table" and output.suffix.lower() in FIGURE_SUFFIXES:
            figures.save(figures.miss_ratio(rows), output)
        elif form == "table":
            show_sample(rows, output)
        else:
            write_rows(
                stamped(rows, {rows["trace"].iloc[0]: opened[0].sha256}, options["seed"], {}),
                form,
                output,
            )
        wrote(output, quiet)
        return
    for name in shares:
        del options[name]
    if form == "parquet" and output is not None:
        if options["skip_steps"]:
            raise click.UsageError("--skip-steps does not apply to facts: skip when reading them")
        if counted_only(opened):
            merge_facts(list(dict.fromkeys(trace.path for trace in opened)), output)
        else:
            options["window"] = options["window"] or WINDOW
            policies = policies or ONE_PASS
            with at_workers(options):
                report = counter("parts", quiet)
                counts = count(opened, policies, buffers, progress=report, **options)
            write_facts(counts, output)
        wrote(output, quiet)
        return
    with at_workers(options):
        curves = count(opened, policies, buffers, progress=counter("parts", quiet), **options)
    if output is not None and form == "table" and output.suffix.lower() in FIGURE_SUFFIXES:
        figures.save(figures.miss_ratio(curves.rows), output)
    elif form == "table":
        show_mrc(curves, output)
    else:
        parameters = {
            name: options[name] for name in ("requests", "layers", "steps", "skip_steps", "window")
        }
        write_rows(stamped(curves.rows, curves.digests, options["seed"], parameters), form, output)
    wrote(output, quiet)


def sampled(
    opened: Sequence["Trace"],
    policies: tuple[str, ...] | None,
    buffers: tuple[int, ...] | None,
    options: dict[str, Any],
) -> "DataFrame":
    """Return what is estimated from a sample of one trace."""
    from hisparse_sim.simulator.mrc.sampling import sampled_mrc

    if len(opened) > 1:
        raise click.UsageError("only one trace can be sampled")
    for name in ("per_layer", "window", "skip_steps", "steps", "scheduler", "workers"):
        if options.pop(name):
            raise click.UsageError(f"--{name.replace('_', '-')} does not apply to a sample")
    return sampled_mrc(opened[0], policies, buffers, **options)
