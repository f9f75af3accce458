"""The study: every policy and prefetcher at several buffers over traces, against lower bounds."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd

from hisparse_sim.policies import Policy, get_policy
from hisparse_sim.simulator.mrc import mrc
from hisparse_sim.simulator.mrc.names import TEXTBOOK_LRU
from hisparse_sim.simulator.prefetch import NO_PREFETCH, Prefetcher
from hisparse_sim.simulator.prefetch.prefetching import (
    Prefetch,
    try_out,
    without_prefetch,
)
from hisparse_sim.simulator.replay.kept import Kept
from hisparse_sim.simulator.replay.replaying import check_arguments, no_steps
from hisparse_sim.simulator.replay.starts import ALL_STARTS, WARM
from hisparse_sim.simulator.replay.sweeping import BELADY, Progress, rows_kept, sweep
from hisparse_sim.simulator.replay.tasks import Variant
from hisparse_sim.simulator.serving.costs import model_of
from hisparse_sim.simulator.serving.hardware import load_hardware
from hisparse_sim.simulator.serving.step_source import steps_for
from hisparse_sim.simulator.serving.sweep_with_costs import swap_in_over
from hisparse_sim.simulator.study.batches import entries_in
from hisparse_sim.simulator.study.bounds import Bounds
from hisparse_sim.simulator.study.chosen import (
    about_rows,
    other_layers,
    policies_of,
    policy_of,
    prefetchers_of,
    several,
    too_large,
)
from hisparse_sim.simulator.study.measured import Measured
from hisparse_sim.simulator.study.rows import rows_of
from hisparse_sim.traces import Trace, Traces, as_traces
from hisparse_sim.traces.arguments import step_range, whole_number, whole_numbers
from hisparse_sim.traces.notebook import Shown
from hisparse_sim.traces.terminal import counted

_SIZES = (1, 1.5, 2, 3, 4)  # of top_k
BUDGETS = (64, 128, 256, 512)
LRU = "lru"


@dataclass(frozen=True, eq=False, repr=False)
class Study(Shown):
    """The result of a study.

    `rows`: the tidy table, columns as in docs/metrics-study.md. If the study was interrupted it is
    empty, and `finished` of `parts` passes over the traces were done.
    """

    rows: pd.DataFrame
    digests: dict[str, str]  # SHA-256 of every trace file, by its name in the rows
    finished: int
    parts: int
    notes: tuple[str, ...] = ()  # what a reader must know, a sentence each
    counted: ClassVar[str] = "passes of the study"  # what `finished` and `parts` are

    @property
    def interrupted(self) -> bool:
        return self.finished < self.parts

    def _shown(self) -> tuple[str, Iterable[str], pd.DataFrame]:
        done = f" (interrupted: {self.finished} of {self.parts} passes)" * self.interrupted
        return f"Study of {', '.join(self.digests)}{done}", self.notes, self.rows


class _Sweep(NamedTuple):
    """One sweep of the study."""

    prefetcher: str
    budget: int
    policies: tuple[Policy, ...]
    sizes: tuple[int, ...]
    mode: Variant | None


def study(
    traces: Traces | None = None,
    policies: str | Policy | Iterable[str | Policy] | None = None,
    buffers: int | Iterable[int] | None = None,
    start: str = "staged",
    *,
    prefetchers: str | Prefetcher | Iterable[str | Prefetcher] | None = None,
    budgets: int | Iterable[int] | None = None,
    prefetch_policies: str | Policy | Iterable[str | Policy] | None = None,
    model: str | None = None,
    kv_dtype: str = "bf16",
    hardware: str = "h200",
    layout: str = "dp8-tp8",
    link: str = "h200-pcie5",
    kernel: str = "sglang",
    batch: int = 16,
    profiles: str | Path | None = None,
    requests: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    seed: int = 0,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    keep: str | PathLike[str] | Kept | None = None,
) -> Study:
    """Replay policies and prefetchers over traces; compare them with LRU and with lower bounds.

    Parameters
    ----------
    traces
        Paths or opened traces, one or several; None: the bundled sample.
    policies
        Names or policies; None or "all": all that apply to every trace. LRU and MIN come along.
    buffers
        Slots per request and layer; None: 1, 1.5, 2, 3 and 4 times the top_k.
    start
        "staged", "direct" or "warm", see `replay`.
    prefetchers
        Names, files named as `FILE.py:NAME`, or prefetchers; None: all that apply to every trace;
        () or "none": none.
    budgets
        Entries that a prefetcher may fetch ahead per request, layer and step, which have as many
        slots of the buffer; None: 64, 128, 256 and 512.
    prefetch_policies
        What evicts in the other slots; None: LRU.
    model, kv_dtype, hardware, layout
        What computes while the link copies ahead, as in `plan`: entries that the link cannot copy
        in the time of one layer come late. `model` None: that of the traces, else glm-5.1.
    link, kernel, batch
        How misses become time; `batch` requests per GPU, with the same misses.
    profiles
        TOML file with your own models, machines and links.
    requests, layers, steps
        Only these; `steps` = (first, stop) keeps first <= step < stop.
    seed, jobs, executor, progress, keep
        As in `sweep`; the seed is also that of the resampling.

    Raises what `sweep` raises, TraceError for a trace that lacks what a policy or prefetcher that
    was asked for needs, ProfileError where no step times are known.
    """
    of = as_traces(traces)
    top_k = max(trace.metadata.top_k for trace in of)
    given = tuple(int(times * top_k) for times in _SIZES) if buffers is None else several(buffers)
    sizes = tuple(dict.fromkeys(given))
    for size in sizes:
        check_arguments(size, start, ALL_STARTS)
    notes = about_rows(of)
    chosen = policies_of(of, policies, notes)
    guessing = prefetchers_of(of, prefetchers, notes)
    notes += other_layers(of, guessing)
    for prefetcher in guessing:
        try_out(prefetcher)
    entries = [
        whole_number("budgets", each, 1)
        for each in several(BUDGETS if budgets is None else budgets)
    ]
    notes += too_large(entries, sizes, top_k) * bool(guessing)
    beside = tuple(
        policy_of(each) for each in several(LRU if prefetch_policies is None else prefetch_policies)
    )
    chosen = tuple(dict.fromkeys((get_policy(LRU), *chosen, *beside, get_policy(BELADY))))
    requests = requests if requests is None or isinstance(requests, str) else tuple(requests)
    layers = None if layers is None else tuple(whole_numbers("layers", layers))
    steps = step_range(steps)
    priced, about = model_of(of, model, profiles)
    swap_in = swap_in_over(link, kernel, batch, kv_dtype, priced, profiles)
    assert swap_in is not None
    tokens = _mean_positions(of, requests, layers, steps) * priced.position_tokens
    times = steps_for(priced, load_hardware(hardware, profiles), layout, kv_dtype)
    layer_us = times.decode_us(batch, tokens) / priced.layers
    hidden = entries_in(layer_us, swap_in)
    notes += [about] * bool(about)
    computing = f"while a layer of {priced.name} computes"
    if priced.layers < priced.all_layers:
        computing = f"from one layer of {priced.name} that selects to the next"
    notes.append(
        f"{computing} ({layer_us:,.0f} us for {counted(batch, 'request')} of"
        f" {tokens:,.0f} tokens on {hardware}, {layout}; {times.kind}) the link copies"
        f" {hidden:,} entries for each of them"
    )
    plain = without_prefetch(of)
    sweeps = [
        _Sweep(NO_PREFETCH, 0, chosen, sizes, plain),
        _Sweep("bounds", 0, (get_policy(BELADY),), sizes, Bounds(hidden)),
    ]
    for prefetcher in guessing:
        for budget in entries:
            fitting = tuple(size for size in sizes if size - budget >= top_k)
            mode = Prefetch(prefetcher, budget, in_time=hidden)
            sweeps += [_Sweep(prefetcher.name, budget, beside, fitting, mode)] * bool(fitting)

    options = {
        "seed": seed,
        "requests": requests,
        "layers": layers,
        "steps": steps,
        "jobs": jobs,
        "executor": executor,
    }
    parts = [(trace, part) for trace in of for part in trace.select(requests, layers)]
    counts = [rows_kept(trace, part, steps) for trace, part in parts]
    warm = start == WARM
    if not any(count > warm for count in counts):
        raise no_steps(of, steps, start)
    rows = sum(counts)
    work = [rows * len(each.policies) * len(each.sizes) for each in sweeps]
    reports = _Reports(sum(work), progress)
    curves = None
    if plain is None:
        common = {name: value for name, value in options.items() if name != "seed"}
        cold = "staged" if warm else start
        curves = mrc(of, TEXTBOOK_LRU, start=cold, skip_steps=int(warm), **common).summed()  # type: ignore[arg-type]
    measured: Measured | None = None
    bounds: Measured | None = None
    with Kept(keep) if isinstance(keep, str | PathLike) else nullcontext(keep) as kept:
        for number, (each, steps_done) in enumerate(zip(sweeps, work, strict=True)):
            done = sweep(
                of,
                each.policies,
                each.sizes,
                start,
                compare_min=False,
                per_layer=True,
                mode=each.mode,
                progress=reports.of(steps_done),
                keep=kept,
                **options,  # type: ignore[arg-type]
            )
            finished = number + (not done.interrupted)
            if done.stopped and finished < len(sweeps):
                empty = pd.DataFrame()
                return Study(empty, done.digests, finished, len(sweeps), tuple(notes))
            if measured is None or bounds is None:
                found = Measured(done.pieces)
                found.add(done, each.prefetcher)
                measured, bounds = measured or found, found if measured else None
            else:
                measured.add(done, each.prefetcher, each.budget)
    assert measured is not None
    assert bounds is not None
    threads = jobs if executor is None else None  # of this process
    table = rows_of(measured, bounds, curves, swap_in, start, steps=steps, seed=seed, jobs=threads)
    return Study(table, done.digests, len(sweeps), len(sweeps), tuple(notes))


def _mean_positions(
    traces: Sequence[Trace],
    requests: str | Iterable[str] | None,
    layers: Iterable[int] | None,
    steps: tuple[int, int] | None,
) -> float:
    """Return the mean length of the requests over their steps."""
    lengths = []
    for trace in traces:
        for part in trace.select(requests, layers):
            step, seq_len = trace.read_steps(part)
            first, stop = steps or (0, np.inf)
            lengths.append(seq_len[(step >= first) & (step < stop)])
    joined = np.concatenate(lengths)
    return float(joined.mean()) if len(joined) else 1.0


class _Reports:
    """The progress of a sweep as that of all of them."""

    def __init__(self, work: int, progress: Callable[[Progress], None] | None) -> None:
        self._work, self._progress = work, progress
        self._steps = self._accesses = 0  # of the sweeps before
        self._last = Progress(0, 0, 0)

    def of(self, work: int) -> Callable[[Progress], None] | None:
        """Return what the next sweep, of this work, reports to."""
        before = self._steps
        self._steps += work
        self._accesses += self._last.accesses
        self._last = Progress(0, 0, 0)

        def report(one: Progress) -> None:
            assert self._progress is not None
            self._last = one
            accesses = self._accesses + one.accesses
            self._progress(Progress(before + one.steps, self._work, accesses))

        return report if self._progress is not None else None
