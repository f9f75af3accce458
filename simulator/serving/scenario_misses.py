"""Where the misses of a scenario come from: a trace, a miss curve, or demand like the model's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.mrc.counted import CountedTrace, as_trace_or_facts
from hisparse_sim.simulator.replay.mode_names import EPOCH_CLOCK
from hisparse_sim.simulator.serving.demand import demand_beyond, demand_of
from hisparse_sim.simulator.serving.memory import held_tokens
from hisparse_sim.simulator.serving.misses import (
    GIVEN,
    LayerMisses,
    MissCurve,
    MissesOf,
    Origin,
    layer_misses,
    read_miss_curve,
)
from hisparse_sim.simulator.serving.model import Model
from hisparse_sim.simulator.serving.models import check_unit, profile_name
from hisparse_sim.simulator.serving.speculation import Speculation, Stated
from hisparse_sim.traces import OneTrace, Trace
from hisparse_sim.traces.file.layer_types import stands_for
from hisparse_sim.traces.file.metadata import fit_caveat
from hisparse_sim.traces.file.queries import accepted_per_step, check_stated

WEIGHTED = "its layers are weighted: one with an index counts for all that repeat it, too"
UNWEIGHTED = (
    "its layers count once each, since it does not say which of them others repeat: the rows of a"
    " sweep do"
)


def trace_and_drafts(
    trace: OneTrace | None, miss_curve: str | Path | None, stated: Stated
) -> tuple[Trace | None, Speculation | None]:
    """Return the trace opened, and what is known of speculative decoding: what a trace with drafts
    says itself, else what is stated.

    The misses of a step are then replayed: those of the drafts of the trace, or of neighbouring
    tokens (`traces.drafts`), unless `union_misses` are stated, or the misses are of a curve or
    facts. Raises ValueError if a trace has drafts, and others are stated.
    """
    opened = None if trace is None else as_trace_or_facts(trace)
    if opened is not None and opened.metadata.draft_tokens > 1:
        if stated.union_misses is not None:
            raise ValueError(
                f"{opened.path} has drafts, which tell the misses of their union: leave"
                f" `union_misses` out"
            )
        check_stated(opened, stated.draft_tokens, stated.acceptance_length)
        queries = opened.metadata.draft_tokens
        return opened, Speculation(queries, accepted_per_step(opened), replayed=True)
    speculation = stated.speculation()
    rates = miss_curve is not None or isinstance(opened, CountedTrace)
    if speculation is not None and stated.union_misses is None and not rates:
        speculation = replace(speculation, replayed=True)
    return opened, speculation


def misses_for(
    model: Model,
    policy: Policy,
    context: int,
    trace: OneTrace | None,
    miss_curve: str | Path | None,
    start: str,
    speculation: Speculation | None = None,
) -> tuple[MissesOf, Origin, tuple[str, ...]]:
    """The misses, replayed when they are asked for, their origin, and notes for the reader.

    `context`: tokens of a request. With `speculation` of which misses are replayed, they are those
    of its steps. Raises TraceError for a bad trace or curve, or one in another
    unit than the model selects, ValueError if both are given.
    """
    tokens = model.position_tokens
    if miss_curve is not None:
        if trace is not None:
            raise ValueError("give a trace to replay or a miss curve, not both")
        curve = read_miss_curve(miss_curve, policy.name, context, model.top_k, start, model.unit)
        of = _traced(curve)
        notes: tuple[str, ...] = (
            f"misses from {miss_curve}{of}, taken to be at the lengths of the load",
        )
        if curve.weighted:
            notes += (WEIGHTED,)
        elif model.indexer_layers < model.layers:
            notes += (UNWEIGHTED,)
        if curve.start not in ("", start):
            notes += (f"they are of a {curve.start} start, this is a {start} one",)
        return curve, curve.origin, notes
    opened: Trace
    more: tuple[str, ...] = ()
    if trace is None:
        opened, note = demand_of(model, context)
    else:
        opened = as_trace_or_facts(trace)
        check_unit([opened], model.unit, model.name)
        note = f"misses from {opened.name} ({opened.metadata.model}, {opened.metadata.provenance})"
        if model.name not in (opened.metadata.model, profile_name(opened.metadata.model)):
            note += f", not from {model.name}"
        if len(set(stands_for(opened.metadata.layer_types, opened.layers).values())) > 1:
            more = (WEIGHTED,)
        elif isinstance(opened, CountedTrace) and model.indexer_layers < model.layers:
            more = (UNWEIGHTED,)
    drafts = speculation if speculation is not None and speculation.replayed else None
    if drafts is not None:
        own = opened.metadata.draft_tokens > 1
        note += ", with its drafts" if own else ", of neighbouring tokens for drafts"
        note += f" and {EPOCH_CLOCK}, the engine's policy for them, in place of lru"
    if trace is not None and (caveat := fit_caveat(opened.metadata)):
        note += f"; its fit is {caveat}"

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
            draft_tokens=None if drafts is None else drafts.draft_tokens,
            acceptance_length=None if drafts is None else drafts.acceptance_length,
        )

    return misses_of, Origin.of(opened), (note, *more)


def _traced(curve: MissCurve) -> str:
    """The trace of a curve, where its file names one."""
    name, provenance, _ = curve.origin
    if (name, provenance) == (curve.file.stem, GIVEN):
        return ""
    return f", of {name} ({provenance})"
