"""Profiles fitted to what a server counted, as `observe` writes them."""

import os
from dataclasses import replace
from pathlib import Path

from hisparse_sim.traces.documents import read_json
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.synth.generator import Parameters, Profile, get_profile


def read_fit(path: str | os.PathLike[str]) -> Profile:
    """Return the profile with the parameters of a fit, named "PROFILE, fitted".

    Raises TraceError if the file holds no fit, or one that this release does not understand.
    """
    found = read_json(Path(path))
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
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise TraceError(f"{path} holds a fit that cannot be used ({error})") from None
    assert isinstance(parameters, Parameters)
    return replace(profile, name=f"{profile.name}, fitted", parameters=parameters, fit=fit)
