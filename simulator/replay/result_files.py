"""The one reader of result files: rows that the commands wrote with -o, as csv, json, jsonl or
parquet.

A result file may come from anyone. It is a regular file of bounded size; every column that is used
has one type and a range, so that a request called NA or a trace called 7 stays what it is; and
nothing that it names is opened or run."""

import csv
import json
import os
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from hisparse_sim.simulator.replay.former_names import present_columns, present_names
from hisparse_sim.simulator.replay.result_columns import LISTS, TEXTS, typed
from hisparse_sim.traces import TraceError
from hisparse_sim.traces.documents import unique
from hisparse_sim.traces.files import opened

SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")
MOST_BYTES = 1 << 28  # of a file
MOST_ROWS = 20_000_000
_MOST_CELLS = 200_000_000
_MOST_UNPACKED = 1 << 31  # bytes of the values of a Parquet file
_MOST_COLUMNS = 1_000
_LONGEST_HEAD = 1 << 20  # bytes of the names of the columns
_ROUNDED = 5e-5  # a rate that was written with four digits
_STAMP = ("trace", "provenance", "trace_sha256", "version")  # of a document, for all of its rows

# A spreadsheet takes a cell that begins like this for a formula.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def cell_of(text: str) -> str:
    """Return a text as a CSV cell: a quote goes before one that a spreadsheet would take for a
    formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def text_of(cell: str) -> str:
    """Return the text from which `cell_of` made a cell."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell


def read_rows(path: Path, needed: Collection[str] = (), *, study: bool = False) -> pd.DataFrame:
    """Return the rows of a result file; columns that are known have their type.

    Texts are `string`, whole numbers int64 or, where values are missing, Int64. A document (of plan
    or gpu bench) is its list of rows, with what stands beside it in every row. `needed`: columns
    that must be there and have a value in every row. `study`: rows of a study are read, which are
    not those of a sweep and refused otherwise.

    Raises TraceError for a file of another kind or too large, a missing column, and a value of
    another type or out of range; it names the row.
    """
    rows = present_columns(_READERS[_suffix(path)](path))
    if "gap_closed" in rows.columns and not study:
        raise TraceError(
            f"{path} is a study, whose rows are not those of a sweep: read it with pandas, draw it"
            " with `hisparse-sim plot study`, or write a table with `hisparse-sim study -o FILE"
            " --format table`"
        )
    if missing := sorted(set(needed) - set(rows.columns)):
        raise TraceError(
            f"{path} has no column {missing[0]}: give a file that sweep or another command wrote"
            " with -o"
        )
    columns = {str(name): typed(path, str(name), rows[name]) for name in rows.columns}
    for name in needed:
        if columns[name].isna().any():
            raise TraceError(f"{path}, row {_first(columns[name].isna())}: {name} is missing")
    found = present_names(pd.DataFrame(columns, index=rows.index))
    if {"accesses", "misses"} <= set(found.columns):
        _check_counts(path, found)
    return found


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise TraceError(
            f"{path} is not a result file: its suffix is none of {', '.join(SUFFIXES)}"
        )
    return suffix


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with opened(path, "result file") as file:
        size = file.seek(0, os.SEEK_END)
        if size > MOST_BYTES:
            raise TraceError(
                f"{path} has {size / 1e6:,.0f} MB, more than the {MOST_BYTES / 1e6:,.0f} of a"
                " result file: write it without --per-layer or as parquet"
            )
        file.seek(0)
        yield file


def _content(path: Path) -> bytes:
    with _opened(path) as file:
        return file.read()


def _refused(path: Path, why: object) -> TraceError:
    reason = " ".join(str(why).split())[:200]
    return TraceError(f"{path} cannot be read as {path.suffix[1:].lower()}: {reason}")


def _parsed(path: Path, text: str | bytes, place: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique)
    except TraceError as error:
        raise TraceError(f"{path}{place}: {error}") from None
    except RecursionError:
        raise TraceError(f"{path}{place} cannot be read as json: it is nested too deeply") from None
    except ValueError as error:
        raise TraceError(f"{path}{place} cannot be read as json: {error}") from error


def _of_records(path: Path, records: Any) -> pd.DataFrame:
    if not isinstance(records, list) or not all(isinstance(row, dict) for row in records):
        raise _refused(path, "it is not a list of rows")
    if len(records) > MOST_ROWS:
        raise _refused(path, f"it has more than {MOST_ROWS:,} rows")
    names = dict.fromkeys(name for row in records for name in row)
    if len(names) > _MOST_COLUMNS:
        raise _refused(path, f"it has more than {_MOST_COLUMNS:,} columns")
    # Object columns: numbers stay what was written until a type is asked for.
    return pd.DataFrame(
        {name: pd.Series([row.get(name) for row in records], dtype=object) for name in names}
    )


