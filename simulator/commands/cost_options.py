"""Options of sweep and curve for what misses cost."""

import click

from hisparse_sim.simulator.commands.setting_options import kernel_option
from hisparse_sim.traces.commands.options import combined

model_option = click.option(
    "--model",
    help="Model for bytes and memory.  [default: the trace's, else glm-5.1, at the trace's top_k]",
)
swap_in_options = combined(
    click.option(
        "--link",
        metavar="PROFILE",
        help="Adds modelled swap-in time over this host link, such as h200-pcie5.",
    ),
    kernel_option,
    click.option(
        "--batch",
        type=click.IntRange(1, 65536),
        default=1,
        show_default=True,
        help="Requests that swap in together, for --link.",
    ),
    click.option("--profiles", type=click.Path(), help="TOML file with your own models and links."),
)
