"""Saved JSON answers of engines: their huge base64 values go to scratch files, unread."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.files import opened
from hisparse_sim.traces.importers.base64_stream import Extractor
from hisparse_sim.traces.importers.importer import scratch_errors, write_scratch

_CHUNK_BYTES = 1 << 20


BARE = (
    "has indexer_topk without the answer around it, which counts the tokens: save the whole answer "
    '(SGLang: "meta_info" with "indexer_topk", "prompt_tokens" and "completion_tokens"; vLLM: '
    '"choices" with "indexer_topk", and "usage" with "prompt_tokens")'
)


def read_answers(path: Path, key: str, scratch: Path) -> Iterator[tuple[Any, dict[int, Path]]]:
    """Yield every JSON text of a file with the scratch files of its values, by their numbers.

    A `.jsonl` file holds one text a line, any other file one text. A value stands in the JSON as
    `{"base64": number}`. Memory is bounded by the JSON without its values.

    Raises TraceError naming the file, and the line, if it is no JSON or a value no base64.
    """
    lines = path.suffix.lower() == ".jsonl"
    with opened(path) as file:
        number = 0
        while True:
            number += 1
            place = f"{path}, line {number}" if lines else str(path)
            folder = scratch / f"answer-{number}"
            with scratch_errors(scratch):
                folder.mkdir()
            found = _read_one(file, lines, key, folder, place)
            if found is None:
                return
            yield found
            if not lines:
                return


def _read_one(
    file: BinaryIO, line: bool, key: str, folder: Path, place: str
) -> tuple[Any, dict[int, Path]] | None:
    values: dict[int, Path] = {}
    with ExitStack() as stack:

        def open_sink(number: int) -> Any:
            stack.close()  # the value before is complete; there may be thousands
            values[number] = folder / str(number)
            with scratch_errors(folder):
                sink = stack.enter_context(values[number].open("wb", buffering=0))
                return partial(write_scratch, sink)

        extractor = Extractor(key, open_sink)
        empty = True
        try:
            while True:
                chunk = file.readline(_CHUNK_BYTES) if line else file.read(_CHUNK_BYTES)
                empty = empty and not chunk.strip()
                extractor.feed(chunk)
                if not chunk or (line and chunk.endswith(b"\n") and not empty):
                    break
            return None if empty and line else (extractor.finish(), values)
        except TraceError as error:
            raise TraceError(f"{place}: {error}") from None


def value_at(found: Any, *keys: str) -> Any:
    """Return `found[key][key]...`, or None where there is no such thing."""
    for key in keys:
        if not isinstance(found, dict):
            return None
        found = found.get(key)
    return found


def take_scratch(found: Any, values: dict[int, Path]) -> Path | None:
    """Take the scratch file of a value out of `values`; None if it is another value."""
    number = value_at(found, "base64")
    return values.pop(number, None) if type(number) is int else None


def refuse_left(values: dict[int, Path], place: str) -> None:
    """Raise TraceError if values are left that belong to no answer."""
    if values:
        raise TraceError(
            f"{place} has {len(values)} more indexer_topk than answers: which of them "
            "belong to an answer is unknown"
        )


def refuse_bare(answer: Any, place: str) -> None:
    """Raise TraceError for `indexer_topk` without the answer around it."""
    if value_at(answer, "indexer_topk") is not None:
        raise TraceError(f"{place} {BARE}")
