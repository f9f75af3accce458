"""Training of a lightning indexer on a frozen model: the dense warm-up, and its quality.

Every layer's indexer learns to imitate the attention of that layer, summed over the heads, by the
KL divergence (DeepSeek-V3.2-Exp, 2025). The sparse stage that follows in the paper, in which the
model adapts to its indexer, is left out: attention stays dense.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

from hisparse_sim.traces.capture.indexer import (
    Indexers,
    LayerIndexer,
    Rotary,
    Shape,
    attentions_of,
    hidden_states_of,
    keys_of,
    refuse_windows,
    scores_of,
)
from hisparse_sim.traces.capture.models import Loaded, running
from hisparse_sim.traces.capture.oracle import (
    dense,
    form_of,
    interface,
    log_probabilities,
    log_shares,
)
from hisparse_sim.traces.errors import TraceError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Quality:
    """How well an indexer imitates the attention, on text that it was not trained on."""

    kl: float  # nats a row
    mass: float  # share of the attention that its top-k keeps
    oracle_mass: float  # the share that the best top-k keeps
    overlap: float  # share of its top-k that is in the best top-k


def train(
    loaded: Loaded,
    sequences: Sequence[Sequence[int]],
    shape: Shape | None = None,
    *,
    steps: int,
    rows: int = 128,
    learning_rate: float = 1e-2,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Indexers:
    """Train an indexer for every layer of a frozen model: the dense warm-up.

    One step takes one sequence of tokens, and of it `rows` random rows; Adam, with a rate that
    falls to 0 in a straight line. Memory is that of a pass of the model and of one layer's block of
    (rows, heads, tokens). `progress(what, step, steps)` is called after every step.

    Raises TraceError if there is nothing to train on.
    """
    import torch

    if steps < 1 or not sequences or min(map(len, sequences)) < 2:
        raise TraceError("an indexer needs at least one step and sequences of at least 2 tokens")
    model = loaded.model
    refuse_windows(model)
    shape = shape or Shape()
    generator = torch.Generator().manual_seed(seed)
    layers = {
        index: _fresh(shape, loaded.config.hidden_size, model.device, generator)
        for index in attentions_of(model)
    }
    optimizer = torch.optim.Adam([part for layer in layers.values() for part in layer])
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (1 - step / steps)
        sequence = sequences[step % len(sequences)]
        chosen = torch.randperm(len(sequence), generator=generator)[:rows].sort().values
        losses = []

        def learn(index: int, view: "View") -> None:
            with torch.enable_grad():
                loss = _divergence(view, layers[index], shape).mean()
                loss.backward()
            losses.append(loss.item())  # noqa: B023 - called within this iteration
            if not math.isfinite(losses[-1]):  # noqa: B023
                raise TraceError(
                    f"layer {index} has no finite divergence from its attention: choose another "
                    "`dtype`, or check its weights"
                )

        optimizer.zero_grad()
        with torch.no_grad():
            _visit(model, sequence, chosen.to(model.device), learn)
        optimizer.step()
        if progress is not None:
            mean = sum(losses) / len(losses)
            progress(f"training, KL {mean:.3f}, step", step + 1, steps)
    about = {
        "model": loaded.title,
        "steps": steps,
        "sequences": min(steps, len(sequences)),
        "tokens_per_sequence": max(map(len, sequences)),
        "rows_per_step": rows,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    done = {index: LayerIndexer(*(p.detach() for p in layer)) for index, layer in layers.items()}
    return Indexers(shape, done, about)


def evaluate(
    loaded: Loaded,
    indexers: Indexers,
    sequences: Sequence[Sequence[int]],
    top_k: int,
    *,
    rows: int = 64,
) -> dict[int, Quality]:
    """Return the quality of every layer, over `rows` rows of the second half of each sequence."""
    import torch

    found: dict[int, list[list[float]]] = {}

    def look(index: int, view: "View") -> None:
        layer = indexers.layers[index]
        kl = _divergence(view, layer, indexers.shape)
        share = view.log_target.exp()
        count = min(top_k, share.shape[1])
        mine = view.scores(layer, indexers.shape).topk(count, dim=1).indices
        best = share.topk(count, dim=1)
        common = torch.zeros_like(share).scatter_(1, best.indices, 1.0).gather(1, mine)
        means = (kl, share.gather(1, mine).sum(1), best.values.sum(1), common.mean(1))
        found.setdefault(index, []).append([float(part.mean()) for part in means])

    with torch.no_grad():
        for sequence in sequences:
            half = len(sequence) // 2
            chosen = torch.linspace(half, len(sequence) - 1, min(rows, len(sequence) - half)).long()
            _visit(loaded.model, sequence, chosen.to(loaded.model.device), look)
    return {
        index: Quality(*(sum(part) / len(part) for part in zip(*several, strict=True)))
        for index, several in found.items()
    }


def learn(
    loaded: Loaded,
    texts: Sequence[Sequence[int]],
    shape: Shape | None = None,
    *,
    length: int,
    steps: int,
    top_k: int,
    held_out: float = 0.1,
    progress: Callable[[str, int, int], None] | None = None,
    **training: Any,
) -> Indexers:
    """Cut texts (tokens) into sequences of `length`, train on most, evaluate on the last ones.

    The quality at `top_k`, averaged over layers and by layer, is noted in the result's `about`.
    `training` goes to `train`. Raises TraceError if there are fewer than two sequences.
    """
    sequences = cut(loaded, texts, length)
    kept = max(1, round(held_out * len(sequences)))
    with running(loaded):
        found = train(loaded, sequences[:-kept], shape, steps=steps, progress=progress, **training)
        layers = evaluate(loaded, found, sequences[-kept:], top_k)
    quality = {
        "held_out_sequences": kept,
        "top_k": top_k,
        **asdict(average(list(layers.values()))),
        "layers": {index: asdict(layer) for index, layer in layers.items()},
    }
    return replace(found, about={**found.about, "quality": quality})


def cut(loaded: Loaded, texts: Sequence[Sequence[int]], length: int) -> list[Sequence[int]]:
    """Cut texts (tokens) into sequences of `length`.

    Raises TraceError if there are fewer than two, or no indexer can be trained on the model.
    """
    refuse_windows(loaded.model)
    attentions_of(loaded.model)
    sequences = pieces(texts, length)
    if len(sequences) < 2:
        raise TraceError(
            f"training needs at least 2 sequences of {length:,} tokens behind what is captured, "
            f"and the text has {sum(map(len, texts)):,} tokens left: take a longer text, a shorter "
            "capture or shorter sequences"
        )
    return sequences


def pieces(texts: Sequence[Sequence[int]], length: int) -> list[Sequence[int]]:
    """Return the whole sequences of `length` that lie in texts, one behind the other."""
    return [
        text[first : first + length]
        for text in texts
        for first in range(0, len(text) - length + 1, length)
    ]


def average(qualities: Sequence[Quality]) -> Quality:
    """Return the mean over layers."""
    parts = zip(*map(astuple, qualities), strict=True)
    return Quality(*(sum(part) / len(qualities) for part in parts))


@dataclass(frozen=True)
class View:
    """Data of one layer in a pass over a sequence, for some of its rows."""

    hidden: "Tensor"  # [tokens, hidden]
    rotary: Rotary
    rows: "Tensor"  # [rows]
    may: "Tensor"  # [rows, tokens], where a row may attend
    log_target: "Tensor"  # [rows, tokens], see log_shares

    def scores(self, layer: LayerIndexer, shape: Shape) -> "Tensor":
        """Return the indexer's scores, [rows, tokens], -inf where a row may not attend."""
        keys = keys_of(layer, self.hidden, self.rotary)
        rotary = self.rotary
        if rotary is not None:
            rotary = rotary[0][self.rows], rotary[1][self.rows]
        scores = scores_of(layer, shape, self.hidden[self.rows], rotary, keys)
        return scores.masked_fill(~self.may, -math.inf)


