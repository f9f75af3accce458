"""The demand that is replayed for a model if no trace is given.

It is the synthetic demand of the profile of the model, fitted to published figures, at the context
in question. A model without a profile takes the nearest one.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from hisparse_sim.simulator.serving.model import Model
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
    """The profile of this name, or an alias. Raises ValueError, naming those there are."""
    return get_profile(name)


def demand_of(model: Model, context: int) -> Demand:
    """The demand of `model` in requests of `context` tokens."""
    profile = profile_of(model)
    tokens, wanted = profile.tokens_per_position, model.position_tokens
    note = (
        f"misses from synthetic demand at {context:,} tokens, fitted to published figures of"
        f" {profile.model} at {profile.prompt_len:,}"
    )
    if model.name.lower() not in (profile.name, profile.model.lower()):
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
