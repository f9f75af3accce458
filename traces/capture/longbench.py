"""LongBench v2 as a source of long prompts: load, select, format, cut to a length.

503 multiple-choice questions over documents of 8k to 2M words (Bai et al., arXiv 2412.15204).
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from hisparse_sim.traces.documents import read_json
from hisparse_sim.traces.errors import TraceError, install
from hisparse_sim.traces.files import opened

HUB_ID = "zai-org/LongBench-v2"
HUB_ALIASES = (HUB_ID, "THUDM/LongBench-v2")

Token = TypeVar("Token")


@dataclass(frozen=True)
class Item:
    """One question; fields as in the data set, `_id` without its underscore."""

    id: str
    domain: str
    sub_domain: str
    difficulty: str
    length: str  # short, medium or long
    question: str
    choice_A: str
    choice_B: str
    choice_C: str
    choice_D: str
    answer: str
    context: str

    def prompt(self) -> str:
        """Return the zero-shot prompt: instruction, document, question, choices, answer form.

        The order and the form of the answer follow the benchmark; the wording is ours.
        """
        choices = "\n".join(f"({letter}) {getattr(self, f'choice_{letter}')}" for letter in "ABCD")
        return (
            "Read the document below and then answer a question about it.\n\n"
            f"<text>\n{self.context.strip()}\n</text>\n\n"
            f"Question: {self.question.strip()}\n"
            f"Choices:\n{choices}\n\n"
            'Reply in this form: "The correct answer is (letter)".'
        )


_COLUMNS = {field.name: "_id" if field.name == "id" else field.name for field in fields(Item)}


def load_longbench(source: str | Path = HUB_ID) -> list[Item]:
    """Load from the Hugging Face hub (needs `datasets`) or from a local file of the same columns.

    Local files are JSON (a list, or an object with the list under `data`), JSONL, Parquet or Arrow;
    a folder is what `save_to_disk` of `datasets` wrote.

    Raises TraceError if it cannot be had, or an item lacks a column.
    """
    rows = _from_hub(str(source)) if str(source) in HUB_ALIASES else _local(Path(source))
    return [_item(row, f"{source}, item {number}") for number, row in enumerate(rows)]


def select(
    items: Iterable[Item],
    *,
    domains: Sequence[str] | None = None,
    lengths: Sequence[str] | None = None,
    count: int | None = None,
    seed: int = 0,
) -> list[Item]:
    """Return the items of these domains (or sub-domains) and lengths, `count` of them at random.

    Raises TraceError if nothing is left, naming what there is.
    """
    items = list(items)
    chosen = [
        item
        for item in items
        if (domains is None or item.domain in domains or item.sub_domain in domains)
        and (lengths is None or item.length in lengths)
    ]
    if not chosen:
        there = sorted({item.domain for item in items}), sorted({item.length for item in items})
        raise TraceError(
            f"no item is left; domains are {', '.join(there[0])}; lengths are {', '.join(there[1])}"
        )
    if count is not None and count < len(chosen):
        chosen = random.Random(seed).sample(chosen, count)
    return chosen


def truncate_middle(ids: Sequence[Token], longest: int | None) -> Sequence[Token]:
    """Cut what is longer than `longest` in the middle, as the benchmark does: both ends matter."""
    if longest is None or len(ids) <= longest:
        return ids
    if longest < 2:
        raise TraceError(f"a prompt cannot be cut to {longest} tokens; 2 are the least")
    half = longest // 2
    return [*ids[:half], *ids[-half:]]


def _from_hub(name: str) -> Iterator[Any]:
    local = "or give a local file of the same columns (JSON, JSONL, Parquet or Arrow) instead"
    try:
        from datasets import load_dataset
    except ImportError:
        raise TraceError(
            f"{name} needs the package datasets: {install('traces')}, {local}"
        ) from None
    try:
        found = load_dataset(name, split="train")
    except Exception as error:
        # Offline, not found, gated, damaged cache: the package raises a dozen unrelated types.
        reason = " ".join(str(error).split())[:160]
        raise TraceError(
            f"{name} cannot be loaded from the hub ({reason}): check the network, {local}"
        ) from None
    return iter(found)


def _local(path: Path) -> list[Any]:
    if not path.is_dir():
        return _from_file(path)
    splits = path / "dataset_dict.json"
    if not splits.is_file():
        return _from_saved(path)
    names = _texts(splits, "splits")
    if "train" not in names and len(names) > 1:
        raise TraceError(f"{path} holds the splits {', '.join(names)}: name the folder of one")
    return _from_saved(path / ("train" if "train" in names else names[0]))


def _from_saved(path: Path) -> list[Any]:
    """Read the folder of one data set that `save_to_disk` of the package datasets wrote."""
    about = path / "state.json"
    if not about.is_file():
        inside = sorted(each.name for each in path.glob("*") if each.suffix.lower() in _READERS)
        found = f"name the file in it: {', '.join(inside[:5])}" if inside else "it holds no items"
        raise TraceError(f"{path} is a folder that save_to_disk did not write: {found}")
    return [
        row for name in _texts(about, "_data_files", "filename") for row in _from_file(path / name)
    ]


def _from_file(path: Path) -> list[Any]:
    with opened(path) as file:
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise TraceError(f"{path} is none of {', '.join(_READERS)}")
        if not file.read(1):
            raise TraceError(f"{path} is empty")
        file.seek(0)
        try:
            rows = reader(file)
        except TraceError:
            raise
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:160]
            raise TraceError(f"{path} cannot be read: {reason}") from None
    if not rows:
        raise TraceError(f"{path} holds no items")
    return rows


def _texts(path: Path, key: str, of: str | None = None) -> list[str]:
    """Return the names of files or folders beside `path` that it lists."""
    found = read_json(path)
    listed = found.get(key) if isinstance(found, dict) else None
    names = listed if isinstance(listed, list) else []
    if of is not None:
        names = [each.get(of) if isinstance(each, dict) else None for each in names]
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise TraceError(f"{path} does not list what lies beside it under {key}")
    return names


def _from_json(file: BufferedReader) -> list[Any]:
    content = file.read()
    found = json.loads(content) if content.strip() else []
    rows = found.get("data") if isinstance(found, dict) else found
    if not isinstance(rows, list):
        raise TraceError(f"{file.name} is neither a list of items nor an object with data")
    return rows


def _from_lines(file: BufferedReader) -> list[Any]:
    return [json.loads(line) for line in file if line.strip()]


def _from_parquet(file: BufferedReader) -> list[Any]:
    import pyarrow.parquet as pq

    with _arrow_errors():
        return list(pq.read_table(file).to_pylist())


def _from_arrow(file: BufferedReader) -> list[Any]:
    """Read either Arrow form: the file format, or the stream that `datasets` writes."""
    import pyarrow as pa

    # Not mapped: the end of a file that was cut would end the process.
    with _arrow_errors():
        form = pa.ipc.open_file if file.read(6) == b"ARROW1" else pa.ipc.open_stream
        file.seek(0)
        table = form(file).read_all()
        table.validate(full=True)  # texts that end behind their column would end it, too
        return list(table.to_pylist())


@contextmanager
def _arrow_errors() -> Iterator[None]:
    """Turn what Arrow raises for damaged files into ValueError."""
    import pyarrow as pa

    try:
        yield
    except MemoryError:
        raise ValueError("it is damaged, or needs more memory than there is") from None
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from None


_READERS: dict[str, Callable[[BufferedReader], list[Any]]] = {
    ".json": _from_json,
    ".jsonl": _from_lines,
    ".parquet": _from_parquet,
    ".arrow": _from_arrow,
}


def _item(row: Any, place: str) -> Item:
    if not isinstance(row, dict):
        raise TraceError(f"{place} is not an object")
    values = {}
    for name, column in _COLUMNS.items():
        value = row.get(column)
        if not isinstance(value, str):
            what = "has no" if value is None else "does not hold text in its"
            raise TraceError(
                f"{place} {what} column {column}: all of {', '.join(_COLUMNS.values())} are "
                f"needed, and hold text"
            )
        values[name] = value
    return Item(**values)
