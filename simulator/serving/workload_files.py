"""Recorded loads: lengths and times of real requests, from files in public formats.

A file is CSV, or JSON lines with the same names as keys, whatever its suffix; its names tell the
format, see workload_formats.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hisparse_sim.simulator.serving.workload import (
    MOST_REQUESTS,
    Blocks,
    Floats,
    Longs,
    Requests,
)
from hisparse_sim.simulator.serving.workload_formats import FORMATS, Format
from hisparse_sim.traces import TraceError
from hisparse_sim.traces.documents import MOST_COUNT, unique
from hisparse_sim.traces.files import local_file, opened

_LONGEST_LINE_BYTES = 256 << 20  # bench_serving writes a whole run, with its texts, in one line
_LATEST_S = 1e10  # centuries


@dataclass(frozen=True, eq=False)
class Recorded:
    """Requests of a file, in order of their times or of the file."""

    name: str  # of the file
    format: str  # a name of FORMATS
    prompt_len: Longs  # [n] tokens
    output_len: Longs  # [n]
    due_s: Floats | None  # [n] from the first one on; None: the file has no times
    blocks: Blocks | None
    left_out: int  # requests without a prompt or an output
    unread: tuple[str, ...] = ()  # columns, of a file whose format may have times and that has none

    def __len__(self) -> int:
        return len(self.prompt_len)

    @property
    def longest(self) -> tuple[int, int]:
        """Prompt and output of the request with most tokens."""
        i = int(np.argmax(self.prompt_len + self.output_len))
        return int(self.prompt_len[i]), int(self.output_len[i])

    @property
    def mean(self) -> tuple[float, float]:
        """Mean prompt and output."""
        return float(self.prompt_len.mean()), float(self.output_len.mean())

    @property
    def context(self) -> int:
        """Tokens that a request has at a decode step, mean over all steps."""
        held = np.average(self.prompt_len + self.output_len / 2, weights=self.output_len)
        return max(round(float(held)), 1)

    @property
    def rate_per_s(self) -> float:
        """Mean rate of the recorded times; infinite if all come at once."""
        if self.due_s is None or not self.due_s[-1]:
            return float("inf")
        return (len(self) - 1) / float(self.due_s[-1])

    def sampled(self, requests: int | None, seed: int) -> Recorded:
        """So many of the requests drawn at random, in order (None, or more than there are: all).

        Those drawn keep their times, so the rate falls with their number.
        """
        if requests is None or requests >= len(self):
            return self
        drawn = np.random.default_rng(seed).choice(len(self), requests, replace=False)
        kept = np.sort(drawn)
        due = None if self.due_s is None else self.due_s[kept] - self.due_s[kept[0]]
        return Recorded(
            self.name,
            self.format,
            self.prompt_len[kept],
            self.output_len[kept],
            due,
            self.blocks.of(kept) if self.blocks else None,
            self.left_out,
            self.unread,
        )

    def at(self, arrival_s: Floats, concurrency: int | None) -> Requests:
        """The requests, sent at these times or by so many clients."""
        return Requests(arrival_s, self.prompt_len, self.output_len, concurrency, self.blocks)


def read_workload(path: str | Path) -> Recorded:
    """Read a recorded load in one of `FORMATS`.

    Raises TraceError, naming file and row, if it is in none of them, or a length or a time is
    missing, negative or no number.
    """
    file = local_file(path)
    with opened(file) as source:
        start = source.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] == b"[":
        raise TraceError(
            f"{file} is one JSON list: if it holds texts, as ShareGPT does, count their tokens"
            " first, and give a CSV with prompt_len and output_len"
        )
    kind, columns, names = _json_lines(file) if start[:1] == b"{" else _csv(file)
    prompts = _whole(file, kind.prompt, columns[kind.prompt])
    outputs = _whole(file, kind.output, columns[kind.output])
    due = _times(file, kind, columns[kind.time]) if kind.time in columns else None
    kept = np.flatnonzero((prompts > 0) & (outputs > 0))
    if not len(kept):
        raise TraceError(f"{file} has no request with a prompt and an output")
    if due is not None:
        kept = kept[np.argsort(due[kept], kind="stable")]
        due = due[kept] - due[kept[0]]
    blocks = None
    if kind.blocks in columns:
        blocks = _blocks(file, kind, columns[kind.blocks]).of(kept)
    left_out = len(prompts) - len(kept)
    unread = tuple(name for name in names if name not in columns)
    if due is not None or kind.each:
        unread = ()
    return Recorded(
        file.name, kind.name, prompts[kept], outputs[kept], due, blocks, left_out, unread
    )


def _known(file: Path, names: Iterable[str]) -> Format:
    found = set(names)
    for kind in FORMATS.values():
        if {kind.prompt, kind.output} <= found:
            return kind
    formats = "; ".join(f"{kind.name}: {kind.prompt}, {kind.output}" for kind in FORMATS.values())
    raise TraceError(f"{file} has the columns of no known format ({formats})")


def _csv(file: Path) -> tuple[Format, Mapping[str, Any], list[str]]:
    """The format, its columns, and the names of all."""
    try:
        head = pd.read_csv(file, nrows=1, header=None, dtype=str, keep_default_na=False)
        names = [str(name) for name in head.iloc[0]]
        kind = _known(file, names)
        wanted = [name for name in (kind.prompt, kind.output, kind.time) if name in names]
        for name in wanted:
            if names.count(name) > 1:
                raise TraceError(f"{file} has the column {name} twice: leave one")
        table = pd.read_csv(
            file, usecols=wanted, nrows=MOST_REQUESTS + 1, low_memory=False, skip_blank_lines=True
        )
    except (ValueError, OSError) as error:  # pandas' parser errors among them
        raise TraceError(f"{file} cannot be read as CSV: {str(error).strip()[:200]}") from error
    if kind.each:
        raise TraceError(f"{file} is CSV, and {kind.name} writes JSON lines")
    if len(table) > MOST_REQUESTS:
        raise TraceError(f"{file} has more than {MOST_REQUESTS:,} requests: give a part of it")
    return kind, {name: table[name] for name in wanted}, names


def _json_lines(file: Path) -> tuple[Format, Mapping[str, Any], list[str]]:
    """As `_csv`; the names are those of the first line."""
    kind: Format | None = None
    keys: list[str] = []
    columns: dict[str, list[Any]] = {}
    with opened(file) as source:
        number = 0
        while line := source.readline(_LONGEST_LINE_BYTES):
            number += 1
            if not line.strip():
                continue
            row = _object(line, f"{file}, line {number}")
            if kind is None:
                kind, keys = _known(file, row), list(row)
                names = (kind.prompt, kind.output, kind.time, kind.blocks)
                columns = {name: [] for name in names if name in row}
                if kind.each:
                    columns = {name: _list(file, name, row) for name in columns}
                    continue
            elif kind.each:
                raise TraceError(f"{file}, line {number} is a second run: give a file with one")
            for name, values in columns.items():
                values.append(row.get(name))
            if number > MOST_REQUESTS:
                raise TraceError(f"{file} has more than {MOST_REQUESTS:,} requests: give a part")
    assert kind is not None  # the file begins with an object
    return kind, columns, keys


def _object(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{place} is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(row, dict):
        raise TraceError(f"{place} is no JSON object")
    return row


def _list(file: Path, name: str, row: Mapping[str, Any]) -> list[Any]:
    if not isinstance(row[name], list):
        raise TraceError(f"{file}: {name} is no list; run bench_serving with --output-details")
    return list(row[name])


def _numbers(file: Path, name: str, values: Any) -> Floats:
    """The values as numbers; TraceError names the row of the first that is none."""
    column = pd.Series(values)
    if len(column) and column.map(lambda value: isinstance(value, bool | list | dict)).any():
        raise TraceError(f"{file}: {name} holds values that are no numbers")
    numbers = np.asarray(pd.to_numeric(column, errors="coerce"), np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        row = int(bad[0])
        raise TraceError(
            f"{file}, request {row + 1}: {name} is {str(column.iloc[row])[:40]!r}, not a number"
        )
    return numbers


def _whole(file: Path, name: str, values: Any) -> Longs:
    numbers = _numbers(file, name, values)
    bad = np.flatnonzero((numbers < 0) | (numbers > MOST_COUNT) | (numbers % 1 != 0))
    if len(bad):
        row = int(bad[0])
        raise TraceError(
            f"{file}, request {row + 1}: {name} is {numbers[row]:g}, not a number of tokens"
        )
    return numbers.astype(np.int64)


def _times(file: Path, kind: Format, values: Any) -> Floats:
    if kind.second:
        seconds = _numbers(file, kind.time, values) / kind.second
    else:
        dates = pd.to_datetime(
            pd.Series(values).astype(str), utc=True, errors="coerce", format="ISO8601"
        )
        if dates.isna().any():
            row = int(dates.isna().to_numpy().argmax())
            raise TraceError(f"{file}, request {row + 1}: {kind.time} is no date")
        seconds = np.asarray((dates - dates.min()).dt.total_seconds(), np.float64)
    bad = np.flatnonzero(np.abs(seconds) > _LATEST_S)
    if len(bad):
        raise TraceError(f"{file}, request {bad[0] + 1}: {kind.time} is out of range")
    return seconds


def _blocks(file: Path, kind: Format, values: Any) -> Blocks:
    for i, one in enumerate(values):
        if not isinstance(one, list) or not all(type(each) is int for each in one):
            raise TraceError(f"{file}, request {i + 1}: {kind.blocks} is no list of whole numbers")
        if any(abs(each) >= 2**63 for each in one):
            raise TraceError(f"{file}, request {i + 1}: {kind.blocks} holds an id of over 64 bits")
    ends = np.cumsum([0, *(len(one) for one in values)])
    ids = np.array([each for one in values for each in one], np.int64)
    return Blocks(ids, ends.astype(np.int64), kind.block_tokens)
