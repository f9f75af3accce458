"""What an importer is: a name, and a function from a file to demands."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hisparse_sim.traces.demand import Demand


@dataclass(frozen=True)
class Options:
    """What a file may not say itself; None where the user did not either."""

    scratch: Path  # a folder for large temporary files, removed afterwards
    prompt_len: int | None = None  # tokens
    top_k: int | None = None
    num_layers: int | None = None
    layers: Sequence[int] | None = None  # numbers of the layers, in their order in the file
    first_position: int | None = None  # of the query in row 0
    request: str | None = None  # id, where the file holds one request


@dataclass(frozen=True)
class Imported:
    """The demands of a file, in the order of a trace file, and what they say of themselves."""

    parts: Iterator[Demand]
    top_k: int
    num_layers: int | None
    prompt_len: Mapping[str, int] = field(default_factory=dict)
    notes: Any = None


@dataclass(frozen=True)
class Importer:
    """One format. `read` raises TraceError, in one sentence, for whatever is wrong with a file."""

    name: str
    summary: str  # one line
    provenance: str | None  # what such a file always is, None where the user must say
    source: str  # for the metadata
    read: Callable[[Path, Options], Imported]
