"""The counters as Prometheus metrics, with the engine's own.

SGLang's processes share their metrics through a folder (`--enable-metrics`), of which its HTTP
server shows the sum: what a process of it counts with prometheus_client appears there. Names follow
vLLM 0.33's (`vllm:hisparse_cache_hits`), so that one dashboard serves both.
"""

import os
from collections.abc import Sequence
from typing import Any

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_COUNTERS = {
    "hits": ("sglang:hisparse_cache_hits", "Selected positions found in the hot buffer."),
    "misses": ("sglang:hisparse_cache_misses", "Selected positions fetched from the host."),
    "bytes": ("sglang:hisparse_host_to_device_bytes", "Bytes fetched into the hot buffer."),
}


class Metrics:
    """Counters by layer and rank; nothing if the engine shows no metrics."""

    def __init__(self, rank: int, registry: Any = None) -> None:
        """`registry`: of prometheus_client, in place of the folder that the processes share."""
        self._rank = str(rank)
        self._shown: dict[tuple[str, int], int] = {}
        self._counters: dict[str, Any] = {}
        if registry is None and SHARED_FOLDER not in os.environ:
            return
        try:
            from prometheus_client import REGISTRY, Counter
        except ImportError:
            return
        self._counters = {
            name: Counter(metric, text, ["layer", "tp_rank"], registry=registry or REGISTRY)
            for name, (metric, text) in _COUNTERS.items()
        }

    def show(self, by_layer: Sequence[dict[str, int]]) -> None:
        """Bring the metrics to these counts, which only grow."""
        for name, counter in self._counters.items():
            for counted in by_layer:
                layer = counted["layer"]
                value = counted["accesses"] - counted["misses"] if name == "hits" else counted[name]
                grown = value - self._shown.get((name, layer), 0)
                if grown > 0:
                    counter.labels(str(layer), self._rank).inc(grown)
                    self._shown[name, layer] = value
