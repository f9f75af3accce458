"""The mode of replay that an engine and a user's options ask for, with its policies and notes."""

from collections.abc import Iterable, Sequence

from hisparse_sim.policies import POLICIES, STANDARD, Policy
from hisparse_sim.simulator.replay.applicable import applicable, with_all
from hisparse_sim.simulator.replay.modes import Mode, mode_of
from hisparse_sim.simulator.replay.modes.sglang import SGLANG
from hisparse_sim.simulator.replay.ranking import check_without_ranks, columns_for
from hisparse_sim.simulator.serving.engines import load_engine
from hisparse_sim.traces import Trace
from hisparse_sim.traces.drafts import all_accepted


def replay_mode(
    traces: Sequence[Trace],
    engine: str,
    *,
    draft_tokens: int | None = None,
    acceptance_length: float | None = None,
    resident_tokens: int = 0,
    counted: bool = False,
    costs: Sequence[str] = (),
) -> Mode | None:
    """Return the mode, or None for the plain replay.

    Raises ValueError for options that contradict each other or the traces, and where nothing is
    known in a mode: of `counted` facts, and of memory and time, that `costs` asks for.
    """
    mode = mode_of(
        traces,
        load_engine(engine).rules,
        draft_tokens=draft_tokens,
        acceptance_length=acceptance_length,
        resident_tokens=resident_tokens,
    )
    if mode is not None and counted:
        raise ValueError(
            "facts were counted with one query a step, nothing resident and SGLang's rules: give"
            " the trace"
        )
    if mode is not None and costs:
        raise ValueError(_no_costs(traces, mode, " and ".join(f"`{name}`" for name in costs)))
    return mode


def _no_costs(traces: Sequence[Trace], mode: Mode, costs: str) -> str:
    """Return why a mode has no such costs, and which command does."""
    if mode.rules.name != SGLANG.name:
        has = f"{mode.rules.engine}'s rules, whose memory and time are not modelled"
        way = "; `hisparse-sim sweep --model` adds bytes"
    else:
        drafts = any(mode.queries(trace) > 1 for trace in traces)
        has = " and ".join(["drafts"] * drafts + ["resident tokens"] * bool(mode.resident_tokens))
        way = (
            f" (`hisparse-sim sweep --model` adds bytes), or ask `hisparse-sim plan` or `serve`,"
            f" which take {has}"
        )
    return (
        f"{costs} would tell memory or time of one query a step with all KV on the host, and this"
        f" replay has {has}: leave {costs} out{way}"
    )


def policies_of(
    traces: Sequence[Trace],
    policies: str | Policy | Iterable[str | Policy] | None,
    sizes: Sequence[int],
    mode: Mode | None,
    notes: list[str],
) -> tuple[str | Policy, ...]:
    """Return the policies asked for, else the standard ones that can be replayed; with a mode its
    own first, as of `all`."""

    def of_mode(others: Iterable[str]) -> tuple[str, ...]:
        if mode is None:
            return tuple(others)
        others = others if mode.unites(traces, min(sizes)) else ()
        return tuple(dict.fromkeys((mode.own_policy(traces), *others)))

    def check(policy: Policy, trace: Trace) -> None:
        columns_for(trace, [policy])
        if mode is not None:
            check_without_ranks(policy, "a mode does")

    def every() -> tuple[str, ...]:
        found = applicable(traces, POLICIES.values(), check, notes)
        return of_mode(each.name for each in found)

    return of_mode(STANDARD) if policies is None else with_all(policies, every)


def mode_notes(
    traces: Sequence[Trace],
    engine: str,
    sizes: Sequence[int],
    mode: Mode | None,
    compare_min: bool = False,
) -> tuple[str, ...]:
    """Return what a reader of the result must know, a sentence each."""
    if mode is None:
        return ()
    notes = []
    queries = max(mode.queries(trace) for trace in traces)
    if queries > 1 and not load_engine(engine).drafts:
        notes.append(f"{engine} has no swap-in for drafts: these are the rules of later releases")
    if any(mode.queries(trace) > trace.metadata.draft_tokens for trace in traces):
        notes.append(
            "the rows of drafts are those of the tokens that came, also where a draft is not"
            " accepted: the trace has no others"
        )
        if mode.acceptance_length is None:
            notes.append(all_accepted(queries))
    for trace in traces:
        for size in sizes:
            notes += mode.rules.refused(mode.queries(trace), trace.metadata.top_k, size)
    if compare_min and not mode.unites(traces, min(sizes)):
        most = max(mode.queries(trace) * trace.metadata.top_k for trace in traces)
        notes.append(
            f"not compared with MIN: a buffer of {min(sizes):,} may not hold what a step selects;"
            f" from {most:,} slots on it does"
        )
    return tuple(dict.fromkeys(notes))
