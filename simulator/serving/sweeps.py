"""Sweeps and rolling curves with what their misses cost: what the commands of these names call,
and Python users."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd

from hisparse_sim.policies import POLICIES, Policy
from hisparse_sim.simulator.replay import sweeping
from hisparse_sim.simulator.replay.curves import check_window, rolling_curves
from hisparse_sim.simulator.replay.kept import Kept
from hisparse_sim.simulator.replay.replaying import default_buffers
from hisparse_sim.simulator.replay.sweeping import Progress, rows_kept
from hisparse_sim.simulator.replay.swept import Sweep
from hisparse_sim.simulator.serving.costs import (
    SwapIn,
    add_costs,
    add_swap_in,
    check_costs,
    model_of,
)
from hisparse_sim.simulator.serving.latency import load_link
from hisparse_sim.simulator.serving.memory import PAGE_TOKENS, check_buffer
from hisparse_sim.simulator.serving.models import Model
from hisparse_sim.simulator.serving.scenario import Scenario, deployment_of
from hisparse_sim.traces import OneTrace, Trace, Traces, as_trace, as_traces
from hisparse_sim.traces.file.units import TOKEN, plural
from hisparse_sim.traces.notebook import shown

DEFAULT_RATIO = 2  # the engine's
CURVE_POLICIES = ("lru",)  # the engine's


@dataclass(frozen=True, eq=False)
class Curves:
    """Rolling curves: their rows (columns as in docs/metrics.md), and what they are of."""

    rows: pd.DataFrame
    window: int  # steps
    swept: Sweep
    swap_in: SwapIn | None  # if the curves are of time

    def _repr_html_(self) -> str:
        title = f"Rolling curves over {self.window} steps"
        return shown(title, [self.origin, *self.swept.notes], self.rows)

    @property
    def origin(self) -> str:
        """Which trace, under which assumptions: the caption of a figure."""
        trace = self.swept.pieces[0].trace
        about = trace.metadata
        text = (
            f"{about.provenance} trace {trace.name} ({about.model or 'model unknown'}); simulated"
        )
        if self.swap_in is not None:
            text += (
                f"; {self.swap_in.kernel} kernel over {self.swap_in.link.name},"
                f" batch {self.swap_in.batch}"
            )
        return text + f"; positions are {plural(about.unit)}" * (about.unit != TOKEN)


def sweep(
    traces: Traces | None = None,
    policies: str | Policy | Iterable[str | Policy] | None = None,
    buffers: int | Iterable[int] | None = None,
    start: str = "staged",
    *,
    compare_min: bool = True,
    per_layer: bool = False,
    seed: int = 0,
    requests: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    ratios: int | Iterable[int] | None = None,
    model: str | None = None,
    kv_dtype: str = "bf16",
    hardware: str = Scenario.hardware,
    layout: str = Scenario.layout,
    engine: str = Scenario.engine,
    mem_fraction_static: float = Scenario.mem_fraction_static,
    device_pool_gib: float | None = None,
    max_total_tokens: int | None = None,
    host_gib: float | None = None,
    host_memory_gib: float | None = None,
    output_len: int = 0,
    link: str | None = None,
    kernel: str = "sglang",
    batch: int = 1,
    profiles: str | Path | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    keep: str | PathLike[str] | Kept | None = None,
) -> Sweep:
    """Replay policies at buffer sizes over traces, and say what their misses cost.

    Parameters
    ----------
    traces
        Paths or opened traces, one or several; None: the bundled sample.
    policies
        Names, files named as `FILE.py:NAME`, or policies; None: all of the package.
    buffers
        Slots of a request and layer (`device_buffer_size`); None: 1, 2 and 3 times the top_k.
    start
        "staged": prefill on the same GPU left the first tokens in the buffer; "direct": it is
        empty.
    compare_min
        Adds `excess_over_min`, the misses over those of MIN (Belady), minus 1.
    per_layer
        A row per request and layer, instead of one per trace, policy and buffer.
    requests, layers, steps
        Only these; `steps` = (first, stop) keeps first <= step < stop.
    ratios
        `host_to_device_ratio`: adds bytes over the link and what fits into memory, a row each.
        With `model` given, the engine's default of 2.
    model
        Profile that bytes and memory are of; None: the trace's model, else glm-5.1.
    kv_dtype, hardware, ..., host_memory_gib
        The deployment that costs are of, as the fields of `Scenario`; with `start` "direct",
        prefill runs on other GPUs.
    output_len
        Tokens that a request still grows by after the trace.
    link, kernel, batch
        A host link adds the modelled swap-in time, of a kernel and so many requests together.
    profiles
        TOML file with models and links of one's own.
    seed, jobs, executor, progress, keep
        As in `simulator.replay.sweep`.

    Raises TraceError for a bad trace, one that does not fit a buffer, or one whose positions are no
    tokens where costs are asked for; ValueError for other arguments that cannot be.
    """
    of = as_traces(traces)
    sizes = _sizes(of, buffers)
    wanted = () if ratios is None else tuple(ratios) if isinstance(ratios, Iterable) else (ratios,)
    wanted = wanted or (DEFAULT_RATIO,) * (model is not None)
    chosen, notes = _model(of, model, profiles, needed=bool(wanted or link))
    swap_in = _swap_in(link, kernel, batch, kv_dtype, chosen, profiles)
    check_costs(
        wanted,
        device_pool_gib=device_pool_gib,
        host_gib=host_gib,
        host_memory_gib=host_memory_gib,
    )
    deployment = None
    if chosen is not None and wanted:
        deployment = deployment_of(
            chosen,
            hardware,
            layout,
            kv_dtype=kv_dtype,
            mem_fraction_static=mem_fraction_static,
            device_pool_gib=device_pool_gib,
            max_total_tokens=max_total_tokens,
            host_gib=host_gib,
            host_memory_gib=host_memory_gib,
            engine=engine,
            profiles=profiles,
        )
        for size in sizes:
            check_buffer(chosen, size)
    swept = sweeping.sweep(
        of,
        tuple(POLICIES) if policies is None else policies,
        sizes,
        start,
        compare_min=compare_min,
        per_layer=per_layer,
        seed=seed,
        requests=requests,
        layers=layers,
        steps=steps,
        jobs=jobs,
        executor=executor,
        progress=progress,
        keep=keep,
    )
    notes = (*_page_notes(sizes), *notes)
    if not swept.finished:  # interrupted
        return replace(swept, notes=notes)
    rows = swept.rows
    if deployment is not None:
        direct = start == "direct"
        rows = add_costs(swept, deployment, wanted, output_len=output_len, disaggregated=direct)
    if swap_in is not None:
        rows = add_swap_in(swept, rows, swap_in)
    times = max(1, len(wanted))
    return replace(
        swept,
        rows=rows,
        parts_per_row=np.tile(swept.parts_per_row, times),
        notes=notes,
    )


def curve(
    trace: OneTrace | None = None,
    policies: str | Policy | Iterable[str | Policy] | None = None,
    buffers: int | Iterable[int] | None = None,
    start: str = "staged",
    *,
    window: int = 100,
    skip_steps: int = 0,
    seed: int = 0,
    requests: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    link: str | None = None,
    model: str | None = None,
    kv_dtype: str = "bf16",
    kernel: str = "sglang",
    batch: int = 1,
    profiles: str | Path | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    keep: str | PathLike[str] | Kept | None = None,
) -> Curves:
    """Misses per step and layer over decode steps, the mean of a trailing window.

    `window` and `skip_steps` are steps; the latter leave out the start-up burst of every request.
    `policies` (None: lru) and the other arguments are those of `sweep`; with `link` the curve is
    one of modelled swap-in time. `figures.rolling_misses` draws the rows.

    Raises what `sweep` raises, and ValueError for requests shorter than the window.
    """
    of = [as_trace(trace)]
    sizes = _sizes(of, buffers)
    chosen, notes = _model(of, model, profiles, needed=link is not None)
    swap_in = _swap_in(link, kernel, batch, kv_dtype, chosen, profiles)
    requests = requests if requests is None or isinstance(requests, str) else tuple(requests)
    layers = layers if layers is None or isinstance(layers, int) else tuple(layers)
    parts = of[0].select(requests, layers)
    longest = max((rows_kept(of[0], part, steps) for part in parts), default=0)
    check_window(longest, window, skip_steps)
    swept = sweeping.sweep(
        of,
        CURVE_POLICIES if policies is None else policies,
        sizes,
        start,
        compare_min=False,
        seed=seed,
        requests=requests,
        layers=layers,
        steps=steps,
        jobs=jobs,
        executor=executor,
        progress=progress,
        keep=keep,
    )
    swept = replace(swept, notes=(*_page_notes(sizes), *notes))
    if not swept.finished:  # interrupted
        return Curves(swept.rows, window, swept, swap_in)
    rows = rolling_curves(swept, window, skip_steps, swap_in)
    if swap_in is not None:
        rows = rows.assign(
            link=swap_in.link.name,
            swap_in_kernel=swap_in.kernel,
            batch=swap_in.batch,
            kv_dtype=kv_dtype,
        )
    return Curves(rows, window, swept, swap_in)


def _sizes(traces: Sequence[Trace], buffers: int | Iterable[int] | None) -> tuple[int, ...]:
    if buffers is None:
        return default_buffers(max(trace.metadata.top_k for trace in traces))
    return tuple(buffers) if isinstance(buffers, Iterable) else (buffers,)


def _page_notes(sizes: Iterable[int]) -> list[str]:
    return [
        f"buffer {size} is no multiple of {PAGE_TOKENS}, which the engine requires"
        for size in sizes
        if size % PAGE_TOKENS
    ]


def _model(
    traces: Sequence[Trace], name: str | None, profiles: str | Path | None, needed: bool
) -> tuple[Model | None, tuple[str, ...]]:
    """Return the model that costs are of, if there are any, and what to say about it."""
    if not needed:
        return None, ()
    model, note = model_of(traces, name, profiles)
    return model, (note,) * bool(note)


def _swap_in(
    link: str | None,
    kernel: str,
    batch: int,
    kv_dtype: str,
    model: Model | None,
    profiles: str | Path | None,
) -> SwapIn | None:
    if link is None or model is None:
        return None
    return SwapIn(load_link(link, profiles), kernel, batch, model.entry_bytes(kv_dtype))
