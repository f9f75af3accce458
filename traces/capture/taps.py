"""Taps: they read ranked positions from every layer of a running model."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from hisparse_sim.traces.capture.models import Loaded
from hisparse_sim.traces.capture.oracle import LARGEST_BLOCK, AttentionOracle, rows_within
from hisparse_sim.traces.capture.recorder import Recorder


class Tap(Protocol):
    """Something that ranks positions in every layer of a running model."""

    provenance: str
    means: str  # what the ranks are, for the metadata

    @property
    def score(self) -> str | None:
        """What its scores are; None = it has none."""

    def rows_at_once(self, config: Any, tokens: int) -> int:
        """Return how many decode rows a pass may have at a context of `tokens`."""

    def prefill_rows(self, config: Any, tokens: int) -> int:
        """Return how many prompt tokens a pass may have."""

    def tapped(self, model: Any, recorder: Recorder) -> AbstractContextManager[None]:
        """Rank into `recorder` while the block runs."""


class IndexerTap:
    """Reads the top-k of a DeepSeek-V3.2 or GLM-5 model's own indexers, best first.

    Layers without an indexer repeat the last one that has one; they are not written.
    """

    provenance = "trained-indexer"
    means = "top-k of the model's own indexer, run by transformers in its dtype, not in fp8"
    score = None

    def rows_at_once(self, config: Any, tokens: int) -> int:
        """Return how many decode rows a pass may have at a context of `tokens`."""
        return rows_within(max(config.index_n_heads, config.num_attention_heads), tokens)

    def prefill_rows(self, config: Any, tokens: int) -> int:
        """Return how many prompt tokens a pass may have: the indexer scores rows x heads x tokens
        at once, which may take 2 GiB here, for every pass reads all weights of a large model."""
        heads = int(config.index_n_heads)
        return max(1, 8 * LARGEST_BLOCK // (heads * tokens))

    @contextmanager
    def tapped(self, model: Any, recorder: Recorder) -> Iterator[None]:
        """Rank into `recorder` while the block runs; the model itself keeps using its own k."""

        def kept(layer: int, top_k: int) -> Callable[..., Any]:
            def hook(module: Any, arguments: Any, ranks: Any) -> Any:
                if recorder.wants(layer):
                    recorder.keep_ranked(layer, ranks[0])
                return ranks[..., :top_k]

            return hook

        with ExitStack() as stack:
            for layer, indexer in indexers(model).items():
                top_k = indexer.index_topk
                handle = indexer.register_forward_hook(kept(layer, top_k))
                stack.callback(handle.remove)
                # The indexer returns later ranks, too; the hook passes on the first top_k.
                indexer.index_topk = max(top_k, recorder.width)
                stack.callback(setattr, indexer, "index_topk", top_k)
            yield


def default_tap(loaded: Loaded) -> Tap:
    """Return the tap for the model's own indexers; the attention oracle if it has none."""
    return IndexerTap() if indexers(loaded.model) else AttentionOracle()


def indexers(model: Any) -> dict[int, Any]:
    """Return the model's own lightning indexers by layer; empty if it attends to everything."""
    return {
        module.layer_idx: module
        for name, module in model.named_modules()
        if name.endswith("self_attn.indexer")
        and hasattr(module, "index_topk")
        and hasattr(module, "layer_idx")
    }
