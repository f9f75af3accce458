"""Cutting a smaller trace file out of a larger one."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.reader import Part, Trace
from hisparse_sim.traces.writer import TraceWriter


def sample(
    trace: Trace,
    out: str | os.PathLike[str],
    requests: Iterable[str] | None = None,
    layers: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
) -> Path:
    """Write the rows of these requests, layers and steps (first, stop) to a new file.

    None keeps all. The metadata stays true: it keeps provenance and source, the prompt_len of
    the requests kept (written down if it had to be taken from the first row, which may now be
    cut off), and its notes tell the file it was cut from and how.

    Raises TraceError for a request or layer that the trace does not have, if no row is left,
    or if `out` cannot be written.
    """
    if Path(out).exists() and Path(out).samefile(trace.path):
        raise TraceError(f"{out} cannot be written: it is the trace that is read")
    parts = trace.select(requests, layers)
    optional = [name for name in ("scores", "next_positions") if name in trace.columns]
    prompt_len = _prompt_lengths(trace, parts, steps)
    if not prompt_len:
        raise TraceError(f"{trace.path} has no rows with steps {_shown(steps)}")
    cut = {
        "from": trace.path.name,
        "sha256": trace.sha256,
        "requests": sorted(prompt_len) if requests is not None else None,
        "layers": sorted({part.layer for part in parts}) if layers is not None else None,
        "steps": None if steps is None else list(steps),
    }
    metadata = replace(
        trace.metadata, prompt_len=prompt_len, notes={"cut": cut, "original": trace.metadata.notes}
    )
    with TraceWriter(out, metadata) as writer:
        for part in parts:
            demand = trace.read(part, optional, steps)
            if demand.rows:
                writer.write(demand)
    return Path(out)


def _shown(steps: tuple[int, int] | None) -> str:
    return "" if steps is None else f"{steps[0]} to {steps[1] - 1}"


def _prompt_lengths(
    trace: Trace, parts: tuple[Part, ...], steps: tuple[int, int] | None
) -> dict[str, int]:
    """Return request -> tokens for those that keep a row: it heads the file that is written."""
    lengths: dict[str, int] = {}
    for part in parts:
        step, seq_len = trace.read_steps(part)
        if steps is not None and not ((step >= steps[0]) & (step < steps[1])).any():
            continue
        known = trace.metadata.prompt_len.get(part.request)
        first = int(seq_len[0]) - 1 if known is None else known
        lengths[part.request] = min(first, lengths.get(part.request, first))
    return lengths
