"""Traces of top-k positions: read with every rule checked, made, and described.

`file`: the trace file, read part by part, written, checked, cut, described.
`capture`: traces from a running engine or a Hugging Face model.
`importers`: traces from what other tools saved.
`synth`: synthetic traces.  `locality`: how local the accesses of a trace are.
`commands`: the command line of these, and the options that all commands share.

Names load their module on first use, so that the command line starts without pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hisparse_sim.traces.demand import Demand, Ragged
    from hisparse_sim.traces.errors import TraceError
    from hisparse_sim.traces.file.given import OneTrace, Traces, as_trace, as_traces, sample_path
    from hisparse_sim.traces.file.in_memory import trace_from_array, trace_from_frame
    from hisparse_sim.traces.file.metadata import PROVENANCES, Metadata
    from hisparse_sim.traces.file.parts import Part
    from hisparse_sim.traces.file.reader import Trace, open_trace
    from hisparse_sim.traces.file.sampling import sample
    from hisparse_sim.traces.file.summary import LayerInfo, TraceInfo, info
    from hisparse_sim.traces.file.validation import Validation, validate
    from hisparse_sim.traces.file.writer import TraceWriter
    from hisparse_sim.traces.files import atomic_path

__all__ = [
    "PROVENANCES",
    "Demand",
    "LayerInfo",
    "Metadata",
    "OneTrace",
    "Part",
    "Ragged",
    "Trace",
    "TraceError",
    "TraceInfo",
    "TraceWriter",
    "Traces",
    "Validation",
    "as_trace",
    "as_traces",
    "atomic_path",
    "info",
    "open_trace",
    "sample",
    "sample_path",
    "trace_from_array",
    "trace_from_frame",
    "validate",
]

_MODULE_OF = {
    "Demand": "demand",
    "Ragged": "demand",
    "TraceError": "errors",
    "atomic_path": "files",
    "OneTrace": "file.given",
    "Traces": "file.given",
    "as_trace": "file.given",
    "as_traces": "file.given",
    "sample_path": "file.given",
    "trace_from_array": "file.in_memory",
    "trace_from_frame": "file.in_memory",
    "PROVENANCES": "file.metadata",
    "Metadata": "file.metadata",
    "Part": "file.parts",
    "Trace": "file.reader",
    "open_trace": "file.reader",
    "sample": "file.sampling",
    "LayerInfo": "file.summary",
    "TraceInfo": "file.summary",
    "info": "file.summary",
    "Validation": "file.validation",
    "validate": "file.validation",
    "TraceWriter": "file.writer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
