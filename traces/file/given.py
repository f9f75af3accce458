"""Traces as arguments: a path or an opened trace, one or several, or the bundled sample."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from hisparse_sim.traces.file.reader import Trace, open_trace

OneTrace: TypeAlias = str | PathLike[str] | Trace
Traces: TypeAlias = OneTrace | Sequence[OneTrace]


def as_trace(given: OneTrace | None) -> Trace:
    """Return the trace, opened if it is a path; None: the bundled sample. Raises TraceError."""
    return given if isinstance(given, Trace) else open_trace(given or sample_path())


def as_traces(given: Traces | None) -> list[Trace]:
    """Return all traces, opened; None: the bundled sample. Raises TraceError."""
    if given is None or isinstance(given, str | PathLike | Trace):
        return [as_trace(given)]
    return [as_trace(one) for one in given]


def sample_path() -> Path:
    """Return the bundled trace: 6 layers, 512 steps of a 32k document (see its metadata)."""
    return Path(__file__).parents[1] / "data" / "sample.parquet"
