"""The layers of a DeepSeek-V3.2 or GLM-5 model, from its `config.json`.

Reference: SGLang 0.5.23, `srt/configs/model_config.py` (`dsa_layer_skips_topk`), whose precedence
and defaults are followed; transformers 5.24, `GlmMoeDsaConfig`, agrees where it knows the keys.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hisparse_sim.traces.documents import read_json
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.captured import MOST_LAYERS, MOST_TOKENS, whole
from hisparse_sim.traces.file.layer_types import FULL, SHARED

_LETTERS = {"F": FULL, "S": SHARED}


@dataclass(frozen=True)
class ModelConfig:
    """The layers of a model: a shared one has no indexer and repeats the last full one."""

    num_layers: int
    top_k: int
    layer_types: tuple[str, ...]  # [num_layers], "full" or "shared"


def read_config(path: str | os.PathLike[str]) -> ModelConfig:
    """Read `config.json`, or the one in a folder.

    Raises TraceError if it cannot be read, or is no configuration of a model with an indexer.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    found = read_json(path)
    if isinstance(found, dict) and isinstance(found.get("text_config"), dict):
        found = found["text_config"]  # of a multimodal model
    if not isinstance(found, dict) or found.get("index_topk") is None:
        raise TraceError(f"{path} has no index_topk: it is of a model without indexers")
    try:
        layers = whole(found.get("num_hidden_layers"), "num_hidden_layers", 1, MOST_LAYERS)
        top_k = whole(found["index_topk"], "index_topk", 1, MOST_TOKENS)
        return ModelConfig(layers, top_k, _layer_types(found, layers))
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None


def configured(given: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return `given` with num_layers, top_k and layer_types of a config.json.

    Raises ValueError if it names another number already; TraceError as `read_config`.
    """
    found = asdict(read_config(path))
    for name, value in found.items():
        if given.get(name) not in (None, value):
            raise ValueError(f"{path} gives {name} as {value}, not {given[name]}: leave one out")
    return {**given, **found}


def _layer_types(config: dict[str, Any], layers: int) -> tuple[str, ...]:
    factor = _given(config, "cli_factor", 1)
    types = config.get("indexer_types")
    pattern = config.get("index_topk_pattern")
    if types is not None:
        found = _listed(types, "indexer_types", layers)
    elif factor > 1:
        found = [FULL if layer % factor == 0 else SHARED for layer in range(layers)]
    elif pattern is not None:
        letters = _listed(pattern, "index_topk_pattern", layers)
        found = [_LETTERS.get(letter, letter) for letter in letters]
    else:
        every = _given(config, "index_topk_freq", 1)
        offset = _given(config, "index_skip_topk_offset", 2)
        found = [SHARED if max(layer - offset + 1, 0) % every else FULL for layer in range(layers)]
    for layer, kind in enumerate(found):
        if kind not in (FULL, SHARED) or (layer == 0 and kind == SHARED):
            raise ValueError(f"layer {layer} is {kind!r}, expected full or shared, the first full")
    return tuple(found)


def _given(config: dict[str, Any], key: str, default: int) -> int:
    value = config.get(key)
    return default if value is None else whole(value, key, 1, MOST_LAYERS)


def _listed(value: Any, key: str, layers: int) -> list[Any]:
    """Return one entry per layer; those of layers for multi-token prediction may follow."""
    if not isinstance(value, str | list) or len(value) < layers:
        raise ValueError(f"{key} does not list one entry for each of the {layers} layers")
    return list(value[:layers])
