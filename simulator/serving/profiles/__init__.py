"""Profiles: models and hardware as data, every figure with its kind and its source.

A profile file is TOML with tables `[models.NAME]` and `[hardware.NAME]`. Each holds groups
`[[models.NAME.figures]]` with `kind` (measured, published or modelled), `source`, and any number of
figures. The shipped files are models.toml and hardware.toml beside this module; a user's own file
has the same form and may add profiles or replace shipped ones by name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

KINDS = ("measured", "published", "modelled")
FORMER_FIGURES = {"item_ns": "entry_ns"}  # names in profiles of earlier versions


class ProfileError(ValueError):
    """A profile that is unknown, incomplete or unreadable: one clear sentence."""


@dataclass(frozen=True)
class Source:
    """Where a figure comes from."""

    kind: str  # measured, published or modelled
    text: str


@dataclass(frozen=True)
class Profile:
    """One named table: its figures, and the source of each."""

    section: str  # models or hardware
    name: str
    file: str
    aliases: tuple[str, ...]
    labels: Mapping[str, str]  # plain strings of the table: repository, description
    figures: Mapping[str, Any]
    sources: Mapping[str, Source]

    def number(self, key: str, default: float | None = None) -> float:
        """The figure `key`; ProfileError if it is missing and has no default, or is no number."""
        value = self.figures.get(key, default)
        if value is None:
            raise ProfileError(f"{self.file}: [{self.section}.{self.name}] lacks the figure {key}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise ProfileError(
                f"{self.file}: [{self.section}.{self.name}] {key} must be a number >= 0, not"
                f" {value!r}"
            )
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """The figure `key` as a whole number."""
        value = self.number(key, default)
        if value != int(value):
            raise ProfileError(
                f"{self.file}: [{self.section}.{self.name}] {key} must be a whole number, not"
                f" {value}"
            )
        return int(value)


def _profile(section: str, name: str, table: Mapping[str, Any], file: str) -> Profile:
    figures: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    place = f"{file}: [{section}.{name}]"
    groups = table.get("figures", [])
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ProfileError(f"{place} needs its figures as [[{section}.{name}.figures]] groups")
    for group in groups:
        kind, text = group.get("kind"), group.get("source")
        if kind not in KINDS:
            raise ProfileError(f"{place} has figures of kind {kind!r}; known: {', '.join(KINDS)}")
        if not isinstance(text, str) or not text:
            raise ProfileError(f"{place} has figures without a source")
        for key, value in group.items():
            if key in ("kind", "source"):
                continue
            key = FORMER_FIGURES.get(key, key)
            if key in figures:
                raise ProfileError(f"{place} gives {key} twice")
            figures[key] = value
            sources[key] = Source(kind, text)
    aliases = tuple(str(alias) for alias in table.get("aliases", []))
    labels = {key: value for key, value in table.items() if isinstance(value, str)}
    return Profile(section, name, file, aliases, labels, figures, sources)


def _read(text: str, file: str, section: str) -> dict[str, Profile]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{file} is not valid TOML: {error}") from error
    tables = document.get(section, {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise ProfileError(f"{file}: {section} must hold tables like [{section}.NAME]")
    return {name: _profile(section, name, table, file) for name, table in tables.items()}


def read_profiles(section: str, path: str | Path | None = None) -> dict[str, Profile]:
    """All profiles of `section` ("models" or "hardware") by name; those of `path` win."""
    shipped = files(__name__) / f"{section}.toml"
    profiles = _read(shipped.read_text(encoding="utf-8"), f"{section}.toml", section)
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"cannot read the profiles in {path}: {error}") from error
        profiles |= _read(text, str(path), section)
    return profiles


def find_profile(section: str, name: str, path: str | Path | None = None) -> Profile:
    """The profile called `name` (or one of its aliases, case ignored); else the known are named."""
    profiles = read_profiles(section, path)
    wanted = name.casefold()
    # Names first, the user's own (read last) before the shipped: an alias never hides a name.
    for profile in reversed(profiles.values()):
        if profile.name.casefold() == wanted:
            return profile
    for profile in reversed(profiles.values()):
        if wanted in (alias.casefold() for alias in profile.aliases):
            return profile
    noun = {"models": "model", "links": "link"}.get(section, section)
    raise ProfileError(
        f"unknown {noun} {name!r}; known: {', '.join(sorted(profiles))}; add your own in a file"
        " given with --profiles"
    )
