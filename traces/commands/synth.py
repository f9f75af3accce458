"""The command `trace synth`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from hisparse_sim.traces.commands.options import (
    counter,
    force_option,
    layer_option,
    quiet_option,
    refuse_replacing,
    trace_output_option,
)
from hisparse_sim.traces.commands.values import Name, Number, Seed
from hisparse_sim.traces.terminal import wrote


def _profiles() -> Iterable[str]:
    from hisparse_sim.traces.synth.generator import profiles

    return profiles()


def _shapes() -> Iterable[str]:
    from hisparse_sim.traces.synth.shapes import SHAPES

    return SHAPES


@click.command()
@click.option(
    "--profile", type=Name(_profiles), help="Model whose published figures it is fitted to."
)
@click.option(
    "--shape", type=Name(_shapes), help="An extreme pattern instead of a profile, for tests."
)
@trace_output_option
@force_option
@click.option("--context", "prompt_len", type=Number(0), help="Tokens of the prompt.")
@click.option("--steps", type=Number(1), help="Decode steps.")
@click.option("--top-k", type=Number(1), help="Positions per step: tokens, or blocks for qsa.")
@layer_option
@click.option("--requests", type=Number(1), help="Requests to make.  [default: 1]")
@click.option("--distinct", type=Number(1), help="Distinct positions that a shape uses.")
@click.option("--seed", type=Seed(0), help="[default: 0]")
@quiet_option
def synth(
    profile: str | None,
    shape: str | None,
    output: Path,
    force: bool,
    layers: tuple[int, ...] | None,
    requests: int | None,
    distinct: int | None,
    seed: int | None,
    quiet: bool,
    **changes: Any,
) -> None:
    """Make a synthetic trace from a fitted random model, or an extreme shape.

    \b
    Profiles: glm-5.1, deepseek-v3.2, qsa.
    Shapes: cyclic, thrash, all-new, none-new, step-change.

    Context, steps and top_k are those of the model that the profile was fitted to, unless given.
    The file says `synthetic` and holds the fit: the published figures and those achieved. Positions
    of qsa (Qwen QSA) are blocks of 4 tokens: misses are replayed, but no cost is computed.

    \b
    hisparse-sim trace synth --profile glm-5.1 --layer 0,20,40,60 -o synth-glm.parquet
    hisparse-sim trace synth --profile deepseek-v3.2 --context 32k --layer 30 -o synth.parquet
    hisparse-sim trace synth --shape cyclic --top-k 64 --context 4096 --distinct 512 -o scan.parquet
    """
    if (profile is None) == (shape is None):
        raise click.UsageError("choose either --profile or --shape")
    refuse_replacing(output, force)
    if shape is not None:
        from hisparse_sim.traces.synth.shapes import synthesize_shape

        if layers or requests or seed is not None:
            raise click.UsageError("a shape has one request and one layer, and no seed")
        synthesize_shape(output, shape, distinct=distinct, **changes)
    else:
        from hisparse_sim.traces.synth.generator import get_profile, reshaped, synthesize

        if distinct is not None:
            raise click.UsageError("--distinct belongs to --shape")
        synthesize(
            output,
            reshaped(get_profile(profile or ""), **changes),
            layers=list(layers) if layers else None,
            requests=requests or 1,
            seed=seed or 0,
            progress=counter("layers", quiet),
        )
    wrote(output, quiet)
