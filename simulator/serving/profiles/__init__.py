"""Profiles: models and hardware as data, every figure with its kind and its source.

A profile file is TOML with tables `[models.NAME]` and `[hardware.NAME]`. Each holds groups
`[[models.NAME.figures]]` with `kind` (measured, published or modelled), `source`, and any number of
figures. The shipped files are models.toml and hardware.toml beside this module; a user's own file
has the same form and may add profiles or replace shipped ones by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from reprlib import repr as clipped
from typing import Any

from hisparse_sim.traces.documents import LEAST_AMOUNT, MOST_AMOUNT, parse_toml, read_toml
from hisparse_sim.traces.errors import TraceError

KINDS = ("measured", "published", "modelled")
SECTIONS = ("models", "blocks", "hardware", "links")
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

    @property
    def place(self) -> str:
        """File and table, for messages."""
        return f"{self.file}: [{self.section}.{self.name}]"

    def number(self, key: str, default: float | None = None, *, positive: bool = False) -> float:
        """The figure `key`, from 0 or, for what divides, above it.

        ProfileError if it is missing and has no default, or is no such number.
        """
        if key not in self.figures and default is not None:
            return default
        value = self._number(key)
        if not LEAST_AMOUNT <= value <= MOST_AMOUNT and (positive or value != 0):
            least = f"{'' if positive else '0 or '}above {LEAST_AMOUNT:g}"
            raise self._wrong(key, f"a number {least} and up to {MOST_AMOUNT:g}")
        return value

    def count(
        self, key: str, default: int | None = None, *, least: int = 0, most: int = int(MOST_AMOUNT)
    ) -> int:
        """The figure `key` as a whole number; ProfileError as `number`."""
        if key not in self.figures and default is not None:
            return default
        value = self._number(key)
        if value != int(value) or not least <= value <= most:
            raise self._wrong(key, f"a whole number from {least} to {most}")
        return int(value)

    def text(self, key: str, default: str) -> str:
        """The figure `key` as text; ProfileError if it is none."""
        value = self.figures.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return value

    def _number(self, key: str) -> float:
        if key not in self.figures:
            raise ProfileError(f"{self.place} lacks the figure {key}")
        value = self.figures[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        return value

    def _wrong(self, key: str, wanted: str) -> ProfileError:
        return ProfileError(
            f"{self.place} {key} must be {wanted}, not {clipped(self.figures[key])}"
        )


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
            raise ProfileError(
                f"{place} has figures of kind {clipped(kind)}; known: {', '.join(KINDS)}"
            )
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
    aliases = table.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise ProfileError(f"{place} aliases must be a list of texts, not {clipped(aliases)}")
    labels = {key: value for key, value in table.items() if key not in ("aliases", "figures")}
    for key, value in labels.items():
        if not isinstance(value, str) or not value.isprintable():
            raise ProfileError(
                f"{place} {clipped(key)} is {clipped(value)}, and no line of text: figures stand in"
                f" [[{section}.{name}.figures]] groups"
            )
    return Profile(section, name, file, tuple(aliases), labels, figures, sources)


def _profiles(document: Mapping[str, Any], file: str, section: str) -> dict[str, Profile]:
    for name in document:
        if name not in SECTIONS:
            raise ProfileError(f"{file}: {clipped(name)} is none of {', '.join(SECTIONS)}")
    tables = document.get(section, {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise ProfileError(f"{file}: {section} must hold tables like [{section}.NAME]")
    for name in tables:
        if not name.isprintable():
            raise ProfileError(f"{file}: {clipped(name)} is not a one-line name for a profile")
    return {name: _profile(section, name, table, file) for name, table in tables.items()}


def read_profiles(section: str, path: str | Path | None = None) -> dict[str, Profile]:
    """All profiles of `section` (one of SECTIONS) by name; those of `path` win.

    Raises ProfileError if the file cannot be read within the bounds of `traces.documents`.
    """
    profiles = dict(_shipped(section))
    if path is not None:
        try:
            given = read_toml(path)
        except TraceError as error:
            raise ProfileError(str(error)) from None
        if not given:
            raise ProfileError(f"{path} holds no profile: give tables like [{section}.NAME]")
        profiles |= _profiles(given, str(path), section)
    return profiles


@cache  # asked for by every estimate of a plan; a Profile is not changed
def _shipped(section: str) -> dict[str, Profile]:
    file = f"{section}.toml"
    text = (files(__name__) / file).read_text(encoding="utf-8")
    return _profiles(parse_toml(text, file), file, section)


def match_profile(section: str, name: str, path: str | Path | None = None) -> Profile | None:
    """The profile called `name` (or one of its aliases, case ignored), if there is one."""
    profiles = read_profiles(section, path)
    wanted = name.casefold()
    # Names first, the user's own (read last) before the shipped: an alias never hides a name.
    for profile in reversed(profiles.values()):
        if profile.name.casefold() == wanted:
            return profile
    for profile in reversed(profiles.values()):
        if wanted in (alias.casefold() for alias in profile.aliases):
            return profile
    return None


def find_profile(
    section: str, name: str, path: str | Path | None = None, *, also: str = ""
) -> Profile:
    """The profile called `name` (or one of its aliases, case ignored); else ProfileError names
    those of `section`, and of the section `also` where the caller takes them, too."""
    found = match_profile(section, name, path)
    if found is not None:
        return found
    noun = {"models": "model", "blocks": "model of blocks", "links": "link"}.get(section, section)
    sections = [section, *([also] if also else [])]
    known = ", ".join(sorted(name for each in sections for name in read_profiles(each, path)))
    raise ProfileError(
        f"unknown {noun} {name!r}; known: {known}; add your own in a file given with `profiles`"
    )
