"""Passes over traces that count misses by buffer size: `hs.mrc`."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from operator import index
from typing import NamedTuple

import numpy as np
import pandas as pd

from hisparse_sim.policies import ALIASES, Policy, get_policy
from hisparse_sim.simulator.mrc.counted import (
    as_traces_or_facts,
    counted_only,
    curves_counted,
)
from hisparse_sim.simulator.mrc.curves import (
    ENGINE_LRU,
    ONE_PASS_METHOD,
    REPLAY,
    Curve,
    MissCurves,
    covering,
    joined,
    skipped,
)
from hisparse_sim.simulator.mrc.names import BELADY, ONE_PASS, TEXTBOOK_LRU
from hisparse_sim.simulator.mrc.one_pass import part_curves
from hisparse_sim.simulator.replay.ranking import columns_for
from hisparse_sim.simulator.replay.replaying import (
    MAX_BUFFER_SIZE,
    check_arguments,
    check_top_k,
    no_steps,
    replay_part,
)
from hisparse_sim.simulator.replay.sweeping import TINY, prepare, trace_names
from hisparse_sim.simulator.replay.workers import calls_of, in_order, workers_of
from hisparse_sim.traces import Part, Trace, TraceError, Traces
from hisparse_sim.traces.arguments import whole_numbers
from hisparse_sim.traces.demand import Longs

POLICIES = (TEXTBOOK_LRU, BELADY, ENGINE_LRU)
# Of top_k: the largest size, and where a policy without a one-pass curve is replayed.
_LARGEST = 8
_REPLAYED = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
_PAGE = 64  # the engine wants a multiple of it
_TOGETHER = 64  # parts in memory until they are summed up


class _Task(NamedTuple):
    """What is counted in a part. Independent of all others, picklable."""

    trace: Trace
    sha256: str
    name: str  # of the trace, in the lines
    part: Part
    one_pass: tuple[str, ...]
    replayed: tuple[Policy, ...]
    sizes: Longs  # of the one-pass curves
    points: Longs  # sizes of the replays
    start: str
    seed: int
    steps: tuple[int, int] | None
    window: int | None
    skip_steps: int


def mrc(
    traces: Traces | None = None,
    policies: str | Policy | Iterable[str | Policy] | None = None,
    buffers: int | Iterable[int] | None = None,
    start: str = "staged",
    *,
    largest: int | None = None,
    per_layer: bool = False,
    window: int | None = None,
    skip_steps: int = 0,
    seed: int = 0,
    requests: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MissCurves:
    """Count the misses of every buffer size, from the top_k of the traces to `largest` (8 times
    that).

    `policies`: "textbook-lru" and "belady" are counted at every size, in one pass each, and so is
    "compulsory", the misses that no policy avoids. Others are
    replayed at `buffers` (ten from top_k to `largest`) and interpolated between them; None: these
    three and the engine's. Facts files give what was counted. The
    engine's "lru" differs a little from the textbook's, which ranks the positions of a step as its
    row lists them. `per_layer` keeps every (request, layer) apart, `window` this many steps of one;
    then sizes go up in pages of 64 slots (less if top_k is below 2,048). `skip_steps` leaves the
    misses of the first steps of every request out (the start-up burst). The other arguments are
    those of `sweep`; `progress(done, parts)` is called after each (request, layer).

    Raises what `sweep` raises.
    """
    opened = as_traces_or_facts(traces)
    _refuse_twice(opened)
    if counted := counted_only(opened):
        return curves_counted(
            counted,
            policies,
            start,
            largest=largest,
            per_layer=per_layer,
            window=window,
            skip_steps=skip_steps,
            requests=requests,
            layers=layers,
            steps=steps,
        )
    policies = POLICIES if policies is None else policies
    asked = [policies] if isinstance(policies, str | Policy) else list(policies)
    if not opened or not asked:
        raise ValueError("nothing to count: name at least one trace and one policy")
    if window is not None and window < 1:
        raise ValueError(f"the window is {window} steps; it must be at least 1")
    if skip_steps < 0 or skip_steps % (window or 1):
        raise ValueError(f"{skip_steps} steps cannot be skipped: name 0, or whole windows")
    names = [ALIASES.get(each, each) if isinstance(each, str) else each for each in asked]
    one_pass = tuple(dict.fromkeys(each for each in names if each in ONE_PASS))
    replayed = tuple(dict.fromkeys(get_policy(each) for each in names if each not in ONE_PASS))
    top_k = max(trace.metadata.top_k for trace in opened)
    for trace in opened:
        columns_for(trace, replayed)
    page = 1 if window is None and not per_layer else page_of(top_k)
    sizes, points = sizes_and_points(top_k, page, buffers, largest)
    for size in (*points.tolist(), int(sizes[-1])):
        check_arguments(size, start)
        for trace in opened:
            check_top_k(trace, size)
    requests = requests if requests is None or isinstance(requests, str) else tuple(requests)
    layers = None if layers is None else whole_numbers("layers", layers)
    tasks = [
        _Task(
            trace=trace,
            sha256=trace.sha256,
            name=name,
            part=part,
            one_pass=one_pass,
            replayed=replayed,
            sizes=sizes,
            points=points,
            start=start,
            seed=seed,
            steps=steps,
            window=window,
            skip_steps=skip_steps,
        )
        for trace, name in zip(opened, trace_names(opened), strict=True)
        for part in trace.select(requests, layers)
    ]
    apart = per_layer or window is not None
    found: list[MissCurves] = []
    lines: list[pd.DataFrame] = []
    prepare(replayed)
    part_curves(TINY, one_pass, 1, start, np.array([0, 1]))
    with workers_of(jobs, executor) as workers:
        calls = calls_of(tasks, _steps, workers, _TOGETHER)
        for done, curves in enumerate(in_order(workers, _count, calls), start=1):
            found.append(curves)
            lines.append(curves.lines)
            if not apart and len(found) == _TOGETHER:
                found = [joined(found).summed()]
            if progress is not None:
                progress(done, len(tasks))
    all_lines = pd.concat(lines, ignore_index=True)
    if all_lines.empty:
        raise no_steps(opened, steps)
    curves = joined(found) if apart else joined(found).summed()
    curves = replace(curves, parts={trace.sha256: trace.parts for trace in opened})
    covers = covering(curves.lines, all_lines, curves.parts, seed)
    return replace(curves, lines=skipped(covers, skip_steps))


def _refuse_twice(opened: Sequence[Trace]) -> None:
    """Misses are summed by trace: two files of one would count twice."""
    known: dict[str, Trace] = {}
    for trace in opened if len(opened) > 1 else ():
        if (other := known.setdefault(trace.sha256, trace)) is not trace:
            raise TraceError(
                f"{other.path} and {trace.path} are of one trace, whose misses would count twice:"
                " give one of them, or merge facts with `hisparse-sim mrc -o FILE.parquet`"
            )


def page_of(top_k: int) -> int:
    """Return the step between sizes that are kept per (request, layer): the engine's page of 64
    slots, or less where it would be coarse."""
    return max(1, min(_PAGE, 1 << max(0, top_k // 32).bit_length() >> 1))


def sizes_and_points(
    top_k: int, page: int, buffers: int | Iterable[int] | None, largest: int | None
) -> tuple[Longs, Longs]:
    """Return the sizes of the one-pass curves, and those that other policies are replayed at."""
    most = min(_LARGEST * top_k, MAX_BUFFER_SIZE) if largest is None else index(largest)
    if most < top_k:
        raise ValueError(f"the largest buffer, {most:,} slots, is below top_k, {top_k:,}")
    if buffers is None:
        points = [min(most, -(-int(times * top_k) // page) * page) for times in _REPLAYED]
        points = [max(top_k, size) for size in points]
    else:
        given = buffers if isinstance(buffers, Iterable) else [buffers]
        points = [index(size) for size in given]
    first = -(-top_k // page) * page
    return np.arange(first, max(most, *points) + 1, page), np.unique(points)


def _steps(task: _Task) -> int:
    """Return how many steps a task passes over or replays."""
    return task.part.rows * (len(task.one_pass) + len(task.replayed) * len(task.points))


def _count(task: _Task) -> MissCurves:
    """Read a part once and count all its curves; a line per window that has steps."""
    columns = columns_for(task.trace, task.replayed)
    demand = task.trace.read(task.part, columns, task.steps)
    starts = np.arange(task.skip_steps, demand.rows, task.window or demand.rows or 1)
    edges = np.append(starts, demand.rows)
    about = task.trace.metadata
    lines = pd.DataFrame(
        {
            "trace": task.name,
            "trace_sha256": task.sha256,
            "provenance": about.provenance,
            "unit": about.unit,
            "model": about.model,
            "top_k": about.top_k,
            "request": task.part.request,
            "layer": task.part.layer,
            "first_step": demand.step[starts].astype(np.int64),
            "steps": np.diff(edges),
            "tokens": demand.seq_len[edges[1:] - 1].astype(np.int64),
            "accesses": np.diff(demand.offsets[edges]),
        }
    )
    edges_from_0 = np.insert(edges, 0, 0)
    found = part_curves(demand, task.one_pass, int(task.sizes[-1]), task.start, edges_from_0)
    of = {
        policy: Curve(ONE_PASS_METHOD, task.sizes, misses[1:, task.sizes])
        for policy, misses in found.items()
    }
    for policy in task.replayed:
        replays = [
            replay_part(demand, policy, size, task.start, seed=task.seed).misses
            for size in task.points.tolist()
        ]
        misses = np.add.reduceat(np.array(replays, np.int64), starts, axis=1)
        of[policy.name] = Curve(REPLAY, task.points, misses.T)
    return MissCurves(lines, task.start, task.seed, of, {}, task.window)
