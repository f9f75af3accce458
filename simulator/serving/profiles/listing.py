"""All profiles as one table: every figure with its kind and source."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from hisparse_sim.simulator.serving.engines import CHANGES, ENGINES, RELEASES
from hisparse_sim.simulator.serving.profiles import read_profiles
from hisparse_sim.simulator.serving.steptimes import load_step_times, shipped_tables

COLUMNS = ("table", "name", "figure", "value", "kind", "source")
PUBLISHED = "published"  # in the source of a release
SECTIONS = ("models", "hardware", "links")  # of profile files


def profiles(path: str | Path | None = None) -> pd.DataFrame:
    """Return what the package knows of models, machines, links and engines, a row per figure.

    Columns: `table` (models, hardware, links, step_times, engines), `name` (what options such as
    `model` take), `figure`, `value`, `kind` (measured, published, modelled; missing for a name or
    a text) and `source`. A step-time table is a row of its own, its value the number of points.
    `path`: a TOML file with profiles of one's own, which win over shipped ones.

    Raises ProfileError if the file cannot be read.
    """
    rows = [row for section in SECTIONS for row in _figures(section, path)]
    return pd.DataFrame([*rows, *_step_times(), *_engines()], columns=list(COLUMNS))


def _figures(section: str, path: str | Path | None) -> Iterator[tuple[Any, ...]]:
    for name, profile in sorted(read_profiles(section, path).items()):
        for label, text in profile.labels.items():
            yield section, name, label, text, None, profile.file
        for figure, value in profile.figures.items():
            source = profile.sources[figure]
            yield section, name, figure, value, source.kind, source.text


def _step_times() -> Iterator[tuple[Any, ...]]:
    for name in shipped_tables():
        table = load_step_times(*name.split("_"))
        points = len(table.batch) * len(table.context) + len(table.prefill_tokens)
        yield "step_times", name, "points", points, table.kind, table.source


def _engines() -> Iterator[tuple[Any, ...]]:
    """What each release does, by the place in its source; a fact of the oldest is its own."""
    for place, (name, engine) in enumerate(ENGINES.items()):
        for fact, value in asdict(engine).items():
            if fact == "name":
                continue
            changes = [
                change
                for change in CHANGES
                if change.fact == fact and RELEASES.index(change.since) <= place
            ]
            source = changes[-1].source if changes else f"{next(iter(ENGINES))}, as it began"
            yield "engines", name, fact, value, PUBLISHED, source
