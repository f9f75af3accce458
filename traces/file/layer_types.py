"""Which layers of a model have an indexer, and which repeat the selection of another.

`layer_types` of the metadata, [num_layers], is "full" or "shared": a shared layer selects what the
last full one before it selected, its anchor. Its rows may be absent from a trace.
"""

from collections.abc import Sequence

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
