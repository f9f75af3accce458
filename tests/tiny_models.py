"""Tiny models with random weights, built from configurations: every kind of layer that is tapped.

Import this module only behind `pytest.importorskip("transformers")`.
"""

from pathlib import Path
from typing import Any

import torch
import transformers

from hisparse_sim.traces.capture.models import Loaded

VOCABULARY = 128
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    # Spread attention out, so that ranks are far apart.
    "initializer_range": 0.5,
}
_DSA: dict[str, Any] = {
    **_SIZES,
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "index_topk": 8,
    "index_head_dim": 16,
    # Few heads are often all cut off by the ReLU; ties at 0 would fall differently from run to run.
    "index_n_heads": 16,
    "initializer_range": 0.1,
}


def llama(**changes: Any) -> Any:
    return _model(transformers.LlamaConfig(**{**_SIZES, **changes}))


def sliding() -> Any:
    """Mistral: every layer sees a window of 16 tokens."""
    return _model(transformers.MistralConfig(**_SIZES, sliding_window=16))


def softcapped() -> Any:
    """Gemma 2: caps on the scores, and every other layer with a window of 16 tokens."""
    return _model(
        transformers.Gemma2Config(
            **_SIZES, head_dim=8, query_pre_attn_scalar=8, sliding_window=16,
            attn_logit_softcapping=2.0,
        )
    )  # fmt: skip


def sinks() -> Any:
    """gpt-oss: a learned sink per head takes part in the softmax."""
    return _model(
        transformers.GptOssConfig(
            **_SIZES, head_dim=8, sliding_window=16, num_local_experts=4, num_experts_per_tok=2
        )
    )


def deepseek() -> Any:
    """DeepSeek-V3.2: an indexer in each of 6 layers."""
    return _model(transformers.DeepseekV32Config(**_DSA))


def glm() -> Any:
    """GLM-5.2: indexers in layers 0, 1, 2 and 5; the others share (freq 3, offset 3)."""
    return _model(transformers.GlmMoeDsaConfig(**_DSA, index_topk_freq=3, index_skip_topk_offset=3))


def deepseek_v4() -> Any:
    """DeepSeek-V4: layers 2 and 4 of 6 select groups of four tokens, the others do not select."""
    csa, hca = "compressed_sparse_attention", "heavily_compressed_attention"
    return _model(
        transformers.DeepseekV4Config(
            **{**_SIZES, "num_hidden_layers": 6, "num_key_value_heads": 1},
            **{name: _DSA[name] for name in ("q_lora_rank", "index_topk", "index_head_dim",
                                             "index_n_heads", "n_routed_experts",
                                             "num_experts_per_tok", "moe_intermediate_size")},
            head_dim=16, sliding_window=16, o_groups=2,
            o_lora_rank=16, layer_types=["sliding_attention", hca, csa, hca, csa, hca],
            compress_rates={csa: 4, hca: 8}, partial_rotary_factor=0.5,
        )
    )  # fmt: skip


def loaded(model: Any, *, random: bool = True) -> Loaded:
    return Loaded("tiny", "tiny", model, None, random, "drawn at random")


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    """Return tokens that are none of the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, VOCABULARY, (count,), generator=generator).tolist())


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer of one token per byte below 128."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {chr(code): code for code in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def _model(config: Any) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
