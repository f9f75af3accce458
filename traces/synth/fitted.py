"""Profiles fitted to what a server counted, as `observe` writes them."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hisparse_sim.traces.documents import read_json
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.metadata import MOST_QUERIES
from hisparse_sim.traces.synth.generator import Parameters, Profile, get_profile

CLOSE = 0.005  # of the misses: rates that agree


class Fitted(NamedTuple):
    """A profile as it was fitted: named "PROFILE, fitted", with the prompt and the steps whose hit
    rate is that of the server in `layers`."""

    profile: Profile
    layers: tuple[int, ...]
    draft_tokens: int  # queries of a step; 1: no drafts
    acceptance_length: float


def read_fit(path: str | os.PathLike[str]) -> Fitted:
    """Return the profile of a fit, and the drafts of the server.

    Raises TraceError if the file holds no fit, or one that this release does not understand.
    """
    found = read_json(path)
    fit = found.get("fit") if isinstance(found, dict) else None
    if not isinstance(fit, dict):
        raise TraceError(
            f"{path} holds no fit: `hisparse-sim observe SOURCE --profile NAME -o FILE` writes one"
        )
    try:
        profile = get_profile(str(fit.get("profile")))
        given = fit["parameters"]
        known = vars(profile.parameters)
        wrong = [
            name
            for name, value in given.items()
            if name not in known or type(value) not in (int, float) or not 0 <= value < 1e9
        ]
        if wrong:
            raise ValueError(f"{wrong[0]} is no parameter, or has no value that is one")
        parameters = replace(profile.parameters, **given)
        queries = _whole(fit, "queries", MOST_QUERIES)
        accepted, layers = fit["acceptance_length"], fit["layers"]
        prompt_len, steps = _whole(fit, "prompt_len"), _whole(fit, "steps")
        if not layers or any(layer not in range(profile.num_layers) for layer in layers):
            raise ValueError(f"layers is {layers!r}")
        says = said(fit)
        if type(accepted) not in (int, float) or not 1 <= accepted <= queries:
            raise ValueError(f"acceptance_length is {accepted!r}")
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise TraceError(
            f"{path} holds a fit that cannot be used ({error}): `hisparse-sim observe`"
            f" writes one anew"
        ) from None
    assert isinstance(parameters, Parameters)
    fitted = replace(
        profile,
        name=f"{profile.name}, fitted",
        parameters=parameters,
        prompt_len=prompt_len,
        steps=steps,
        stands_in=says,
        fit=fit,
    )
    return Fitted(fitted, tuple(layers), queries, accepted)


def said(fit: Mapping[str, Any]) -> str:
    """Return what was fitted to what, in half a sentence. Raises LookupError, TypeError or
    ValueError for a fit that does not say it."""
    resident = fit["resident_tokens"]
    return (
        f"{fit['profile']} with noise and drift x {fit['scale']:.3g} has a hit rate of"
        f" {fit['hit_rate']:.1%} at {fit['buffer']:,} slots and {fit['context']:,} tokens"
        + f", {resident:,} of them resident" * bool(resident)
        + f" (counted: {fit['observed_hit_rate']:.1%}"
        + ", which no scale reaches" * (not reached(fit))
        + ")"
    )


def reached(fit: Mapping[str, Any]) -> bool:
    """Return whether the rate of a fit is the one that was counted. Raises as `said`."""
    return apart(fit["hit_rate"], fit["observed_hit_rate"]) < 4 * CLOSE


def apart(hit_rate: float, wanted: float) -> float:
    """Return the difference of two hit rates as a share of the wanted misses."""
    return abs(hit_rate - wanted) / max(1 - wanted, 1e-4)


def _whole(fit: Mapping[str, Any], name: str, most: int = 2**31 - 1) -> int:
    value = fit[name]
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} is {value!r}")
    return value
