"""Plan, serve, check and reproduce by plain names, for commands and for Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pandas as pd

from hisparse_sim.policies import Policy, get_policy
from hisparse_sim.simulator.serving import config_check
from hisparse_sim.simulator.serving.candidates import Progress as PlanProgress
from hisparse_sim.simulator.serving.config_check import Finding
from hisparse_sim.simulator.serving.hardware import load_hardware
from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.plan import DEFAULT_RATIOS, make_plan
from hisparse_sim.simulator.serving.prediction import Setting, own_mode
from hisparse_sim.simulator.serving.reproduce import Progress, origin_of, table
from hisparse_sim.simulator.serving.reproduce import reproduce as redo
from hisparse_sim.simulator.serving.results import Planned, Serving, with_origin
from hisparse_sim.simulator.serving.scenario import (
    Scenario,
    scenario_of,
    several,
    takes_scenario,
)
from hisparse_sim.simulator.serving.serving_rows import Progress as ServeProgress
from hisparse_sim.simulator.serving.serving_rows import as_mode, refusals, serve_all
from hisparse_sim.simulator.serving.setting_notes import (
    check_guess,
    note_on_lengths,
    notes_on_setting,
    resident_within,
)
from hisparse_sim.simulator.serving.workload_files import Recorded, read_workload
from hisparse_sim.simulator.serving.workload_notes import notes_on
from hisparse_sim.simulator.serving.worth import other_policies
from hisparse_sim.traces import OneTrace, as_trace
from hisparse_sim.traces.arguments import switch, whole_number, whole_numbers

DEFAULT_CONCURRENCY = 256  # over all ranks
LINKED = "gh200"  # the machine whose host link it is tried with


@takes_scenario
def plan(
    *,
    concurrency: int | None = None,
    buffers: int | Iterable[int] | None = None,
    ratios: int | Iterable[int] | None = None,
    resident_tokens: int | Iterable[int] | None = None,
    any_layout: bool = False,
    mode: str | None = None,
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
        The load, as for `serve`: a closed loop (None: `DEFAULT_CONCURRENCY`), or with `rate` an
        open one.
    buffers, ratios, resident_tokens, any_layout
        Candidates (None: five sizes from the top-k of the model on, `DEFAULT_RATIOS`, nothing
        resident), in the layout of the scenario or in any that fits the machine. Resident are the
        newest tokens of a request, on the GPU beside its buffer.
    mode
        How swap-in and compute overlap (None: as in the engine with this model).
    max_tpot_ms, max_ttft_s, percentile, max_miss_rate
        Targets: for that percentile of the requests; misses as a share, 0 to 1.
    candidates
        Serve all candidates, not only the finalists.
    progress
        Called with (candidates served, candidates to serve so far).

    Raises what `Scenario.resolve` and `make_plan` raise.
    """
    if rate is not None and concurrency is not None:
        raise ValueError("give a concurrency (closed loop) or a rate (open loop), not both")
    switch("any_layout", any_layout)
    switch("candidates", candidates)
    asked = scenario_of(scenario)
    policy = get_policy(policy)
    recorded = read_workload(asked.workload) if asked.workload is not None else None
    context = recorded.context if recorded else None
    setting, misses_of, origin, notes = asked.resolve(mode, policy, context)
    aim = Aim(
        asked.prompt,
        asked.output_len,
        DEFAULT_CONCURRENCY if concurrency is None else concurrency,
        max_tpot_ms,
        max_miss_rate,
        max_ttft_s,
        percentile,
        rate,
        requests,
        range_ratio,
        seed,
        gpu_hour,
        time_scale=1.0 if asked.time_scale is None else asked.time_scale,
    )
    if recorded:
        aim = aim.of_recorded(recorded, rate is not None or concurrency is not None)
        setting = _with_prefixes(setting, asked, recorded)
        notes += tuple(notes_on(recorded, setting, aim))
    check_guess(setting, (setting.mode,))
    residents = whole_numbers("resident_tokens", several(resident_tokens) or (0,), 0)
    residents, more = resident_within(residents, setting, aim)
    notes += more
    notes += tuple(notes_on_setting(setting, (setting.mode,), residents))
    sizes = several(buffers)
    pairs = None
    if asked.prefill_instances is not None or asked.decode_instances is not None:
        pairs = [(asked.prefill_instances or 1, asked.decode_instances or 1)]
    found = make_plan(
        setting,
        aim,
        misses_of,
        policy.name,
        None if sizes is None else whole_numbers("buffers", sizes),
        whole_numbers("ratios", several(ratios) or DEFAULT_RATIOS),
        residents=residents,
        instances=pairs,
        other_layouts=[
            replace(each, prefix_cache=setting.prefix_cache)
            for each in (asked.in_other_layouts(setting.mode, policy) if any_layout else ())
        ],
        other_policies=other_policies(asked, setting),
        linked=load_hardware(LINKED, asked.profiles),
        every=candidates,
        progress=progress,
    )
    if asked.trace is not None:
        chosen = found.best or found.candidates.iloc[0]
        misses = misses_of(policy.name, int(chosen["buffer"]), int(chosen["resident_tokens"]))
        notes += (note_on_lengths(setting, misses, aim),)
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
    if asked.workload is not None:
        raise ValueError("a configuration is checked for a prompt and an output, not a workload")
    setting, misses_of, _, notes = asked.resolve(None, get_policy("lru"))
    check_guess(setting, (setting.mode,))
    aim = Aim(asked.prompt, asked.output_len, concurrency)
    found = config_check.check_config(config, setting, aim, misses_of)
    if asked.trace is not None and not config_check.errors(found):
        deployment = setting.deployment
        values, _ = config_check.read_config(config, deployment.model, deployment.engine)
        notes += (note_on_lengths(setting, misses_of("lru", values["device_buffer_size"]), aim),)
    return [*found, *(Finding(config_check.NOTE, note) for note in notes)]


