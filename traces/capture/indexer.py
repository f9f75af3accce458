"""A lightning indexer trained on a frozen model with dense attention, and its top-k.

The form is that of DeepSeek Sparse Attention (DeepSeek-V3.2-Exp, 2025): query t scores position s

    I(t, s) = sum over heads of gate(t, head) * relu(q(t, head) . k(s))

Deviations: queries come from the hidden state, since the models at hand have no low-rank query; all
rotary dimensions of the model are rotated, half by half; float32 throughout, no Hadamard transform.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hisparse_sim.traces.capture.models import Loaded
from hisparse_sim.traces.capture.oracle import (
    rows_within,
)
from hisparse_sim.traces.capture.recorder import Recorder
from hisparse_sim.traces.documents import parse_json
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.units import TOKEN
from hisparse_sim.traces.files import atomic_path, opened

if TYPE_CHECKING:
    from torch import Tensor

KEY = "hisparse_indexer"
Rotary = tuple[Any, Any] | None  # cosine and sine of every row, [rows, dim]; None = no rotation


@dataclass(frozen=True)
class Shape:
    """Size of every layer's indexer."""

    heads: int = 16
    head_dim: int = 64


class LayerIndexer(NamedTuple):
    """The weights of one layer, float32."""

    query: "Tensor"  # [heads * head_dim, hidden]
    key: "Tensor"  # [head_dim, hidden]
    key_scale: "Tensor"  # [head_dim], of the layer norm behind the key
    key_shift: "Tensor"  # [head_dim]
    gate: "Tensor"  # [heads, hidden]


@dataclass(frozen=True)
class Indexers:
    """The indexers of a model's layers."""

    shape: Shape
    layers: dict[int, LayerIndexer]
    about: dict[str, Any] = field(default_factory=dict)  # model, training, quality; any JSON


def keys_of(layer: LayerIndexer, hidden: "Tensor", rotary: Rotary) -> "Tensor":
    """Return the index keys of hidden states, [tokens, hidden] -> [tokens, head_dim]."""
    from torch.nn import functional

    key = functional.linear(hidden.float(), layer.key)
    key = functional.layer_norm(key, key.shape[-1:], layer.key_scale, layer.key_shift)
    return _rotated(key, rotary)


def scores_of(
    layer: LayerIndexer, shape: Shape, hidden: "Tensor", rotary: Rotary, keys: "Tensor"
) -> "Tensor":
    """Return the scores of rows over keys; hidden [rows, hidden], keys [keys, head_dim]."""
    from torch.nn import functional

    hidden = hidden.float()
    query = functional.linear(hidden, layer.query).unflatten(-1, (shape.heads, shape.head_dim))
    if rotary is not None:
        rotary = (rotary[0][:, None], rotary[1][:, None])
    agreement = functional.relu(_rotated(query, rotary) @ keys.T)  # [rows, heads, keys]
    gate = functional.linear(hidden, layer.gate)
    result: Tensor = (gate[:, None] @ agreement)[:, 0]
    return result * (shape.heads * shape.head_dim) ** -0.5