def _json(path: Path) -> pd.DataFrame:
    read = _parsed(path, _content(path), "")
    if not isinstance(read, dict):
        return _of_records(path, read)
    if {"observed", "fit"} <= read.keys():
        fits = (
            "" if read["fit"] else "`hisparse-sim observe --profile NAME` fits a profile to them, "
        )
        raise TraceError(
            f"{path} holds counters of a server, as `observe` writes them, and no rows:"
            f" {'' if read['fit'] else fits}"
            f"`hisparse-sim trace synth --fit {path} -o TRACE` makes a trace of the fit, and"
            f" `hisparse-sim sweep TRACE -o ROWS.json` rows of that"
        )
    rows = _of_records(path, read.get("candidates", read.get("rows")))
    for name in _STAMP:
        if name in read:
            rows[name] = pd.Series([read[name]] * len(rows), dtype=object)
    if isinstance(read.get("machine"), dict):
        rows["machine"] = str(read["machine"].get("gpu", "unknown GPU"))
    return rows.assign(parameters=json.dumps(read.get("parameters") or {}))


def _jsonl(path: Path) -> pd.DataFrame:
    lines = enumerate(_content(path).split(b"\n"), 1)
    return _of_records(
        path, [_parsed(path, line, f", line {number}") for number, line in lines if line.strip()]
    )


def _csv(path: Path) -> pd.DataFrame:
    content = _content(path).removeprefix(BOM_UTF8)
    try:
        head = content[:_LONGEST_HEAD].decode(errors="replace")
        names = next(csv.reader(StringIO(head, newline="")), [])
        if len(set(names)) < len(names) or len(names) > _MOST_COLUMNS:
            raise ValueError("its columns have no names of their own")
        if not names:
            return pd.DataFrame()
        table = pa_csv.read_csv(
            BytesIO(content),
            pa_csv.ReadOptions(use_threads=False, block_size=len(content) + 1),
            pa_csv.ParseOptions(newlines_in_values=True),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        rows: pd.DataFrame = table.to_pandas(types_mapper=_PANDAS_TYPES.get)
    except (ValueError, csv.Error, pa.ArrowException) as error:
        raise _refused(path, error) from error
    for name in TEXTS & set(rows.columns):
        if rows[name].str.startswith("'").any():
            rows[name] = rows[name].map(text_of, na_action="ignore").astype("string")
    return rows


_PANDAS_TYPES = {pa.string(): pd.StringDtype(), pa.large_string(): pd.StringDtype()}


def _parquet(path: Path) -> pd.DataFrame:
    try:
        with _opened(path) as source:
            about = pq.read_metadata(source)
            schema = about.schema.to_arrow_schema()
            groups = [about.row_group(number) for number in range(about.num_row_groups)]
            size = sum(group.total_byte_size for group in groups)
            cells = sum(
                group.column(number).num_values
                for group in groups
                for number in range(about.num_columns)
            )
            if about.num_columns > _MOST_COLUMNS or len(set(schema.names)) < len(schema.names):
                raise ValueError("it has too many columns, or two with one name")
            if about.num_rows > MOST_ROWS or cells > _MOST_CELLS or size > _MOST_UNPACKED:
                raise ValueError(f"{about.num_rows:,} rows of {size / 1e6:,.0f} MB are too much")
            plain = [
                each.name
                for each in schema
                if each.name in LISTS or not pa.types.is_nested(each.type)
            ]
            # A text that a small file repeats in every row is there once until its size is known.
            with pq.ParquetFile(
                source,
                metadata=about,
                read_dictionary=plain,
                page_checksum_verification=True,
            ) as file:
                table = file.read(plain, use_threads=False)
            if sum(map(_text_bytes, table.columns)) > _MOST_UNPACKED:
                raise ValueError("its texts take too much memory")
            rows: pd.DataFrame = table.to_pandas(
                ignore_metadata=True, types_mapper=_PANDAS_TYPES.get
            )
            return rows
    except TraceError:
        raise
    except (ValueError, OSError, LookupError, pa.ArrowException) as error:
        raise _refused(path, error) from error


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes of the texts of a column that is encoded by a dictionary."""
    if not pa.types.is_dictionary(column.type):
        return 0
    return sum(
        pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0
        for chunk in column.chunks
    )


_READERS: Mapping[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": _csv,
    ".json": _json,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}


def _check_counts(path: Path, rows: pd.DataFrame) -> None:
    """Refuse more misses than accesses, a rate that contradicts them, and counts too large to
    sum."""
    misses, accesses = rows["misses"].astype(float), rows["accesses"].astype(float)
    if (wrong := misses > accesses).any():
        raise TraceError(f"{path}, row {_first(wrong)}: there are more misses than accesses")
    if "miss_rate" in rows:
        rate, counted = rows["miss_rate"], misses / accesses
        wrong = (rate - counted).abs() > _ROUNDED * (1 + counted)
        if wrong.any():
            at = _first(wrong)
            raise TraceError(
                f"{path}, row {at}: miss_rate is {rate.iloc[at - 1]:g}, but misses / accesses is"
                f" {counted.iloc[at - 1]:g}; correct one of them, or leave the counts out"
            )
    if accesses.sum() >= 2**62:
        raise TraceError(f"{path} has more accesses than can be summed")


def _first(wrong: pd.Series) -> int:
    return int(wrong.to_numpy().argmax()) + 1
