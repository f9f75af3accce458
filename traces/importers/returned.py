"""Shared by all importers of arrays: named arrays of one shape become the demands of a trace."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.captured import MOST_LAYERS, REMEDY, checked_id, demands
from hisparse_sim.traces.file.units import positions_of
from hisparse_sim.traces.importers.importer import Imported, Options
from hisparse_sim.traces.importers.prompt_rows import (
    LEFT_OUT,
    ROWS_TRUSTED,
    doubt_of_tokens,
    first_of,
)
from hisparse_sim.traces.importers.row_doubts import doubt_of_layer
from hisparse_sim.traces.importers.short_rows import TIES, ShortRows


class Returned(NamedTuple):
    """One request of a file."""

    request: str
    prompt_len: int  # tokens
    first_position: int  # of the query in row 0
    shape: tuple[int, int, int]  # rows, layers, top_k
    open: Callable[[], Any]  # the array; one at a time is open, there may be thousands


def imported(
    path: Path,
    found: Sequence[Returned],
    options: Options,
    *,
    remedy: str = REMEDY,
    if_short: str = TIES,
    counted: bool = True,
    if_unseen: str = "",
) -> Imported:
    """Put the requests of a file together.

    `remedy` is that of `captured.demands`; `if_short` is said where rows list fewer positions than
    they could, `if_unseen`, unless empty, where a layer never lists the newest token; `counted`:
    the file itself counts the tokens of the prompt, so the rows must be those of the tokens behind.

    Raises TraceError if they differ in shape or share an id, or do not have the layers named.
    """
    shapes = {each.shape[1:] for each in found}
    if len(shapes) != 1:
        raise TraceError(f"{path} holds answers of different shapes, {sorted(shapes)}")
    count, width = shapes.pop()
    layers = _layers(count, options, str(path))
    if options.request is not None:
        if len(found) > 1:
            raise TraceError(
                f"{path} holds {len(found)} requests, and `request` names one: leave it out"
            )
        found = [found[0]._replace(request=options.request)]
    lengths: dict[str, int] = {}
    for each in found:
        if checked_id(each.request, f"{path}: the id of a request") in lengths:
            raise TraceError(f"{path} holds the request {each.request!r} twice")
        lengths[each.request] = each.prompt_len // options.tokens

    def parts() -> Iterator[Demand]:
        for each in found:
            yield from demands(
                each.open(),
                place=str(path),
                request=each.request,
                first_position=each.first_position,
                prompt_len=each.prompt_len,
                layers=layers,
                layer_types=options.layer_types,
                remedy=remedy,
                unit=options.unit,
            )

    # Layers that are named may be some of the model's; else the file has them all.
    num_layers = options.num_layers or (count if options.layers is None else None)
    left_out = sum(count * max(0, each.prompt_len - each.first_position) for each in found)
    short = ShortRows()
    doubts: list[str] = []
    layer_doubts: list[str] = []
    unseen: list[str] = []  # layers that never list the newest token
    for each in found:
        array = each.open()
        first = max(0, each.prompt_len - each.first_position)
        queries = np.arange(first, len(array), dtype=np.int64) + each.first_position
        newest = positions_of(queries + 1, options.unit) - 1
        if counted and len(newest):
            place = f"{path}: request {each.request!r}"
            doubt = doubt_of_tokens(array[first:, 0], newest + 1, place, options.tokens)
            doubts += [] if doubt is None else [doubt]
        for index, layer in enumerate(layers):  # one is in memory
            listed = array[first:, index]
            place = f"request {each.request!r}, layer {layer}"
            doubt = doubt_of_layer(listed, newest, options.tokens)
            layer_doubts += [] if doubt is None else [f"{path}: {place} {doubt}"]
            short.add((listed >= 0).sum(axis=1), newest + 1, width, place)
            if len(listed) >= ROWS_TRUSTED and not (listed == newest[:, None]).any():
                unseen.append(place)
    notes = {**({LEFT_OUT: left_out} if left_out else {}), **short.notes}
    said = (*(first_of(doubts) or first_of(layer_doubts, "layers")),
            *short.doubts(str(path), if_short))  # fmt: skip
    if unseen and if_unseen and not doubts and not layer_doubts:
        said += (
            f"{path}: {unseen[0]} never lists its newest token, which nearly every step of an "
            f"indexer does ({len(unseen)} of {len(found) * count} layers are so): {if_unseen}",
        )
    return Imported(parts(), options.top_k or width, num_layers, lengths, notes, said)


def _layers(count: int, options: Options, place: str) -> Sequence[int]:
    """Return the numbers of the layers that a file holds, or raise TraceError."""
    if count > MOST_LAYERS:
        raise TraceError(f"{place} holds {count} layers, which no model has")
    if options.layers is None:
        if options.num_layers not in (None, count):
            raise TraceError(
                f"{place} holds {count} layers, and the model has {options.num_layers}: say by "
                f"`layers` which they are, or check `num_layers`"
            )
        return range(count)
    if len(options.layers) != count:
        named = ", ".join(map(str, options.layers[:10]))
        raise TraceError(
            f"{place} holds {count} layers, and `layers` names {len(options.layers)} ({named}): "
            f"name each, in the order of the file"
        )
    return options.layers
