"""Options that plan and serve share: the load and its targets."""

from __future__ import annotations

import click

from hisparse_sim.simulator.commands.setting_options import POSITIVE
from hisparse_sim.traces.commands.options import combined
from hisparse_sim.traces.commands.values import Number, Real

load_options = combined(
    click.option(
        "--workload",
        type=click.Path(),
        metavar="FILE",
        help="Recorded requests (Mooncake, BurstGPT, Azure, Vidur, bench_serving, or prompt_len and"
        " output_len), in place of --prompt and --output-len; at their times, unless --concurrency"
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
        "--rate", type=POSITIVE, help="Open loop: requests per second, in place of --concurrency."
    ),
    click.option(
        "--requests",
        type=Number(1),
        help="How many; of a --workload so many drawn at random."
        "  [default: four times the concurrency, or 1000; all at recorded times]",
    ),
    click.option(
        "--range-ratio",
        type=Real(0, 1, min_open=True),
        default=1.0,
        show_default=True,
        help="Lengths are uniform in [this x length, length].",
    ),
    click.option("--seed", type=Number(0, 2**63 - 1), default=0, show_default=True),
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
    click.option("--gpu-hour", type=POSITIVE, help="Price of a GPU, for the cost of the output."),
)
