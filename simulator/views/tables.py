"""Result rows as a table on the terminal or as csv, json, jsonl or parquet."""

import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any, TypedDict, Unpack

import pandas as pd

from hisparse_sim.simulator.replay.result_files import cell_of
from hisparse_sim.simulator.views.sparks import bar, drawable
from hisparse_sim.traces import atomic_path
from hisparse_sim.traces.errors import without_credentials
from hisparse_sim.traces.terminal import escaped

FORMATS = ("table", "csv", "json", "jsonl", "parquet")
_LONGEST_WORD = 30  # longer text wraps
_GAP = 2
_BAR = 8  # columns of the largest bar
_INDENT = re.compile(r"\s*(([a-z]\S*( \S+)*|\d+\.)  +(?=\S))?", re.I)  # of a line, and its label
_WIDTH = 80  # columns of a table that does not go to a terminal


def stamped(
    rows: pd.DataFrame, digests: Mapping[str, str], seed: int, parameters: Mapping[str, Any]
) -> pd.DataFrame:
    """Add to every row all that is needed to compute it again.

    `digests`: the SHA-256 of every trace by its name in the rows, where they do not hold it.
    `parameters`: options of the command that are not columns; None stands for the default.
    """
    given = {name: shown(value) for name, value in parameters.items() if value is not None}
    if "trace_sha256" not in rows:
        rows = rows.assign(trace_sha256=rows["trace"].map(digests))
    if "seed" not in rows:  # facts keep the seed that they were counted with
        rows = rows.assign(seed=seed)
    return rows.assign(parameters=json.dumps(given), version=version("hisparse-sim"))


def shown(parameter: Any) -> Any:
    """Return a parameter as it is written with results: a URL without credentials."""
    return without_credentials(parameter) if isinstance(parameter, str) else parameter


def write_rows(rows: pd.DataFrame, form: str, output: Path | None) -> None:
    """Write `rows` in one of FORMATS (not table) to `output` (atomically) or to stdout.

    Missing values become null (csv: empty). Raises ValueError for parquet without `output`.
    """
    if form == "parquet":
        if output is None:
            raise ValueError("parquet is binary: name a file with -o")
        # An open file, since pandas refuses a name that is not UTF-8.
        with atomic_path(output) as path, path.open("wb") as file:
            rows.to_parquet(file, index=False)
        return
    write_text(_TEXTS[form](rows), output)


def write_document(found: Mapping[str, Any], output: Path | None) -> None:
    """Write a JSON object of plain values, NumPy scalars, lists and objects, like `write_rows`."""
    write_text(json.dumps(_plain(found), indent=1) + "\n", output)


def write_text(text: str, output: Path | None) -> None:
    """Write `text` to `output` (atomically) or to stdout."""
    if output is None:
        sys.stdout.write(text)
    else:
        with atomic_path(output) as path:
            Path(path).write_text(text, encoding="utf-8", newline="")


def _csv(rows: pd.DataFrame) -> str:
    rows = rows.assign(
        **{
            str(name): column.map(_cell)
            for name, column in rows.items()
            if not pd.api.types.is_numeric_dtype(column)
        }
    )
    # A writer that ends lines with \n alone leaves \r bare, and every reader breaks the line there.
    # To quote all texts instead would quote gaps, too, which would be read as empty texts.
    texts = (column for _, column in rows.items() if not pd.api.types.is_numeric_dtype(column))
    bare = any(isinstance(value, str) and "\r" in value for column in texts for value in column)
    return rows.to_csv(index=False, lineterminator="\r\n" if bare else "\n")


def _cell(value: Any) -> Any:
    return cell_of(value) if isinstance(value, str) else value


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(name): _plain(value) for name, value in record.items()}
        for record in rows.to_dict("records")
    ]


def _plain(value: Any) -> Any:
    """Turn NumPy scalars into Python's, and what JSON cannot express into null."""
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


