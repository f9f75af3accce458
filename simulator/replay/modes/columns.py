"""Columns of result rows that shared index layers add."""

from collections.abc import Sequence

from hisparse_sim.traces.file.layer_types import followers


def shared_columns(
    layer_types: Sequence[str] | None, misses: Sequence[tuple[int, int]]
) -> dict[str, int]:
    """Return what layers that share an index fetch, for `misses` of (layer, count).

    `anchor_misses` are those of the layers with an indexer, `replayed_misses` those of the layers
    that repeat them, each as many as its anchor's, whether the trace has their rows or not. Empty
    for models without such layers.
    """
    sharing = followers(layer_types)
    if not sharing:
        return {}
    own = [(layer, count) for layer, count in misses if layer in sharing]
    return {
        "anchor_misses": sum(count for _, count in own),
        "replayed_misses": sum(count * sharing[layer] for layer, count in own),
    }
