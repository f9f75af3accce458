"""A profile of synthetic demand fitted to what a server counted."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hisparse_sim.simulator.serving.counters import SGLANG, Observed
from hisparse_sim.simulator.serving.observing import Setting, Simulated, accepted_by, simulated
from hisparse_sim.traces.drafts import tokens_verified
from hisparse_sim.traces.synth.fitted import CLOSE, apart, reached, said
from hisparse_sim.traces.synth.generated import GeneratedTrace, alike_layers, prompt_of
from hisparse_sim.traces.synth.generator import Parameters, Profile

_LAYERS, _STEPS = 3, 1000
_ROUNDS = 9  # of bisection: the scale is then known to half a percent
_WIDEST = 16.0  # scale of the amplitudes, up and down


@dataclass(frozen=True)
class Fit:
    """A profile whose amplitudes of noise and drift were scaled until its hit rate was that of the
    counters."""

    profile: str
    scale: float
    parameters: Parameters
    hit_rate: float  # achieved
    observed_hit_rate: float
    buffer: int
    context: int  # tokens, mean over the steps
    prompt_len: int
    steps: int
    layers: tuple[int, ...]  # replayed: those, and the steps, that `trace synth --fit` writes
    queries: int
    acceptance_length: float  # tokens that a step yields
    resident_tokens: int  # of a request, under which the rate holds

    def __str__(self) -> str:
        return said(vars(self))

    @property
    def reached(self) -> bool:
        """Whether any scale gives the observed hit rate."""
        return reached(vars(self))


def fitted(
    observed: Observed,
    profile: Profile,
    setting: Setting,
    context: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Fit, Simulated]:
    """Scale the noise and drift of a profile until its hit rate is the one observed.

    One number is fitted to one number: the shape of the profile stays what it is. `context`: mean
    tokens of a request, that of the profile if not given. Returns the fit and its replay; where no
    scale reaches the rate, the nearest is returned and `reached` is False.
    """
    queries, accepted = observed.queries, accepted_by(observed)
    mean = context or profile.prompt_len
    steps = max(1, min(_STEPS, int(mean / accepted)))
    tokens = tokens_verified(steps, queries, accepted)
    layers = alike_layers(profile, _LAYERS)

    def replayed(scale: float) -> Simulated:
        scaled = replace(profile, parameters=_scaled(profile.parameters, scale))
        return simulated(observed, GeneratedTrace(scaled, mean, tokens, layers), setting)

    low, high = -np.log(_WIDEST), np.log(_WIDEST)
    scale, found = 1.0, replayed(1.0)
    for number in range(_ROUNDS):
        if progress is not None:
            progress(number + 1, _ROUNDS)
        if apart(found.hit_rate, observed.hit_rate) <= CLOSE:
            break
        if found.hit_rate > observed.hit_rate:  # too regular
            low = np.log(scale)
        else:
            high = np.log(scale)
        scale = float(np.exp((low + high) / 2))
        found = replayed(scale)
    fit = Fit(
        profile=profile.name,
        scale=scale,
        parameters=_scaled(profile.parameters, scale),
        hit_rate=found.hit_rate,
        observed_hit_rate=observed.hit_rate,
        buffer=found.buffer,
        context=mean,
        prompt_len=prompt_of(mean, tokens),
        steps=steps,
        layers=layers,
        queries=queries,
        acceptance_length=accepted,
        resident_tokens=0 if observed.server == SGLANG else setting.resident_tokens,
    )
    return fit, found


def _scaled(parameters: Parameters, scale: float) -> Parameters:
    return replace(
        parameters,
        noise=parameters.noise * scale,
        drift=parameters.drift * scale,
        early_noise=parameters.early_noise * scale,
    )