def _divergence(view: View, layer: LayerIndexer, shape: Shape) -> "Tensor":
    """Return KL(attention || softmax of the indexer) of every row, in nats."""
    log_index = view.scores(layer, shape).log_softmax(1)
    gap = (view.log_target - log_index).masked_fill(~view.may, 0.0)
    result: Tensor = (view.log_target.exp() * gap).sum(1)
    return result


def _visit(
    model: Any, ids: Sequence[int], rows: "Tensor", look: Callable[[int, View], None]
) -> None:
    """Run one sequence through the model and show every layer to `look`."""
    import torch

    waiting: dict[int, tuple[Tensor, Rotary]] = {}
    causal = torch.arange(len(ids), device=rows.device) <= rows[:, None]

    def attend(
        module: Any,
        query: "Tensor",
        key: "Tensor",
        value: "Tensor",
        mask: "Tensor | None",
        **options: Any,
    ) -> "tuple[Tensor, None]":
        hidden, rotary = waiting.pop(module.layer_idx)
        attention = log_probabilities(
            query[:, :, rows], key, causal[None, None], **form_of(options)
        )
        look(module.layer_idx, View(hidden, rotary, rows, causal, log_shares(attention)))
        return dense(module, query, key, value, mask, **options)

    def wait(index: int, hidden: "Tensor", rotary: Rotary) -> None:
        waiting[index] = hidden, rotary

    with interface(model, attend), hidden_states_of(model, None, wait):
        model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)


def _fresh(shape: Shape, hidden: int, device: Any, generator: Any) -> LayerIndexer:
    import torch

    def drawn(*size: int) -> "Tensor":
        return torch.randn(size, generator=generator) * hidden**-0.5

    parts = (
        drawn(shape.heads * shape.head_dim, hidden),
        drawn(shape.head_dim, hidden),
        torch.ones(shape.head_dim),
        torch.zeros(shape.head_dim),
        drawn(shape.heads, hidden),
    )
    return LayerIndexer(*(part.to(device).requires_grad_() for part in parts))
