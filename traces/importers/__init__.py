"""Importers of what other tools saved: one file per format, one line each below."""

from hisparse_sim.traces.importers.array import ARRAY
from hisparse_sim.traces.importers.importer import Imported, Importer, Options
from hisparse_sim.traces.importers.jsonl import JSONL
from hisparse_sim.traces.importers.sglang import SGLANG
from hisparse_sim.traces.importers.vllm import VLLM

IMPORTERS: dict[str, Importer] = {each.name: each for each in (SGLANG, VLLM, ARRAY, JSONL)}

__all__ = ["IMPORTERS", "Imported", "Importer", "Options", "get_importer"]


def get_importer(name: str) -> Importer:
    """Return the importer of one format. Raises ValueError, naming the known ones."""
    if name not in IMPORTERS:
        raise ValueError(f"unknown format {name!r}; known are {', '.join(IMPORTERS)}")
    return IMPORTERS[name]
