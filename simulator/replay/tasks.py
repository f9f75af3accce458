"""The work of a sweep: a part of a trace, read once, and the runs that replay it."""

from typing import NamedTuple

from hisparse_sim.simulator.replay.kept import Finished
from hisparse_sim.simulator.replay.modes import Mode
from hisparse_sim.simulator.replay.ranking import columns_for
from hisparse_sim.simulator.replay.replaying import replay_part
from hisparse_sim.simulator.replay.swept import Run
from hisparse_sim.traces import Part, Trace
from hisparse_sim.traces.file.columns import QUERY


class Task(NamedTuple):
    """A part of a trace and the runs that share one read of it. Independent of other tasks, and
    picklable."""

    trace: Trace
    part: Part
    runs: tuple[Run, ...]
    start: str
    seed: int
    steps: tuple[int, int] | None
    mode: Mode | None = None


def run_task(task: Task) -> list[Finished]:
    """Read the part of `task` once and replay all its runs."""
    if task.mode is not None:
        return _run_mode(task, task.mode)
    columns = columns_for(task.trace, [run.policy for run in task.runs])
    demand = task.trace.read(task.part, columns, task.steps)
    known = (0, 0, 0)
    if demand.rows:
        known = int(demand.step[0]), int(demand.seq_len[-1]), len(demand.positions)
    return [
        Finished(
            *known,
            replay_part(demand, run.policy, run.buffer_size, task.start, seed=task.seed).misses,
            demand.rows,
            {},
        )
        for run in task.runs
    ]


def _run_mode(task: Task, mode: Mode) -> list[Finished]:
    trace = task.trace
    read = trace.read(task.part, {QUERY} & set(trace.optional), task.steps)
    demand = mode.steps(trace, read) if read.rows else read
    known = (0, 0, 0)
    accepted = {}
    if demand.rows:
        known = int(demand.step[0]), int(demand.seq_len[-1]), len(demand.positions)
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
