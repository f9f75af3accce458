"""Result rows as a table on the terminal or as csv, json, jsonl or parquet."""

import csv
import json
import math
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from hisparse_sim.simulator.replay.result_files import cell_of
from hisparse_sim.simulator.views.sparks import bar, drawable
from hisparse_sim.traces import atomic_path

FORMATS = ("table", "csv", "json", "jsonl", "parquet")
_LONGEST_WORD = 30  # longer text wraps
_GAP = 2
_BAR = 8  # columns of the largest bar
_WIDTH = 80  # columns of a table that does not go to a terminal


def stamped(
    rows: pd.DataFrame, digests: Mapping[str, str], seed: int, parameters: Mapping[str, Any]
) -> pd.DataFrame:
    """Add to every row what is needed to compute it again.

    `digests`: the SHA-256 of every trace by its name in the rows, where they do not hold it.
    `parameters`: what is no column, such as the options of the command; None stands for the
    default.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    if "trace_sha256" not in rows:
        rows = rows.assign(trace_sha256=rows["trace"].map(digests))
    return rows.assign(seed=seed, parameters=json.dumps(given), version=version("hisparse-sim"))


def write_rows(rows: pd.DataFrame, form: str, output: Path | None) -> None:
    """Write `rows` in one of FORMATS (not table) to `output` (atomically) or to stdout.

    Missing values become null (csv: empty). Raises ValueError for parquet without `output`.
    """
    if form == "parquet":
        if output is None:
            raise ValueError("parquet is binary: name a file with -o")
        # A file, since pandas refuses a name that is not UTF-8.
        with atomic_path(output) as path, path.open("wb") as file:
            rows.to_parquet(file, index=False)
        return
    write_text(_TEXTS[form](rows), output)


def write_document(found: Mapping[str, Any], output: Path | None) -> None:
    """Write a JSON object of plain values, NumPy scalars, lists and objects, as `write_rows`."""
    write_text(json.dumps(_plain(found), indent=1) + "\n", output)


def write_text(text: str, output: Path | None) -> None:
    """Write `text` to `output` (atomically) or to stdout."""
    if output is None:
        sys.stdout.write(text)
    else:
        with atomic_path(output) as path:
            Path(path).write_text(text, encoding="utf-8")


def _csv(rows: pd.DataFrame) -> str:
    rows = rows.assign(
        **{
            str(name): column.map(_cell)
            for name, column in rows.items()
            if not pd.api.types.is_numeric_dtype(column)
        }
    )
    # A writer that ends lines with \n alone leaves \r bare, and every reader breaks the line there.
    texts = (column for _, column in rows.items() if not pd.api.types.is_numeric_dtype(column))
    bare = any(isinstance(value, str) and "\r" in value for column in texts for value in column)
    return rows.to_csv(
        index=False,
        lineterminator="\n",
        quoting=csv.QUOTE_NONNUMERIC if bare else csv.QUOTE_MINIMAL,
    )


def _cell(value: Any) -> Any:
    return cell_of(value) if isinstance(value, str) else value


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(name): _plain(value) for name, value in record.items()}
        for record in rows.to_dict("records")
    ]


def _plain(value: Any) -> Any:
    """Turn numpy scalars into Python's and what JSON cannot say into null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "item"):
        value = value.item()
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def _json(rows: pd.DataFrame) -> str:
    return json.dumps(_records(rows), indent=1) + "\n"


def _jsonl(rows: pd.DataFrame) -> str:
    return "".join(json.dumps(record) + "\n" for record in _records(rows))


_TEXTS: Mapping[str, Callable[[pd.DataFrame], str]] = {
    "csv": _csv,
    "json": _json,
    "jsonl": _jsonl,
}


def print_table(
    rows: pd.DataFrame,
    columns: Mapping[str, tuple[str, Callable[[Any], str]]],
    output: Path | None = None,
    before: str = "",
    after: str = "",
    bars: str = "",
) -> None:
    """Print `columns` of `rows`: a mapping of column to (heading, how to show a value).

    `before` and `after` are lines of text around the table. On a terminal it has the terminal's
    width, and the values of the column `bars` as bars behind each row if these fit; in a pipe and
    in the file `output` 80 columns, no bars, no colours and no trailing blanks."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    needed = 0
    for column, (heading, shown) in columns.items():
        number = pd.api.types.is_numeric_dtype(rows[column])
        widest = max([len(heading), *(len(shown(value)) for value in rows[column])])
        prose = not number and widest > _LONGEST_WORD
        needed += _GAP + (_LONGEST_WORD if prose else widest)
        table.add_column(
            heading,
            justify="right" if number else "left",
            no_wrap=not prose,
            overflow="fold",
        )
    drawn = [""] * len(rows)
    if bars and output is None and drawable() and needed + _GAP + _BAR <= Console().width:
        drawn = [bar(value, rows[bars].max(), _BAR) for value in rows[bars]]
        table.add_column("")
    for record, each in zip(rows[list(columns)].to_dict("records"), drawn, strict=True):
        cells = [columns[str(name)][1](value) for name, value in record.items()]
        table.add_row(*cells, *([each] if each else []))
    console = Console(highlight=False, markup=False, emoji=False)
    plain = output is not None or not console.is_terminal
    if plain:
        console = Console(
            file=StringIO(), width=_WIDTH, color_system=None, highlight=False, markup=False
        )
    # A line that is too long is better than a figure without its last digits.
    console.width = max(console.width, needed)
    with console.capture() as captured:
        for text in (before, table, after):
            if text:
                console.print(text, soft_wrap=True)
    text = captured.get()
    if plain:
        text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    write_text(text, output)
