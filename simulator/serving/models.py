"""Language models with sparse attention, as the memory and serving models need them.

Dimensions come from the published config of a model; bytes follow from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hisparse_sim.simulator.serving.profiles import (
    Profile,
    ProfileError,
    Source,
    find_profile,
    read_profiles,
)
from hisparse_sim.traces.file.captured import MOST_LAYERS, MOST_TOKENS

KV_DTYPES = ("bf16", "fp8", "fp8-raw")
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
class Model:
    """One model. All sizes are counts; see the methods for bytes."""

    name: str
    repository: str
    layers: int
    layer_types: tuple[str, ...]  # [layers] "full" or "shared"
    dense_layers: int
    top_k: int
    context: int  # longest sequence in tokens
    kv_lora_rank: int
    rope_dim: int
    index_heads: int
    index_dim: int
    hidden: int
    q_lora_rank: int
    heads: int
    nope_dim: int
    value_dim: int
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
    def indexer_key_bytes(self) -> int:
        """Bytes of one token's indexer key in one layer: FP8 values and one float32 scale."""
        return self.index_dim + 4

    def entry_bytes(self, kv_dtype: str = "bf16") -> int:
        """Bytes of one token's latent KV entry in one layer.

        bf16: latent and rope part, 2 bytes a value. fp8: the latent as FP8 with a float32 scale
        per 128 values, the rope part in bf16 (CUDA). fp8-raw: one byte a value (ROCm, vLLM).
        """
        if kv_dtype == "bf16":
            return 2 * (self.kv_lora_rank + self.rope_dim)
        if kv_dtype == "fp8":
            return self.kv_lora_rank + self.kv_lora_rank // 128 * 4 + 2 * self.rope_dim
        if kv_dtype == "fp8-raw":
            return self.kv_lora_rank + self.rope_dim
        raise ValueError(f"unknown KV dtype {kv_dtype!r}; known: {', '.join(KV_DTYPES)}")

    def parameters(self) -> Parameters:
        """Parameter counts from the dimensions (multi-head latent attention, mixture of experts).

        Norms and biases, under 0.01 % together, are left out, and so is the MTP layer, which the
        engine loads only for speculative decoding.
        """
        queries = self.heads * (self.nope_dim + self.rope_dim)
        attention = (
            self.hidden * self.q_lora_rank
            + self.q_lora_rank * queries
            + self.hidden * (self.kv_lora_rank + self.rope_dim)
            + self.kv_lora_rank * self.heads * (self.nope_dim + self.value_dim)
            + self.heads * self.value_dim * self.hidden
        )
        indexer = (
            self.q_lora_rank * self.index_heads * self.index_dim
            + self.hidden * self.index_dim
            + self.hidden * self.index_heads
        )
        moe_layers = self.layers - self.dense_layers
        expert = 3 * self.hidden * self.expert_width
        router = self.hidden * self.experts
        return Parameters(
            attention=self.layers * attention + self.indexer_layers * indexer,
            experts=moe_layers * self.experts * expert,
            dense=self.dense_layers * 3 * self.hidden * self.dense_width
            + moe_layers * (self.shared_experts * expert + router),
            embedding=self.vocabulary * self.hidden,
            head=self.vocabulary * self.hidden,
        )

    @property
    def indexer_key_parameters(self) -> int:
        """Of the indexers' projections to keys and head weights, which the engine keeps in bf16."""
        return self.indexer_layers * self.hidden * (self.index_dim + self.index_heads)

    @property
    def unsplit_attention_parameters(self) -> int:
        """Of the down-projections and the indexers, which tensor parallelism does not split."""
        down = self.q_lora_rank + self.kv_lora_rank + self.rope_dim
        queries = self.indexer_layers * self.q_lora_rank * self.index_heads * self.index_dim
        return self.layers * self.hidden * down + queries + self.indexer_key_parameters

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights once: embedding and head in bf16, the rest as the profile says."""
        counts = self.parameters()
        return round(
            counts.experts * self.expert_weight_bytes
            + (counts.attention + counts.dense) * self.weight_bytes
            + 2 * (counts.embedding + counts.head)
        )


_COUNTS = (
    "layers",
    "dense_layers",
    "top_k",
    "context",
    "kv_lora_rank",
    "rope_dim",
    "index_heads",
    "index_dim",
    "hidden",
    "q_lora_rank",
    "heads",
    "nope_dim",
    "value_dim",
    "experts",
    "experts_per_token",
    "shared_experts",
    "expert_width",
    "dense_width",
    "vocabulary",
)
_AT_LEAST_1 = ("layers", "top_k", "context", "kv_lora_rank")
_MOST = {"layers": MOST_LAYERS}  # others: MOST_TOKENS


def _layer_types(profile: Profile, layers: int) -> tuple[str, ...]:
    pattern = profile.text("layer_pattern", "F" * layers)
    if len(pattern) != layers or set(pattern) - {"F", "S"} or not pattern.startswith("F"):
        raise ProfileError(
            f"{profile.place} layer_pattern must be {layers} letters F or S, the first one F"
        )
    return tuple(FULL if letter == "F" else SHARED for letter in pattern)


def _model(profile: Profile) -> Model:
    counts = {
        key: profile.count(key, least=int(key in _AT_LEAST_1), most=_MOST.get(key, MOST_TOKENS))
        for key in _COUNTS
    }
    if counts["dense_layers"] > counts["layers"]:
        raise ProfileError(f"{profile.place} dense_layers must be at most its layers")
    if counts["experts_per_token"] > counts["experts"]:
        raise ProfileError(f"{profile.place} experts_per_token must be at most its experts")
    return Model(
        name=profile.name,
        repository=profile.labels.get("repository", ""),
        layer_types=_layer_types(profile, counts["layers"]),
        expert_weight_bytes=profile.number("expert_weight_bytes", positive=True),
        weight_bytes=profile.number("weight_bytes", positive=True),
        sources=profile.sources,
        **counts,
    )


def load_model(name: str, profiles: str | Path | None = None) -> Model:
    """The model called `name`, from the shipped profiles or the user's TOML file `profiles`.

    Names and aliases (the repository's name among them) are matched ignoring case. Raises
    ProfileError, a ValueError, naming the known models.
    """
    return _model(find_profile("models", name, profiles))


def model_names(profiles: str | Path | None = None) -> tuple[str, ...]:
    """Names of all known models, sorted."""
    return tuple(sorted(read_profiles("models", profiles)))
