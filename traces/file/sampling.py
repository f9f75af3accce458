"""Cuts a smaller trace file out of a larger one."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.reader import Part, Trace
from hisparse_sim.traces.file.writer import TraceWriter
from hisparse_sim.traces.files import refuse_input, refuse_unwritable
from hisparse_sim.traces.remote import place_of
from hisparse_sim.traces.terminal import printable


def sample(
    trace: Trace,
    out: str | os.PathLike[str],
    requests: Iterable[str] | None = None,
    layers: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
) -> Path:
    """Write the rows of these requests, layers and steps (first, stop) to a new file.

    None keeps all. The new file replays to the counts that the same selection of the old one has.
    The metadata stays true: it keeps provenance and source, the prompt_len of the requests kept
    (written down if it had to be taken from the first row, which may now be cut off), and its
    notes tell the file it was cut from and how.

    Raises TraceError for a request or layer that the trace does not have, if no row is left, if
    layers with different prompts lose their first rows, or if `out` cannot be written.
    """
    refuse_unwritable(out)
    refuse_input(out, [trace.path])
    parts = trace.select(requests, layers)
    kept, prompt_len = _prompt_lengths(trace, parts, steps)
    if not kept:
        raise TraceError(f"{trace.path} has no rows with steps {_shown(steps)}")
    cut = {
        "from": printable(trace.path.name),
        "sha256": trace.sha256,
        "requests": kept if requests is not None else None,
        "layers": sorted({part.layer for part in parts}) if layers is not None else None,
        "steps": None if steps is None else list(steps),
    }
    metadata = replace(
        trace.metadata, prompt_len=prompt_len, notes={"cut": cut, "original": trace.metadata.notes}
    )
    with TraceWriter(out, metadata) as writer:
        for part in parts:
            demand = trace.read(part, trace.optional, steps)
            if demand.rows:
                writer.write(demand)
    return place_of(out)


def _shown(steps: tuple[int, int] | None) -> str:
    return "" if steps is None else f"{steps[0]} to {steps[1] - 1}"


def _prompt_lengths(
    trace: Trace, parts: tuple[Part, ...], steps: tuple[int, int] | None
) -> tuple[list[str], dict[str, int]]:
    """Return the requests that keep a row, and their tokens: both head the file that is written.

    Without metadata each layer has its own prompt_len, by its first row. Layers that differ are
    left without, and need their first rows.
    """
    lengths: dict[str, set[int]] = {}
    headless: set[str] = set()
    for part in parts:
        step, seq_len = trace.read_steps(part)
        within = np.ones(len(step), bool)
        if steps is not None:
            within = (step >= steps[0]) & (step < steps[1])
        if within.any():
            known = trace.metadata.prompt_len.get(part.request, int(seq_len[0]) - 1)
            lengths.setdefault(part.request, set()).add(known)
            if not within[0]:
                headless.add(part.request)
    for request in headless:
        if len(lengths[request]) > 1:
            raise TraceError(
                f"{trace.path}: request {request!r} has no prompt_len and its layers begin with "
                f"different seq_len, so that it is unknown once their first steps are cut "
                f"off; cut one layer at a time"
            )
    agreed = {request: known.pop() for request, known in lengths.items() if len(known) == 1}
    return sorted(lengths), agreed
