"""Models with a latent KV cache (multi-head latent attention), which select single tokens.

Dimensions come from the published config of a model; bytes follow from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_sim.simulator.serving.model import FULL, SHARED, Model
from hisparse_sim.simulator.serving.profiles import Profile, ProfileError
from hisparse_sim.traces.file.captured import MOST_LAYERS, MOST_TOKENS

KV_DTYPES = ("bf16", "fp8", "fp8-raw")


@dataclass(frozen=True)
class LatentModel(Model):
    """A model with a latent KV cache."""

    kv_lora_rank: int
    rope_dim: int
    q_lora_rank: int
    nope_dim: int
    value_dim: int

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

    @property
    def score_values(self) -> int:
        return 2 * self.kv_lora_rank + self.rope_dim

    @property
    def attention_parameters(self) -> int:
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
        return self.layers * attention + self.indexer_layers * indexer

    @property
    def absorbed_parameters(self) -> int:
        """Of the latent up-projections: as loaded, and absorbed into queries and outputs."""
        return self.kv_lora_rank * self.heads * (self.nope_dim + self.value_dim) * self.layers

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


def latent_model(profile: Profile) -> LatentModel:
    """The model of a profile; ProfileError names what is wrong with it."""
    counts = {
        key: profile.count(key, least=int(key in _AT_LEAST_1), most=_MOST.get(key, MOST_TOKENS))
        for key in _COUNTS
    }
    if counts["dense_layers"] > counts["layers"]:
        raise ProfileError(f"{profile.place} dense_layers must be at most its layers")
    if counts["experts_per_token"] > counts["experts"]:
        raise ProfileError(f"{profile.place} experts_per_token must be at most its experts")
    return LatentModel(
        name=profile.name,
        repository=profile.labels.get("repository", ""),
        layer_types=_layer_types(profile, counts["layers"]),
        expert_weight_bytes=profile.number("expert_weight_bytes", positive=True),
        weight_bytes=profile.number("weight_bytes", positive=True),
        sources=profile.sources,
        **counts,
    )
