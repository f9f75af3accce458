"""Which layers of a model have an indexer, and which repeat the selection of another.

`layer_types` of the metadata, [num_layers], is "full" or "shared": a shared layer selects what the
last full one before it selected, its anchor. Its rows may be absent from a trace.
"""

from collections.abc import Collection, Sequence

from hisparse_sim.traces.errors import TraceError

FULL, SHARED = "full", "shared"


def followers(layer_types: Sequence[str] | None) -> dict[int, int]:
    """Return how many shared layers repeat each full one, by its number.

    Empty where there is no shared layer, or one before the first full one."""
    found: dict[int, int] = {}
    anchor = -1
    for layer, kind in enumerate(layer_types or ()):
        if kind != SHARED:
            anchor = layer
            found[anchor] = 0
        elif anchor < 0:
            return {}
        else:
            found[anchor] += 1
    return found if any(found.values()) else {}


def stands_for(layer_types: Sequence[str] | None, layers: Collection[int]) -> dict[int, int]:
    """Return for how many layers of a model each of `layers` stands: for itself, and an anchor for
    those that repeat it and are not among them."""
    found = dict.fromkeys(layers, 1)
    anchor = -1
    for layer, kind in enumerate(layer_types or ()):
        if kind != SHARED:
            anchor = layer
        elif layer not in found and anchor in found:
            found[anchor] += 1
    return found


def outweighing(layer_types: Sequence[str] | None, layers: Collection[int]) -> int | None:
    """Return the one of `layers` that stands for over four times as many as any other, if any."""
    found = stands_for(layer_types, layers)
    *_, next_most, most = 0, 0, *sorted(found.values())
    if len(found) < 2 or most <= 4 * next_most:
        return None
    return max(found, key=found.__getitem__)


def anchor_of(layer_types: Sequence[str] | None, layer: int) -> int | None:
    """Return the layer that a shared one repeats; None for any other."""
    kinds = list(layer_types or ())
    if not 0 <= layer < len(kinds) or kinds[layer] != SHARED:
        return None
    return next((each for each in range(layer, -1, -1) if kinds[each] != SHARED), None)


def layer_types_of(num_layers: int, full_layers: Collection[int]) -> tuple[str, ...]:
    """Return the types of all layers, [num_layers], of which `full_layers` have an index.

    Raises TraceError if one of them does not exist, or layer 0 is not among them.
    """
    for layer in full_layers:
        if not 0 <= layer < num_layers:
            raise TraceError(f"there is no layer {layer}: the model has 0 to {num_layers - 1}")
    if 0 not in full_layers:
        raise TraceError("no layer before 0 has an index: layer 0 must be one of `full_layers`")
    return tuple(FULL if layer in full_layers else SHARED for layer in range(num_layers))
