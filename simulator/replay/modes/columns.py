"""Columns of result rows that shared index layers add."""

from collections.abc import Sequence

from hisparse_sim.traces.file.layer_types import followers


def shared_columns(
    layer_types: Sequence[str] | None, counts: Sequence[tuple[int, int, int]]
) -> dict[str, int]:
    """Return what layers that share an index fetch, for `counts` of (layer, misses, accesses).

    `anchor_misses` are those of the layers with an indexer, `replayed_misses` those of the layers
    that repeat them, each as many as its anchor's, whether the trace has their rows or not; the
    accesses likewise. Empty for models without such layers.
    """
    sharing = followers(layer_types)
    if not sharing:
        return {}
    own = [one for one in counts if one[0] in sharing]
    return {
        "anchor_misses": sum(misses for _, misses, _ in own),
        "replayed_misses": sum(misses * sharing[layer] for layer, misses, _ in own),
        "anchor_accesses": sum(accesses for _, _, accesses in own),
        "replayed_accesses": sum(accesses * sharing[layer] for layer, _, accesses in own),
    }
