"""Rolling curves of misses or their time, for the command curve and for Python."""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import pandas as pd

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.mrc.counted import (
    FACTS_NOTE,
    as_traces_or_facts,
    curve_counted,
)
from hisparse_sim.simulator.mrc.names import TEXTBOOK_LRU
from hisparse_sim.simulator.replay import sweeping
from hisparse_sim.simulator.replay.curves import check_window, rolling_curves
from hisparse_sim.simulator.replay.kept import Kept
from hisparse_sim.simulator.replay.sweeping import Progress, rows_kept
from hisparse_sim.simulator.replay.swept import Sweep
from hisparse_sim.simulator.serving.costs import SwapIn
from hisparse_sim.simulator.serving.replay_modes import mode_notes, policies_of, replay_mode
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.simulator.serving.sweep_with_costs import (
    cost_model,
    counted_without_link,
    page_notes,
    sizes_of,
    swap_in_over,
)
from hisparse_sim.traces import OneTrace
from hisparse_sim.traces.arguments import whole_numbers
from hisparse_sim.traces.file.units import TOKEN, plural
from hisparse_sim.traces.notebook import Shown

CURVE_POLICIES = ("lru",)  # the engine's


@dataclass(frozen=True, eq=False, repr=False)
class Curves(Shown):
    """Rolling curves: their rows (columns as in docs/metrics.md) and their setting."""

    rows: pd.DataFrame
    window: int  # steps
    swept: Sweep
    swap_in: SwapIn | None  # if the curves are of time

    def _shown(self) -> tuple[str, Iterable[str], pd.DataFrame]:
        title = f"Rolling curves over {self.window} steps"
        return title, [self.origin, *self.swept.notes], self.rows

    @property
    def origin(self) -> str:
        """The trace and the assumptions, as the caption of a figure."""
        trace = self.swept.pieces[0].trace
        about = trace.metadata
        text = f"{about.provenance} trace {trace.name} ({about.model or 'model unknown'}); replayed"
        if self.swap_in is not None:
            text += (
                f"; time modelled: {self.swap_in.kernel} kernel over {self.swap_in.link.name},"
                f" batch {self.swap_in.batch}"
            )
        if "rules" in self.rows:
            text += f"; rules of {self.rows['rules'].iloc[0]}"
        return text + f"; positions are {plural(about.unit)}" * (about.unit != TOKEN)


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
    engine: str = Scenario.engine,
    draft_tokens: int | None = None,
    acceptance_length: float | None = None,
    resident_tokens: int = 0,
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
    """Misses per step and layer over decode steps, as the mean of a trailing window.

    `window` and `skip_steps` are steps; the latter leave out the start-up burst of every request.
    `policies` (None: the engine's) and the other arguments are those of `sweep`: with drafts a step
    has the misses of all its queries together. With `link` the curve is one of modelled swap-in
    time. `figures.rolling_misses` draws the rows.

    Raises what `sweep` raises, and ValueError for requests shorter than the window.
    """
    of = as_traces_or_facts(trace)
    if len(of) > 1:
        raise ValueError(f"a curve is of one trace, and {of[0].path} holds facts of {len(of)}")
    counted = counted_without_link(of, link)
    mode = replay_mode(
        of,
        engine,
        draft_tokens=draft_tokens,
        acceptance_length=acceptance_length,
        resident_tokens=resident_tokens,
        counted=bool(counted),
        costs=["link"] * (link is not None),
    )
    sizes = sizes_of(of, buffers, mode)
    chosen, notes = cost_model(of, model, profiles, needed=link is not None)
    swap_in = swap_in_over(link, kernel, batch, kv_dtype, chosen, profiles)
    requests = requests if requests is None or isinstance(requests, str) else tuple(requests)
    layers = None if layers is None else whole_numbers("layers", layers)
    if counted:
        rows, swept = curve_counted(
            counted[0],
            [TEXTBOOK_LRU] if policies is None else policies,
            sizes,
            start,
            window=window,
            skip_steps=skip_steps,
            requests=requests,
            layers=layers,
            steps=steps,
        )
        return Curves(
            rows, window, replace(swept, notes=(*page_notes(of, sizes), FACTS_NOTE)), None
        )
    parts = of[0].select(requests, layers)
    longest = max((rows_kept(of[0], part, steps) for part in parts), default=0)
    check_window(longest, window, skip_steps)
    if policies is None:
        policies = CURVE_POLICIES if mode is None else mode.own_policy(of)
    left_out: list[str] = []
    swept = sweeping.sweep(
        of,
        policies_of(of, policies, sizes, mode, left_out),
        sizes,
        start,
        compare_min=False,
        seed=seed,
        requests=requests,
        layers=layers,
        steps=steps,
        mode=mode,
        jobs=jobs,
        executor=executor,
        progress=progress,
        keep=keep,
    )
    notes = (*page_notes(of, sizes), *mode_notes(of, engine, sizes, mode), *left_out, *notes)
    swept = replace(swept, notes=notes)
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
