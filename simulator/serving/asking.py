"""Plan, serve, check and reproduce by plain names, for commands and for Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hisparse_sim.policies import Policy, get_policy
from hisparse_sim.simulator.mrc.counted import are_facts
from hisparse_sim.simulator.serving import config_check
from hisparse_sim.simulator.serving.aim import Aim
from hisparse_sim.simulator.serving.candidates import Progress as PlanProgress
from hisparse_sim.simulator.serving.config_check import Finding
from hisparse_sim.simulator.serving.hardware import load_hardware
from hisparse_sim.simulator.serving.missing import Origin
from hisparse_sim.simulator.serving.plan import DEFAULT_BUFFERS, DEFAULT_RATIOS, Plan, make_plan
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.reproduce import Progress, origin_of, table
from hisparse_sim.simulator.serving.reproduce import reproduce as redo
from hisparse_sim.simulator.serving.scenario import scenario_of, several, takes_scenario
from hisparse_sim.simulator.serving.serving_rows import Progress as ServeProgress
from hisparse_sim.simulator.serving.serving_rows import serve_all
from hisparse_sim.traces import OneTrace, as_trace
from hisparse_sim.traces.notebook import shown

DEFAULT_MODES = ("baseline", "hisparse", "zero-cost")
DEFAULT_CONCURRENCY = 256  # over all ranks
OTHER_POLICIES = ("fifo", "lru", "arc", "belady")  # whose misses the best pair is tried with
LINKED = "gh200"  # the machine whose host link it is tried with


@dataclass(frozen=True, kw_only=True)
class Planned(Plan):
    """A plan and its purpose."""

    setting: Setting
    aim: Aim
    origin: Origin  # of the misses
    notes: tuple[str, ...]  # for the reader, a sentence each

    def document(self, every: bool = False) -> dict[str, Any]:
        """Everything, with its basis."""
        return super().document(every) | {"assumptions": list(self.setting.assumptions())}

    def _repr_html_(self) -> str:
        title = "No plan"
        if self.best is not None:
            title = (
                f"Plan: device_buffer_size {self.best['buffer']},"
                f" host_to_device_ratio {self.best['ratio']}"
            )
        return shown(
            title, [*self.reasons, *self.notes, self.flags], self.rows().drop(columns="flags")
        )

    def table(self, every: bool = False) -> pd.DataFrame:
        """The rows with `trace` and `provenance`, as the command writes them and figures need
        them."""
        return _of(self.origin, self.rows(every))


@dataclass(frozen=True)
class Serving:
    """Serving runs, a row per mode and load, and their setting."""

    rows: pd.DataFrame
    setting: Setting
    aim: Aim  # of the first load
    origin: Origin  # of the misses
    notes: tuple[str, ...]

    def _repr_html_(self) -> str:
        return shown("Serving", self.notes, self.rows)


@takes_scenario
def plan(
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
    buffers: int | Iterable[int] | None = None,
    ratios: int | Iterable[int] | None = None,
    any_layout: bool = False,
    mode: str = "hisparse",
    policy: str | Policy = "lru",
    candidates: bool = False,
    progress: PlanProgress | None = None,
    max_tpot_ms: float | None = None,
    max_ttft_s: float | None = None,
    percentile: float = 50.0,
    max_miss_rate: float | None = None,
    rate: float | None = None,
    requests: int | None = None,
    range_ratio: float = 1.0,
    seed: int = 0,
    gpu_hour: float | None = None,
    **scenario: Any,
) -> Planned:
    """Choose `device_buffer_size` and `host_to_device_ratio` for a load, and the number of
    instances if disaggregated.

    Candidates are ranked by an estimate; the best are served, and their figures are those that
    `serve` gives for the same arguments.

    Parameters
    ----------
    scenario
        Fields of `Scenario` (model, hardware, prompt, trace, ...).
    concurrency, rate, requests, range_ratio, seed, gpu_hour
        The load, as for `serve`: a closed loop, or with `rate` an open one.
    buffers, ratios, any_layout
        Candidates (None: `DEFAULT_BUFFERS`, `DEFAULT_RATIOS`), in the layout of the scenario or in
        any that fits the machine.
    mode
        How swap-in and compute overlap.
    max_tpot_ms, max_ttft_s, percentile, max_miss_rate
        Targets: for that percentile of the requests; misses as a share, 0 to 1.
    candidates
        Serve all candidates, not only the finalists.
    progress
        Called with (candidates served, candidates to serve so far).

    Raises what `Scenario.resolve` and `make_plan` raise.
    """
    asked = scenario_of(scenario)
    policy = get_policy(policy)
    setting, misses_of, origin, notes = asked.resolve(mode, policy)
    aim = Aim(
        asked.prompt,
        asked.output_len,
        concurrency,
        max_tpot_ms,
        max_miss_rate,
        max_ttft_s,
        percentile,
        rate,
        requests,
        range_ratio,
        seed,
        gpu_hour,
    )
    pairs = None
    if asked.prefill_instances is not None or asked.decode_instances is not None:
        pairs = [(asked.prefill_instances or 1, asked.decode_instances or 1)]
    found = make_plan(
        setting,
        aim,
        misses_of,
        policy.name,
        several(buffers) or DEFAULT_BUFFERS,
        several(ratios) or DEFAULT_RATIOS,
        instances=pairs,
        other_layouts=asked.in_other_layouts(mode, policy) if any_layout else (),
        other_policies=() if asked.miss_curve or are_facts(asked.trace) else OTHER_POLICIES,
        linked=load_hardware(LINKED, asked.profiles),
        every=candidates,
        progress=progress,
    )
    return Planned(**vars(found), setting=setting, aim=aim, origin=origin, notes=notes)


@takes_scenario
def check_config(
    config: str, *, concurrency: int = DEFAULT_CONCURRENCY, **scenario: Any
) -> list[Finding]:
    """Return what is wrong with a --hisparse-config (JSON) for a deployment and load, and its
    value.

    `scenario`: fields of `Scenario`. No finding of severity error: the engine starts with it.
    """
    asked = scenario_of(scenario)
    setting, misses_of, _, _ = asked.resolve("hisparse", get_policy("lru"))
    aim = Aim(asked.prompt, asked.output_len, concurrency)
    return config_check.check_config(config, setting, aim, misses_of)


@takes_scenario
def serve(
    *,
    modes: str | Iterable[str] | None = None,
    buffer: int = 4096,
    ratio: int = 4,
    policy: str | Policy = "lru",
    concurrencies: int | Iterable[int] | None = None,
    rate: float | None = None,
    requests: int | None = None,
    range_ratio: float = 1.0,
    seed: int = 0,
    max_tpot_ms: float | None = None,
    max_ttft_s: float | None = None,
    percentile: float = 50.0,
    max_miss_rate: float | None = None,
    gpu_hour: float | None = None,
    progress: ServeProgress | None = None,
    **scenario: Any,
) -> Serving:
    """Simulate serving over time: throughput, latency, and where the time goes.

    Parameters
    ----------
    scenario
        Fields of `Scenario`.
    modes
        Of `exposure.MODES` (None: `DEFAULT_MODES`).
    concurrencies, rate
        Closed loop, one row each (None: `DEFAULT_CONCURRENCY`), or open loop, requests per second.
    requests, range_ratio, seed
        Requests (None: four times the concurrency, or 1,000) and their lengths: uniform in
        [range_ratio x length, length], drawn anew for each seed.
    max_tpot_ms, max_ttft_s, percentile, max_miss_rate
        Targets, for `goodput_per_s` and `meets`.
    gpu_hour
        Price of a GPU for an hour, for `cost_per_million` output tokens.
    progress
        Called with (what is served, requests finished, requests in all).

    Columns of the rows: those of `serving_rows.serve_one`, then `trace, provenance`. Raises what
    `Scenario.resolve` and `serve_all` raise.
    """
    if rate is not None and concurrencies:
        raise ValueError("give concurrencies (closed loop) or a rate (open loop), not both")
    asked = scenario_of(scenario)
    policy = get_policy(policy)
    setting, misses_of, origin, notes = asked.resolve("baseline", policy)
    aims = [
        Aim(
            asked.prompt,
            asked.output_len,
            clients,
            max_tpot_ms,
            max_miss_rate,
            max_ttft_s,
            percentile,
            rate,
            requests,
            range_ratio,
            seed,
            gpu_hour,
        )
        for clients in several(concurrencies) or (DEFAULT_CONCURRENCY,)
    ]
    rows = serve_all(
        setting,
        misses_of,
        several(modes) or DEFAULT_MODES,
        buffer,
        ratio,
        policy.name,
        aims,
        progress,
    )
    return Serving(_of(origin, rows), setting, aims[0], origin, notes)


def reproduce(
    trace: OneTrace | None = None,
    *,
    policy: str | Policy = "lru",
    engine: str | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Reproduce published figures, a row each: `what, published, ours, error, how, gap, source`,
    then `trace, provenance`.

    `trace`: whose misses are replayed (None: the synthetic demand of each model). `engine`: a
    release for all figures (None: that of each figure). `progress` is called with the name of
    each figure before it is computed; all take some minutes.
    """
    opened = None if trace is None else as_trace(trace)
    return _of(
        origin_of(opened),
        table(list(redo(opened, get_policy(policy), progress, engine))),
    )


def _of(origin: Origin, rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(trace=origin.name, provenance=origin.provenance)
