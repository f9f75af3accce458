"""The output of a tap in the forward pass of a model: the best positions of every decode row."""

from typing import TYPE_CHECKING

import numpy as np

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.spool import Ranked

if TYPE_CHECKING:
    from torch import Tensor


class Recorder:
    """Keeps the ranks of the pass that is running; `expect` opens a pass, `take` closes it.

    Without `expect` (prefill) nothing is kept.
    """

    def __init__(self, width: int, layers: frozenset[int] | None, scores: bool) -> None:
        """`width`: ranks per row; `layers`: None for all of them."""
        self.width = width
        self.layers = layers
        self.scores = scores
        self.rows = 0  # decode rows of the running pass
        self.first_seq_len = 0  # tokens, of its first row
        self._ranked: dict[int, Ranked] = {}

    def expect(self, first_seq_len: int, rows: int) -> None:
        """The next pass has decode rows of `first_seq_len`, `first_seq_len + 1`, ... tokens."""
        self.first_seq_len, self.rows = first_seq_len, rows

    def wants(self, layer: int) -> bool:
        """Say whether the running pass has rows of this layer to keep."""
        return self.rows > 0 and (self.layers is None or layer in self.layers)

    def keep(self, layer: int, scores: "Tensor") -> None:
        """Rank one layer by scores, higher is better.

        `scores`: float32 [rows, keys], the last keys that the request has; -inf where the row may
        not attend. Raises TraceError if one is no number.
        """
        import torch

        if scores.isnan().any():
            raise TraceError(
                f"layer {layer} computes scores that are NaN: choose another `dtype`, or "
                "check its weights"
            )
        first = self.first_seq_len + self.rows - 1 - scores.shape[1]
        best = scores.topk(min(self.width, scores.shape[1]), dim=1)
        ranks = torch.where(best.values == -torch.inf, -1, best.indices + first)
        marks = best.values.clamp(-65504, 65504).to(torch.float16) if self.scores else None
        self._store(layer, ranks, marks)

    def keep_ranked(self, layer: int, ranks: "Tensor") -> None:
        """Take positions that the model ranked itself, int [rows, width or fewer], best first.

        Positions that the row cannot have seen fill the list up in short rows and are dropped.
        """
        import torch

        lengths = self.first_seq_len + torch.arange(self.rows, device=ranks.device)
        seen = (ranks >= 0) & (ranks < lengths[:, None])
        self._store(layer, torch.where(seen, ranks, -1), None)

    def _store(self, layer: int, ranks: "Tensor", marks: "Tensor | None") -> None:
        positions = np.full((self.rows, self.width), -1, np.int32)
        positions[:, : ranks.shape[1]] = ranks.cpu().numpy()
        scores = None
        if marks is not None:
            scores = np.zeros((self.rows, self.width), np.float16)
            scores[:, : marks.shape[1]] = marks.cpu().numpy()
        self._ranked[layer] = Ranked(positions, scores)

    def take(self) -> dict[int, Ranked]:
        """Return what the pass gave, by layer, and forget it."""
        ranked, self._ranked = self._ranked, {}
        self.rows = 0
        return ranked
