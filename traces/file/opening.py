"""The metadata of a trace that is opened, completed from its rows."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.columns import QUERY, REQUIRED, ragged, wrong_column
from hisparse_sim.traces.file.metadata import KEY, PROVENANCES, Metadata
from hisparse_sim.traces.file.parts import Container, Part, Stored, decoding
from hisparse_sim.traces.file.rules import RowError
from hisparse_sim.traces.folders import KEYS


def place(part: Part) -> str:
    """Return how an error names a part, behind the name of its file."""
    return f": request {part.request!r}, layer {part.layer}"


def refuse_columns(path: Path, schema: pa.Schema, required: Sequence[str] = REQUIRED) -> None:
    """Raise TraceError if the columns of a file cannot be read."""
    wrong = wrong_column(schema, required)
    if wrong is None:
        return
    missing = [name for name in required if name not in schema.names]
    folders = re.split(rf"(?:^|(?<=[/\\]))(?:{'|'.join(KEYS)})=", str(path))
    if missing and len(folders) > 1 and set(missing) <= set(KEYS):
        wrong += f": open the folder that holds those of all (hive layout), {folders[0] or '.'}"
    raise TraceError(f"{path} {wrong}")


def read_metadata(path: Path, container: Container, provenance: str | None) -> Metadata:
    """Return what the file says, with top_k = 0 where it does not.

    Raises TraceError for columns that cannot be read, too.
    """
    refuse_columns(path, container.schema)
    keys = container.keys
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
    if metadata.draft_tokens > 1:
        refuse_columns(path, container.schema, (*REQUIRED, QUERY))
    return metadata if metadata.provenance else replace(metadata, provenance=provenance or "")


def refuse_queries(path: Path, metadata: Metadata, columns: Collection[str]) -> None:
    """Raise TraceError for a trace of several queries a step whose number is not asked for."""
    if metadata.draft_tokens > 1 and QUERY not in columns:
        raise TraceError(
            f"{path} has up to {metadata.draft_tokens} queries a step (speculative decoding), and"
            f" this works on one a step: `hisparse-sim sweep` and `curve` count its misses by the"
            f" engine's rules for drafts, at the sizes of --buffer"
        )


def completed(path: Path, metadata: Metadata, parts: tuple[Part, ...], groups: Stored) -> Metadata:
    """Return the metadata with the longest row where it names no top_k.

    Raises TraceError if there are no rows, or rows that cannot be read, and for layers that the
    model does not have.
    """
    if not parts:
        raise TraceError(f"{path} holds no rows")
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
