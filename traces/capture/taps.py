"""Taps: they read ranked positions from every layer of a running model."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol

from hisparse_sim.traces.capture.models import Loaded
from hisparse_sim.traces.capture.oracle import LARGEST_BLOCK, AttentionOracle, rows_within
from hisparse_sim.traces.capture.recorder import Recorder
from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.units import COMPRESSED, TOKEN, positions_of, tokens_of


class Tap(Protocol):
    """Something that ranks positions in every layer of a running model."""

    provenance: str
    means: str  # what the ranks are, for the metadata
    unit: str  # of the positions

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
    """Reads the top-k of a model's own indexers, best first: positions of DeepSeek-V3.2 and GLM-5,
    compressed groups of DeepSeek-V4.

    Layers without an indexer are not written. In models that select positions they repeat the last
    one that has one.
    """

    provenance = "trained-indexer"
    means = "top-k of the model's own indexer, run by transformers in its dtype, not in fp8"
    score = None

    def __init__(self, unit: str = TOKEN) -> None:
        self.unit = unit

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
    found = indexers(loaded.model)
    if not found:
        return AttentionOracle()
    rates = {getattr(indexer, "compress_rate", 1) for indexer in found.values()}
    units = {frozenset({1}): TOKEN, frozenset({tokens_of(COMPRESSED)}): COMPRESSED}
    if frozenset(rates) not in units:
        raise TraceError(
            f"the indexers of {loaded.name} select groups of {max(rates)} tokens, and those of"
            f" {tokens_of(COMPRESSED)} are known"
        )
    return IndexerTap(units[frozenset(rates)])


def grouped(demand: Demand, unit: str) -> Demand:
    """Return a demand whose lengths are in tokens with lengths in this unit."""
    return replace(
        demand,
        prompt_len=demand.prompt_len // tokens_of(unit),
        seq_len=positions_of(demand.seq_len, unit),
    )


def indexers(model: Any) -> dict[int, Any]:
    """Return the model's own lightning indexers by layer; empty if it attends to everything."""
    attentions = {
        name: module.layer_idx
        for name, module in model.named_modules()
        if name.endswith("self_attn") and hasattr(module, "layer_idx")
    }
    return {
        attentions[name.removesuffix(".indexer").removesuffix(".compressor")]: module
        for name, module in model.named_modules()
        if name.endswith(("self_attn.indexer", "self_attn.compressor.indexer"))
        and hasattr(module, "index_topk")
    }


def default_top_k(loaded: Loaded, prompt_len: int) -> int:
    """Return the top_k of the model's own indexer, else a sixteenth of the prompt.

    Rounded down to a multiple of 64 where there is room, and at most 2048: the share that DeepSeek
    Sparse Attention selects at 32k.
    """
    own = [indexer.index_topk for indexer in indexers(loaded.model).values()]
    if own:
        return int(own[0])
    share = min(2048, prompt_len // 16)
    return max(1, share // 64 * 64 or share)
