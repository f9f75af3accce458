"""Reads a trace file part by part, with all rules checked."""

import os
from collections.abc import Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from hisparse_sim.traces.arguments import whole_numbers
from hisparse_sim.traces.demand import Demand, Ints
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.arrow import HEAD, STREAM_HEAD, arrow_container
from hisparse_sim.traces.file.columns import (
    OPTIONAL,
    QUERY,
    integers,
    present,
    ragged,
    read_following,
    read_scores,
    request_codes,
)
from hisparse_sim.traces.file.hive import hive_container
from hisparse_sim.traces.file.layer_types import anchor_of
from hisparse_sim.traces.file.layout import parquet_container
from hisparse_sim.traces.file.metadata import PROVENANCES, Metadata
from hisparse_sim.traces.file.opening import completed, place, read_metadata, refuse_queries
from hisparse_sim.traces.file.parts import Columns, Container, Part, Stored, decoding
from hisparse_sim.traces.file.rules import RowError, Tally, check_rows, finite, strip_padding
from hisparse_sim.traces.file.units import first_growth
from hisparse_sim.traces.files import Version, opened, sha256_of
from hisparse_sim.traces.folders import is_folder, name_of
from hisparse_sim.traces.notebook import shown
from hisparse_sim.traces.remote import place_of
from hisparse_sim.traces.terminal import printable

__all__ = ["Demand", "Part", "Trace", "open_trace"]


def open_trace(path: str | os.PathLike[str], provenance: str | None = None) -> "Trace":
    """Open a trace file, or a folder in hive layout, and find its parts, without reading any
    positions.

    `provenance` (one of `metadata.PROVENANCES`) is used where the file does not name one; a file
    without is refused. Without metadata top_k is the longest row, which takes a pass over it.

    Raises TraceError if the file cannot be read as a trace, ValueError for an unknown provenance.
    """
    if provenance is not None and provenance not in PROVENANCES:
        raise ValueError(
            f"unknown provenance {provenance!r}; choose one of {', '.join(PROVENANCES)}"
        )
    path = place_of(path)
    path = path if path.name else path.absolute()  # as "."
    container = hive_container(path, _container) if is_folder(path) else _container(path)
    metadata = read_metadata(path, container, provenance)
    parts, rows = container.lay_out({})
    metadata = completed(path, metadata, parts, rows)
    return Trace(path, provenance, metadata, parts, present(container.schema), rows)


def _container(path: Path) -> Container:
    with opened(path, "trace file") as file:
        head = file.read(len(HEAD))
    opens = arrow_container if head.startswith((HEAD, STREAM_HEAD)) else parquet_container
    return opens(path)


