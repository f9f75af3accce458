"""Targets that hold prompts: files of the user's own, and LongBench v2 in all its forms."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from longbench_items import row

from fuzz.mutate import ANY, JSON, TEXT, Mutator
from fuzz.mutate_files import change_cells_of, flip_in_footer
from fuzz.oracles import Unsound
from fuzz.target import Target
from hisparse_sim.traces.capture.longbench import load_longbench
from hisparse_sim.traces.capture.prompts import read_prompt_file

_ROWS = [row(number) for number in range(3)]
_COLUMNS = (
    "_id domain sub_domain difficulty length question choice_A choice_B choice_C choice_D answer "
    "context"
).split()


def _prompts() -> list[bytes]:
    lines = [{"text": "one", "request": "a"}, {"text": "two\nthree é"}, {"text": "x", "request": 7}]
    return [b"\n".join(json.dumps(line).encode() for line in lines)]


def _expected_prompts(path: Path, data: bytes, seed: bytes) -> list[tuple[str, str]]:
    # Written with \r, a line ends as with \n: files are read as text.
    text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            prompt = json.loads(line)
            found.append((str(prompt.get("request", number)), prompt["text"]))
    return found


def _items() -> list[bytes]:
    return [json.dumps(_ROWS).encode(), json.dumps({"data": _ROWS}).encode()]


def _item_lines() -> list[bytes]:
    return [b"\n".join(json.dumps(each).encode() for each in _ROWS)]


def _item_parquet() -> list[bytes]:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(_ROWS), file, write_page_checksum=True)
    return [file.getvalue()]


def _item_arrow() -> list[bytes]:
    table = pa.Table.from_pylist(_ROWS)
    found = []
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        file = io.BytesIO()
        with new(file, table.schema) as writer:
            writer.write_table(table)
        found.append(file.getvalue())
    return found


def _read_items(path: Path) -> list[tuple[str, ...]]:
    return [astuple(item) for item in load_longbench(path)]


def _expected_items(path: Path, data: bytes, seed: bytes) -> list[tuple[str, ...]]:
    rows: Any
    if path.suffix == ".parquet":
        rows = pq.ParquetFile(io.BytesIO(data)).read(use_threads=False).to_pylist()
    elif path.suffix == ".arrow":
        opened = pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream
        table = opened(io.BytesIO(data)).read_all()
        table.validate(full=True)
        rows = table.to_pylist()
    elif path.suffix == ".jsonl":
        rows = [json.loads(line) for line in data.split(b"\n") if line.strip()]
    else:
        rows = json.loads(data)
        rows = rows["data"] if isinstance(rows, dict) else rows
    found = [tuple(each[column] for column in _COLUMNS) for each in rows]
    if any(not isinstance(value, str) for each in found for value in each):
        raise Unsound("a value that is no text")
    return found


def _longbench(
    suffix: str, seeds: Callable[[], list[bytes]], mutators: Sequence[Mutator]
) -> Target:
    return Target(f"longbench {suffix}", suffix, seeds, mutators, _read_items, _expected_items)


PROMPTS = [
    Target("prompts", ".jsonl", _prompts, [*JSON, *TEXT], read_prompt_file, _expected_prompts),
    _longbench(".json", _items, JSON),
    _longbench(".jsonl", _item_lines, JSON),
    _longbench(".parquet", _item_parquet, [change_cells_of, flip_in_footer, *ANY]),
    _longbench(".arrow", _item_arrow, ANY),
]
