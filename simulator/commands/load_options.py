"""Options that plan and serve share: the load and its targets."""

from __future__ import annotations

import click

from hisparse_sim.simulator.commands.setting_options import POSITIVE
from hisparse_sim.traces.commands.options import combined
from hisparse_sim.traces.commands.values import Number, Real, RenamedChoice, Seed

_FORMER_MODES = {"oracle": "zero-cost"}


def mode_choice(*more: str) -> RenamedChoice:
    """Return the ways in which swap-in and compute overlap, after `more`."""
    modes = ["hisparse", "prefetch", "prefetch-layer", "prefetch-step", "overlap", "zero-cost"]
    return RenamedChoice([*more, *modes], _FORMER_MODES)


load_options = combined(
    click.option(
        "--workload",
        type=click.Path(),
        metavar="FILE",
        help="Recorded requests (Mooncake, BurstGPT, Azure, Vidur, bench_serving, or prompt_len and"
        " output_len), instead of --prompt and --output-len; at their times, unless --concurrency"
        " or --rate is given.",
    ),
    click.option(
        "--time-scale",
        type=POSITIVE,
        help="With --workload: its times are multiplied by this; 2 is half the rate.",
    ),
    click.option(
        "--no-prefix-cache",
        is_flag=True,
        help="With --workload: prefill every prompt whole; else those with hash_ids reuse prefixes"
        " where the engine has a radix cache (not with HiSparse).",
    ),
    click.option(
        "--rate", type=POSITIVE, help="Open loop: requests per second, instead of --concurrency."
    ),
    click.option(
        "--requests",
        type=Number(1),
        help="Number of requests; with --workload this many are drawn at random."
        "  [default: 4 times the concurrency; 1000 with --rate; all at recorded times]",
    ),
    click.option(
        "--range-ratio",
        type=Real(0, 1, min_open=True),
        default=1.0,
        show_default=True,
        help="Prompt and output lengths are uniform from this share of their length to all of it.",
    ),
    click.option(
        "--seed",
        type=Seed(0),
        default=0,
        show_default=True,
        help="Seed of lengths and arrivals.",
    ),
)
target_options = combined(
    click.option("--max-tpot-ms", type=POSITIVE, help="Target: time per output token."),
    click.option("--max-ttft-s", type=POSITIVE, help="Target: time to the first token."),
    click.option(
        "--percentile",
        type=Real(0, 100),
        default=50.0,
        show_default=True,
        help="Percentage of the requests that must meet these two targets.",
    ),
    click.option("--max-miss-rate", type=Real(0, 1), help="Target: miss rate, from 0 to 1."),
    click.option("--gpu-hour", type=POSITIVE, help="GPU price per hour, for the cost of output."),
)
