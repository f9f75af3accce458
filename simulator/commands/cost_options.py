"""Options of sweep and curve for what misses cost."""

import click

from hisparse_sim.simulator.commands.setting_options import known_profiles
from hisparse_sim.traces.commands.options import combined
from hisparse_sim.traces.commands.values import Name, Number

model_option = click.option(
    "--model",
    type=Name(known_profiles("models")),
    help="Model for bytes and memory.  [default: the trace's, else glm-5.1, at the trace's top_k]",
)
swap_in_options = combined(
    click.option(
        "--link",
        type=Name(known_profiles("links")),
        metavar="PROFILE",
        help="Adds modelled swap-in time over this host link, such as h200-pcie5.",
    ),
    click.option(
        "--kernel",
        type=click.Choice(["sglang", "native"]),
        default="sglang",
        show_default=True,
        help="The swap-in kernel, for --link: the engine's or ours.",
    ),
    click.option(
        "--batch",
        type=Number(1, 65536),
        default=1,
        show_default=True,
        help="Requests that swap in together, for --link.",
    ),
    click.option("--profiles", type=click.Path(), help="TOML file with your own models and links."),
)