@takes_scenario
def serve(
    *,
    modes: str | Iterable[str] | None = None,
    buffer: int | None = None,
    ratio: int = 4,
    resident_tokens: int = 0,
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
        Of `exposure.MODES` (None: baseline, that of the engine with this model, and zero-cost).
    buffer, resident_tokens
        Slots (None: twice the top-k of the model), and the newest tokens of a request that stay on
        the GPU beside them.
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
    recorded = read_workload(asked.workload) if asked.workload is not None else None
    context = recorded.context if recorded else None
    setting, misses_of, origin, notes = asked.resolve("baseline", policy, context)
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
            time_scale=1.0 if asked.time_scale is None else asked.time_scale,
        )
        for clients in several(concurrencies) or (DEFAULT_CONCURRENCY,)
    ]
    if recorded:
        given = rate is not None or bool(concurrencies)
        aims = [aim.of_recorded(recorded, given) for aim in aims]
        setting = _with_prefixes(setting, asked, recorded)
        notes += tuple(notes_on(recorded, setting, aims[0]))
    own = own_mode(setting.deployment, setting.speculation)
    chosen: tuple[str, ...] = several(modes) or ("baseline", own, "zero-cost")
    check_guess(setting, chosen)
    resident = whole_number("resident_tokens", resident_tokens, 0)
    (resident,), more = resident_within((resident,), setting, aims[0])
    notes += more
    notes += tuple(notes_on_setting(setting, chosen, (resident,)))
    top_k = setting.deployment.model.top_k
    size = 2 * top_k if buffer is None else whole_number("buffer", buffer)
    ways = [as_mode(setting, mode, size, whole_number("ratio", ratio), resident) for mode in chosen]
    notes += tuple(refusals(ways, aims))
    rows = serve_all(ways, misses_of, policy.name, aims, progress)
    if asked.trace is not None and set(chosen) != {"baseline"}:
        notes += (note_on_lengths(setting, misses_of(policy.name, size, resident), aims[0]),)
    return Serving(with_origin(origin, rows), setting, aims[0], origin, notes, size)


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
    return with_origin(
        origin_of(opened),
        table(list(redo(opened, get_policy(policy), progress, engine))),
    )


def _with_prefixes(setting: Setting, asked: Scenario, recorded: Recorded) -> Setting:
    """The setting with a prefix cache, if the blocks of the prompts are known."""
    return replace(setting, prefix_cache=not asked.no_prefix_cache and recorded.blocks is not None)