def _rotated(vectors: "Tensor", rotary: Rotary) -> "Tensor":
    import torch

    if rotary is None:
        return vectors
    dim = min(vectors.shape[-1], rotary[0].shape[-1])
    # The tables hold every angle twice; a narrower indexer takes the fast angles.
    half = rotary[0].shape[-1] // 2
    cosine, sine = (
        torch.cat([table[..., : dim // 2], table[..., half : half + dim // 2]], -1).float()
        for table in rotary
    )
    turned, rest = vectors[..., :dim], vectors[..., dim:]
    left, right = turned.chunk(2, -1)
    return torch.cat([turned * cosine + torch.cat([-right, left], -1) * sine, rest], -1)


class TrainedIndexer:
    """Ranks the positions of every decode row by a trained indexer's score."""

    provenance = "trained-indexer"
    means = "top-k of a lightning indexer trained on the model's dense attention"
    unit = TOKEN
    score = "score of the indexer"

    def __init__(self, indexers: Indexers) -> None:
        self.indexers = indexers

    def rows_at_once(self, config: Any, tokens: int) -> int:
        """Return how many decode rows a pass may have at a context of `tokens`."""
        heads = max(config.num_attention_heads, self.indexers.shape.heads)
        return rows_within(heads, tokens)

    def prefill_rows(self, config: Any, tokens: int) -> int:
        """Return how many prompt tokens a pass may have: all of them."""
        return tokens

    @contextmanager
    def tapped(self, model: Any, recorder: Recorder) -> Iterator[None]:
        """Rank into `recorder` while the block runs; the model attends to everything."""
        import torch

        refuse_windows(model)
        seen: dict[int, Tensor] = {}  # index keys of all tokens so far, [tokens, head_dim]

        def see(index: int, hidden: "Tensor", rotary: Rotary) -> None:
            layer = self.indexers.layers[index]
            keys = keys_of(layer, hidden, rotary)
            if index in seen:
                # Rejected drafts were taken back before this pass.
                before = recorder.first_seq_len - 1 if recorder.rows else len(seen[index])
                keys = torch.cat([seen[index][:before], keys])
            seen[index] = keys
            if recorder.wants(index):
                scores = scores_of(layer, self.indexers.shape, hidden, rotary, seen[index])
                rows, keys_seen = scores.shape
                later = torch.ones_like(scores, dtype=torch.bool).triu(keys_seen - rows + 1)
                recorder.keep(index, scores.masked_fill(later, -math.inf))

        wanted = self.indexers.layers if recorder.layers is None else recorder.layers
        with hidden_states_of(model, frozenset(wanted), see):
            yield


def save(path: str | os.PathLike[str], indexers: Indexers) -> None:
    """Write the weights in safetensors format, described in its header."""
    from safetensors.torch import save as serialized

    tensors = {
        f"{index}.{name}": part.cpu().contiguous()
        for index, layer in indexers.layers.items()
        for name, part in layer._asdict().items()
    }
    shape, about = asdict(indexers.shape), indexers.about
    with atomic_path(path) as temporary:
        temporary.write_bytes(serialized(tensors, {KEY: json.dumps({"shape": shape, **about})}))


def load(path: str | os.PathLike[str], loaded: Loaded) -> Indexers:
    """Read the weights for this model. Raises TraceError if they are damaged or of another."""
    from safetensors import SafetensorError, safe_open

    if Path(path).exists():
        with opened(path):
            pass  # safetensors would wait for a pipe

    try:
        where = loaded.model.device
        where = "cpu" if where.type == "meta" else str(where)  # only to be checked
        with safe_open(path, "pt", device=where) as file:
            about = parse_json((file.metadata() or {}).get(KEY, "{}"), "its metadata")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        shape = Shape(**about.pop("shape"))
        layers = {
            int(name.partition(".")[0]): LayerIndexer(
                *(tensors[f"{name.partition('.')[0]}.{part}"] for part in LayerIndexer._fields)
            )
            for name in tensors
            if name.endswith(".gate")
        }
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist: give `train`, or a file that it saved") from None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path} holds no indexer that this program saved ({error})") from None
    sizes = {layer.gate.shape[1] for layer in layers.values()}
    if set(layers) != set(attentions_of(loaded.model)) or sizes != {loaded.config.hidden_size}:
        raise TraceError(
            f"{path} was trained on {about.get('model', 'another model')} and does not fit "
            f"{loaded.name}"
        )
    return Indexers(shape, layers, about)


@contextmanager
def hidden_states_of(
    model: Any, layers: frozenset[int] | None, see: Callable[[int, "Tensor", Rotary], None]
) -> Iterator[None]:
    """Show `see` what enters every attention layer: [tokens, hidden], and the rotary tables."""

    def hook(module: Any, arguments: Any, named: Any) -> None:
        hidden = named["hidden_states"] if "hidden_states" in named else arguments[0]
        tables = named.get("position_embeddings")
        rotary = None if tables is None else (tables[0][0], tables[1][0])
        see(module.layer_idx, hidden[0], rotary)

    with ExitStack() as stack:
        for index, module in attentions_of(model).items():
            if layers is None or index in layers:
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def attentions_of(model: Any) -> dict[int, Any]:
    """Return the attention modules by layer. Raises TraceError if there are none."""
    found = {
        module.layer_idx: module
        for name, module in model.named_modules()
        if name.endswith("self_attn") and hasattr(module, "layer_idx")
    }
    if not found:
        raise TraceError(f"{type(model).__name__} has no self_attn layers to train an indexer on")
    return found


def refuse_windows(model: Any) -> None:
    """Raise TraceError for models whose layers do not see the whole context."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"} or (not kinds and getattr(config, "sliding_window", None)):
        raise TraceError(
            f"{type(model).__name__} has layers that do not attend to the whole context: an "
            "indexer is trained on models with full attention only"
        )
