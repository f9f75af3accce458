"""Columns of result rows that modes of replay and shared index layers add."""

from collections.abc import Mapping, Sequence
from typing import Any

from hisparse_sim.simulator.replay.modes import Mode
from hisparse_sim.traces import Trace
from hisparse_sim.traces.file.layer_types import followers


def mode_columns(
    mode: Mode, trace: Trace, counts: Sequence[Mapping[str, int]], row: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the columns of a row of a mode, whose parts have these counts."""

    def total(name: str) -> int:
        return sum(each.get(name, 0) for each in counts)

    found: dict[str, Any] = {
        "rules": mode.label(trace),
        "draft_tokens": mode.queries(trace),
        "resident_accesses": total("resident_accesses"),
    }
    if mode.queries(trace) > 1:
        accepting = total("accepting")
        accepted = total("accepted") / accepting if accepting else float("nan")
        found |= {
            "accepted_per_step": accepted,
            "misses_per_token": row["misses_per_step"] / accepted,
            "unloaded": total("unloaded"),
        }
    return found


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
