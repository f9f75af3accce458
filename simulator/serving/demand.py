"""The demand that is replayed for a model if no trace is given.

It is the synthetic demand of the profile of the model, fitted to published figures, at the context
in question. A model without a profile takes the nearest one.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from hisparse_sim.simulator.serving.model import Model
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.traces.file.units import COMPRESSED, block_unit, plural
from hisparse_sim.traces.synth.generated import GeneratedTrace
from hisparse_sim.traces.synth.generator import Profile, get_profile, profiles, reshaped

LAYERS = 12  # replayed: miss rates are within 2 % of those of all layers and a thousand steps
STEPS, FEWEST_STEPS = 300, 150
DRAWN = 30_000_000  # scores a layer: beyond, a long context gets fewer steps


class Demand(NamedTuple):
    """The demand that is replayed, and a sentence about it."""

    trace: GeneratedTrace
    note: str


def profile_of(model: Model) -> Profile:
    """The profile of this model; else, of those that select as many tokens at a time or, failing
    that, blocks, the one of the model with the most similar name."""
    known = list(profiles().values())
    alike = [one for one in known if one.tokens_per_position == model.position_tokens]
    alike = alike or [one for one in known if one.tokens_per_position > 1]

    def similar(profile: Profile) -> int:
        return max(
            _shared(name, model.name.lower()) for name in (profile.name, profile.model.lower())
        )

    return max(alike, key=similar)


def _shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def profile_names() -> tuple[str, ...]:
    """The names of the synthetic profiles."""
    return tuple(profiles())


def profile_called(name: str) -> Profile:
    """The profile of this name, or an alias. Raises ValueError, naming those there are, or for a
    model that has none the one that stands in."""
    try:
        return get_profile(name)
    except ValueError as error:
        try:
            model = load_model(name)
        except ValueError:
            raise error from None
        raise ValueError(
            f"no figures of the locality of {model.name} are known, to which a profile could be"
            f" fitted: {profile_of(model).name} stands in for it in plans, and `hisparse-sim trace"
            f" synth --like {model.name}` makes a trace of its shape with that"
        ) from None


def profile_like(model: Model, profile: Profile | None = None) -> Profile:
    """`profile` (None: the one that stands for the model in plans) in the shape of `model`: its
    layers that select, top_k and unit.

    Raises ValueError for blocks of tokens with the locality of single ones, or the reverse.
    """
    chosen = profile_of(model) if profile is None else profile
    if (chosen.tokens_per_position > 1) != (model.position_tokens > 1):
        raise ValueError(
            f"{model.name} selects {plural(model.unit)}, and the figures of {chosen.name} are of"
            f" {plural(block_unit(chosen.tokens_per_position))}: leave `profile` out"
        )
    if _is_of(chosen, model):
        return chosen
    stands_in = f"for {chosen.model}, whose locality stands in for that of {model.name}"
    if chosen.tokens_per_position != model.position_tokens:
        stands_in += f", its blocks of {chosen.tokens_per_position} tokens for {plural(model.unit)}"
    if chosen.stands_in:
        stands_in = f"{chosen.stands_in}; {stands_in}"
    return reshaped(
        chosen,
        num_layers=model.layers,
        top_k=model.top_k,
        tokens_per_position=model.position_tokens,
        compressed=model.unit == COMPRESSED,
        model=model.name,
        stands_in=stands_in,
    )


def _is_of(profile: Profile, model: Model) -> bool:
    return model.name.lower() in (profile.name, profile.model.lower())


def demand_of(model: Model, context: int) -> Demand:
    """The demand of `model` in requests of `context` tokens."""
    profile = profile_of(model)
    tokens, wanted = profile.tokens_per_position, model.position_tokens
    note = (
        f"misses from synthetic demand at {context:,} tokens, fitted to published figures of"
        f" {profile.model} at {profile.prompt_len:,}"
    )
    if not _is_of(profile, model):
        note += f", the nearest to {model.name}"
    if tokens != wanted:
        note += f", with blocks of {wanted} tokens as if they were of {tokens}: give a `trace`"
    return Demand(_trace(profile.name, model.top_k, model.layers, context, wanted), note)


def demand_beyond(model: Model, context: int, held_tokens: int) -> GeneratedTrace:
    """Return the same for requests longer than what a GPU holds of them: shorter ones have no
    misses, and say nothing about requests that grow beyond it."""
    if context <= held_tokens:
        context = 2 * held_tokens
    return demand_of(model, context).trace


@lru_cache(maxsize=8)
def _trace(profile: str, top_k: int, layers: int, context: int, tokens: int) -> GeneratedTrace:
    shape = reshaped(
        get_profile(profile), top_k=top_k, num_layers=layers, tokens_per_position=tokens
    )
    steps = max(min(STEPS, DRAWN // context), FEWEST_STEPS)
    return GeneratedTrace(shape, context, steps, LAYERS)
