"""Saved answers of vLLM with `--enable-return-indexer-topk`, as proposed.

`choices[i].indexer_topk` is base64 of a `.npy` file, int32 (tokens, layers, top_k), padded with -1;
row t is the token at position `indexer_topk_prompt_start + t`.

Reference: https://github.com/vllm-project/vllm/pull/49555 (open when this was written).
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.captured import MOST_TOKENS
from hisparse_sim.traces.importers.answers import (
    read_answers,
    refuse_bare,
    refuse_left,
    take_scratch,
    value_at,
)
from hisparse_sim.traces.importers.array import open_npy
from hisparse_sim.traces.importers.importer import Imported, Importer, Options
from hisparse_sim.traces.importers.prompt_rows import prompt_len_of_answer
from hisparse_sim.traces.importers.returned import Returned, imported

_START = "indexer_topk_prompt_start"
_REMEDY = "they are places in the engine's cache, which say nothing about the request's positions"


def _read(path: Path, options: Options) -> Imported:
    found: list[Returned] = []
    ids: set[str] = set()  # of answers
    for answer, values in read_answers(path, "indexer_topk", options.scratch):
        choices = value_at(answer, "choices")
        if choices is None:
            refuse_bare(answer, str(path))
        before = len(found)
        _refuse_twice(answer, choices, ids, str(path))
        for choice in choices if isinstance(choices, list) else []:
            place = f"{path}: choice {len(found)}"
            scratch = take_scratch(value_at(choice, "indexer_topk"), values)
            if scratch is None:
                raise TraceError(
                    f"{place} has no indexer_topk: start the server with "
                    f"--enable-return-indexer-topk"
                )
            counted = value_at(answer, "usage", "prompt_tokens")
            prompt_len = prompt_len_of_answer(
                options.prompt_len, counted, place, "usage.prompt_tokens in its answer"
            )
            name = value_at(answer, "id")
            name = f"{name if isinstance(name, str) and name else 'choice'}-{len(found)}"
            first = _first_position(answer, choice, options.first_position, place)
            shape = open_npy(scratch, place).shape
            opened = partial(open_npy, scratch, place)
            found.append(Returned(name, prompt_len, first, shape, opened))
        refuse_left(values, str(path))
        _compare(found[before:], value_at(answer, "usage"), f"{path}: answer {before}")
    if not found:
        raise TraceError(f"{path} holds no choices with indexer_topk")
    return imported(path, found, options, remedy=_REMEDY)


def _refuse_twice(answer: Any, choices: Any, ids: set[str], place: str) -> None:
    """Raise TraceError if an answer, or a choice of it, is there a second time: it would count as
    another request. Adds the id of the answer to `ids`."""
    name = value_at(answer, "id")
    if isinstance(name, str) and name:
        if name in ids:
            raise TraceError(f"{place} holds the answer {name!r} twice: keep one of them")
        ids.add(name)
    indices: set[int] = set()
    for choice in choices if isinstance(choices, list) else []:
        index = value_at(choice, "index")
        if type(index) is int and index in indices:
            raise TraceError(f"{place}: an answer holds its choice {index} twice: keep one of them")
        if type(index) is int:
            indices.add(index)


def _first_position(answer: Any, choice: Any, given: int | None, place: str) -> int:
    """Return the position of the query in row 0: what the answer says, or else the user."""
    said = value_at(choice, _START)
    said = value_at(answer, _START) if said is None else said
    if said is None:
        return given or 0
    if type(said) is not int or not 0 <= said <= MOST_TOKENS:
        raise TraceError(f"{place} has {_START} {str(said)[:40]!r}, which is not a position")
    if given not in (None, said):
        raise TraceError(f"{place} has {_START} {said}, not `first_position` {given}: leave it out")
    return said


def _compare(choices: Sequence[Returned], usage: Any, place: str) -> None:
    """Raise TraceError unless the choices of one answer have a row for each token it counts."""
    generated = value_at(usage, "completion_tokens")
    if generated is None or not choices:
        return
    if type(generated) is not int or not 0 <= generated <= MOST_TOKENS:
        raise TraceError(
            f"{place} has usage.completion_tokens {str(generated)[:40]!r}, which is not a "
            f"number of tokens"
        )
    prompt = value_at(usage, "prompt_tokens")
    prompt = prompt if type(prompt) is int else choices[0].prompt_len
    # Every choice has the whole prompt, and its last token was not read again.
    expected = generated + sum(prompt - 1 - each.first_position for each in choices)
    rows = sum(each.shape[0] for each in choices)
    if rows == expected:
        return
    missing = expected - rows
    way_out = ""
    if len(choices) == 1 and choices[0].first_position == 0 and missing > 0:
        way_out = f": give `first_position` {missing} if it was asked with {_START} {missing}"
    raise TraceError(
        f"{place} has {rows:,} rows, but its usage counts {prompt:,} tokens of the prompt and "
        f"{generated:,} generated, which make {expected:,}{way_out}"
    )


VLLM = Importer(
    name="vllm",
    summary="JSON or JSONL answers of vLLM with indexer_topk (base64 of a .npy file)",
    provenance="dsa-serving",
    source="vLLM, indexer_topk",
    read=_read,
)
