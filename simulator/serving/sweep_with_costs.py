"""Sweeps and the cost of their misses, for the command sweep and for Python."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.mrc.counted import (
    FACTS_NOTE,
    CountedTrace,
    as_traces_or_facts,
    counted_only,
    sweep_counted,
)
from hisparse_sim.simulator.replay import sweeping
from hisparse_sim.simulator.replay.kept import Kept
from hisparse_sim.simulator.replay.modes import Mode
from hisparse_sim.simulator.replay.replaying import MAX_BUFFER_SIZE, default_buffers
from hisparse_sim.simulator.replay.sweeping import Progress
from hisparse_sim.simulator.replay.swept import Sweep
from hisparse_sim.simulator.serving.buffers import check_buffer, whole_pages
from hisparse_sim.simulator.serving.costs import (
    SwapIn,
    add_costs,
    add_swap_in,
    check_costs,
    model_of,
)
from hisparse_sim.simulator.serving.latency import load_link
from hisparse_sim.simulator.serving.memory import PAGE_TOKENS
from hisparse_sim.simulator.serving.models import Model
from hisparse_sim.simulator.serving.replay_modes import mode_notes, policies_of, replay_mode
from hisparse_sim.simulator.serving.scenario import Scenario, deployment_of, several
from hisparse_sim.simulator.serving.traffic import add_traffic, price_of
from hisparse_sim.traces import Trace, Traces
from hisparse_sim.traces.arguments import whole_number
from hisparse_sim.traces.file.units import in_blocks, tokens_of

DEFAULT_RATIO = 2  # the engine's
CURVE_POLICIES = ("lru",)  # the engine's


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
    draft_tokens: int | None = None,
    acceptance_length: float | None = None,
    resident_tokens: int = 0,
    profiles: str | Path | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    keep: str | PathLike[str] | Kept | None = None,
) -> Sweep:
    """Replay policies at buffer sizes over traces, and compute the cost of their misses.

    Parameters
    ----------
    traces
        Paths or opened traces, one or several; None: the bundled sample. Facts files (of `mrc`)
        give the rows of what was counted.
    policies
        Names, files named as `FILE.py:NAME`, or policies; None: the seven of `policies.STANDARD`,
        and the engine's own for drafts; "all": all that apply to every trace.
    buffers
        Slots per request and layer (`device_buffer_size`); None: 1, 2 and 3 times the top_k, or
        with drafts, resident tokens or vLLM the engine's default.
    start
        "staged": prefill on the same GPU left the first tokens in the buffer; "direct": it is
        empty; "warm" (no drafts, no engine's rules): the last row of the prompt was fetched, for
        which the first step stands, uncounted.
    compare_min
        Adds `excess_over_min`, the misses over those of MIN (Belady), minus 1.
    per_layer
        A row per request and layer, instead of one per trace, policy and buffer.
    requests, layers, steps
        Only these; `steps` = (first, stop) keeps first <= step < stop.
    ratios
        `host_to_device_ratio`: adds bytes over the link and the requests that fit, a row each.
        With `model` alone, the engine's default of 2.
    model
        Profile for bytes and memory; None: the trace's model, else glm-5.1. For blocks of tokens
        (qsa, minimax-m3), drafts, resident tokens and vLLM it adds bytes, and no memory.
    kv_dtype, hardware, ..., host_memory_gib
        The deployment for costs, as the fields of `Scenario`; with `start` "direct",
        prefill runs on other GPUs.
    output_len
        Tokens that a request still generates after the trace.
    link, kernel, batch
        A host link adds the modelled swap-in time, of this kernel and batch.
    draft_tokens
        Queries per step (with the engine's own draft), for a replay of speculative decoding; None:
        those of the trace. A trace of one query per step is regrouped, see `traces.drafts`.
    acceptance_length
        Mean tokens accepted per step, for a trace that does not say it; None: all.
    resident_tokens
        Tokens of a request on the GPU beyond what the engine always keeps there: the newest, or by
        vLLM's rules what its pages leave longest.
    profiles
        TOML file with your own models and links.
    seed, jobs, executor, progress, keep
        As in `simulator.replay.sweep`.

    Raises TraceError for a bad trace, one that does not fit a buffer, or one whose positions are
    not tokens if costs are asked for; ValueError for other bad arguments.
    """
    of = as_traces_or_facts(traces)
    counted = counted_without_link(of, link)
    mode = replay_mode(
        of,
        engine,
        draft_tokens=draft_tokens,
        acceptance_length=acceptance_length,
        resident_tokens=resident_tokens,
        counted=bool(counted),
        costs=["ratios"] * bool(several(ratios)) + ["link"] * (link is not None),
    )
    sizes = sizes_of(of, buffers, mode)
    price = None
    blocks = any(in_blocks(trace) for trace in of) and not several(ratios) and link is None
    if model is not None and (mode is not None or blocks):
        price = price_of(of, model, kv_dtype, profiles)
    wanted = several(ratios) or (DEFAULT_RATIO,) * (model is not None and price is None)
    chosen, notes = cost_model(of, model, profiles, needed=bool(wanted or link))
    swap_in = swap_in_over(link, kernel, batch, kv_dtype, chosen, profiles)
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
    if counted:
        swept = sweep_counted(
            counted,
            policies,
            sizes,
            start,
            compare_min=compare_min,
            per_layer=per_layer,
            requests=requests,
            layers=layers,
            steps=steps,
        )
        notes = (*notes, FACTS_NOTE)
    else:
        left_out: list[str] = []
        swept = sweeping.sweep(
            of,
            policies_of(of, policies, sizes, mode, left_out),
            sizes,
            start,
            compare_min=compare_min and (mode is None or mode.unites(of, min(sizes))),
            per_layer=per_layer,
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
        notes = (*left_out, *notes)
    notes = (*page_notes(of, sizes), *mode_notes(of, engine, sizes, mode, compare_min), *notes)
    if not swept.finished:  # interrupted
        return replace(swept, notes=notes)
    rows = swept.rows if price is None else add_traffic(swept, price, mode)
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


def counted_without_link(traces: Sequence[Trace], link: str | None) -> list[CountedTrace]:
    """Return the traces if they are facts, [] if not. Raises TraceError for a mix, ValueError for
    facts with a link."""
    counted = counted_only(traces)
    if counted and link is not None:
        raise ValueError("a `link` takes the misses of every step: give the trace, not its facts")
    return counted


def sizes_of(
    traces: Sequence[Trace], buffers: int | Iterable[int] | None, mode: Mode | None = None
) -> tuple[int, ...]:
    """Return the buffer sizes asked for, else those of the traces, or the engine's for drafts."""
    if buffers is None and mode is not None:
        sizes = [
            mode.rules.default_buffer(mode.queries(trace), trace.metadata.top_k) for trace in traces
        ]
        return (min(max(sizes), MAX_BUFFER_SIZE),)
    if buffers is None:
        return default_buffers(max(trace.metadata.top_k for trace in traces))
    return several(buffers) or ()


def page_notes(traces: Iterable[Trace], sizes: Iterable[int]) -> list[str]:
    """Return notes on sizes that the engine refuses."""
    tokens = {tokens_of(trace.metadata.unit) for trace in traces}
    return [
        f"buffer {size:,} is not a multiple of {PAGE_TOKENS}, which the engine requires"
        for size in sizes
        if not all(whole_pages(size, each) for each in tokens)
    ]


def cost_model(
    traces: Sequence[Trace], name: str | None, profiles: str | Path | None, needed: bool
) -> tuple[Model | None, tuple[str, ...]]:
    """Return the model for costs, if any, and notes on it."""
    if not needed:
        return None, ()
    model, note = model_of(traces, name, profiles)
    return model, (note,) * bool(note)


def swap_in_over(
    link: str | None,
    kernel: str,
    batch: int,
    kv_dtype: str,
    model: Model | None,
    profiles: str | Path | None,
) -> SwapIn | None:
    """Return the conversion of misses to time, if a link is named."""
    batch = whole_number("batch", batch, 1)
    if link is None or model is None:
        return None
    tokens = model.position_tokens
    entry_bytes = model.entry_bytes(kv_dtype) * tokens
    return SwapIn(load_link(link, profiles), kernel, batch, entry_bytes, tokens)
