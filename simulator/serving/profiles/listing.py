"""All profiles as one table: every figure with its kind and source."""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from hisparse_sim.simulator.serving.profiles import read_profiles, steptimes
from hisparse_sim.simulator.serving.steptimes import parse_step_times

COLUMNS = ("table", "name", "figure", "value", "kind", "source")
MEASURED = "measured"  # kernels of step times, then summed
SECTIONS = ("models", "hardware", "links")  # of profile files


def profiles(path: str | Path | None = None) -> pd.DataFrame:
    """Return what the package knows of models, machines and host links, a row per figure.

    Columns: `table` (models, hardware, links, step_times), `name` (what options such as `model` and
    `link` take), `figure`, `value`, `kind` (measured, published, modelled; missing for a name or a
    text) and `source`. A step-time table is a row of its own, its value the number of points.
    `path`: a TOML file with profiles of one's own, which win over shipped ones.

    Raises ProfileError if the file cannot be read.
    """
    rows = [row for section in SECTIONS for row in _figures(section, path)]
    return pd.DataFrame([*rows, *_step_times()], columns=list(COLUMNS))


def _figures(section: str, path: str | Path | None) -> Iterator[tuple[Any, ...]]:
    for name, profile in sorted(read_profiles(section, path).items()):
        for label, text in profile.labels.items():
            yield section, name, label, text, None, profile.file
        for figure, value in profile.figures.items():
            source = profile.sources[figure]
            yield section, name, figure, value, source.kind, source.text


def _step_times() -> Iterator[tuple[Any, ...]]:
    for file in sorted(files(steptimes).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            table = parse_step_times(file.read_text(encoding="utf-8"), file.name)
            points = len(table.batch) * len(table.context) + len(table.prefill_tokens)
            name = file.name.removesuffix(".json")
            yield "step_times", name, "points", points, MEASURED, table.source
