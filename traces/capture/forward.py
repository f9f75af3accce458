"""A model run step by step: tokens in, the logits of the last one out, and the next token drawn."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hisparse_sim.traces.capture.models import Loaded
from hisparse_sim.traces.errors import TraceError


@dataclass(frozen=True)
class Sampling:
    """Decode draws its tokens from the model instead of following the text."""

    temperature: float = 1.0  # 0 = the most likely token
    seed: int = 0


class Forward:
    """Feeds tokens to a model that keeps its KV cache; returns the last logits.

    Raises TraceError if they are infinite or NaN, since then the ranks are meaningless.
    """

    def __init__(self, model: Any) -> None:
        from transformers import DynamicCache

        accepted = inspect.signature(model.forward).parameters
        self.model = model
        # The argument was called past_key_values before transformers 5.20 or so.
        name = "cache" if "cache" in accepted else "past_key_values"
        self.cache = DynamicCache(config=model.config)
        self.options: dict[str, Any] = {name: self.cache, "use_cache": True}
        self.trims = "logits_to_keep" in accepted

    def __call__(self, ids: Sequence[int], last: int = 1) -> Any:
        """Return the logits of the last token, [vocabulary]; of the `last` ones, [last,
        vocabulary]."""
        import torch

        tokens = torch.tensor([ids], device=self.model.device)
        trimmed = {"logits_to_keep": last} if self.trims else {}
        logits = self.model(input_ids=tokens, **self.options, **trimmed).logits[0, -last:]
        logits = logits if last > 1 else logits[0]
        if not logits.isfinite().all():
            raise TraceError(
                f"the model computes NaN or infinity in {logits.dtype}: choose another "
                "`dtype`, or check its weights"
            )
        return logits

    def may_take_back(self) -> None:
        """Keep what `take_back` needs, from here on. Raises TraceError for a model whose cache
        cannot forget its newest tokens, as that of linear attention."""
        if not getattr(self.cache, "is_croppable", True):
            raise TraceError(
                f"{type(self.model).__name__} has layers that cannot forget a rejected draft: "
                "capture it without drafts"
            )
        if hasattr(self.cache, "activate_past_recording"):
            self.cache.activate_past_recording()

    def take_back(self, tokens: int) -> None:
        """Forget the newest tokens."""
        self.cache.crop(-tokens)


class Draw:
    """Draws the next token."""

    def __init__(self, loaded: Loaded, sampling: Sampling) -> None:
        import torch

        self.temperature = sampling.temperature
        self.generator = torch.Generator().manual_seed(sampling.seed)
        ends = loaded.config.eos_token_id
        self.ends = frozenset(ends if isinstance(ends, list) else [ends])

    def __call__(self, logits: Any) -> int:
        import torch

        if self.temperature == 0:
            return int(logits.argmax())
        above = logits.double().cpu() - logits.max().double().cpu()  # 0 stays 0, however cold it is
        chances = torch.softmax(above / self.temperature, -1)
        return int(torch.multinomial(chances, 1, generator=self.generator))
