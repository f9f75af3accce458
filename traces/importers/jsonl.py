"""Rows of JSON as instrumented DeepSeek-V3.2 demos print them, one (request, layer, step) a line.

Keys: `request_id`, `layer_id`, `step_idx`, `seq_len_current`, `selected_token_pos` (list, -1 is
padding); others are ignored. Lines may come in any order. `seq_len_current` counts the newest
token, unless some row selects just that position: then it is taken not to, in the whole file.
"""

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hisparse_sim.traces.captured import MOST_LAYERS, MOST_TOKENS, checked_id
from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.importers.importer import Imported, Importer, Options
from hisparse_sim.traces.importers.row_spool import RowSpool

_WHOLE = {
    "layer_id": MOST_LAYERS - 1,
    "step_idx": MOST_TOKENS - 1,
    "seq_len_current": MOST_TOKENS - 1,
}
_LONGEST_LINE_BYTES = 16 << 20  # a million positions and more


class _Line(NamedTuple):
    request: str | int
    layer: int
    step: int
    seq_len: int
    positions: "array[int]"


def _read(path: Path, options: Options) -> Imported:
    spool = RowSpool(options.scratch)
    ids: dict[str, str | int] = {}  # as the file writes them
    excludes_newest, most = False, 0
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_LONGEST_LINE_BYTES):
                number += 1
                if not line.strip():
                    continue
                row = _parsed(line, f"{path}, line {number}")
                request = str(row.request)
                if type(ids.setdefault(request, row.request)) is not type(row.request):
                    raise TraceError(
                        f"{path}, line {number} has request_id {row.request!r}, and a line before "
                        f"it {ids[request]!r}: write all ids as text, or all as numbers"
                    )
                positions = np.frombuffer(row.positions, np.int32)
                excludes_newest |= bool((positions == row.seq_len).any())
                most = max(most, int((positions >= 0).sum()))
                spool.add(request, row.layer, row.step, row.seq_len, row.positions)
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    if not ids:
        raise TraceError(f"{path} holds no rows")
    notes = {"seq_len_current": f"{'without' if excludes_newest else 'with'} the newest token"}
    lengths = {} if options.prompt_len is None else dict.fromkeys(ids, options.prompt_len)
    parts = _parts(spool, int(excludes_newest), options.prompt_len)
    return Imported(parts, options.top_k or max(1, most), options.num_layers, lengths, notes)


def _parts(spool: RowSpool, more: int, prompt_len: int | None) -> Iterator[Demand]:
    for request, layer in spool.parts():
        step, seq_len, lists = spool.read(request, layer)
        seq_len += more
        first = int(seq_len[0]) - 1 if prompt_len is None else prompt_len
        yield Demand(request, layer, first, step, seq_len, *lists)


def _parsed(line: bytes, place: str) -> _Line:
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
    request = found["request_id"]
    if type(request) is not int:
        checked_id(request, f"{place}: request_id")
    layer, step, seq_len = (_whole(found, key, place) for key in _WHOLE)
    selected = found["selected_token_pos"]
    if not isinstance(selected, list) or not set(map(type, selected)) <= {int}:
        raise TraceError(f"{place}: selected_token_pos is not a list of whole numbers")
    for wrong in (min(selected, default=0), max(selected, default=0)):
        if not -1 <= wrong <= MOST_TOKENS:
            raise TraceError(
                f"{place}: request {request!r}, layer {layer}, step {step}: selected_token_pos "
                f"holds {_short(wrong)}, which is neither a position nor the padding -1"
            )
    return _Line(request, layer, step, seq_len, array("i", selected))


def _whole(found: dict[str, Any], key: str, place: str) -> int:
    value = found[key]
    if type(value) is not int or not 0 <= value <= _WHOLE[key]:
        raise TraceError(
            f"{place} has {key} {_short(value)}, expected a whole number up to {_WHOLE[key]}"
        )
    return value


def _short(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 60 else shown[:60] + "..."


JSONL = Importer(
    name="jsonl",
    summary="lines with request_id, layer_id, step_idx, seq_len_current, selected_token_pos",
    provenance=None,
    source="instrumented model, JSON lines",
    read=_read,
    refuses={
        "request": "every line names its request",
        "layers": "every line names its layer",
        "first_position": "every line says how long its request is",
    },
)
