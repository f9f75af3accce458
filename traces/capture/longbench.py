"""LongBench v2 as a source of long prompts: load, select, lay out, cut to a length.

503 multiple-choice questions over documents of 8k to 2M words (Bai et al., arXiv 2412.15204).
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from hisparse_sim.traces.errors import TraceError, install

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

    Local files are JSON (a list, or an object with the list under `data`), JSONL, Parquet or Arrow.

    Raises TraceError if it cannot be had, or an item lacks a column.
    """
    rows = _from_hub(str(source)) if str(source) in HUB_ALIASES else _from_file(Path(source))
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


def _from_file(path: Path) -> Iterable[Any]:
    if not path.is_file():
        raise TraceError(
            f"{path} does not exist; give {HUB_ID} or a local JSON, JSONL, Parquet or Arrow file"
        )
    suffix = path.suffix.lower()
    try:
        if suffix == ".json":
            found = json.loads(path.read_bytes())
            rows: Any = found.get("data") if isinstance(found, dict) else found
            if not isinstance(rows, list):
                raise TraceError(f"{path} is neither a list of items nor an object with data")
            return list(rows)
        if suffix == ".jsonl":
            with path.open("rb") as file:
                return [json.loads(line) for line in file if line.strip()]
        if suffix == ".parquet":
            import pyarrow.parquet as pq

            return list(pq.read_table(path, columns=None).to_pylist())
        if suffix == ".arrow":
            return _from_arrow(path)
    except TraceError:
        raise
    except MemoryError:
        raise TraceError(
            f"{path} needs more memory than there is; if it is small, it is damaged"
        ) from None
    except (ValueError, OSError, RecursionError, LookupError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:160]
        raise TraceError(f"{path} cannot be read: {reason}") from None
    raise TraceError(f"{path} is neither .json, .jsonl, .parquet nor .arrow")


def _from_arrow(path: Path) -> list[Any]:
    """Read either Arrow form: the file format, or the stream that `datasets` keeps in its cache."""
    import pyarrow as pa

    # Not mapped: the end of a file that was cut would end the process.
    with path.open("rb") as file:
        form = pa.ipc.open_file if file.read(6) == b"ARROW1" else pa.ipc.open_stream
        file.seek(0)
        table = form(file).read_all()
    table.validate(full=True)  # texts that end behind their column would, too
    return list(table.to_pylist())


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
