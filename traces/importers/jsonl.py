"""Rows of JSON as instrumented DeepSeek-V3.2 demos print them, one (request, layer, step) a line.

Keys: `request_id`, `layer_id`, `step_idx`, `seq_len_current`, `selected_token_pos` (list, -1 is
padding); others are ignored. Lines may come in any order. `seq_len_current` counts the newest
token, unless some row selects just that position: then it is taken not to, in the whole file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.importers.importer import Imported, Importer, Options

_WHOLE = ("layer_id", "step_idx", "seq_len_current")
_LONGEST_LINE_BYTES = 64 << 20

Row = tuple[int, int, Any]  # step, seq_len, positions


def _read(path: Path, options: Options) -> Imported:
    groups: dict[str, dict[int, list[Row]]] = {}
    excludes_newest = False
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_LONGEST_LINE_BYTES):
                number += 1
                if not line.strip():
                    continue
                request, layer, row = _parsed(line, f"{path}, line {number}")
                excludes_newest |= bool((row[2] == row[1]).any())
                groups.setdefault(request, {}).setdefault(layer, []).append(row)
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    if not groups:
        raise TraceError(f"{path} holds no rows")
    rows = [row for layers in groups.values() for group in layers.values() for row in group]
    top_k = options.top_k or max(1, max(int((row[2] >= 0).sum()) for row in rows))
    notes = {"seq_len_current": f"{'without' if excludes_newest else 'with'} the newest token"}
    lengths = {}
    if options.prompt_len is not None:
        lengths = dict.fromkeys(groups, options.prompt_len)
    return Imported(
        _parts(groups, int(excludes_newest), options), top_k, options.num_layers, lengths, notes
    )


def _parts(
    groups: dict[str, dict[int, list[Row]]], more: int, options: Options
) -> Iterator[Demand]:
    for request, layers in groups.items():
        for layer in sorted(layers):
            group = sorted(layers[layer], key=lambda row: row[0])
            seq_len = np.array([row[1] + more for row in group], dtype=np.int32)
            prompt_len = int(seq_len[0]) - 1 if options.prompt_len is None else options.prompt_len
            yield Demand(
                request=request,
                layer=layer,
                prompt_len=prompt_len,
                step=np.array([row[0] for row in group], dtype=np.int32),
                seq_len=seq_len,
                offsets=np.cumsum([0, *(len(row[2]) for row in group)], dtype=np.int64),
                positions=np.concatenate([row[2] for row in group]),
            )


def _parsed(line: bytes, place: str) -> tuple[str, int, Row]:
    if len(line) >= _LONGEST_LINE_BYTES:
        raise TraceError(f"{place} is longer than {_LONGEST_LINE_BYTES >> 20} MB")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{place} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise TraceError(f"{place} is not a JSON object")
    for key in ("request_id", *_WHOLE, "selected_token_pos"):
        if key not in found:
            raise TraceError(f"{place} has no {key}")
    whole = [found[key] for key in _WHOLE]
    for key, value in zip(_WHOLE, whole, strict=True):
        if type(value) is not int or not 0 <= value < 2**31 - 1:
            raise TraceError(f"{place} has {key} {value!r}, expected a whole number")
    selected = found["selected_token_pos"]
    if not isinstance(selected, list) or not all(type(each) is int for each in selected):
        raise TraceError(f"{place}: selected_token_pos is not a list of whole numbers")
    if any(not -1 <= each < 2**31 for each in selected):
        raise TraceError(f"{place}: selected_token_pos holds a number that is no position")
    row = whole[1], whole[2], np.array(selected, dtype=np.int32)
    return str(found["request_id"]), whole[0], row


JSONL = Importer(
    name="jsonl",
    summary="lines with request_id, layer_id, step_idx, seq_len_current, selected_token_pos",
    provenance=None,
    source="instrumented model, JSON lines",
    read=_read,
)
