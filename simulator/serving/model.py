"""What the memory and serving models need of a language model with sparse attention.

A position is what the indexer selects and a slot of the hot buffer holds: a token, or a block or
group of neighbouring ones. Memory is counted in tokens, misses in positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from hisparse_sim.simulator.serving.profiles import Source
from hisparse_sim.traces.file.units import TOKEN, tokens_of

FULL, SHARED = "full", "shared"


@dataclass(frozen=True)
class Parameters:
    """Parameter counts by parts that parallelism splits differently (without the MTP layer)."""

    attention: int  # projections of all layers, indexers included
    experts: int  # routed experts
    dense: int  # dense layers and shared experts
    embedding: int
    head: int

    @property
    def total(self) -> int:
        return self.attention + self.experts + self.dense + self.embedding + self.head


@dataclass(frozen=True)
class Model(ABC):
    """One model. All sizes are counts; see the methods for bytes."""

    name: str
    repository: str
    layers: int  # that select: their KV may be on the host
    layer_types: tuple[str, ...]  # [layers] "full" or "shared"
    dense_layers: int
    top_k: int  # positions
    context: int  # longest sequence in tokens
    index_heads: int
    index_dim: int
    hidden: int
    heads: int
    experts: int
    experts_per_token: int
    shared_experts: int
    expert_width: int
    dense_width: int
    vocabulary: int
    expert_weight_bytes: float  # bytes a routed expert's parameter takes
    weight_bytes: float  # bytes any other quantised parameter takes
    sources: Mapping[str, Source]

    @property
    def indexer_layers(self) -> int:
        """Layers that run an indexer of their own; the others repeat the last such layer."""
        return self.layer_types.count(FULL)

    @property
    def indexed_layers(self) -> tuple[int, ...]:
        """Which layers those are."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == FULL)

    @property
    def all_layers(self) -> int:
        """Layers, those that do not select included."""
        return self.layers

    @property
    def unit(self) -> str:
        """Of its positions, as traces have it."""
        return TOKEN

    @property
    def position_tokens(self) -> int:
        """Tokens of a position."""
        return tokens_of(self.unit)

    @property
    def pool_share(self) -> float:
        """Share of the GPU's memory for KV that the pools of tokens get."""
        return 1.0

    @property
    @abstractmethod
    def indexer_key_bytes(self) -> int:
        """Bytes of indexer keys for each token of a layer that selects."""

    @abstractmethod
    def entry_bytes(self, kv_dtype: str = "bf16") -> int:
        """Bytes of one token's KV in one layer that selects."""

    def stored_as(self, kv_dtype: str) -> str:
        """The KV dtype of its entries where this one is asked for; "" for a format of their own."""
        return kv_dtype

    def kv_label(self, kv_dtype: str) -> str:
        """The format of its KV, in words."""
        return f"{self.stored_as(kv_dtype)} KV"

    def resident_token_bytes(self, kv_dtype: str = "bf16") -> int:
        """Bytes of a token that stay on the GPU besides keys, over all layers: the KV of layers
        that do not select."""
        return 0

    def on_ranks(self, attention_tp: int) -> Model:
        """The model as one of `attention_tp` GPUs that share a rank's requests holds its KV."""
        return self

    # --- arithmetic of attention, for the roofline ----------------------------------------------

    @property
    def entry_tokens(self) -> int:
        """Tokens that a stored entry stands for."""
        return 1

    @property
    def selected_entries(self) -> int:
        """Entries that a query reads at most in a layer that selects."""
        return self.top_k

    @property
    def key_tokens(self) -> int:
        """Tokens that an indexer key stands for."""
        return 1

    @property
    def other_entries(self) -> tuple[float, float]:
        """Entries that a query reads besides those selected, over all layers: for every token of
        the context, and as many whatever the context."""
        return 0.0, 0.0

    @property
    @abstractmethod
    def score_values(self) -> int:
        """Values that a head multiplies for a query and an entry: score and output."""

    # --- weights --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def attention_parameters(self) -> int:
        """Of the projections of all layers, indexers included."""

    @property
    def absorbed_parameters(self) -> int:
        """Of projections that the engine keeps a second time, in bf16."""
        return 0

    @property
    def indexer_key_parameters(self) -> int:
        """Of the indexers' projections that the engine keeps in bf16."""
        return 0

    @property
    def unsplit_attention_parameters(self) -> int:
        """Of projections that tensor parallelism does not split."""
        return 0

    def parameters(self) -> Parameters:
        """Parameter counts. Norms and biases, under 0.01 % together, are left out, and so is the
        MTP layer, which the engine loads only for speculative decoding."""
        moe_layers = self.all_layers - self.dense_layers
        expert = 3 * self.hidden * self.expert_width
        router = self.hidden * self.experts
        return Parameters(
            attention=self.attention_parameters,
            experts=moe_layers * self.experts * expert,
            dense=self.dense_layers * 3 * self.hidden * self.dense_width
            + moe_layers * (self.shared_experts * expert + router),
            embedding=self.vocabulary * self.hidden,
            head=self.vocabulary * self.hidden,
        )

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights once: embedding and head in bf16, the rest as the profile says."""
        counts = self.parameters()
        return round(
            counts.experts * self.expert_weight_bytes
            + (counts.attention + counts.dense) * self.weight_bytes
            + 2 * (counts.embedding + counts.head)
        )
