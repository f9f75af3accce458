"""Lower bounds of every (request, layer), computed as a mode of a sweep, so that they are kept,
resumed and spread over workers as its replays are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.replay.kept import Finished
from hisparse_sim.simulator.replay.kernel import digest_of_sources
from hisparse_sim.simulator.replay.starts import WARM, counted
from hisparse_sim.simulator.replay.tasks import Task, known_of
from hisparse_sim.simulator.study.least import least_exposed, least_misses, window_misses
from hisparse_sim.simulator.study.reuse import reuse_of
from hisparse_sim.traces import Trace
from hisparse_sim.traces.file.queries import read_first_queries

COLUMNS = ("least_newest", "least_start", "least_newest_start", "least_exposed")
STAMP = digest_of_sources(Path(__file__).parent).hex()[:14]


@dataclass(frozen=True)
class Bounds:
    """In place of a policy, MIN; in its rows, the other bounds.

    `hidden`: entries that the link copies ahead of each step of a (request, layer) while it
    computes.
    """

    hidden: float
    start: None = None  # as asked for

    @property
    def key(self) -> str:
        """The key of finished work."""
        return f"bounds {self.hidden} {STAMP}"

    def policy(self, name: str) -> None:
        """Bounds have no policies of their own."""

    def check(self, trace: Trace, policy: Policy, buffer_size: int) -> None:
        """Everything that can be replayed has bounds."""

    def columns(
        self, trace: Trace, counts: Sequence[Mapping[str, int]], row: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the further columns of a result row."""
        return {name: sum(each[name] for each in counts) for name in COLUMNS}

    def run(self, task: Task) -> list[Finished]:
        """Compute the bounds at the buffer sizes of a task."""
        demand = read_first_queries(task.trace, task.part, task.steps)
        rows = counted(demand, task.start)
        known = known_of(rows)
        found = []
        for run in task.runs:
            reuse = reuse_of(demand, run.buffer_size, task.start)
            # The first step, which a warm start does not count, may insert its newest token.
            whole = reuse_of(demand, run.buffer_size) if task.start == WARM else reuse
            misses = np.zeros(rows.rows, np.int32)
            misses[rows.rows - reuse.steps :] = least_misses(reuse)
            values = [
                least_misses(whole, free_newest=True)[whole.steps - reuse.steps :].sum(),
                least_misses(reuse, best_start=True).sum(),
                least_misses(reuse, free_newest=True, best_start=True).sum(),
                np.floor(least_exposed(window_misses(reuse), self.hidden)),
            ]
            counts = dict(zip(COLUMNS, map(int, values), strict=True))
            found.append(Finished(*known, misses, rows.rows, counts))
        return found