def _plainly(show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: escaped(show(value))


class Layout(TypedDict, total=False):
    """What stands around a table, and how it is divided."""

    before: str  # lines of text above the table
    after: str  # and below it
    bars: str  # the column that a bar at the end of each row shows, on a terminal, if it fits
    keys: Sequence[str]  # columns that each part of a table that is too wide repeats; the first one
    sections: Sequence[str] | None  # a heading for every row; rows with the same stand together


def print_table(
    rows: pd.DataFrame,
    columns: Mapping[str, tuple[str, Callable[[Any], str]]],
    output: Path | None = None,
    **layout: Unpack[Layout],
) -> None:
    """Print what `table_text` returns, or write it to the file `output`."""
    write_text(table_text(rows, columns, output, **layout), output)


def table_text(
    rows: pd.DataFrame,
    columns: Mapping[str, tuple[str, Callable[[Any], str]]],
    output: Path | None = None,
    **layout: Unpack[Layout],
) -> str:
    """Return `columns` of `rows` as a table: a mapping of column to (heading, how to show a value).

    On a terminal the output has its width. In a pipe and in the file `output` it has 80 columns and
    no bars, colours or trailing blanks. Wider text is broken between words, wider tables between
    columns: the parts stand one below the other.
    """
    from rich.console import Console
    from rich.table import Table

    columns = {
        name: (escaped(heading), _plainly(show)) for name, (heading, show) in columns.items()
    }
    before = escaped(layout.get("before", ""), lines=True)
    after = escaped(layout.get("after", ""), lines=True)
    bars, sections = layout.get("bars", ""), layout.get("sections")
    console = Console(highlight=False, markup=False, emoji=False)
    plain = output is not None or not console.is_terminal
    if plain:
        console = Console(
            file=StringIO(), width=_WIDTH, color_system=None, highlight=False, markup=False
        )
    width = console.width
    cells = {name: [show(value) for value in rows[name]] for name, (_, show) in columns.items()}
    numbers = {name for name in columns if pd.api.types.is_numeric_dtype(rows[name])}
    widths = {
        name: max(len(heading), *map(len, cells[name]), 0) for name, (heading, _) in columns.items()
    }
    prose = {name for name in widths if name not in numbers and widths[name] > _LONGEST_WORD}
    widths |= dict.fromkeys(prose, _LONGEST_WORD)
    parts = _parts(widths, layout.get("keys") or tuple(columns)[:1], width)
    drawn: list[str] = []
    room = Console().width - sum(widths.values()) - _GAP * len(widths)
    if bars and output is None and drawable() and len(parts) == 1 and room >= _BAR:
        drawn = [bar(value, rows[bars].max(), _BAR) for value in rows[bars]]
    headings = [""] * len(rows) if sections is None else list(map(escaped, sections))

    def table(part: Sequence[str], chosen: Sequence[int]) -> Table:
        made = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold")
        for name in part:
            made.add_column(
                columns[name][0],
                justify="right" if name in numbers else "left",
                min_width=widths[name],
                no_wrap=name not in prose,
                overflow="fold",
            )
        if drawn:
            made.add_column("")
        for row in chosen:
            made.add_row(*(cells[name][row] for name in part), *drawn[row : row + 1])
        return made

    printed: list[str | Table] = [before]
    for heading in dict.fromkeys(headings):
        chosen = [row for row, each in enumerate(headings) if each == heading]
        printed += [f"\n{heading}" * bool(heading), *(table(part, chosen) for part in parts)]
    # A column that is too wide is better than a figure without its last digits.
    console.width = max(width, *(sum(widths[name] + _GAP for name in part) for part in parts))
    with console.capture() as captured:
        for each in (*printed, after):
            if each:
                console.print(
                    _wrapped(each, width) if isinstance(each, str) else each, soft_wrap=True
                )
    text = captured.get()
    if plain:
        text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    return text


def _parts(widths: Mapping[str, int], keys: Sequence[str], width: int) -> list[tuple[str, ...]]:
    """Return the columns of each part of a table; parts fit into `width` if possible."""
    parts = [list(keys)]
    for name in widths:
        if name in keys:
            continue
        needed = sum(widths[each] + _GAP for each in (*parts[-1], name)) - _GAP
        if needed > width and len(parts[-1]) > len(keys):
            parts.append(list(keys))
        parts[-1].append(name)
    return [tuple(name for name in widths if name in part) for part in parts]


def _wrapped(text: str, width: int) -> str:
    """Break lines that are too long. What follows keeps the indentation of the line, or that of the
    text behind its label (a label ends with two blanks). No-break spaces become blanks."""
    lines: list[str] = []
    for line in text.splitlines():
        indent = len(_INDENT.match(line)[0])  # type: ignore[index]  # it always matches
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * min(indent, width // 3),
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        ) or [""]
    return "\n".join(lines).replace("\xa0", " ")
