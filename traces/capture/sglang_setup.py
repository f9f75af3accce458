"""The setup of a capture from SGLang: the model, sizes, how to start the server."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hisparse_sim.traces.file.captured import MOST_LAYERS, MOST_TOKENS, whole
from hisparse_sim.traces.file.model_config import configured

_CHUNK_TOKENS = 8192  # of a prompt that the server reads at once


@dataclass(frozen=True)
class Model:
    """Facts about the model that the answer does not contain."""

    name: str
    num_layers: int  # all layers of the config: shared ones repeat their anchor
    top_k: int
    layer_types: tuple[str, ...] | None = None  # [num_layers], "full" or "shared"; None = not known

    def __post_init__(self) -> None:
        for name, most in (("num_layers", MOST_LAYERS), ("top_k", MOST_TOKENS)):
            object.__setattr__(self, name, whole(getattr(self, name), name, 1, most))

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's top-k, over all layers."""
        return 4 * self.num_layers * self.top_k


def described(
    name: str,
    config: str | os.PathLike[str] | None = None,
    num_layers: int | None = None,
    top_k: int | None = None,
) -> Model:
    """Return a model by its config.json, or by its layers and top_k (else 2048).

    Raises ValueError if the two disagree or neither gives the layers; TraceError if the file is no
    config.
    """
    given: dict[str, Any] = {"num_layers": num_layers, "top_k": top_k, "layer_types": None}
    if config is not None:
        given = configured(given, config)
    return Model(name, given["num_layers"], given["top_k"] or 2048, given["layer_types"])


@dataclass(frozen=True)
class Estimate:
    """Sizes of a capture, in bytes."""

    answer_bytes: int  # the largest answer, base64
    download_bytes: int
    scratch_bytes: int  # decode rows of all requests, beside the trace file
    trace_bytes: int  # about
    server_bytes: int  # pinned host memory per rank of the server, for `server_tokens`
    server_tokens: int  # that must fit into its pool at once

    def sentence(self) -> str:
        """Return it as one sentence."""
        return (
            f"{_size(self.download_bytes)} to download, {_size(self.answer_bytes)} in "
            f"the largest answer, {_size(self.scratch_bytes)} of scratch files, a trace of "
            f"about {_size(self.trace_bytes)}; the server needs {_size(self.server_bytes)} of "
            f"pinned host memory per rank for {self.server_tokens:,} tokens (with "
            "--enable-hisparse times its host_to_device_ratio, from SGLang 0.5.18 on)"
        )


def estimate(
    lengths: Sequence[int], model: Model, max_new_tokens: int, concurrency: int
) -> Estimate:
    """Estimate a capture of prompts of these lengths (tokens)."""
    rows = [length + max_new_tokens - 1 for length in lengths]
    base64_bytes = [4 * -(-each * model.row_bytes // 3) for each in rows]
    decode_bytes = len(rows) * (max_new_tokens - 1) * model.row_bytes
    together = sum(sorted(length + max_new_tokens for length in lengths)[-concurrency:])
    return Estimate(
        answer_bytes=max(base64_bytes),
        download_bytes=sum(base64_bytes),
        scratch_bytes=decode_bytes,
        trace_bytes=decode_bytes // 2,  # in the indexer's order, which packs worse than sorted
        server_bytes=together * model.row_bytes,
        server_tokens=together,
    )


def server_command(model: str, tokens: int, ranks: int = 8) -> str:
    """Return the command that starts a server whose answers can be captured.

    `tokens` bounds its pool, and with it the host memory that the top-k of every pool token takes.
    """
    return (
        f"SGLANG_DSA_FUSE_TOPK=0 python -m sglang.launch_server --model-path {model} "
        f"--tp {ranks} --dp {ranks} --enable-dp-attention --enable-return-indexer-topk "
        f"--max-total-tokens {_pool(tokens)} --chunked-prefill-size {_CHUNK_TOKENS}"
    )


def server_notes(
    tokens: int, num_layers: int | None = None, top_k: int | None = None, ranks: int = 8
) -> list[str]:
    """Return what to know before that command is run, a line each: the memory that the returned
    top-k takes, and why its flags are there.

    `num_layers` None = not known: then the memory is that of one layer.
    """
    row_bytes = 4 * (num_layers or 1) * (top_k or 2048)
    pool, per = _pool(tokens), "" if num_layers else " for every layer of the model"
    pinned, buffer = pool * row_bytes, _CHUNK_TOKENS * row_bytes
    lines = [
        f"host memory: {_size(pinned)} pinned per rank, {_size(ranks * pinned)} in all "
        f"{ranks}{per}, regardless of what is captured",
        f"GPU memory: {_size(buffer)} per rank{per} for the top-k of a prefill chunk",
        "SGLANG_DSA_FUSE_TOPK=0: report positions in the text, not locations in memory",
        "--enable-return-indexer-topk: put the top-k of every token into the answer",
        f"--tp {ranks} --dp {ranks} --enable-dp-attention: one rank per attention group, which "
        f"returning the top-k needs; these are for {ranks} GPUs: change both together",
        f"--max-total-tokens {pool}: tokens in the pool of a rank; host memory grows with it, so "
        f"set it to what runs at once and no more",
        f"--chunked-prefill-size {_CHUNK_TOKENS}: bounds the GPU memory above",
    ]
    lines += [
        "with --enable-hisparse and SGLang 0.5.17: it dies once requests in flight reach past "
        "--max-total-tokens; `hisparse-sim engine run --record` records without these flags",
        "with --enable-hisparse and SGLang 0.5.18 or later: host memory is host_to_device_ratio "
        "times the above",
    ]
    if num_layers is None:
        lines.insert(1, "give --layers or --config for the total over all layers")
    return lines


def _pool(tokens: int) -> int:
    """Return the tokens of a pool that holds so many, in whole pages."""
    return -(-max(tokens, 1) // 1024) * 1024


def _size(size_bytes: int) -> str:
    gib = size_bytes / 2**30
    return f"{gib:.3g} GiB" if gib >= 1 else f"{1024 * gib:.1f} MiB"
