"""Sweeps of policies and buffer sizes over traces, part by part, on any executor."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from itertools import product
from operator import index
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from hisparse_sim.policies import Policy, PolicyError, get_policy
from hisparse_sim.simulator.replay import mode_names
from hisparse_sim.simulator.replay.coverage import coverage
from hisparse_sim.simulator.replay.kept import Finished, Kept, Setting
from hisparse_sim.simulator.replay.metrics import excess_over_min, tidy_row, tidy_rows
from hisparse_sim.simulator.replay.modes import EPOCH_CLOCK, NEEDS_DRAFTS, Mode
from hisparse_sim.simulator.replay.modes.columns import shared_columns
from hisparse_sim.simulator.replay.ranking import columns_for
from hisparse_sim.simulator.replay.replaying import (
    check_arguments,
    check_top_k,
    no_steps,
    replay_part,
)
from hisparse_sim.simulator.replay.starts import ALL_STARTS, STARTS, WARM
from hisparse_sim.simulator.replay.swept import Piece, Run, Sweep
from hisparse_sim.simulator.replay.tasks import Task, Variant, run_task
from hisparse_sim.simulator.replay.workers import Workers, as_they_end, calls_of, workers_of
from hisparse_sim.traces import Demand, Part, Trace, Traces, as_traces
from hisparse_sim.traces.arguments import step_range, whole_number, whole_numbers
from hisparse_sim.traces.demand import Ragged
from hisparse_sim.traces.errors import without_credentials
from hisparse_sim.traces.terminal import printable

BELADY = "belady"
# One row of one position: what a loop is called with to be compiled.
_ONE = np.zeros(1, np.int32)
_TWO = np.array([0, 1])
_SCORES, _BEHIND = _ONE.astype(np.float16), Ragged(0 * _TWO, _ONE[:0])
TINY = Demand("", 0, 1, _ONE, _ONE + 2, _TWO, _ONE, _SCORES, _BEHIND)


class Progress(NamedTuple):
    """Progress of a sweep; a step counts once per run."""

    steps: int
    total_steps: int
    accesses: int


def sweep(
    traces: Traces,
    policies: str | Policy | Iterable[str | Policy],
    buffers: int | Iterable[int],
    start: str = "staged",
    *,
    compare_min: bool = True,
    per_layer: bool = False,
    seed: int = 0,
    requests: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    mode: Mode | Variant | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    keep: str | PathLike[str] | Kept | None = None,
) -> Sweep:
    """Replay every policy at every buffer size over every trace.

    `compare_min` adds `excess_over_min`, for which MIN (Belady) is replayed even if not asked for.
    `per_layer` gives a row per (request, layer) instead of one per (trace, policy, buffer). `mode`:
    the rules of an engine for drafts or resident pages, see `modes.mode_of`, or a prefetch. `jobs`
    threads (default: all cores) do the work, or any `executor` passed in. A KeyboardInterrupt ends
    the sweep with the parts that are finished. `keep` names a file to which all work is appended as
    it is finished, and from which it is taken if the file is there and the trace, the settings and
    the program are the same; remove it when the result is safe. An open `Kept` stays open for that.
    The other arguments are those of `replay`.

    Raises what `replay` raises, and TraceError if another sweep holds the file of `keep`.
    """
    opened = as_traces(traces)
    policies = [policies] if isinstance(policies, str | Policy) else policies
    sizes = buffers if isinstance(buffers, Iterable) else [buffers]
    asked = list(
        dict.fromkeys(
            Run(_policy(policy, mode), size)
            for policy, size in product(policies, [index(size) for size in sizes])
        )
    )
    if not asked:
        raise ValueError("nothing to sweep: name at least one policy and one buffer size")
    optima = [Run(get_policy(BELADY), size) for size in {run.buffer_size for run in asked}]
    runs = list(dict.fromkeys(asked + optima)) if compare_min else asked
    for run in runs:
        check_arguments(run.buffer_size, start, STARTS if isinstance(mode, Mode) else ALL_STARTS)
        for trace in opened:
            check_top_k(trace, run.buffer_size)
            if mode is not None:
                mode.check(trace, run.policy, run.buffer_size)
            columns_for(trace, [run.policy])

    if requests is not None and not isinstance(requests, str):
        requests = tuple(requests)
    if layers is not None:
        layers = whole_numbers("layers", layers)
    steps, seed = step_range(steps), whole_number("seed", seed)
    names = trace_names(opened)
    pieces = [
        Piece(trace, name, part)
        for trace, name in zip(opened, names, strict=True)
        for part in trace.select(requests, layers)
    ]
    if not pieces:
        raise ValueError("nothing to sweep: no request and layer is selected")
    if not any(rows_kept(piece.trace, piece.part, steps) > (start == WARM) for piece in pieces):
        raise no_steps(opened, steps, start)
    opened_here = Kept(keep) if isinstance(keep, str | PathLike) else nullcontext(keep)
    with opened_here as kept:
        rules = "" if mode is None else mode.key
        setting = Setting(start, seed, steps, rules)
        if kept is not None:
            for piece, run in product(pieces, runs):
                if (known := kept.find(setting, piece.trace, piece.part, *run)) is not None:
                    piece.add(run, known)

        def store(piece: Piece, run: Run, done: Finished) -> None:
            piece.add(run, done)
            if kept is not None:
                kept.add(setting, piece.trace, piece.part, *run, done)

        with workers_of(jobs, executor) as workers:
            tasks = _tasks(pieces, runs, start, seed, steps, workers.threads, mode)
            if tasks:
                prepare(run.policy for run in runs)
            stopped = _execute(tasks, workers, store, progress)
    finished = [piece for piece in pieces if len(piece.misses) == len(runs)]
    for piece in finished:  # in the order asked for, not that in which they ended
        piece.misses = {run: piece.misses[run] for run in runs}
    by_trace = _by_trace(finished)
    covered = {
        group[0].name: coverage(
            group[0].trace.sha256, group[0].trace.parts, [piece.covered for piece in group], seed
        )
        for group in by_trace
    }
    grouped = [[piece] for piece in finished] if per_layer else by_trace
    return Sweep(
        rows=tidy_rows(
            _row(group, run, start, per_layer, compare_min, mode) | covered[group[0].name]
            for group in grouped
            for run in asked
        ),
        per_layer=per_layer,
        parts_per_row=np.array([len(group) for group in grouped for _ in asked]),
        finished=len(finished),
        parts=len(pieces),
        pieces=finished,
        stopped=stopped,
    )


def rows_kept(trace: Trace, part: Part, steps: tuple[int, int] | None) -> int:
    """Return the number of rows of a part that a selection of steps keeps."""
    if steps is None:
        return part.rows
    step, _ = trace.read_steps(part)
    return int(((step >= steps[0]) & (step < steps[1])).sum())


def _tasks(
    pieces: list[Piece],
    runs: list[Run],
    start: str,
    seed: int,
    steps: tuple[int, int] | None,
    workers: int,
    mode: Mode | Variant | None,
) -> list[tuple[Piece, Task]]:
    """Divide the unfinished work. With fewer parts than workers, a part is read more than once so
    that workers share its runs."""
    missing = [(piece, [run for run in runs if run not in piece.misses]) for piece in pieces]
    missing = [(piece, left) for piece, left in missing if left]
    most = -(-2 * workers // max(1, len(missing))) if workers > 1 else 1
    return [
        (piece, Task(piece.trace, piece.part, tuple(left[share::shares]), start, seed, steps, mode))
        for piece, left in missing
        for shares in [min(len(left), most)]
        for share in range(shares)
    ]


def prepare(policies: Iterable[Policy]) -> None:
    """Compile their loops in advance, so that threads do not wait for the compiler and rates do not
    include it."""
    for policy in dict.fromkeys(policies):
        if policy != EPOCH_CLOCK:  # has a loop of its own, compiled at its first call
            replay_part(TINY, policy, 1)


def _execute(
    tasks: list[tuple[Piece, Task]],
    workers: Workers,
    store: Callable[[Piece, Run, Finished], None],
    progress: Callable[[Progress], None] | None,
) -> bool:
    """Run all tasks and store their results as they come; tell whether an interrupt came."""
    pieces = {id(task): piece for piece, task in tasks}
    total_steps = sum(task.steps_replayed for _, task in tasks)
    done_steps = accesses = 0

    def finish(task: Task, results: list[Finished]) -> None:
        nonlocal done_steps, accesses
        for run, done in zip(task.runs, results, strict=True):
            store(pieces[id(task)], run, done)
            accesses += done.accesses
        done_steps += task.steps_replayed
        if progress is not None:
            progress(Progress(done_steps, total_steps, accesses))

    calls = calls_of([task for _, task in tasks], lambda task: task.steps_replayed, workers)
    return as_they_end(workers, run_task, calls, finish)


def trace_names(traces: Sequence[Trace]) -> list[str]:
    """Return the file stem of every trace, or its path where two share a stem: of a URL without
    credentials, and with a number where only these differ."""
    stems = [trace.name for trace in traces]
    paths = {str(trace.path): printable(without_credentials(str(trace.path))) for trace in traces}
    shown = list(paths.values())
    for number, (path, name) in enumerate(paths.items(), 1):
        paths[path] = f"{name} ({number})" if shown.count(name) > 1 else name
    return [
        stem if stems.count(stem) == 1 else paths[str(trace.path)]
        for trace, stem in zip(traces, stems, strict=True)
    ]


def _by_trace(pieces: list[Piece]) -> list[list[Piece]]:
    groups: dict[int, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(id(piece.trace), []).append(piece)
    return list(groups.values())


def _row(
    group: list[Piece],
    run: Run,
    start: str,
    per_layer: bool,
    compare_min: bool,
    mode: Mode | Variant | None,
) -> dict[str, Any]:
    first = group[0]
    start = start if mode is None else mode.start or start
    requests = {piece.part.request for piece in group}
    row = {
        "trace": first.name,
        "provenance": first.trace.metadata.provenance,
        "unit": first.trace.metadata.unit,
        "request": first.part.request if len(requests) == 1 else None,
        "layer": first.part.layer if per_layer else None,
        "policy": run.policy.name,
        "buffer": run.buffer_size,
        "start": start,
        **tidy_row(
            np.concatenate([piece.misses[run] for piece in group]),
            sum(piece.accesses for piece in group),
        ),
    }
    if compare_min:
        optimum = Run(get_policy(BELADY), run.buffer_size)
        least = sum(int(piece.misses[optimum].sum(dtype=np.int64)) for piece in group)
        row["excess_over_min"] = excess_over_min(row["misses"], least)
    if mode is not None:
        row |= mode.columns(first.trace, [piece.counts[run] for piece in group], row)
    return row | shared_columns(
        first.trace.metadata.layer_types,
        [
            (piece.part.layer, int(piece.misses[run].sum(dtype=np.int64)), piece.accesses)
            for piece in group
        ],
    )


def _policy(policy: str | Policy, mode: Mode | Variant | None) -> Policy:
    own = mode.policy(policy) if mode is not None and isinstance(policy, str) else None
    if own is None and policy == mode_names.EPOCH_CLOCK:
        if isinstance(mode, Mode) and mode.rules.drafts_policy is None:
            raise PolicyError(
                f"{policy} is a policy of SGLang, and these are the rules of {mode.rules.engine}:"
                " choose lru, or an SGLang `engine`"
            )
        raise PolicyError(NEEDS_DRAFTS)
    return own or get_policy(policy)
