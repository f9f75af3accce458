"""Captures the positions that a DeepSeek-V3.2 or GLM-5.1 selects while an SGLang server decodes.

Every request asks for `return_indexer_topk`; the answer carries base64 of raw int32, (prompt +
output - 1, layers, top_k), half a megabyte per token. The rows of the prompt are dropped as they
stream by (on the dense prefill path they are stale anyway); decode rows go to a file per request,
so that an interrupted capture can resume. When all requests are there, the
trace file is written and the folder removed.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

from hisparse_sim.traces.capture.longbench import truncate_middle
from hisparse_sim.traces.capture.sglang_request import LeftOut, Prompt, Request
from hisparse_sim.traces.capture.sglang_server import Server, Stop, Stopped, tokenize
from hisparse_sim.traces.capture.sglang_setup import (
    Estimate,
    Model,
    described,
    estimate,
    server_command,
    server_notes,
)
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.captured import MOST_TOKENS, checked_id
from hisparse_sim.traces.file.metadata import Metadata
from hisparse_sim.traces.file.writer import TraceWriter
from hisparse_sim.traces.files import refuse_unwritable, work_of
from hisparse_sim.traces.importers.prompt_rows import first_of
from hisparse_sim.traces.importers.short_rows import TIES, ShortRows
from hisparse_sim.traces.locks import locked
from hisparse_sim.traces.publish import target_of

__all__ = [
    "LEFT_OUT_REQUESTS",
    "Estimate",
    "Model",
    "Prompt",
    "capture",
    "described",
    "estimate",
    "prepare",
    "server_command",
    "server_notes",
]

LEFT_OUT_REQUESTS = "requests_left_out"  # in the notes of a trace


def prepare(
    server: Server, texts: Sequence[tuple[str, str]], longest: int | None = None
) -> list[Prompt]:
    """Turn (request, text) pairs into prompts, by the server's tokenizer, cut in the middle."""
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
    warn: Callable[[str], None] | None = None,
) -> None:
    """Capture all prompts to a trace file; what the same call captured before is kept.

    Decoding is greedy. `progress(done, all)` is called after every request, `warn` with sentences
    on rows that list few positions, which are kept and counted in the notes, and on requests with
    rows that no trace can hold: these are left out, and named in the notes.

    Raises TraceError if a request fails as the others would, or none can be used (the completed
    requests stay in the folder `TARGET.partial`), or if another capture has that folder.
    """
    server.check()
    target = target_of(target)
    refuse_unwritable(target)
    names = [checked_id(prompt.request, "the id of a prompt") for prompt in prompts]
    if not prompts or len(set(names)) < len(names):
        raise TraceError("there is no prompt" if not prompts else "two prompts have the same id")
    if max_new_tokens < 2 or concurrency < 1:
        raise TraceError("a capture needs at least 2 new tokens and a concurrency of at least 1")
    longest = max(len(prompt.input_ids) for prompt in prompts)
    if longest + max_new_tokens > MOST_TOKENS:
        raise TraceError(
            f"{longest:,} tokens and {max_new_tokens:,} new ones are too many for a trace"
        )
    folder = work_of(target)
    release = locked(folder, "a capture")
    try:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise TraceError(f"{folder} cannot be made: {error.strerror or error}") from error
        sampling = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": ignore_eos}
        jobs = [Request(prompt, model, sampling, folder) for prompt in prompts]
        left_out = _run(jobs, server, concurrency, folder, progress)
        good = [job for job in jobs if job.prompt.request not in left_out]
        short = sum((job.short for job in good), ShortRows())
        if warn is not None:
            for doubt in (
                *(f"{reason}; the request is left out" for reason in left_out.values()),
                *first_of([job.doubt for job in good if job.doubt is not None]),
                *short.doubts(str(target), TIES),
            ):
                warn(doubt)
        notes = {"sampling": sampling, **short.notes}
        if left_out:
            notes[LEFT_OUT_REQUESTS] = list(left_out)
        _assemble(good, target, model, dataset, notes)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        release()


def _run(
    jobs: Sequence[Request],
    server: Server,
    concurrency: int,
    folder: Path,
    progress: Callable[[int, int], None] | None,
) -> dict[str, str]:
    """Send the requests that are not complete yet; return those that cannot be used, and why.

    Raises TraceError if none can, or if a request fails as the others would.
    """
    stop, got_one = Stop(), Event()
    if any(job.is_done() for job in jobs):
        got_one.set()

    def run(job: Request) -> None:
        try:
            job.run(server, stop)
            got_one.set()
        except TraceError as error:
            # Unless the fault is of this request only, the others would fail too; the next call
            # resumes them.
            if not isinstance(error, LeftOut) or (error.common and not got_one.is_set()):
                stop.set()
            raise

    failure: TraceError | None = None
    left_out: dict[str, str] = {}
    with ThreadPoolExecutor(concurrency) as pool:
        running = {pool.submit(run, job): job for job in jobs}
        try:
            for done, future in enumerate(as_completed(running), 1):
                try:
                    future.result()
                except Stopped:
                    continue
                except TraceError as error:
                    if not isinstance(error, LeftOut) or stop.is_set():
                        failure = failure or error
                        continue
                    left_out[running[future].prompt.request] = str(error)
                if progress is not None:
                    progress(done, len(jobs))
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            with suppress(OSError):  # it holds requests
                folder.rmdir()
            raise
    if failure is None and len(left_out) == len(jobs):
        failure = LeftOut(next(iter(left_out.values())))
    if failure is None:
        return left_out
    kept = sum(job.is_done() for job in jobs)
    if not kept:
        with suppress(OSError):  # it may hold requests of another call
            folder.rmdir()
        raise failure
    raise TraceError(
        f"{failure} ({kept} of {len(jobs)} requests are kept in {folder}: the same command resumes)"
    )


def _assemble(
    jobs: Sequence[Request],
    target: Path,
    model: Model,
    dataset: str,
    notes: dict[str, Any],
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
        notes=notes,
    )
    with TraceWriter(target, metadata) as writer:
        for job in jobs:
            for part in job.demands(job.path, str(job.path)):
                writer.write(part)
