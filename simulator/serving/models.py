"""The models that profiles describe, by name."""

from __future__ import annotations

from pathlib import Path

from hisparse_sim.simulator.serving.block_model import block_model
from hisparse_sim.simulator.serving.latent_model import KV_DTYPES as KV_DTYPES
from hisparse_sim.simulator.serving.latent_model import latent_model
from hisparse_sim.simulator.serving.model import Model as Model
from hisparse_sim.simulator.serving.profiles import (
    find_profile,
    match_profile,
    read_profiles,
)


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
