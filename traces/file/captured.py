"""From what an engine returned, (rows, layers, top_k) numbers, to the demands of a trace.

Row r of such an array is the query at token `first_position + r`; it chose among the positions up
to and including its own, so its `seq_len` is one more than its position.
"""

import operator
from collections.abc import Iterator, Sequence
from reprlib import repr as clipped
from typing import Any

import numpy as np

from hisparse_sim.traces.demand import Demand, Ragged
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.rules import strip_padding

MOST_TOKENS = 2**31 - 1  # positions are int32
MOST_LAYERS = 2**15  # layers are int16

REMEDY = (
    "they are places in the engine's memory: start the server with SGLANG_DSA_FUSE_TOPK=0 (or "
    "with --enable-hisparse) and capture again"
)


def whole(value: Any, what: str, least: int, most: int) -> int:
    """Return a whole number, NumPy's included, as an int. Raises ValueError, calling it `what`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError(f"{what} is {clipped(value)}, expected a whole number from {least} to {most}")
    return number


def checked_id(value: Any, place: str) -> str:
    """Return what can stand in a trace file as a name, or raise TraceError."""
    try:
        if isinstance(value, str) and value.encode():
            return value
    except UnicodeEncodeError:
        pass
    raise TraceError(f"{place} is {value!r}, which is no text to call a request by")


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
    complete: bool = True,
    tokens: int = 1,
) -> Iterator[Demand]:
    """Yield the decode rows (position >= `prompt_len`) layer by layer; one is in memory at a time.

    -1 is padding. `layers` numbers the second axis, which else counts from 0. With `layer_types`
    (of the model, "full" or "shared") a shared layer must repeat the full one before it. With
    `complete` every row must list as many positions as there are, up to top_k. With `tokens` above
    1 a position of the array is a block of so many; `first_position` and `prompt_len` stay tokens.

    Raises TraceError, beginning with `place`, if a row lists anything but distinct positions of
    its own past, or too few of them: physical slots look like that.
    """
    place = f"{place}: request {request!r}"
    skipped = max(0, prompt_len - first_position)
    rows = len(array) - skipped
    if rows < 1:
        raise TraceError(
            f"{place} has {len(array)} rows for a prompt of {prompt_len} tokens, so none is a "
            f"decode step; generate at least two tokens"
        )
    queries = np.arange(rows, dtype=np.int64) + (first_position + skipped)
    if queries[-1] >= MOST_TOKENS:
        raise TraceError(f"{place} has more than {MOST_TOKENS} tokens")
    seq_len = queries // tokens + 1
    steps = np.arange(rows, dtype=np.int32)
    anchor, anchored = -1, np.empty(0)
    count = array.shape[1]
    numbers = range(count) if layers is None else layers
    for layer, index in sorted(zip(numbers, range(count), strict=True)):
        listed = np.ascontiguousarray(array[skipped:, index, :])
        wrong = _not_logical(listed, seq_len, complete)
        if wrong is not None:
            row, what = wrong
            raise TraceError(
                f"{place}, layer {layer}, step {row} (row {skipped + row}) does not list logical "
                f"positions ({what}); {remedy}"
            )
        if layer_types is not None:
            if layer_types[layer] == "full":
                anchor, anchored = layer, listed
            elif "full" not in layer_types[anchor + 1 : layer] and anchor >= 0:
                _check_repeats(listed, anchored, f"{place}, layer {layer}", anchor)
        offsets = np.arange(0, listed.size + 1, listed.shape[1], dtype=np.int64)
        lists, _ = strip_padding(Ragged(offsets, listed.astype(np.int32).ravel()))
        yield Demand(request, layer, prompt_len // tokens, steps, seq_len.astype(np.int32), *lists)


def _check_repeats(listed: Any, anchored: Any, place: str, anchor: int) -> None:
    other = (listed != anchored).any(axis=1)
    if other.any():
        raise TraceError(
            f"{place}, step {int(other.argmax())} lists other positions than layer {anchor}, whose "
            f"choice it shares by the model's config: that is another model's, or leave it out"
        )


def _not_logical(listed: Any, seq_len: Any, complete: bool) -> tuple[int, str] | None:
    """Return the first row that cannot be a top-k of logical positions, and why."""
    width = listed.shape[1]
    counts = (listed >= 0).sum(axis=1)
    outside = ((listed >= seq_len[:, None]) | (listed < -1)).any(axis=1)
    few = (counts != np.minimum(width, seq_len)) & complete
    ordered = np.sort(listed, axis=1)
    repeated = ((np.diff(ordered, axis=1) == 0) & (ordered[:, 1:] >= 0)).any(axis=1)
    wrong = outside | few | repeated
    if not wrong.any():
        return None
    row = int(wrong.argmax())
    length = int(seq_len[row])
    if outside[row]:
        least, most = int(listed[row].min()), int(listed[row].max())
        if least < -1:
            return row, f"it lists {least}, and only -1 is padding"
        return row, f"it lists {most}, and the query stands at {length - 1}"
    if repeated[row]:
        at = int(((np.diff(ordered[row]) == 0) & (ordered[row, 1:] >= 0)).argmax())
        return row, f"it lists {int(ordered[row, at])} twice"
    return row, f"it lists {int(counts[row])} positions, expected {min(width, length)}"
