"""The models that profiles describe, by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hisparse_sim.simulator.serving.block_model import block_model, unit_of
from hisparse_sim.simulator.serving.latent_model import KV_DTYPES as KV_DTYPES
from hisparse_sim.simulator.serving.latent_model import latent_model
from hisparse_sim.simulator.serving.model import Model as Model
from hisparse_sim.simulator.serving.profiles import (
    find_profile,
    match_profile,
    read_profiles,
)
from hisparse_sim.traces import Trace, TraceError
from hisparse_sim.traces.file.units import TOKEN, plural


def load_model(name: str, profiles: str | Path | None = None) -> Model:
    """The model called `name`, from the shipped profiles or the user's TOML file `profiles`.

    Names and aliases (the repository's name among them) are matched ignoring case. Raises
    ProfileError, a ValueError, naming the known models.
    """
    block = match_profile("blocks", name, profiles)
    if block is not None and match_profile("models", name, profiles) is None:
        return block_model(block)
    return latent_model(find_profile("models", name, profiles, also="blocks"))


def model_names(profiles: str | Path | None = None) -> tuple[str, ...]:
    """Names of all known models, sorted."""
    return tuple(sorted([*read_profiles("models", profiles), *read_profiles("blocks", profiles)]))


def check_unit(
    traces: Iterable[Trace], unit: str, model: str, profiles: str | Path | None = None
) -> None:
    """Raise TraceError, naming models that fit, for a trace whose positions are not of the unit
    that `model` selects."""
    for trace in traces:
        if trace.metadata.unit != unit:
            raise TraceError(
                f"{trace.path} counts {plural(trace.metadata.unit)}, and {model} selects"
                f" {plural(unit)}: {other_model(trace, profiles)}"
            )


def other_model(trace: Trace, profiles: str | Path | None = None) -> str:
    """Return which `model` to name for the positions of a trace, as the end of a sentence."""
    unit = trace.metadata.unit
    fitting, own = _names_of(unit, profiles), profile_name(trace.metadata.model, profiles)
    if own in fitting:
        return f"its own model is {own}, name that with `model`"
    if fitting:
        return f"name with `model` one that selects {plural(unit)} ({', '.join(fitting)})"
    return f"no profile selects {plural(unit)}; describe its model in a file given with `profiles`"


def profile_name(model: str, profiles: str | Path | None = None) -> str:
    """Return the name of the profile of a model that goes by this name; "" if there is none."""
    found = match_profile("models", model, profiles) or match_profile("blocks", model, profiles)
    return "" if found is None else found.name


def _names_of(unit: str, profiles: str | Path | None) -> list[str]:
    """Return the models that select positions of this unit."""
    if unit == TOKEN:
        return sorted(read_profiles("models", profiles))
    return sorted(
        name
        for name, block in read_profiles("blocks", profiles).items()
        if unit_of(block.count("block_tokens", least=1), block.count("group_bytes", 0)) == unit
    )
