"""Profiles fitted to what a server counted, as `observe` writes them."""

import os
from dataclasses import replace
from typing import NamedTuple

from hisparse_sim.traces.documents import read_json
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.metadata import MOST_QUERIES
from hisparse_sim.traces.synth.generator import Parameters, Profile, get_profile


class Fitted(NamedTuple):
    """A profile as it was fitted: named "PROFILE, fitted", of the context that was stated."""

    profile: Profile
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
        context, queries = fit["context"], fit["queries"]
        accepted = fit["acceptance_length"]
        for name, value, most in (
            ("context", context, 2**31 - 1),
            ("queries", queries, MOST_QUERIES),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name} is {value!r}")
        if type(accepted) not in (int, float) or not 1 <= accepted <= queries:
            raise ValueError(f"acceptance_length is {accepted!r}")
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise TraceError(f"{path} holds a fit that cannot be used ({error})") from None
    assert isinstance(parameters, Parameters)
    name = f"{profile.name}, fitted"
    fitted = replace(profile, name=name, parameters=parameters, fit=fit, prompt_len=context)
    return Fitted(fitted, queries, accepted)
