"""Profiles on a terminal: what there is, or all figures of one with their sources."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from hisparse_sim.simulator.serving.engines import CHANGES, KNOWN, VLLM
from hisparse_sim.simulator.serving.profiles.listing import ENGINE_TABLE, STEP_TIMES
from hisparse_sim.simulator.views.tables import write_rows, write_text

_WIDTH = 80


def show_profiles(rows: pd.DataFrame, output: Path | None = None, figures: bool = False) -> None:
    """Print a line per profile, or with `figures` all figures of each."""
    lines: list[str] = []
    for table, some in rows.groupby("table", sort=False):
        lines += ["", str(table)]
        if figures:
            for name, each in some.groupby("name", sort=False):
                lines += _figures(str(name), each)
        elif table == ENGINE_TABLE:
            lines += _engines()
        elif table == STEP_TIMES:
            lines += _step_times(some)
        else:
            lines += _named(str(table), some)
    if not figures:
        lines += [
            "",
            "All figures with sources: hisparse-sim profiles TABLE NAME, or --format csv",
        ]
    write_text("\n".join(lines[1:]) + "\n", output)


def write_profiles(rows: pd.DataFrame, form: str, output: Path | None = None) -> None:
    """Write the rows as data; in parquet, whose columns have a single type, values are text."""
    write_rows(rows.astype({"value": str}) if form == "parquet" else rows, form, output)


def _wrapped(text: str, indent: int, then: int) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * then,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _named(table: str, rows: pd.DataFrame) -> Iterator[str]:
    longest = rows["name"].str.len().max() + 2
    for name, each in rows.groupby("name", sort=False):
        values = dict(zip(each["figure"], each["value"], strict=True))
        text = _model(values) if table == "models" else values.get("description", "")
        yield _wrapped(f"{name:<{longest}}{text}", 2, 2 + longest)


def _model(values: dict[str, Any]) -> str:
    pattern = str(values.get("layer_pattern", ""))
    shared = f", {pattern.count('S')} of them share an indexer" if "S" in pattern else ""
    return (
        f"{values.get('repository', '')}: {values['layers']} layers{shared}; top-k"
        f" {values['top_k']:,}, context {values['context']:,}"
    )


def _engines() -> Iterator[str]:
    yield _wrapped(
        f"{KNOWN} (the default), and {VLLM.name}: only the rules of its replay. What changed in"
        " SGLang, and when:",
        2,
        2,
    )
    for change in CHANGES:
        yield _wrapped(f"{change.since}  {change.meaning}", 4, 12)


def _step_times(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the layouts and KV dtypes of every model and machine."""
    parts = rows["name"].str.split("_", expand=True)
    parts.columns = pd.Index(["model", "hardware", "layout", "kv_dtype"])
    for (model, hardware), some in parts.groupby(["model", "hardware"], sort=False):
        layouts = [
            f"{layout} ({', '.join(dtypes)})"
            for layout, dtypes in some.groupby("layout", sort=False)["kv_dtype"]
        ]
        yield _wrapped(f"{model} on {hardware}: {', '.join(layouts)}", 2, 4)
    yield _wrapped("otherwise a roofline, if the peak rates of the machine are known", 2, 4)


def _figures(name: str, rows: pd.DataFrame) -> Iterator[str]:
    """Yield the figures of one profile, grouped by source."""
    yield f"  {name}"
    texts = rows["kind"].isna()
    for figure, value in rows.loc[texts, ["figure", "value"]].itertuples(index=False):
        yield _wrapped(f"{figure}: {value}", 4, 6)
    for (kind, source), some in rows[~texts].groupby(["kind", "source"], sort=False):
        for figure, value in some[["figure", "value"]].itertuples(index=False):
            yield f"    {figure:<24}{_shown(value)}"
        yield _wrapped(f"{kind}: {source}", 6, 8)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return {True: "yes", False: "no"}.get(value, str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
