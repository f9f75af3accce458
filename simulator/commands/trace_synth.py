"""The command `trace synth`."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hisparse_sim.simulator.commands.setting_options import known_profiles
from hisparse_sim.traces.commands.options import (
    counter,
    force_option,
    in_options,
    layer_option,
    quiet_option,
    refuse_replacing,
    trace_output_option,
)
from hisparse_sim.traces.commands.values import Name, Number, Real, Seed, refuse_without, several
from hisparse_sim.traces.drafts import all_accepted
from hisparse_sim.traces.file.metadata import MOST_QUERIES
from hisparse_sim.traces.terminal import note, wrote


def _profiles() -> Iterable[str]:
    from hisparse_sim.simulator.serving.demand import profile_names

    return profile_names()


def _shapes() -> Iterable[str]:
    from hisparse_sim.traces.synth.shapes import SHAPES

    return SHAPES


@click.command()
@click.option(
    "--profile", type=Name(_profiles), help="Model whose published figures it is fitted to."
)
@click.option(
    "--fit",
    type=click.Path(),
    help="A file that `observe --profile` wrote: the profile fitted to the counters.",
)
@click.option(
    "--like",
    type=Name(known_profiles("models", "blocks")),
    help="Model whose layers, top_k and unit the trace has, with the locality of the profile.  "
    "[default profile: the one that stands for it in plans]",
)
@click.option("--profiles", type=click.Path(), help="With --like: TOML file with your models.")
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
@click.option(
    "--draft-tokens",
    type=Number(1, MOST_QUERIES),
    help="Queries per step, as in speculative decoding.  [default: 1]",
)
@click.option(
    "--acceptance-length",
    type=Real(1, MOST_QUERIES),
    help="With --draft-tokens: mean tokens accepted per step.  [default: all]",
)
@click.option(
    "--full-layers",
    "full_layers",
    multiple=True,
    callback=several(int, least=0),
    metavar="LAYERS",
    help="Layers with an index, such as 0-2,6,10; others repeat the one before.  [default: all]",
)
@click.option("--seed", type=Seed(0), help="[default: 0]")
@quiet_option
def synth(
    profile: str | None,
    fit: str | None,
    like: str | None,
    profiles: str | None,
    shape: str | None,
    output: Path,
    force: bool,
    layers: tuple[int, ...] | None,
    requests: int | None,
    distinct: int | None,
    draft_tokens: int | None,
    acceptance_length: float | None,
    full_layers: tuple[int, ...] | None,
    seed: int | None,
    quiet: bool,
    **changes: Any,
) -> None:
    """Make a synthetic trace from a fitted random model, or an extreme shape.

    \b
    Profiles: glm-5.1, deepseek-v3.2, qsa.
    Shapes: cyclic, thrash, all-new, none-new, step-change.

    Context, steps and top_k are those of the model that the profile was fitted to, unless given;
    with --fit, all of these, the layers and the drafts are those that gave the rate of the server.
    The file says `synthetic` and holds the fit: the published figures and those achieved. Positions
    of qsa (Qwen QSA) are blocks of 4 tokens: `sweep --model qsa` adds bytes. Of other models no
    figures are known: --like gives their shape the locality of a profile, and the file says so.

    \b
    hisparse-sim trace synth --profile glm-5.1 --layer 0,20,40,60 -o synth-glm.parquet
    hisparse-sim trace synth --profile deepseek-v3.2 --context 32k --layer 30 -o synth.parquet
    hisparse-sim trace synth --profile glm-5.1 --layer 30 --draft-tokens 4 \\
        --acceptance-length 2.7 -o drafts.parquet
    hisparse-sim trace synth --like glm-5.2 --layer 0-9 -o shared.parquet
    hisparse-sim trace synth --fit observed.json -o like-ours.parquet
    hisparse-sim trace synth --shape cyclic --top-k 64 --context 4096 --distinct 512 -o scan.parquet
    """
    refuse_without("--draft-tokens", draft_tokens is not None, "--acceptance-length")
    if [profile, shape, fit].count(None) != 2 and (like is None or profile or shape or fit):
        raise click.UsageError("choose one of --profile, --fit and --shape, or --like alone")
    refuse_without("--like", like is not None, "--profiles")
    refuse_without("a profile, not to --shape", shape is None, "--like")
    refuse_replacing(output, force)
    if shape is not None:
        from hisparse_sim.traces.synth.shapes import synthesize_shape

        if layers or requests or seed is not None:
            raise click.UsageError("a shape has one request and one layer, and no seed")
        if draft_tokens or full_layers:
            raise click.UsageError("--draft-tokens and --full-layers are of no shape")
        synthesize_shape(output, shape, distinct=distinct, **changes)
    else:
        from hisparse_sim.simulator.serving.demand import profile_called, profile_like
        from hisparse_sim.simulator.serving.models import load_model
        from hisparse_sim.traces.synth.fitted import reached, read_fit
        from hisparse_sim.traces.synth.generator import reshaped, synthesize

        if distinct is not None:
            raise click.UsageError("--distinct belongs to --shape")
        asked = None if profile is None else profile_called(profile)
        if fit is not None:
            asked, fitted_layers, queries, accepted = read_fit(fit)
            drafts = (queries, accepted)
            if not reached(asked.fit):
                note(f"the fit did not reach the rate of the server: {asked.stands_in}", quiet)
            others = [
                name
                for name, differs in {
                    "layers": like or full_layers or layers not in (None, fitted_layers),
                    "steps, context or top_k": reshaped(asked, **changes) != asked,
                    "drafts": draft_tokens and (draft_tokens, acceptance_length) != drafts,
                }.items()
                if differs
            ]
            if others:
                caveat = f"fitted with other {' and '.join(others)}, so this file has another rate"
                note(f"{caveat}: `hisparse-sim observe SOURCE --trace {output}` tells it", quiet)
                asked = replace(asked, stands_in=f"{asked.stands_in}; {caveat}")
            if layers is None and like is None and full_layers is None:
                layers = fitted_layers
            if draft_tokens is None and queries > 1:
                draft_tokens, acceptance_length = drafts
        if like is not None:
            model = load_model(like, profiles)
            asked = profile_like(model, asked)
            if full_layers is None and model.indexer_layers < model.layers:
                full_layers = model.indexed_layers
        assert asked is not None
        if draft_tokens is not None and draft_tokens > 1 and acceptance_length is None:
            said = all_accepted(draft_tokens)
            note(in_options(said, click.get_current_context().command), quiet)
        synthesize(
            output,
            reshaped(asked, **changes),
            layers=list(layers) if layers else None,
            requests=requests or 1,
            seed=seed or 0,
            draft_tokens=draft_tokens or 1,
            acceptance_length=acceptance_length,
            full_layers=full_layers or None,
            progress=counter("layers", quiet),
        )
        _note_outweighing(output, quiet)
    wrote(output, quiet)


def _note_outweighing(path: Path, quiet: bool) -> None:
    """Say it where the misses of one layer decide those of the model."""
    from hisparse_sim.traces import open_trace
    from hisparse_sim.traces.file.layer_types import outweighing, stands_for

    trace = open_trace(path)
    types = trace.metadata.layer_types
    if (layer := outweighing(types, trace.layers)) is not None:
        count = stands_for(types, trace.layers)[layer]
        note(
            f"layer {layer} stands for {count} of {len(types or ())} layers in `plan` and `serve`,"
            " far more than any other: give more --full-layers",
            quiet,
        )
