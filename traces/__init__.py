"""What was demanded: trace files, read part by part with every rule checked, written, described.

Names load their module when first used, so that the command line starts without pyarrow.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hisparse_sim.traces.demand import Demand, Ragged
    from hisparse_sim.traces.errors import TraceError
    from hisparse_sim.traces.files import atomic_path
    from hisparse_sim.traces.metadata import PROVENANCES, Metadata
    from hisparse_sim.traces.reader import Part, Trace, open_trace
    from hisparse_sim.traces.sampling import sample
    from hisparse_sim.traces.summary import LayerInfo, TraceInfo, info
    from hisparse_sim.traces.validation import Validation, validate
    from hisparse_sim.traces.writer import TraceWriter

__all__ = [
    "PROVENANCES",
    "Demand",
    "LayerInfo",
    "Metadata",
    "Part",
    "Ragged",
    "Trace",
    "TraceError",
    "TraceInfo",
    "TraceWriter",
    "Validation",
    "atomic_path",
    "info",
    "open_trace",
    "sample",
    "sample_path",
    "validate",
]

_MODULE_OF = {
    "Demand": "demand",
    "Ragged": "demand",
    "TraceError": "errors",
    "atomic_path": "files",
    "PROVENANCES": "metadata",
    "Metadata": "metadata",
    "Part": "reader",
    "Trace": "reader",
    "open_trace": "reader",
    "sample": "sampling",
    "LayerInfo": "summary",
    "TraceInfo": "summary",
    "info": "summary",
    "Validation": "validation",
    "validate": "validation",
    "TraceWriter": "writer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def sample_path() -> Path:
    """Return the bundled trace: 6 layers, 512 steps of a 32k document (see its metadata)."""
    return Path(__file__).parent / "data" / "sample.parquet"
