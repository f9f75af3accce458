"""Capture what a DeepSeek-V3.2 or GLM-5.1 selects while a SGLang server decodes.

Every request asks for `return_indexer_topk`; the answer carries base64 of raw int32, (prompt +
output - 1, layers, top_k), half a megabyte per token. The rows of the prompt are dropped as they
stream by (on the dense prefill path they are stale anyway); decode rows go to a file per request,
so that a capture that was interrupted goes on where it stopped. When all requests are there, the
trace file is written and the folder removed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.traces.file.captured import MOST_LAYERS, MOST_TOKENS, checked_id, demands, whole
from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.files import atomic_path, refuse_unwritable
from hisparse_sim.traces.file.metadata import Metadata
from hisparse_sim.traces.file.model_config import configured
from hisparse_sim.traces.capture.sglang_server import (
    Server,
    Stop,
    Stopped,
    Temporary,
    generate,
    patiently,
    tokenize,
)
from hisparse_sim.traces.file.writer import TraceWriter

_FLAG_HINT = "start the server with --enable-return-indexer-topk (--print-server-command shows how)"

_CHUNK_TOKENS = 8192  # of a prompt that the server reads at once


@dataclass(frozen=True)
class Model:
    """What the answer does not say of the model."""

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
class Prompt:
    """One request to send."""

    request: str
    input_ids: tuple[int, ...]


@dataclass(frozen=True)
class Estimate:
    """What a capture will take, in bytes."""

    answer_bytes: int  # the largest answer, base64
    download_bytes: int
    scratch_bytes: int  # decode rows of all requests, beside the trace file
    trace_bytes: int  # about
    server_bytes: int  # pinned host memory per rank of the server, for `server_tokens`
    server_tokens: int  # that must fit into its pool at once

    def sentence(self) -> str:
        """Say it in one line."""
        return (
            f"{_size(self.download_bytes)} to download, {_size(self.answer_bytes)} in "
            f"the largest answer, {_size(self.scratch_bytes)} of scratch files, a trace of "
            f"about {_size(self.trace_bytes)}; the server needs {_size(self.server_bytes)} of "
            f"pinned host memory per rank for {self.server_tokens} tokens"
        )


def estimate(
    lengths: Sequence[int], model: Model, max_new_tokens: int, concurrency: int
) -> Estimate:
    """Foresee a capture of prompts of these lengths (tokens)."""
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
        f"{ranks}{per}, whatever is captured",
        f"GPU memory: {_size(buffer)} per rank{per} for the top-k of a prefill chunk",
        "SGLANG_DSA_FUSE_TOPK=0: report positions in the text, not places in the server's memory",
        "--enable-return-indexer-topk: put the top-k of every token into the answer",
        f"--tp {ranks} --dp {ranks} --enable-dp-attention: one rank per attention group, which "
        f"returning the top-k needs; for {ranks} GPUs, change both alike",
        f"--max-total-tokens {pool}: tokens in the pool of a rank; host memory grows with it, so "
        f"set it to what runs at once and no more",
        f"--chunked-prefill-size {_CHUNK_TOKENS}: bounds the GPU memory above",
    ]
    if num_layers is None:
        lines.insert(1, "the sum over the layers is told with --layers, or --config")
    return lines


def _pool(tokens: int) -> int:
    """Return the tokens of a pool that holds so many, in whole pages."""
    return -(-max(tokens, 1) // 1024) * 1024


def prepare(
    server: Server, texts: Sequence[tuple[str, str]], longest: int | None = None
) -> list[Prompt]:
    """Turn (request, text) pairs into prompts, by the server's tokenizer, cut in the middle."""
    from hisparse_sim.traces.capture.longbench import truncate_middle

    server.check()
    stop = Stop()
    return [
        Prompt(request, tuple(truncate_middle(tokenize(server, text, stop), longest)))
        for request, text in texts
    ]


