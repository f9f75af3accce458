"""The metadata of a trace that is opened, completed from its rows."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.columns import QUERY, REQUIRED, ragged
from hisparse_sim.traces.file.metadata import KEY, PROVENANCES, Metadata
from hisparse_sim.traces.file.parts import Part, Stored, decoding
from hisparse_sim.traces.file.rules import RowError


def place(part: Part) -> str:
    """Return how an error names a part, behind the name of its file."""
    return f": request {part.request!r}, layer {part.layer}"


def in_folders(path: Path, schema: pa.Schema) -> str:
    """Return the way out for a file whose missing columns are said by its folders; else nothing."""
    missing = [name for name in REQUIRED if name not in schema.names]
    told = [name for name in missing if any(piece.startswith(f"{name}=") for piece in path.parts)]
    if not told or told != missing:
        return ""
    return (
        f": folders in its path say {' and '.join(told)} (hive layout), so each file would be a"
        " trace of its own; make one of them, as docs/clusters.md shows"
    )


def read_metadata(path: Path, keys: dict[bytes, bytes], provenance: str | None) -> Metadata:
    """Return what the file says, with top_k = 0 where it does not."""
    if KEY not in keys and provenance is None:
        raise TraceError(
            f"{path} has no {KEY.decode()} metadata: state the origin of its positions with "
            f"`provenance` ({', '.join(PROVENANCES)})"
        )
    try:
        metadata = (
            Metadata.from_json(keys[KEY])
            if KEY in keys
            else Metadata("", provenance or "", 0, None)
        )
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    if not metadata.provenance and provenance is None:
        raise TraceError(
            f"{path} does not state the origin of its positions: give it with `provenance` "
            f"({', '.join(PROVENANCES)})"
        )
    return metadata if metadata.provenance else replace(metadata, provenance=provenance or "")


def refuse_queries(path: Path, metadata: Metadata, columns: Collection[str]) -> None:
    """Raise TraceError for a trace of several queries a step whose number is not asked for."""
    if metadata.draft_tokens > 1 and QUERY not in columns:
        raise TraceError(
            f"{path} has up to {metadata.draft_tokens} queries a step (speculative decoding), and"
            f" this works on one a step: `hisparse-sim sweep` replays such a trace by the engine's"
            f" rules for drafts"
        )


def completed(path: Path, metadata: Metadata, parts: tuple[Part, ...], groups: Stored) -> Metadata:
    """Return the metadata with the longest row where it names no top_k.

    Raises TraceError for layers that the model does not have, and rows that cannot be read.
    """
    if metadata.top_k == 0:
        metadata = replace(metadata, top_k=longest_row(path, parts, groups))
    highest = max(part.layer for part in parts)
    lowest = min(part.layer for part in parts)
    if lowest < 0 or highest >= (metadata.num_layers or highest + 1):
        wrong_layer = lowest if lowest < 0 else highest
        raise TraceError(
            f"{path} has rows of layer {wrong_layer}, but the model has "
            f"{'no negative layers' if lowest < 0 else f'{metadata.num_layers} layers'}"
        )
    return metadata


def longest_row(path: Path, parts: tuple[Part, ...], groups: Stored) -> int:
    from hisparse_sim.traces.file import passes

    longest = 1
    for part in parts:
        with decoding(path):
            try:
                found = groups.read(part.first_row, part.rows, ("positions",))
                listed = ragged(found["positions"], "positions")
            except RowError as error:
                raise TraceError(
                    f"{path}{place(part)}, row {part.first_row + error.row}: {error.what}"
                ) from None
        longest = max(longest, passes.longest_row(*listed))
    return longest
