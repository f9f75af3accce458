"""Models that select blocks of tokens, or compressed groups of them, in some of their layers.

HiSparse keeps the KV of the layers that select on the host, by SGLang's rules with a block for a
token. The other layers keep their KV on the GPU, or a state that does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hisparse_sim.simulator.serving.latent_model import KV_DTYPES
from hisparse_sim.simulator.serving.model import FULL, Model
from hisparse_sim.simulator.serving.profiles import Profile, ProfileError
from hisparse_sim.traces.file.captured import MOST_LAYERS, MOST_TOKENS
from hisparse_sim.traces.file.units import COMPRESSED, block_unit, tokens_of

VALUE_BYTES = {"bf16": 2, "fp8": 1, "fp8-raw": 1}  # of K and V, without scales


def unit_of(block_tokens: int, group_bytes: int) -> str:
    """The unit of positions, as traces have it."""
    return COMPRESSED if group_bytes else block_unit(block_tokens)


@dataclass(frozen=True)
class BlockModel(Model):
    """A model that selects blocks."""

    every_layer: int  # layers, those that do not select included
    block_tokens: int
    kv_heads: int
    head_dim: int
    group_bytes: int  # of a block that is compressed to one entry; 0: K and V of every token
    key_bytes: int  # of indexer keys, for each token
    tokens_per_key: int
    full_layers: int  # read as a whole, their KV on the GPU
    full_tokens: int  # that an entry of theirs stands for
    window: int  # newest tokens that every layer reads besides
    other_token_bytes: int  # on the GPU for every token, whatever the KV dtype
    kv_share: float  # of the memory for KV, beside states that do not grow
    attention: int  # parameters

    @property
    def all_layers(self) -> int:
        return self.every_layer

    @property
    def unit(self) -> str:
        return unit_of(self.block_tokens, self.group_bytes)

    @property
    def pool_share(self) -> float:
        return self.kv_share

    @property
    def indexer_key_bytes(self) -> int:
        return self.key_bytes

    def entry_bytes(self, kv_dtype: str = "bf16") -> int:
        if kv_dtype not in KV_DTYPES:
            raise ValueError(f"unknown KV dtype {kv_dtype!r}; known: {', '.join(KV_DTYPES)}")
        if self.group_bytes:  # in one format
            return self.group_bytes // self.block_tokens
        return 2 * self.kv_heads * self.head_dim * VALUE_BYTES[kv_dtype]

    def stored_as(self, kv_dtype: str) -> str:
        return "" if self.group_bytes else kv_dtype

    def kv_label(self, kv_dtype: str) -> str:
        if not self.group_bytes:
            return super().kv_label(kv_dtype)
        return f"KV of {self.group_bytes} bytes per {self.block_tokens} tokens"

    def resident_token_bytes(self, kv_dtype: str = "bf16") -> int:
        entry = self.entry_bytes(kv_dtype) * self.entry_tokens
        return self.full_layers * entry // self.full_tokens + self.other_token_bytes

    def on_ranks(self, attention_tp: int) -> BlockModel:
        """K and V heads are split over the GPUs as far as they go round."""
        return replace(self, kv_heads=max(self.kv_heads // attention_tp, 1))

    @property
    def entry_tokens(self) -> int:
        return self.block_tokens if self.group_bytes else 1

    @property
    def selected_entries(self) -> int:
        return self.top_k * self.block_tokens // self.entry_tokens

    @property
    def key_tokens(self) -> int:
        return self.tokens_per_key

    @property
    def other_entries(self) -> tuple[float, float]:
        return self.full_layers / self.full_tokens, float(self.window * self.every_layer)

    @property
    def score_values(self) -> int:
        return 2 * self.head_dim

    @property
    def attention_parameters(self) -> int:
        return self.attention


_COUNTS = (
    *("top_k", "hidden", "heads", "experts", "experts_per_token", "vocabulary", "context"),
    *("shared_experts", "expert_width", "dense_layers", "dense_width", "index_heads", "index_dim"),
)


def block_model(profile: Profile) -> BlockModel:
    """The model of a profile; ProfileError names what is wrong with it."""
    counts = {key: profile.count(key, most=MOST_TOKENS) for key in _COUNTS}
    layers = profile.count("layers", least=1, most=MOST_LAYERS)
    every = profile.count("all_layers", least=layers, most=MOST_LAYERS)
    block = profile.count("block_tokens", least=2, most=MOST_TOKENS)
    group = profile.count("group_bytes", 0, most=MOST_TOKENS)
    share = profile.number("kv_share", 1.0, positive=True)
    if group and (block != tokens_of(COMPRESSED) or group % block):
        raise ProfileError(
            f"{profile.place} group_bytes is of groups of {tokens_of(COMPRESSED)} tokens, and a"
            " multiple of that"
        )
    if share > 1:
        raise ProfileError(f"{profile.place} kv_share must be at most 1, not {share:g}")
    if counts["experts_per_token"] > counts["experts"]:
        raise ProfileError(f"{profile.place} experts_per_token must be at most its experts")
    if counts["dense_layers"] > every:
        raise ProfileError(f"{profile.place} dense_layers must be at most its layers")
    return BlockModel(
        name=profile.name,
        repository=profile.labels.get("repository", ""),
        layers=layers,
        layer_types=(FULL,) * layers,
        expert_weight_bytes=profile.number("expert_weight_bytes", positive=True),
        weight_bytes=profile.number("weight_bytes", positive=True),
        sources=profile.sources,
        every_layer=every,
        block_tokens=block,
        kv_heads=profile.count("kv_heads", least=1, most=MOST_TOKENS),
        head_dim=profile.count("head_dim", least=1, most=MOST_TOKENS),
        group_bytes=group,
        key_bytes=profile.count("key_bytes", most=MOST_TOKENS),
        tokens_per_key=profile.count("tokens_per_key", 1, least=1, most=MOST_TOKENS),
        full_layers=profile.count("full_layers", 0, most=every - layers),
        full_tokens=profile.count("full_tokens", 1, least=1, most=MOST_TOKENS),
        window=profile.count("window", 0, most=MOST_TOKENS),
        other_token_bytes=profile.count("other_token_bytes", 0, most=MOST_TOKENS),
        kv_share=share,
        attention=profile.count("attention_parameters"),
        **counts,
    )
