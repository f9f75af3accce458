"""What the package knows of models, machines, links, engines and step times, as one table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from hisparse_sim.simulator.serving.engines import CHANGES, RELEASES, SGLANG, VLLM, VLLM_SOURCE
from hisparse_sim.simulator.serving.latency import load_link
from hisparse_sim.simulator.serving.profiles import (
    SECTIONS,
    ProfileError,
    find_profile,
    match_profile,
    read_profiles,
)
from hisparse_sim.simulator.serving.steptimes import load_step_times, shipped_tables

COLUMNS = ("table", "name", "figure", "value", "kind", "source")
ENGINE_TABLE, STEP_TIMES = "engines", "step_times"
TABLES = (*SECTIONS, ENGINE_TABLE, STEP_TIMES)
DERIVED = ("link_gb_s", "entry_ns")  # of a link that has the kernels of another


def profiles(
    path: str | Path | None = None, *, table: str | None = None, name: str | None = None
) -> pd.DataFrame:
    """Return what the package knows, a row per figure.

    Columns: `table` (models, blocks, hardware, links, engines, step_times), `name` (what options
    such as `model` and `link` take), `figure`, `value`, `kind` (measured, published, modelled;
    missing for a name or a text) and `source`. Of an engine, the figures are what differs between
    releases. A step-time table is a row of its own, its value the number of points. `path`: a TOML
    file with your own profiles, which override shipped ones. `table` and `name` (or one of its
    aliases) choose rows.

    Raises ProfileError if the file cannot be read, or for an unknown table or name.
    """
    if table is not None and table not in TABLES:
        raise ProfileError(f"unknown table {table!r}; known: {', '.join(TABLES)}")
    rows = [row for each in ([table] if table else TABLES) for row in _rows(each, path)]
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    if name is None:
        return found
    if table is None:
        raise ProfileError(f"name the table of {name!r}: {', '.join(TABLES)}")
    known = list(dict.fromkeys(found["name"]))
    exact = [each for each in known if each.casefold() == name.casefold()]
    wanted = exact or [_named(table, name, path, known)]
    chosen: pd.DataFrame = found[found["name"] == wanted[0]].reset_index(drop=True)
    return chosen


def _named(table: str, name: str, path: str | Path | None, known: list[str]) -> str:
    if table in SECTIONS:
        others = [each for each in SECTIONS if each != table and match_profile(each, name, path)]
        if others and match_profile(table, name, path) is None:
            raise ProfileError(f"{name!r} is in the table {others[0]}, not in {table}")
        return find_profile(table, name, path).name
    raise ProfileError(f"unknown name {name!r} in {table}; known: {', '.join(known)}")


def _rows(table: str, path: str | Path | None) -> Iterator[tuple[Any, ...]]:
    if table == ENGINE_TABLE:
        yield from _engines()
    elif table == STEP_TIMES:
        yield from _step_times()
    else:
        yield from _figures(table, path)


def _figures(section: str, path: str | Path | None) -> Iterator[tuple[Any, ...]]:
    for name, profile in sorted(read_profiles(section, path).items()):
        for label, text in profile.labels.items():
            yield section, name, label, text, None, profile.file
        for figure, value in profile.figures.items():
            source = profile.sources[figure]
            yield section, name, figure, value, source.kind, source.text
        if "kernels_of" in profile.labels:
            yield from _derived(name, path)


def _derived(name: str, path: str | Path | None) -> Iterator[tuple[Any, ...]]:
    """Figures that a link has from another: rates, and each kernel's."""
    link = load_link(name, path)
    figures = {figure: getattr(link, figure) for figure in DERIVED}
    for kernel, cost in link.kernels.items():
        figures |= {f"{kernel}_{figure}": value for figure, value in vars(cost).items()}
    for figure, value in figures.items():
        yield "links", name, figure, value, link.kind, link.source


def _engines() -> Iterator[tuple[Any, ...]]:
    """What differs between releases: the value in each, and the change that brought it."""
    for name, engine in SGLANG.items():
        release = RELEASES.index(name.removeprefix("sglang-"))
        for fact in dict.fromkeys(change.fact for change in CHANGES):
            changes = [change for change in CHANGES if change.fact == fact]
            past = [change for change in changes if RELEASES.index(change.since) <= release]
            told = past[-1] if past else changes[0]
            when = f"since {told.since}" if past else f"only from {told.since} on"
            source = f"{when}: {told.meaning}; {told.source}"
            yield ENGINE_TABLE, name, fact, getattr(engine, fact), "published", source
    for fact in ("rules", "drafts", "plans_shared_misses"):
        yield ENGINE_TABLE, VLLM.name, fact, getattr(VLLM, fact), "published", VLLM_SOURCE


def _step_times() -> Iterator[tuple[Any, ...]]:
    for name in shipped_tables():
        table = load_step_times(*name.split("_"))
        points = len(table.batch) * len(table.context) + len(table.prefill_tokens)
        yield STEP_TIMES, name, "points", points, table.kind, table.source