class Trace:
    """An open trace: its metadata and its parts.

    Reading is safe from several threads at once, and needs the memory of one part. Pickled, it
    is a path: another process opens the file itself, once.
    """

    def __init__(
        self,
        path: Path,
        provenance: str | None,
        metadata: Metadata,
        parts: tuple[Part, ...],
        columns: frozenset[str],
        groups: Stored,
    ) -> None:
        """Use `open_trace`."""
        self.path = path
        self.metadata = metadata
        self.parts = parts  # in file order
        self.columns = columns  # names of the columns that hold anything
        self._provenance = provenance
        self._groups = groups

    def __repr__(self) -> str:
        return f"<Trace {self.name}: {len(self.parts)} parts, {self.rows} rows>"

    def _repr_html_(self) -> str:
        about = self.metadata
        kept = f" of {about.num_layers}" if about.num_layers else ""
        return shown(
            f"Trace {self.name}: {about.provenance}, {about.model or 'model unknown'}",
            [
                f"{len(self.requests)} requests, {len(self.layers)} layers{kept}, {self.rows:,}"
                f" rows (a decode step of one layer each), top_k {about.top_k:,}",
                about.source,
                about.dataset,
            ],
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.path.absolute(), self._provenance, self._groups.version)

    @property
    def name(self) -> str:
        """File name without its suffix, or name of the folder."""
        return printable(name_of(self.path))

    @property
    def optional(self) -> tuple[str, ...]:
        """The optional columns that it has: `read` for a copy asks for them."""
        found = [name for name in OPTIONAL if name in self.columns]
        return tuple(name for name in found if name != QUERY or self.metadata.draft_tokens > 1)

    @property
    def rows(self) -> int:
        """Rows of the file, over all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def requests(self) -> tuple[str, ...]:
        """Request ids, in file order."""
        return tuple(dict.fromkeys(part.request for part in self.parts))

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that any request has, ascending."""
        return tuple(sorted({part.layer for part in self.parts}))

    @property
    def size_bytes(self) -> int:
        """Size of the file, or of all files."""
        return self._groups.version.size_bytes

    @property
    def shared_groups(self) -> int:
        """Number of row groups that hold rows of several parts: slow to read, see `Groups`."""
        return self._groups.shared(self.parts)

    @property
    def has_digest(self) -> bool:
        """Whether changes of the file after it was written are noticed, see `digest`."""
        return self._groups.digest is not None

    @cached_property
    def sha256(self) -> str:
        """Digest of the whole file, or the one that an Arrow file holds, 64 hexadecimal digits."""
        return self._groups.sha256 or sha256_of(self.path)

    def select(
        self,
        requests: str | Iterable[str] | None = None,
        layers: int | Iterable[int] | None = None,
    ) -> tuple[Part, ...]:
        """Return the parts of these requests and layers, in file order; None means all.

        Raises TraceError for a request or layer that the file does not have, ValueError for
        layers that are no numbers, such as a mask.
        """
        wanted_requests = [requests] if isinstance(requests, str) else requests
        names = None if wanted_requests is None else set(wanted_requests)
        numbers = None if layers is None else set(whole_numbers("layers", layers))
        for asked, there, kind in (
            (names, self.requests, "request"),
            (numbers, self.layers, "layer"),
        ):
            for unknown in sorted((asked or set()) - set(there)):
                shown = ", ".join(map(repr, there[:20])) + (", ..." if len(there) > 20 else "")
                why = self._repeated(unknown) if isinstance(unknown, int) else ""
                raise TraceError(f"{self.path} has no {kind} {unknown!r}{why}; it has {shown}")
        return tuple(
            part
            for part in self.parts
            if (names is None or part.request in names)
            and (numbers is None or part.layer in numbers)
        )

    def _repeated(self, layer: int) -> str:
        anchor = anchor_of(self.metadata.layer_types, layer)
        return "" if anchor is None else f", which selects what layer {anchor} does"

    def read(
        self, part: Part, columns: Iterable[str] = (), steps: tuple[int, int] | None = None
    ) -> Demand:
        """Read one part and check every rule of the trace file.

        `columns` asks for "scores", "next_positions" and "row"; who leaves out the last wants one
        query a step. `steps` = (first, stop) keeps the rows with first <= step < stop, possibly
        none; the rules are checked on all rows.

        Raises TraceError naming file, request, layer and step if the rows break a rule, cannot be
        decoded, or lack a column asked for, and for a trace of several queries a step.
        """
        return self.read_tallied(part, columns, steps)[0]

    def read_tallied(
        self, part: Part, columns: Iterable[str] = (), steps: tuple[int, int] | None = None
    ) -> tuple[Demand, Tally]:
        """Like `read`, and also count what the rules tolerate."""
        columns = tuple(columns)
        for name in columns:
            if name not in OPTIONAL:
                raise ValueError(f"unknown column {name!r}; choose of {', '.join(OPTIONAL)}")
            if name not in self.optional:
                raise TraceError(f"{self.path} has no column {name}")
        refuse_queries(self.path, self.metadata, columns)
        found, step = self._decoded(part, ("request", "layer", "seq_len", "positions", *columns))
        try:
            with decoding(self.path, place(part)):
                demand, tally = self._checked(part, step, found)
        except RowError as error:
            self._refuse(part, step, error)
        return demand if steps is None else demand.cut(*steps), tally

    def read_steps(self, part: Part) -> tuple[Ints, Ints]:
        """Read only (step [rows], seq_len [rows]) of a part, unchecked: it takes no time.

        Raises TraceError if they cannot be decoded.
        """
        found, step = self._decoded(part, ("seq_len",))
        try:
            return step, integers(found["seq_len"], "seq_len", np.int32)
        except RowError as error:
            self._refuse(part, step, error)

    def _decoded(self, part: Part, columns: tuple[str, ...]) -> tuple[Columns, Ints]:
        """Return chunks of these columns, and the steps that errors are placed by."""
        try:
            with decoding(self.path, place(part)):
                found = self._groups.read(part.first_row, part.rows, ("step", *columns))
                return found, integers(found["step"], "step", np.int32)
        except RowError as error:
            self._refuse(part, None, error)

    def _checked(self, part: Part, step: Ints, found: Columns) -> tuple[Demand, Tally]:
        known = {part.request: 0}
        strangers = (request_codes(found["request"], known) != 0) | (
            integers(found["layer"], "layer", np.int16) != part.layer
        )
        if strangers.any():
            raise RowError(int(strangers.argmax()), "the row is of another request or layer")
        seq_len = integers(found["seq_len"], "seq_len", np.int32)
        listed = ragged(found["positions"], "positions")
        query = integers(found[QUERY], QUERY, np.int32) if QUERY in found else None
        about = self.metadata
        tally = check_rows(step, seq_len, listed, about.top_k, query, about.draft_tokens)
        prompt_len = about.prompt_len.get(part.request, int(seq_len[0]) - 1)
        if prompt_len > seq_len[0] - first_growth(about.unit):
            raise RowError(
                0, f"seq_len is {seq_len[0]}, not above the prompt_len {prompt_len} of the metadata"
            )
        scores = read_scores(found["scores"], listed) if "scores" in found else None
        if tally.padding:
            listed, kept = strip_padding(listed)
            scores = None if scores is None else scores[kept]
        scores = None if scores is None else finite(scores, listed.offsets)
        following = None
        if "next_positions" in found:
            following = read_following(ragged(found["next_positions"], "next_positions"), seq_len)
        return Demand(
            part.request, part.layer, prompt_len, step, seq_len, *listed, scores, following, query
        ), tally

    def _refuse(self, part: Part, step: Ints | None, error: RowError) -> NoReturn:
        what = error.what
        if what == "the step has more than one row" and QUERY in self.columns:
            what += (
                ": if they are the queries of speculative decoding, state in the metadata how many"
                " a step has at most, as draft_tokens"
            )
        at = f"row {part.first_row + error.row}" if step is None else f"step {step[error.row]}"
        raise TraceError(f"{self.path}{place(part)}, {at}: {what}") from None


@lru_cache(maxsize=16)
def _reopened(path: Path, provenance: str | None, version: Version) -> Trace:
    """Open a file for a pickled Trace, once per process."""
    trace = open_trace(path, provenance)
    if trace._groups.version != version:
        raise TraceError(f"{path} was changed while it was in use")
    return trace
