"""The attention oracle: the positions to which a model with dense attention attends most.

Per decode row the softmax of every head, summed over the heads, ranks the positions. This is the
distribution that the lightning indexer of DeepSeek Sparse Attention is trained to imitate
(DeepSeek-V3.2-Exp, 2025, dense warm-up), so its top-k is what a perfect indexer would select.

The attention of the model calls it through the attention interface of transformers.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hisparse_sim.traces.capture.recorder import Recorder
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.units import TOKEN

if TYPE_CHECKING:
    from torch import Tensor

ATTENTION = "hisparse_sim"
# Largest block of attention probabilities that exists at once: 256 MiB of float32.
LARGEST_BLOCK = 1 << 26


def log_probabilities(
    query: "Tensor",
    key: "Tensor",
    mask: "Tensor | None",
    scaling: float | None,
    softcap: float | None = None,
    sinks: "Tensor | None" = None,
) -> "Tensor":
    """Return the logarithm of every head's attention, float32 [heads, rows, keys].

    `query` [1, heads, rows, dim]; `key` [1, key heads, keys, dim], whose last rows are those of
    `query`; `mask` broadcast to [1, heads, rows, keys], boolean (True = may attend) or added to the
    scores, None = causal; `sinks` [heads], a score per head that takes part but belongs to no key.
    """
    import torch

    _, heads, rows, dim = query.shape
    groups, keys = key.shape[1], key.shape[2]
    scaling = dim**-0.5 if scaling is None else scaling
    folded = query[0].float().reshape(groups, heads // groups * rows, dim)
    scores = (folded @ key[0].float().transpose(1, 2) * scaling).reshape(heads, rows, keys)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is None:
        mask = torch.ones(rows, keys, dtype=torch.bool, device=key.device).tril(keys - rows)
    else:
        mask = mask[0][..., :keys]
    if mask.dtype != torch.bool:
        scores = scores + mask
        mask = mask > torch.finfo(mask.dtype).min
    scores = scores.masked_fill(~mask, -math.inf)
    if sinks is None:
        return torch.log_softmax(scores, -1)
    column = sinks.float().reshape(heads, 1, 1).expand(heads, rows, 1)
    return torch.log_softmax(torch.cat([scores, column], -1), -1)[..., :-1]


def log_shares(attention: "Tensor") -> "Tensor":
    """Return ln of the share of the attention that each position gets, averaged over the heads.

    `attention` = `log_probabilities` [heads, rows, keys] -> [rows, keys]; -inf where masked. It
    ranks like the sum, does not underflow, and fits float16 however long the context.
    """
    import torch

    return torch.logsumexp(attention, 0) - math.log(len(attention))


def rows_within(heads: int, tokens: int) -> int:
    """Return how many rows of (heads, tokens) scores fit into a block; more than 64 bring
    nothing."""
    return max(1, min(64, LARGEST_BLOCK // (heads * tokens)))


class AttentionOracle:
    """Ranks the positions of every decode row by the attention that they get."""

    provenance = "attention-oracle"
    means = "top-k of the attention summed over the heads"
    unit = TOKEN
    score = "natural logarithm of the attention's share, averaged over the heads"

    def rows_at_once(self, config: Any, tokens: int) -> int:
        """Return how many decode rows a pass may have at a context of `tokens`."""
        return rows_within(config.num_attention_heads, tokens)

    def prefill_rows(self, config: Any, tokens: int) -> int:
        """Return how many prompt tokens a pass may have: all of them."""
        return tokens

    @contextmanager
    def tapped(self, model: Any, recorder: Recorder) -> Iterator[None]:
        """Rank into `recorder` while the block runs."""

        def attend(
            module: Any,
            query: "Tensor",
            key: "Tensor",
            value: "Tensor",
            mask: "Tensor | None",
            **options: Any,
        ) -> "tuple[Tensor, None]":
            if recorder.wants(module.layer_idx):
                attention = log_probabilities(query, key, mask, **form_of(options))
                recorder.keep(module.layer_idx, log_shares(attention))
            return dense(module, query, key, value, mask, **options)

        with interface(model, attend):
            yield


def dense(
    module: Any,
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    mask: "Tensor | None",
    **options: Any,
) -> "tuple[Tensor, None]":
    """Attend as the model would, [1, rows, heads, dim]; softcaps and sinks, which torch's kernel
    lacks, go block by block."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    form = form_of(options)
    if form["softcap"] is None and form["sinks"] is None:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, mask, **options
        )
        return result
    _, heads, rows, _ = query.shape
    keys = key.shape[2]
    value = value[0].repeat_interleave(heads // value.shape[1], 0)
    step = max(1, LARGEST_BLOCK // (heads * keys))
    blocks = []
    for first in range(0, rows, step):
        stop = min(rows, first + step)
        if mask is None:
            # Causal: the block ends at a key of its own, and later keys are not seen.
            seen, part = keys - rows + stop, None
        else:
            seen, part = keys, mask[..., first:stop, :]
        weights = log_probabilities(query[:, :, first:stop], key[:, :, :seen], part, **form).exp()
        blocks.append(weights.to(value.dtype) @ value[:, :seen])
    return torch.cat(blocks, 1).transpose(0, 1)[None].contiguous(), None


def form_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `log_probabilities` that the model hands over."""
    return {
        "scaling": options.get("scaling"),
        "softcap": options.get("softcap"),
        "sinks": options.get("s_aux"),
    }


@contextmanager
def interface(model: Any, attend: Any) -> Iterator[None]:
    """Let the model's attention layers call `attend` while the block runs.

    Raises TraceError if the model's attention cannot be replaced.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    before = model.config._attn_implementation
    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    try:
        model.set_attn_implementation(ATTENTION)
        if model.config._attn_implementation != ATTENTION:
            raise TraceError(
                f"{type(model).__name__} does not attend through transformers' attention "
                "interface, so that nothing can be captured from it: choose another model"
            )
        yield
    finally:
        model.set_attn_implementation(before)
