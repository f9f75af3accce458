"""Options of sweep and curve for what misses cost, and the profiles that they name."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.simulator.commands.setting_options import known_profiles
from hisparse_sim.traces.commands.options import combined
from hisparse_sim.traces.commands.values import Name, Number, refuse_without
from hisparse_sim.traces.terminal import note

if TYPE_CHECKING:
    from hisparse_sim.simulator.serving.costs import SwapIn
    from hisparse_sim.simulator.serving.models import Model
    from hisparse_sim.traces import Trace

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


def choose_model(
    name: str | None, opened: Sequence["Trace"], profiles: str | None, quiet: bool
) -> "Model":
    """The model that costs are of, with a note on stderr where it is not the traces' own."""
    from hisparse_sim.simulator.serving.costs import model_of

    model, why = model_of(opened, name, profiles)
    if why:
        note(why, quiet)
    return model


def choose_swap_in(
    link: str | None, options: dict[str, Any], model: "Model | None", kv_dtype: str
) -> "SwapIn | None":
    """Take --kernel and --batch out of `options` and return what they and --link describe."""
    from hisparse_sim.simulator.serving.costs import SwapIn
    from hisparse_sim.simulator.serving.latency import load_link

    kernel, batch, profiles = (options.pop(name) for name in ("kernel", "batch", "profiles"))
    refuse_without("--link", link is not None, "--kernel", "--batch")
    if link is None or model is None:
        return None
    return SwapIn(load_link(link, profiles), kernel, batch, model.entry_bytes(kv_dtype))
