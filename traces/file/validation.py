"""Checks a whole trace file: all problems at once, and what is unusual."""

import os
from dataclasses import dataclass

import numpy as np

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.agreement import Agreement, layers_absent
from hisparse_sim.traces.file.reader import Trace, open_trace
from hisparse_sim.traces.file.rules import Tally


@dataclass(frozen=True)
class Validation:
    """The findings in one file, a sentence each."""

    problems: tuple[str, ...]  # the trace cannot be used
    warnings: tuple[str, ...]  # it can, but something is unusual
    complete: bool  # False if the search ended at its limit of problems

    @property
    def ok(self) -> bool:
        """True if the trace can be used."""
        return not self.problems


def validate(
    path: str | os.PathLike[str], provenance: str | None = None, limit: int = 20
) -> Validation:
    """Read a whole file and collect its problems: the first of each (request, layer).

    Ends after `limit` problems. A file that cannot be opened as a trace has one problem.
    """
    try:
        trace = open_trace(path, provenance)
    except TraceError as error:
        return Validation((str(error),), (), complete=True)
    problems: list[str] = []
    notes = _Notes(trace)
    read = 0
    for part in trace.parts:
        if len(problems) == limit:
            break
        read += 1
        try:
            notes.add(*trace.read_tallied(part, trace.optional))
        except TraceError as error:
            problems.append(str(error))
    return Validation(tuple(problems), notes.warnings(), complete=read == len(trace.parts))


class _Notes:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.padding = 0
        self.unsorted_rows = 0
        self.empty_rows = 0
        self.short_rows = 0
        self.agreement = Agreement(trace.metadata.layer_types)

    def add(self, demand: Demand, tally: Tally) -> None:
        self.padding += tally.padding
        self.unsorted_rows += tally.unsorted_rows
        lengths = np.diff(demand.offsets)
        self.empty_rows += int((lengths == 0).sum())
        full = np.minimum(demand.seq_len, self.trace.metadata.top_k)
        self.short_rows += int(((lengths > 0) & (lengths < full)).sum())
        self.agreement.add(demand)

    def warnings(self) -> tuple[str, ...]:
        trace, metadata = self.trace, self.trace.metadata
        found = []
        if self.padding:
            found.append(
                f"{self.padding:,} entries of -1 are skipped; the writer never stores them"
            )
        if self.unsorted_rows and metadata.order == "position":
            found.append(
                f"{self.unsorted_rows:,} rows are not sorted, though the metadata says "
                f'order "position"'
            )
        if self.empty_rows:
            found.append(f"{self.empty_rows:,} rows list no position")
        if self.short_rows:
            found.append(
                f"{self.short_rows:,} rows list fewer positions than min(top_k, seq_len), "
                f"top_k being {metadata.top_k:,}"
            )
        found += [*layers_absent(trace.parts), *self.agreement.sentences()]
        missing = [request for request in trace.requests if request not in metadata.prompt_len]
        if missing:
            found.append(
                f"no prompt_len for {len(missing):,} of {len(trace.requests):,} requests; the "
                f"first seq_len - 1 is assumed"
            )
        strangers = set(metadata.prompt_len) - set(trace.requests)
        if strangers:
            plural = "s that have" if len(strangers) > 1 else " that has"
            found.append(f"prompt_len names {len(strangers)} request{plural} no rows")
        if not trace.has_digest:
            found.append(
                "there is no digest (another program wrote the file, or an earlier release), so "
                "damage of its footer may go unseen; `hisparse-sim trace sample` rewrites the file"
            )
        if trace.shared_groups:
            found.append(
                f"{trace.shared_groups} row groups hold several (request, layer), which is slow "
                f"to read; `hisparse-sim trace sample` rewrites the file"
            )
        return tuple(f"{trace.path}: {sentence}" for sentence in found)
