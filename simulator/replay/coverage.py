"""What the rows of a replay cover: the digest of the trace, and which of its requests, layers and
steps. Rows are compared by it when they are joined later."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from hisparse_sim.traces import Part

ALL = "all"
SELECTED = ("selected_requests", "selected_layers", "selected_steps")
_LONGEST = 200  # characters of a list of requests; rows hold the digest of a longer one


class Covered(NamedTuple):
    """The rows of one part that were replayed: steps first_step, first_step + 1, ..."""

    part: Part
    first_step: int
    rows: int


def coverage(
    sha256: str, parts: Sequence[Part], covered: Sequence[Covered], seed: int
) -> dict[str, Any]:
    """Return the columns that say what was replayed of a trace, by its digest and all its parts:
    the same for the same selection, in whatever way it was asked for.

    `seed`, `trace_sha256`, and three texts: `selected_requests` (a JSON list), `selected_layers`
    ("9,24") and `selected_steps` ("0:256", the end exclusive), each "all" where nothing is left
    out. An interrupted sweep may have finished some layers of some requests: then
    `selected_requests` is a JSON object of lists of layers.
    """
    requests = list(dict.fromkeys(one.part.request for one in covered))
    layers = {one.part.layer for one in covered}
    every_request = set(requests) == {part.request for part in parts}
    every_layer = layers == {part.layer for part in parts}
    named = set(requests)
    if sum(part.request in named and part.layer in layers for part in parts) == len(covered):
        listed = ALL if every_request else _text(requests)
    else:
        of: dict[str, list[int]] = {}
        for one in covered:
            of.setdefault(one.part.request, []).append(one.part.layer)
        listed = _text(of)
    return {
        "seed": seed,
        "trace_sha256": sha256,
        "selected_requests": listed,
        "selected_layers": ALL if every_layer else ",".join(map(str, sorted(layers))),
        "selected_steps": _steps(covered),
    }


def _steps(covered: Sequence[Covered]) -> str:
    if all(one.rows == one.part.rows for one in covered):
        return ALL
    replayed = [one for one in covered if one.rows]
    first = min((one.first_step for one in replayed), default=0)
    stop = max((one.first_step + one.rows for one in replayed), default=0)
    return f"{first}:{stop}"


def _text(requests: Any) -> str:
    text = json.dumps(requests, ensure_ascii=False)
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{len(requests)} requests, sha256 {digest[:16]}"
