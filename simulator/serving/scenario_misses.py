"""Where the misses of a scenario come from: a trace, a miss curve, or demand like the model's."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.mrc.counted import as_trace_or_facts
from hisparse_sim.simulator.serving.demand import demand_beyond, demand_of
from hisparse_sim.simulator.serving.memory import held_tokens
from hisparse_sim.simulator.serving.misses import (
    LayerMisses,
    MissesOf,
    Origin,
    layer_misses,
    read_miss_curve,
)
from hisparse_sim.simulator.serving.model import Model
from hisparse_sim.simulator.serving.models import check_unit, profile_name
from hisparse_sim.simulator.serving.speculation import Speculation
from hisparse_sim.traces import OneTrace, Trace


def trace_and_drafts(
    trace: OneTrace | None, speculation: Speculation | None
) -> tuple[Trace | None, Speculation | None]:
    """Return the trace opened, and what is stated of speculative decoding, with the misses of the
    trace's own drafts if it has any.

    Raises ValueError if it has drafts and others, or none, are stated.
    """
    if trace is None:
        return None, speculation
    opened = as_trace_or_facts(trace)
    queries = opened.metadata.draft_tokens
    if queries == 1:
        return opened, speculation
    if speculation is None:
        raise ValueError(
            f"{opened.path} has {queries} queries a step (speculative decoding): give"
            f" `draft_tokens` {queries} and, as `hisparse-sim trace info` shows it,"
            f" `acceptance_length`"
        )
    return opened, speculation.with_misses_of(opened)


def misses_for(
    model: Model,
    policy: Policy,
    context: int,
    trace: OneTrace | None,
    miss_curve: str | Path | None,
    start: str,
) -> tuple[MissesOf, Origin, tuple[str, ...]]:
    """The misses, replayed when they are asked for, their origin, and notes for the reader.

    `context`: tokens of a request. Raises TraceError for a bad trace or curve, or one in another
    unit than the model selects, ValueError if both are given.
    """
    tokens = model.position_tokens
    if miss_curve is not None:
        if trace is not None:
            raise ValueError("give a trace to replay or a miss curve, not both")
        curve = read_miss_curve(miss_curve, policy.name, context, model.top_k, start, model.unit)
        notes: tuple[str, ...] = (f"misses from {miss_curve}",)
        if curve.start not in ("", start):
            notes += (f"they are of a {curve.start} start, this is a {start} one",)
        return curve, curve.origin, notes
    opened: Trace
    if trace is None:
        opened, note = demand_of(model, context)
    else:
        opened = as_trace_or_facts(trace)
        check_unit([opened], model.unit, model.name)
        note = f"misses from {opened.name} ({opened.metadata.model}, {opened.metadata.provenance})"
        if model.name not in (opened.metadata.model, profile_name(opened.metadata.model)):
            note += f", not from {model.name}"
        if opened.metadata.draft_tokens > 1:
            note += ", with its drafts and the engine's own policy for them"

    @cache
    def misses_of(name: str, size: int, resident_tokens: int = 0) -> LayerMisses:
        ours = opened
        if trace is None:
            ours = demand_beyond(model, context, held_tokens(model, size, resident_tokens))
        return layer_misses(
            ours,
            policy if name == policy.name else name,
            size,
            start,
            resident_tokens=resident_tokens,
            position_tokens=tokens,
        )

    return misses_of, Origin.of(opened), (note,)
