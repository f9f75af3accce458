"""Options of sweep and curve for the cost of misses."""

import click

from hisparse_sim.simulator.commands.setting_options import known_profiles
from hisparse_sim.traces.commands.options import combined
from hisparse_sim.traces.commands.values import Name, Number

model_option = click.option(
    "--model",
    type=Name(known_profiles("models", "blocks")),
    help="Model for bytes and memory.  [default: that of the trace, else glm-5.1, with the top_k "
    "of the trace]",
)
swap_in_options = combined(
    click.option(
        "--link",
        type=Name(known_profiles("links")),
        metavar="PROFILE",
        help="Add the modelled swap-in time over this host link, such as h200-pcie5.",
    ),
    click.option(
        "--kernel",
        type=click.Choice(["sglang", "native"]),
        default="sglang",
        show_default=True,
        help="With --link: the swap-in kernel, the engine's or ours.",
    ),
    click.option(
        "--batch",
        type=Number(1, 65536),
        default=1,
        show_default=True,
        help="With --link: requests that swap in together.",
    ),
    click.option("--profiles", type=click.Path(), help="TOML file with your own models and links."),
)