def capture(
    prompts: Sequence[Prompt],
    target: str | os.PathLike[str],
    server: Server,
    model: Model,
    *,
    max_new_tokens: int = 1024,
    ignore_eos: bool = True,
    concurrency: int = 2,
    dataset: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Capture all prompts to a trace file; what was captured before by the same call is kept.

    Decoding is greedy. `progress(done, all)` is called after every request.

    Raises TraceError if a request fails for good; the requests that succeeded stay in the folder
    `TARGET.partial`.
    """
    server.check()
    target = Path(target)
    refuse_unwritable(target)
    names = [checked_id(prompt.request, "the id of a prompt") for prompt in prompts]
    if not prompts or len(set(names)) < len(names):
        raise TraceError("there is no prompt" if not prompts else "two prompts have the same id")
    if max_new_tokens < 2 or concurrency < 1:
        raise TraceError("a capture needs at least 2 new tokens and a concurrency of at least 1")
    longest = max(len(prompt.input_ids) for prompt in prompts)
    if longest + max_new_tokens > MOST_TOKENS:
        raise TraceError(f"{longest} tokens and {max_new_tokens} new ones are too many for a trace")
    folder = target.with_name(target.name + ".partial")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise TraceError(f"{folder} cannot be made: {error.strerror or error}") from error
    sampling = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": ignore_eos}
    jobs = [_Job(prompt, model, sampling, folder) for prompt in prompts]
    stop = Stop()
    done = 0
    failure: TraceError | None = None
    with ThreadPoolExecutor(concurrency) as pool:
        running = [pool.submit(job.run, server, stop) for job in jobs]
        try:
            for future in as_completed(running):
                try:
                    future.result()
                except Stopped:
                    continue
                except TraceError as error:
                    failure = failure or error
                    continue
                done += 1
                if progress is not None:
                    progress(done, len(jobs))
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            with suppress(OSError):  # it holds requests
                folder.rmdir()
            raise
    if failure is not None:
        kept = sum(job.is_done() for job in jobs)
        if not kept:
            with suppress(OSError):  # it may hold requests of another call
                folder.rmdir()
            raise failure
        raise TraceError(
            f"{failure} ({kept} of {len(jobs)} requests are kept in {folder}: the same command "
            f"goes on from there)"
        )
    _assemble(jobs, target, model, dataset, sampling, server)
    shutil.rmtree(folder, ignore_errors=True)


class _Unusable(Exception):
    """The answer cannot be used, and another one could not either."""


class _Job:
    """One request: where its rows go, and whether they are there."""

    def __init__(
        self, prompt: Prompt, model: Model, sampling: dict[str, Any], folder: Path
    ) -> None:
        self.prompt = prompt
        self.model = model
        self.max_new_tokens: int = sampling["max_new_tokens"]
        self.body = {"input_ids": list(prompt.input_ids), "sampling_params": sampling}
        key = json.dumps([prompt.request, self.body, model.name, model.num_layers, model.top_k])
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        self.path = folder / f"{name}.rows"

    def is_done(self) -> bool:
        # After a crash of the machine a file may be there whose end is not.
        size = self.path.stat().st_size if self.path.exists() else 0
        return size > 0 and size % self.model.row_bytes == 0

    def run(self, server: Server, stop: Stop) -> None:
        if self.is_done():
            return
        if stop.is_set():
            raise Stopped
        try:
            with atomic_path(self.path) as temporary:
                patiently(server, lambda: self._once(server, temporary, stop), stop)
        except TraceError:
            stop.set()  # the others would fail alike, or are kept and go on with the next call
            raise

    def _once(self, server: Server, path: Path, stop: Stop) -> None:
        prompt_bytes = len(self.prompt.input_ids) * self.model.row_bytes
        limit_bytes = prompt_bytes + self.max_new_tokens * self.model.row_bytes
        received = 0
        with path.open("wb") as file:

            def take(piece: bytes) -> None:
                nonlocal received
                begin = max(0, prompt_bytes - received)
                received += len(piece)
                if received > limit_bytes:
                    raise _Unusable(self._misshapen(f"more than {limit_bytes}"))
                try:
                    file.write(piece[begin:])
                except OSError as error:
                    raise _Unusable(f"{path} cannot be written: {error.strerror}") from None

            try:
                answer = generate(server, self.body, lambda number: take, stop)
            except _Unusable as error:
                raise TraceError(str(error)) from None
        self._check(answer, received, server)
        for _ in self.demands(path, server.url):
            pass  # refuses physical slots now, not after hours

    def demands(self, path: Path, place: str, **options: Any) -> Iterator[Demand]:
        """Yield the demands of the rows in a file."""
        length = len(self.prompt.input_ids)
        return demands(
            np.memmap(path, "<i4", "r").reshape(-1, self.model.num_layers, self.model.top_k),
            place=place,
            request=self.prompt.request,
            first_position=length,
            prompt_len=length,
            layer_types=self.model.layer_types,
            **options,
        )

    def _check(self, answer: Any, received: int, server: Server) -> None:
        about = answer.get("meta_info") if isinstance(answer, dict) else None
        ended = about.get("finish_reason") if isinstance(about, dict) else None
        if isinstance(ended, dict) and ended.get("type") == "abort":
            raise Temporary(f"it gave the request up: {str(ended.get('message'))[:200]!r}")
        if not isinstance(about, dict) or not isinstance(about.get("indexer_topk"), dict):
            raise TraceError(f"{server.url} answered without meta_info.indexer_topk: {_FLAG_HINT}")
        prompt_len, output = about.get("prompt_tokens"), about.get("completion_tokens")
        if type(output) is not int or prompt_len != len(self.prompt.input_ids):
            raise TraceError(
                f"{server.url} counts {prompt_len} prompt and {output} output tokens for "
                f"{len(self.prompt.input_ids)} that were sent"
            )
        if output < 2:
            raise TraceError(
                f"request {self.prompt.request!r} ended after {output} tokens, so there is no "
                f"decode step; use --ignore-eos"
            )
        if received != (prompt_len + output - 1) * self.model.row_bytes:
            rows = prompt_len + output - 1
            raise TraceError(self._misshapen(f"{received}, for {rows} tokens"))

    def _misshapen(self, size: str) -> str:
        return (
            f"the top-k of request {self.prompt.request!r} has {size} bytes, which does not fit "
            f"{self.model.num_layers} layers of {self.model.top_k} positions; check --layers and "
            f"--top-k against the model's config"
        )


def _assemble(
    jobs: Sequence[_Job],
    target: Path,
    model: Model,
    dataset: str,
    sampling: dict[str, Any],
    server: Server,
) -> None:
    metadata = Metadata(
        model=model.name,
        provenance="dsa-serving",
        top_k=model.top_k,
        num_layers=model.num_layers,
        source="SGLang, return_indexer_topk",
        dataset=dataset,
        layer_types=model.layer_types,
        order="indexer",
        prompt_len={job.prompt.request: len(job.prompt.input_ids) for job in jobs},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        notes={"sampling": sampling},
    )
    with TraceWriter(target, metadata) as writer:
        for job in jobs:
            remedy = "the file is damaged: remove it, and the same command captures it again"
            for part in job.demands(job.path, str(job.path), remedy=remedy):
                writer.write(part)


def _size(size_bytes: int) -> str:
    gib = size_bytes / 2**30
    return f"{gib:.3g} GiB" if gib >= 1 else f"{1024 * gib:.1f} MiB"
