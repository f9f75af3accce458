"""The command study: parse, call one library function, print."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from hisparse_sim.simulator.commands.cost_options import model_option
from hisparse_sim.simulator.commands.replay_options import (
    at_workers,
    end,
    judge,
    kept_beside,
    long_work,
    replay_options,
    selection,
    traces_argument,
)
from hisparse_sim.simulator.commands.setting_options import (
    kernel_option,
    known_policies,
    known_profiles,
    kv_dtype_option,
    policy_name,
)
from hisparse_sim.traces.commands.options import (
    chosen_requests,
    combined,
    open_traces,
    output_form,
    output_options,
)
from hisparse_sim.traces.commands.values import Name, Number, several
from hisparse_sim.traces.files import refuse_input

COSTS = ("kv_dtype", "hardware", "layout", "prefetch_policies")


def _prefetchers() -> Iterable[str]:
    from hisparse_sim.simulator.prefetch import NO_PREFETCH, PREFETCHERS

    return (*PREFETCHERS, NO_PREFETCH)


prefetch_options = combined(
    click.option(
        "--prefetch",
        "prefetchers",
        type=Name(_prefetchers, listed=True),
        multiple=True,
        callback=several(str),
        help="What is fetched ahead, with parameters as for policies, or FILE.py:NAME; none leaves"
        " all out.  "
        "[default: all that apply to every trace]",
    ),
    click.option(
        "--budget",
        "budgets",
        multiple=True,
        callback=several(int, least=1),
        help="Entries fetched ahead per request, layer and step, which take as many slots.  "
        "[default: 64,128,256,512]",
    ),
    click.option(
        "--prefetch-policy",
        "prefetch_policies",
        type=Name(known_policies, listed=True),
        multiple=True,
        callback=several(policy_name),
        help="What evicts in the other slots.  [default: lru]",
    ),
)
time_options = combined(
    model_option,
    kv_dtype_option,
    click.option(
        "--hardware",
        type=Name(known_profiles("hardware")),
        default="h200",
        show_default=True,
        help="Machine that computes while the link copies ahead.",
    ),
    click.option(
        "--layout",
        type=click.Choice(["dp8-tp8", "dp8-ep8", "tp8", "dp16-ep16"]),
        default="dp8-tp8",
        show_default=True,
        help="Its layout, as in plan.",
    ),
    click.option(
        "--link",
        type=Name(known_profiles("links")),
        default="h200-pcie5",
        show_default=True,
        help="Host link.",
    ),
    kernel_option,
    click.option(
        "--batch",
        type=Number(1, 65536),
        default=16,
        show_default=True,
        help="Requests of a GPU that swap in together.",
    ),
    click.option("--profiles", type=click.Path(), help="TOML file with your own profiles."),
)


@click.command()
@traces_argument
@replay_options(known_policies, "1, 1.5, 2, 3 and 4", "", every="all")
@prefetch_options
@time_options
@output_options
def study(
    traces: tuple[str, ...],
    policies: tuple[str, ...] | None,
    buffers: tuple[int, ...] | None,
    form: str | None,
    output: Path | None,
    quiet: bool,
    provenance: str | None,
    **options: Any,
) -> None:
    """Compare policies and prefetchers with LRU and with lower bounds.

    TRACE: files, folders or globs; by default the bundled sample. Misses with 95 % intervals over
    requests and layers, paired tests against LRU, the slots that LRU would need, and three regrets:
    fetches over MIN, stall over the least that prefetch exposes, and the misses of the busiest
    request over their least. See docs/prefetch.md. With -o, the same command resumes an
    interrupted study.

    \b
    hisparse-sim study --prefetch none --buffer 4096
    hisparse-sim study a.parquet b.parquet -o study.parquet
    hisparse-sim study --policy lru --prefetch previous-layer,oracle:recall=0.5 --budget 128
    """
    from hisparse_sim.simulator.study import study as run
    from hisparse_sim.simulator.views.study_view import show_study
    from hisparse_sim.simulator.views.tables import stamped, write_rows

    form = output_form(form, output)
    opened = open_traces(traces, provenance)
    options["requests"] = chosen_requests(options["requests"], opened)
    if output is not None:
        refuse_input(output, (trace.path for trace in opened))
    keep = kept_beside(output)
    with long_work(keep, quiet) as report, at_workers(options):
        found = run(opened, policies, buffers, progress=report, keep=keep, **options)
    judge(found, keep, quiet)
    if form == "table":
        show_study(found.rows, output)
    else:
        parameters = selection(found, options)
        parameters |= {name: options.get(name) for name in COSTS}
        write_rows(stamped(found.rows, found.digests, options["seed"], parameters), form, output)
    end(found, keep, quiet, output)
