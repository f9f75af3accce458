"""Saved answers of SGLang's `/generate` with `"return_indexer_topk": true`.

`meta_info.indexer_topk` is base64 of raw int32, (prompt + output - 1, layers, top_k); the shape is
not in the answer. Row t is the query at position t. Shared layers have a slot of their own and
repeat the layer before them.

Reference: SGLang 0.5.23, `srt/state_capturer/indexer_topk.py`.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.importers.answers import (
    read_answers,
    refuse_bare,
    refuse_left,
    take_scratch,
    value_at,
)
from hisparse_sim.traces.importers.importer import Imported, Importer, Options
from hisparse_sim.traces.importers.prompt_rows import prompt_len_of_answer
from hisparse_sim.traces.importers.returned import Returned, imported


def shape_of(
    size_bytes: int,
    rows: int | None,
    num_layers: int | None,
    top_k: int | None,
    place: str,
    cached: Any = None,
) -> tuple[int, int, int]:
    """Return (rows, layers, top_k) of so many bytes of int32, where one of them may be unknown.

    Raises TraceError if they do not fit the size or leave more than one open.
    """
    known = [rows, num_layers, top_k]
    if known.count(None) > 1:
        raise TraceError(
            f"{place}: the shape of its top-k is not in the answer; give `config`, or "
            f"`num_layers` and `top_k` of the model"
        )
    product = 4
    for each in known:
        product *= 1 if each is None else each
    missing = size_bytes // product if product else 0
    shape = [missing if each is None else each for each in known]
    if 4 * shape[0] * shape[1] * shape[2] != size_bytes or min(shape) < 1:
        if rows and num_layers and top_k:
            why = misfit(size_bytes, rows, num_layers, top_k, cached, "give `first_position` {}")
            raise TraceError(f"{place}: {why}")
        named = [
            f"{'?' if each is None else each} {name}"
            for each, name in zip(known, ("rows", "layers", "positions"), strict=True)
        ]
        raise TraceError(
            f"{place}: its top-k has {size_bytes} bytes, which is not 4 x {' x '.join(named)}; "
            f"check `num_layers` and `top_k`, or the answer was cut"
        )
    return shape[0], shape[1], shape[2]


def misfit(
    size_bytes: int, rows: int, num_layers: int, top_k: int, cached: Any, if_started: str
) -> str:
    """Return what it says that a top-k does not have the size of so many rows, as a clause.

    rows: one for each token but the last; cached: tokens of the prompt that the server says it had
    in its cache; if_started: what helps if the rows start at token `{}`.
    """
    what = (
        f"its top-k has {size_bytes} bytes, which is not 4 x {rows} rows x {num_layers} layers x "
        f"{top_k} positions"
    )
    check = "check `num_layers` and `top_k` against the model's config"
    numbers, odd = divmod(size_bytes, 4 * rows)
    fitting = []
    if numbers and not odd and numbers % top_k == 0:
        fitting.append(f"{numbers // top_k} layers of {top_k}")
    if numbers and not odd and numbers % num_layers == 0:
        fitting.append(f"{num_layers} layers of {numbers // num_layers}")
    if fitting:
        return f"{what} but fits {' or '.join(fitting)}; {check}"
    found, odd = divmod(size_bytes, 4 * num_layers * top_k)
    if odd:
        return f"{what}; {check}, or the answer was cut"
    if found > rows:
        return f"{what} but {found} rows"
    start = rows - found
    known = ", up to which the prompt was cached" if cached == start else " of the prompt"
    return (
        f"{what} but {found} rows, as if they started at token {start}{known}: "
        f"{if_started.format(start)}, unless the answer was cut"
    )


def refuse_speculative(meta_info: Mapping[str, Any], place: str) -> None:
    """Raise TraceError, beginning with `place`, if an answer was decoded speculatively.

    Only such answers have any of the keys `spec_...` (tokenizer_manager.py of the server).
    """
    for key, value in meta_info.items():
        if key.startswith("spec_") and value:
            raise TraceError(
                f"{place} comes from speculative decoding (its meta_info has {key}): the rows do "
                f"not tell which of them one step verified, and each would be replayed as a step; "
                f"ask a server without --speculative-algorithm"
            )


def _refuse_halves(array: Any, place: str) -> None:
    """Raise TraceError if `num_layers` and `top_k` cut the rows of a layer in two or more.

    Only their product shows in the size. The first token of a prompt has itself to choose from,
    in every layer; where it does so in some layers, and others list nothing, these are the rest of
    its rows.
    """
    alone = (array[0] == 0).sum(axis=1) == 1
    alone &= (array[0] == -1).sum(axis=1) == array.shape[2] - 1
    nothing = (array[0] == -1).all(axis=1)
    if alone.any() and nothing.any() and (alone | nothing).all():
        count = int(alone.sum())
        raise TraceError(
            f"{place} lists the first token in {count} layers, and nothing in "
            f"{int(nothing.sum())}: they look like {count} layers of "
            f"{array[0].size // count} positions; check `num_layers` and `top_k`"
        )


def _read(path: Path, options: Options) -> Imported:
    found: list[Returned] = []
    first = options.first_position or 0
    for texts, values in read_answers(path, "indexer_topk", options.scratch):
        for answer in texts if isinstance(texts, list) else [texts]:
            place = f"{path}: answer {len(found)}"
            scratch = take_scratch(value_at(answer, "meta_info", "indexer_topk"), values)
            if scratch is None:
                refuse_bare(answer, place)
                raise TraceError(
                    f"{place} has no meta_info.indexer_topk: start the server with "
                    f'--enable-return-indexer-topk and send "return_indexer_topk": true'
                )
            refuse_speculative(answer["meta_info"], place)
            counted = value_at(answer, "meta_info", "prompt_tokens")
            prompt_len = prompt_len_of_answer(
                options.prompt_len, counted, place, "meta_info.prompt_tokens"
            )
            output = value_at(answer, "meta_info", "completion_tokens")
            counted = counted if type(counted) is int else prompt_len
            rows = counted + output - 1 - first if type(output) is int else None
            size_bytes = scratch.stat().st_size
            cached = value_at(answer, "meta_info", "cached_tokens")
            shape = shape_of(size_bytes, rows, options.axis, options.top_k, place, cached)
            name = value_at(answer, "meta_info", "id")
            name = name if isinstance(name, str) and name else f"answer-{len(found)}"
            opened = partial(np.memmap, scratch, "<i4", "r", shape=shape)
            if first == 0:
                _refuse_halves(opened(), place)
            found.append(Returned(name, prompt_len, first, shape, opened))
        refuse_left(values, str(path))
    if not found:
        raise TraceError(f"{path} holds no answer")
    return imported(path, found, options, if_unseen="check `num_layers` and `top_k`")


SGLANG = Importer(
    name="sglang",
    summary="JSON or JSONL answers of SGLang's /generate with return_indexer_topk",
    provenance="dsa-serving",
    source="SGLang, return_indexer_topk",
    read=_read,
)
