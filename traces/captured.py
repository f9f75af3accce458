"""From what an engine returned, (rows, layers, top_k) numbers, to the demands of a trace.

Row r of such an array is the query at position `first_position + r`; it chose among the positions
up to and including its own, so its `seq_len` is one more than its position.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hisparse_sim.traces.demand import Demand, Ragged
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.rules import strip_padding

REMEDY = (
    "they are places in the engine's memory: start the server with SGLANG_DSA_FUSE_TOPK=0 (or "
    "with --enable-hisparse) and capture again"
)


def demands(
    array: Any,  # [rows, layers, top_k], indexable; may be a memory map
    *,
    place: str,
    request: str,
    first_position: int,
    prompt_len: int,
    layers: Sequence[int] | None = None,
    remedy: str = REMEDY,
    complete: bool = True,
) -> Iterator[Demand]:
    """Yield the decode rows (position >= `prompt_len`) layer by layer; one is in memory at a time.

    Entries below 0 are padding. `layers` numbers the second axis, which else counts from 0. With
    `complete` every row must list as many positions as there are, up to top_k.

    Raises TraceError, beginning with `place`, if a row lists anything but distinct positions of
    its own past, or too few of them: physical slots look like that.
    """
    skipped = max(0, prompt_len - first_position)
    rows = len(array) - skipped
    if rows < 1:
        raise TraceError(
            f"{place}: request {request!r} has {len(array)} rows for a prompt of {prompt_len} "
            f"tokens, so none is a decode step; generate at least two tokens"
        )
    seq_len = np.arange(rows, dtype=np.int64) + (first_position + skipped + 1)
    if seq_len[-1] >= 2**31:
        raise TraceError(f"{place}: request {request!r} has more than 2^31 tokens")
    numbers = range(array.shape[1]) if layers is None else layers
    for index, layer in enumerate(numbers):
        listed = np.ascontiguousarray(array[skipped:, index, :])
        wrong = _not_logical(listed, seq_len, complete)
        if wrong is not None:
            raise TraceError(
                f"{place}: request {request!r}, layer {layer}, row {skipped + wrong[0]} does not "
                f"list logical positions ({wrong[1]}); {remedy}"
            )
        width = listed.shape[1]
        offsets = np.arange(0, listed.size + 1, max(width, 1), dtype=np.int64)
        values = np.where(listed < 0, -1, listed).astype(np.int32).ravel()
        lists, _ = strip_padding(Ragged(offsets, values))
        steps = np.arange(rows, dtype=np.int32)
        yield Demand(request, layer, prompt_len, steps, seq_len.astype(np.int32), *lists)


def _not_logical(listed: Any, seq_len: Any, complete: bool) -> tuple[int, str] | None:
    """Return the first row that cannot be a top-k of logical positions, and why."""
    width = listed.shape[1]
    counts = (listed >= 0).sum(axis=1)
    outside = (listed >= seq_len[:, None]).any(axis=1)
    few = (counts != np.minimum(width, seq_len)) & complete
    ordered = np.sort(listed, axis=1)
    repeated = ((np.diff(ordered, axis=1) == 0) & (ordered[:, 1:] >= 0)).any(axis=1)
    wrong = outside | few | repeated
    if not wrong.any():
        return None
    row = int(wrong.argmax())
    length = int(seq_len[row])
    if outside[row]:
        return row, f"it lists {int(listed[row].max())}, and the query stands at {length - 1}"
    if repeated[row]:
        at = int(((np.diff(ordered[row]) == 0) & (ordered[row, 1:] >= 0)).argmax())
        return row, f"it lists {int(ordered[row, at])} twice"
    return row, f"it lists {int(counts[row])} positions, expected {min(width, length)}"
