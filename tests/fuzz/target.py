"""What a fuzz target is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.mutate import Mutator


@dataclass(frozen=True)
class Target:
    """One reader, of files with one suffix."""

    name: str
    suffix: str
    seeds: Callable[[], list[bytes]]
    mutators: Sequence[Mutator]
    read: Callable[[Path], Any]  # by the product: content, or ValueError for what it refuses
    # By other means: what may be read, of the file (its data) and the seed that it was made from.
    expected: Callable[[Path, bytes, bytes], Any]
