"""The work of a sweep: a part of a trace, read once, and the runs that replay it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.replay.kept import Finished
from hisparse_sim.simulator.replay.modes import Mode
from hisparse_sim.simulator.replay.ranking import columns_for
from hisparse_sim.simulator.replay.replaying import replay_part
from hisparse_sim.simulator.replay.starts import counted
from hisparse_sim.simulator.replay.swept import Run
from hisparse_sim.traces import Demand, Part, Trace
from hisparse_sim.traces.file.columns import QUERY


class Variant(Protocol):
    """Another replay than the plain one: what a sweep asks of it."""

    @property
    def key(self) -> str | None:
        """The key of finished work, which tells these rules from others; None: it is not kept."""

    @property
    def start(self) -> str | None:
        """The only start that there is; None: as asked for."""

    def policy(self, name: str) -> Policy | None:
        """Return a policy that is in no registry, by its name; None if there is none."""

    def check(self, trace: Trace, policy: Policy, buffer_size: int) -> None:
        """Raise ValueError or TraceError for what cannot be replayed."""

    def columns(
        self, trace: Trace, counts: Sequence[Mapping[str, int]], row: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the further columns of a row, whose parts have these counts."""
        ...

    def run(self, task: "Task") -> list[Finished]:
        """Replay the runs of a task."""
        ...


class Task(NamedTuple):
    """A part of a trace and the runs that share one read of it. Independent of other tasks, and
    picklable."""

    trace: Trace
    part: Part
    runs: tuple[Run, ...]
    start: str
    seed: int
    steps: tuple[int, int] | None
    mode: Mode | Variant | None = None

    @property
    def steps_replayed(self) -> int:
        """At most: a step counts once for every run."""
        return self.part.rows * len(self.runs)


def known_of(rows: Demand) -> tuple[int, int, int]:
    """Return what `Finished` tells of the rows that count: first step, tokens, accesses."""
    if not rows.rows:
        return 0, 0, 0
    return int(rows.step[0]), int(rows.seq_len[-1]), len(rows.positions)


def run_task(task: Task) -> list[Finished]:
    """Read the part of `task` once and replay all its runs."""
    if isinstance(task.mode, Mode):
        return _run_mode(task, task.mode)
    if task.mode is not None:
        return task.mode.run(task)
    columns = columns_for(task.trace, [run.policy for run in task.runs])
    demand = task.trace.read(task.part, columns, task.steps)
    rows = counted(demand, task.start)
    known = known_of(rows)
    return [
        Finished(
            *known,
            replay_part(demand, run.policy, run.buffer_size, task.start, seed=task.seed).misses,
            rows.rows,
            {},
        )
        for run in task.runs
    ]


def _run_mode(task: Task, mode: Mode) -> list[Finished]:
    trace = task.trace
    read = trace.read(task.part, {QUERY} & set(trace.optional), task.steps)
    demand = mode.steps(trace, read) if read.rows else read
    known = known_of(demand)
    accepted = {}
    if demand.rows:
        heads = demand.seq_len[demand.first_rows]
        accepted = {"accepted": int(heads[-1] - heads[0]), "accepting": len(heads) - 1}
    covered = read.rows  # all, or as many as the steps of the file are
    if read.query is not None and read.rows < task.part.rows:
        covered = len(read.first_rows)
    found = []
    for run in task.runs:
        done = mode.replay(trace, demand, run.policy, run.buffer_size, task.start, task.seed)
        counts = {
            **accepted,
            "resident_accesses": done.resident_accesses,
            "unloaded": done.unloaded,
        }
        found.append(Finished(*known, done.misses, covered, counts))
    return found
