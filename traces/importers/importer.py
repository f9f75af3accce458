"""An importer: a name, and a function from a file to demands."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.captured import MOST_LAYERS, MOST_TOKENS, whole
from hisparse_sim.traces.file.units import TOKEN, WANTED, is_unit, tokens_of

_LEAST = {"prompt_len": 0, "top_k": 1, "num_layers": 1, "first_position": 0}


@dataclass(frozen=True)
class Options:
    """What a file may not say itself; None where the user did not either.

    Raises ValueError for what no trace file can hold.
    """

    scratch: Path  # a folder for large temporary files, removed afterwards
    prompt_len: int | None = None  # tokens
    top_k: int | None = None
    num_layers: int | None = None  # of the model
    layers: Sequence[int] | None = None  # numbers of the layers, in their order in the file
    first_position: int | None = None  # of the query in row 0
    request: str | None = None  # id, where the file holds one request
    layer_types: Sequence[str] | None = None  # [num_layers], "full" or "shared"
    unit: str = TOKEN  # of the positions in the file; prompt_len and first_position are tokens

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            most = MOST_LAYERS if name == "num_layers" else MOST_TOKENS
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(value, f"`{name}`", least, most))
        if not is_unit(self.unit):
            raise ValueError(f"`unit` is {self.unit!r}, expected {WANTED}")
        if self.layer_types is not None and len(self.layer_types) != self.num_layers:
            raise ValueError(
                f"{len(self.layer_types)} layer_types are given, for another `num_layers`"
            )
        if self.layers is None:
            return
        last = (self.num_layers or MOST_LAYERS) - 1
        layers = tuple(whole(each, "a layer of `layers`", 0, last) for each in self.layers)
        if len(set(layers)) < len(layers):
            twice = next(each for each in layers if layers.count(each) > 1)
            raise ValueError(
                f"`layers` names layer {twice} twice: name each layer of the file once"
            )
        object.__setattr__(self, "layers", layers)

    @property
    def axis(self) -> int | None:
        """Layers of an array in the file, as far as the user said."""
        return self.num_layers if self.layers is None else len(self.layers)

    @property
    def tokens(self) -> int:
        """Tokens of a position."""
        return tokens_of(self.unit)


@dataclass(frozen=True)
class Imported:
    """The demands of a file, in the order of a trace file, and their metadata."""

    parts: Iterator[Demand]
    top_k: int
    num_layers: int | None
    prompt_len: Mapping[str, int] = field(default_factory=dict)
    notes: Any = None
    doubts: tuple[str, ...] = ()  # sentences on what may not be meant


@dataclass(frozen=True)
class Importer:
    """One format. `read` raises TraceError, in one sentence, for whatever is wrong with a file."""

    name: str
    summary: str  # one line
    provenance: str | None  # what such a file always is, None where the user must say
    source: str  # for the metadata
    read: Callable[[Path, Options], Imported]
    refuses: Mapping[str, str] = field(default_factory=dict)  # options without meaning -> why


@contextmanager
def scratch_errors(scratch: Path) -> Iterator[None]:
    """Attribute an OSError in the block to the scratch folder, not to the file."""
    try:
        yield
    except OSError as error:
        raise TraceError(
            f"{scratch} cannot be written ({error.strerror or error}): scratch files lie beside "
            f"the output and need as much space as the numbers of the input"
        ) from error


def write_scratch(file: FileIO, piece: bytes) -> None:
    """Write to an unbuffered scratch file, so that a full disk shows here, not at its close."""
    left = memoryview(piece)
    with scratch_errors(Path(os.fsdecode(file.name)).parent):
        while left:
            left = left[file.write(left) :]
