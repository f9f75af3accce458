"""From the numbers that an engine returned, (rows, layers, top_k), to the demands of a trace.

Row r of such an array is the query at token `first_position + r`; it selects among the positions up
to and including its own, so its `seq_len` is one more than its position.
"""

import operator
from collections.abc import Iterator, Sequence
from reprlib import repr as clipped
from typing import Any

import numpy as np

from hisparse_sim.traces.demand import Demand, Ragged
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.diagnosis import Fault, diagnose, unusable
from hisparse_sim.traces.file.rules import strip_padding
from hisparse_sim.traces.file.units import TOKEN, positions_of, tokens_of

MOST_TOKENS = 2**31 - 1  # positions are int32
MOST_LAYERS = 2**15  # layers are int16

REMEDY = (
    "they look like locations in the engine's memory: start the server with SGLANG_DSA_FUSE_TOPK=0 "
    "(or with --enable-hisparse) and capture again"
)

_OF_THE_ENGINE = "a fault of the engine's top-k or of the file, not of a setting"


class BadRows(TraceError):
    """Rows that do not list distinct positions of their past."""

    def __init__(self, message: str, fault: Fault) -> None:
        super().__init__(message)
        self.fault = fault


def whole(value: Any, what: str, least: int, most: int) -> int:
    """Return a whole number, NumPy's included, as an int. Raises ValueError, calling it `what`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError(
            f"{what} is {clipped(value)}, expected a whole number from {least} to {most}"
        )
    return number


def checked_id(value: Any, place: str) -> str:
    """Return a text that can be a name in a trace file, or raise TraceError."""
    try:
        if isinstance(value, str) and value.encode():
            return value
    except UnicodeEncodeError:
        pass
    raise TraceError(f"{place} is {value!r}, which is not a usable name of a request")


def demands(
    array: Any,  # [rows, layers, top_k], indexable; may be a memory map
    *,
    place: str,
    request: str,
    first_position: int,
    prompt_len: int,
    layers: Sequence[int] | None = None,
    layer_types: Sequence[str] | None = None,
    remedy: str = REMEDY,
    unit: str = TOKEN,
) -> Iterator[Demand]:
    """Yield the decode rows (position >= `prompt_len`) layer by layer; one is in memory at a time.

    -1 is padding. `layers` numbers the second axis, which else counts from 0. With `layer_types`
    (of the model, "full" or "shared") a shared layer must repeat the full one before it. `unit` is
    that of the positions; `first_position` and `prompt_len` are tokens. Rows may list fewer
    positions than there are.

    Raises TraceError, beginning with `place`, if there are no decode steps; BadRows if a row lists
    anything but distinct positions of its own past. `remedy` is stated if most rows look like
    locations in the engine's memory.
    """
    place = f"{place}: request {request!r}"
    skipped = max(0, prompt_len - first_position)
    rows = len(array) - skipped
    if rows < 1:
        raise TraceError(
            f"{place} has {len(array):,} rows for a prompt of {prompt_len:,} tokens, so none is a "
            f"decode step; generate at least two tokens"
        )
    queries = np.arange(rows, dtype=np.int64) + (first_position + skipped)
    if queries[-1] >= MOST_TOKENS:
        raise TraceError(f"{place} has more than {MOST_TOKENS:,} tokens")
    seq_len = positions_of(queries + 1, unit)
    steps = np.arange(rows, dtype=np.int32)
    anchor, anchored = -1, np.empty(0)
    count = array.shape[1]
    numbers = range(count) if layers is None else layers
    for layer, index in sorted(zip(numbers, range(count), strict=True)):
        listed = np.ascontiguousarray(array[skipped:, index, :])
        if unusable(listed, seq_len).any():
            fault = diagnose(array[skipped:], seq_len, index, tokens_of(unit))
            where = f"layer {layer}, step {fault.row} (row {skipped + fault.row})"
            raise BadRows(f"{place}, {where} {_sentence(fault, first_position, remedy)}", fault)
        if layer_types is not None:
            if layer_types[layer] == "full":
                anchor, anchored = layer, listed
            elif "full" not in layer_types[anchor + 1 : layer] and anchor >= 0:
                _check_repeats(listed, anchored, f"{place}, layer {layer}", anchor)
        offsets = np.arange(0, listed.size + 1, listed.shape[1], dtype=np.int64)
        lists, _ = strip_padding(Ragged(offsets, listed.astype(np.int32).ravel()))
        yield Demand(
            request, layer, prompt_len // tokens_of(unit), steps, seq_len.astype(np.int32), *lists
        )


def _sentence(fault: Fault, first_position: int, remedy: str) -> str:
    if fault.slots:
        return f"{fault.what}: most rows do not list positions of the text; {remedy}"
    if fault.shift:
        return f"{fault.what}: row 0 is that of token {first_position + fault.shift} of the text"
    if fault.common:
        return f"{fault.what}: other layers, another top_k, or an engine that left rows unfilled"
    return f"{fault.what}: {_OF_THE_ENGINE}"


def _check_repeats(listed: Any, anchored: Any, place: str, anchor: int) -> None:
    other = (listed != anchored).any(axis=1)
    if not other.any():
        return
    row, count = int(other.argmax()), int(other.sum())
    fault = Fault(row, f"lists other positions than layer {anchor}", 2 * count > len(other))
    why = "that is another model's, or leave it out"
    if not fault.common:
        why = f"{count:,} of {len(other):,} rows are so, {_OF_THE_ENGINE}"
    raise BadRows(
        f"{place}, step {row} {fault.what}, whose choice it shares by the model's config: {why}",
        fault,
    )
