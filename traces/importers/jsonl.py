"""JSON lines of instrumented DeepSeek-V3.2 demos, one (request, layer, step) per line.

Keys: `request_id`, `layer_id`, `step_idx`, `seq_len_current`, `selected_token_pos` (list, -1 is
padding); others are ignored. Lines may come in any order. `seq_len_current` counts the tokens up to
and including the one being decoded, which so stands at `seq_len_current` - 1, unless rows
select just that position `seq_len_current`: then it is taken not to, in the whole file, which is
refused if most rows contradict that.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hisparse_sim.traces.demand import Demand, Ints, Ragged
from hisparse_sim.traces.documents import unique
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.captured import MOST_LAYERS, MOST_TOKENS, checked_id
from hisparse_sim.traces.file.units import positions_of
from hisparse_sim.traces.files import opened
from hisparse_sim.traces.importers.importer import Imported, Importer, Options
from hisparse_sim.traces.importers.prompt_rows import (
    LEFT_OUT,
    ROWS_READ,
    ROWS_TRUSTED,
    Sign,
    first_of,
    sign_of_prompt,
)
from hisparse_sim.traces.importers.row_doubts import doubt_of_layer
from hisparse_sim.traces.importers.row_spool import RowSpool
from hisparse_sim.traces.importers.short_rows import ShortRows

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
    nearest: dict[str, int] = {}  # highest position of any row, from its seq_len_current
    beyond, up_to, first_beyond, most = 0, 0, 0, 0  # lines that list seq_len_current, or one less
    prompt_rows = [0, 0]  # of the prompt, if seq_len_current is with the newest token or without
    with opened(path) as file:
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
            behind = positions[positions >= 0] - positions_of(row.seq_len, options.unit)
            newest = int(behind.max(initial=-MOST_TOKENS))
            if (behind == 0).any():
                first_beyond, beyond = first_beyond or number, beyond + 1
            elif newest == -1 and row.seq_len % options.tokens == 0:
                up_to += 1
            nearest[request] = max(nearest.get(request, -MOST_TOKENS), newest)
            if options.prompt_len is not None:
                prompt_rows[0] += row.seq_len <= options.prompt_len
                prompt_rows[1] += row.seq_len < options.prompt_len
            most = max(most, int((positions >= 0).sum()))
            spool.add(request, row.layer, row.step, row.seq_len, row.positions)
    if not ids:
        raise TraceError(f"{path} holds no rows")
    if up_to >= ROWS_TRUSTED and 0 < 4 * beyond < up_to:
        raise TraceError(
            f"{path}, line {first_beyond} selects the position seq_len_current, as if that left "
            f"out the newest token ({beyond} of the lines do so), and {up_to} lines list the one "
            f"before it as their newest: correct the one or the other"
        )
    excludes_newest = beyond > 0
    width = options.top_k or max(1, most)
    notes: dict[str, Any] = {
        "seq_len_current": f"{'without' if excludes_newest else 'with'} the newest token"
    }
    lengths = {}
    if options.prompt_len is not None:
        lengths = dict.fromkeys(ids, options.prompt_len // options.tokens)
    rows = _Rows(path, spool, int(excludes_newest), options)
    doubts = rows.doubts(width)
    wanted = 0 if excludes_newest and options.tokens == 1 else -1
    doubts += _far_behind(path, [each for each in nearest if nearest[each] < wanted])
    if prompt_rows[excludes_newest]:
        notes[LEFT_OUT] = prompt_rows[excludes_newest]
    short, layer_doubts = rows.short_rows(width)
    notes |= short.notes
    doubts = doubts or first_of(layer_doubts, "layers")
    doubts += short.doubts(str(path), "rows of the prompt do so, and `prompt_len` leaves them out")
    return Imported(rows.parts(), width, options.num_layers, lengths, notes, doubts)


class _Rows:
    """The rows of a file once all are read, without those of the prompt where its length is given.

    All methods raise TraceError if a (request, layer) has no row of decode.
    """

    def __init__(self, path: Path, spool: RowSpool, more: int, options: Options) -> None:
        """`more`: tokens that every seq_len_current is short of."""
        self._path, self._spool, self._more = path, spool, more
        self._prompt_len, self._tokens = options.prompt_len, options.tokens
        self._unit = options.unit

    def parts(self) -> Iterator[Demand]:
        """Yield the demands, in positions."""
        for request, layer in self._spool.parts():
            step, seq_len, lists = self._decode(request, layer)
            first = int(seq_len[0]) - 1
            if self._prompt_len is not None:
                first = self._prompt_len // self._tokens
            yield Demand(request, layer, first, step, seq_len, *lists)

    def doubts(self, width: int) -> tuple[str, ...]:
        """Return what speaks against the first row of a request as its first decode step.

        Raises TraceError if it can only be the prompt's, and `prompt_len` does not say otherwise.
        """
        found: list[str] = []
        given = self._prompt_len is not None
        for request, layer in self._spool.first_parts():
            _, seq_len, (offsets, values) = self._decode(request, layer)
            count = min(ROWS_READ, len(seq_len), max(1, int(seq_len[0]) * self._tokens))
            heads = [values[offsets[row] : offsets[row + 1]] for row in range(count)]
            sign = sign_of_prompt(heads, seq_len[:count].astype(np.int64), width, self._tokens)
            place = f"{self._path}: request {request!r}, layer {layer}"
            if not given and not (sign and sign.certain):
                sign = _begins_early(int(seq_len[0]), width, self._tokens) or sign
            if sign is None:
                continue
            if sign.certain and not given:
                raise TraceError(
                    f"{place} begins with rows of the prompt ({sign.what}): give `prompt_len`, and "
                    f"rows with a seq_len_current up to it are left out (0 if there was no prompt)"
                )
            if not given:
                found.append(
                    f"{place}, {sign.what}: if the file holds rows of the prompt, give "
                    f"`prompt_len`, and they are left out"
                )
            elif sign.certain:
                found.append(f"{place} looks like rows of the prompt ({sign.what}), though its "
                             f"seq_len_current is above `prompt_len`")  # fmt: skip
        return first_of(found)

    def short_rows(self, width: int) -> tuple[ShortRows, list[str]]:
        """Return the rows that list fewer positions than they could, up to `width`, and doubts of
        layers."""
        found = ShortRows()
        doubts: list[str] = []
        for request, layer in self._spool.parts():
            _, seq_len, (offsets, values) = self._decode(request, layer)
            before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values >= 0)])
            counts = before[offsets[1:]] - before[offsets[:-1]]
            place = f"request {request!r}, layer {layer}"
            found.add(counts, seq_len, width, place)
            wide = np.diff(offsets)
            if (wide == wide[0]).all():
                listed = values.reshape(len(wide), -1)
                doubt = doubt_of_layer(listed, seq_len.astype(np.int64) - 1, self._tokens)
                doubts += [] if doubt is None else [f"{self._path}: {place} {doubt}"]
        return found, doubts

    def _decode(self, request: str, layer: int) -> tuple[Ints, Ints, Ragged]:
        """Return step, seq_len and positions of a part."""
        step, seq_len, lists = self._spool.read(request, layer)
        length = seq_len.astype(np.int64) + self._more  # tokens
        if self._prompt_len is not None:
            kept = length > self._prompt_len
            if not kept.any():
                raise TraceError(
                    f"{self._path}: request {request!r}, layer {layer} has no seq_len_current "
                    f"above `prompt_len` {self._prompt_len}, so no row is a decode step"
                )
            if not kept.all():
                counts = np.diff(lists.offsets)
                ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[kept])])
                lists = Ragged(ends, lists.values[np.repeat(kept, counts)])
                step, length = step[kept], length[kept]
        return step, positions_of(length, self._unit).astype(np.int32), lists


def _begins_early(seq_len: int, width: int, tokens: int) -> Sign | None:
    if seq_len == 1 and tokens == 1:
        return Sign(True, "row 0 is the query of the first token, which every prompt has", 0)
    if seq_len < width:
        what = f"row 0 has only {seq_len:,} positions to choose from, and rows list up to {width:,}"
        return Sign(False, what, seq_len - 1)
    return None


def _far_behind(path: Path, requests: Sequence[str]) -> tuple[str, ...]:
    return first_of(
        [
            f"{path}: request {request!r} never lists its newest token, which nearly every "
            f"step of an indexer does: check that seq_len_current counts the tokens up to and "
            f"including the one being decoded, whose position is seq_len_current - 1"
            for request in requests
        ]
    )


def _parsed(line: bytes, place: str) -> _Line:
    if len(line) >= _LONGEST_LINE_BYTES:
        raise TraceError(f"{place} is longer than {_LONGEST_LINE_BYTES >> 20} MB")
    try:
        found = json.loads(line, object_pairs_hook=unique)
    except TraceError as error:
        raise TraceError(f"{place}: {error}") from None
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
