"""What a study compares: what was asked for, or all for which the traces have enough."""

from collections.abc import Iterable, Sequence
from itertools import product

from hisparse_sim.policies import ALL, POLICIES, Policy, PolicyError, get_policy
from hisparse_sim.simulator.prefetch import (
    NO_PREFETCH,
    PREFETCHERS,
    Prefetcher,
    get_prefetcher,
)
from hisparse_sim.simulator.prefetch.prefetching import check_trace
from hisparse_sim.simulator.prefetch.shared_index import SHARED_INDEX
from hisparse_sim.simulator.replay.applicable import applicable, with_all
from hisparse_sim.simulator.replay.mode_names import EPOCH_CLOCK
from hisparse_sim.simulator.replay.ranking import columns_for
from hisparse_sim.traces import Trace, TraceError
from hisparse_sim.traces.file.layer_types import followers
from hisparse_sim.traces.file.queries import has_drafts
from hisparse_sim.traces.file.units import in_blocks, plural


def policy_of(name: str | Policy) -> Policy:
    """Return the policy of this name; PolicyError also for one that only a mode of replay has."""
    if name == EPOCH_CLOCK:
        raise PolicyError(
            f"{EPOCH_CLOCK} is SGLang's rule for several queries a step, of which study replays the"
            " first: leave it out, or replay it with sweep"
        )
    return get_policy(name)


def check_policy(policy: Policy, trace: Trace) -> None:
    if columns_for(trace, [policy]) and trace.metadata.draft_tokens > 1:
        raise TraceError(f"policy {policy.name} is not told the ranks and scores of drafts")


def several(given: object) -> tuple:  # type: ignore[type-arg]
    one = isinstance(given, str | int | Policy | Prefetcher) or not isinstance(given, Iterable)
    return (given,) if one else tuple(given)  # type: ignore[arg-type]


def policies_of(
    traces: Sequence[Trace], asked: str | Policy | Iterable[str | Policy] | None, notes: list[str]
) -> tuple[Policy, ...]:
    """Return what is asked for, by default all for which every trace has what they need."""

    def every() -> tuple[Policy, ...]:
        return applicable(traces, POLICIES.values(), check_policy, notes)

    names = with_all(ALL if asked is None else asked, every)
    found = tuple(dict.fromkeys(map(policy_of, names)))
    for policy, trace in product(found, traces):
        check_policy(policy, trace)
    return found


def prefetchers_of(
    traces: Sequence[Trace],
    asked: str | Prefetcher | Iterable[str | Prefetcher] | None,
    notes: list[str],
) -> tuple[Prefetcher, ...]:
    """Return what is asked for, by default all for which every trace has what they need."""
    if asked is None:
        return applicable(traces, PREFETCHERS.values(), check_trace, notes)
    given = several(asked)
    if NO_PREFETCH in given:
        if len(given) > 1:
            raise ValueError(
                f"{NO_PREFETCH} of `prefetchers` stands alone: what is fetched ahead is compared"
                " with nothing anyway"
            )
        return ()
    found = tuple(dict.fromkeys(map(get_prefetcher, given)))
    for prefetcher, trace in product(found, traces):
        check_trace(prefetcher, trace)
    return found


def about_rows(traces: Iterable[Trace]) -> list[str]:
    """Return notes on what is replayed of a trace, and what its positions are."""
    notes = []
    for trace in traces:
        if has_drafts(trace):
            notes.append(f"{trace.name} has drafts: of every step only the first query is replayed")
        if in_blocks(trace):
            notes.append(f"{trace.name}: positions and slots are {plural(trace.metadata.unit)}")
    return notes


def other_layers(traces: Iterable[Trace], prefetchers: Iterable[Prefetcher]) -> list[str]:
    """Return notes on prefetchers that know another layer, for traces where that tells little."""
    names = [each.name for each in prefetchers if each.layer is not None]
    notes = []
    for trace in traces if names else ():
        if trace.metadata.provenance == "synthetic":
            notes.append(
                f"{trace.name} is synthetic: its layers are independent of each other, those of"
                f" models are not, so it says nothing about {' and '.join(names)}"
            )
        if SHARED_INDEX.name in names and followers(trace.metadata.layer_types):
            notes.append(
                f"{SHARED_INDEX.name} guesses layers of {trace.name} that have an index of their"
                " own; it is not SGLang's prefetch for layers that share one, which is exact"
                " (docs/hybrid-and-prefetch.md)"
            )
    return notes


def too_large(budgets: Iterable[int], sizes: Iterable[int], top_k: int) -> list[str]:
    """Return a note for each buffer of which some budgets leave fewer than top_k slots."""
    notes = []
    for size in sizes:
        large = [f"{budget:,}" for budget in budgets if size - budget < top_k]
        if large:
            notes.append(
                f"left out at a buffer of {size:,}, of which they leave fewer than the top_k of"
                f" {top_k:,}: budgets of {', '.join(large)}"
            )
    return notes
