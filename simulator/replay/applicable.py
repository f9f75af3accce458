"""What is replayed where all policies or prefetchers are asked for: those that apply to every
trace."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from hisparse_sim.policies import ALL, Policy, PolicyError
from hisparse_sim.simulator.replay.ranking import Asks
from hisparse_sim.traces import Trace, TraceError

Asking = TypeVar("Asking", bound=Asks)


def applicable(
    traces: Sequence[Trace],
    every: Iterable[Asking],
    check: Callable[[Asking, Trace], object],
    notes: list[str],
) -> tuple[Asking, ...]:
    """Return those for which every trace has what they need, and note the others; `check` raises
    TraceError or PolicyError."""
    found, without = [], []
    for each in every:
        try:
            for trace in traces:
                check(each, trace)
        except (TraceError, PolicyError):
            without.append(each.name)
        else:
            found.append(each)
    if without:
        notes.append(f"left out, since they do not apply to every trace: {', '.join(without)}")
    return tuple(found)


def with_all(
    policies: str | Policy | Iterable[str | Policy], every: Callable[[], Iterable[str | Policy]]
) -> tuple[str | Policy, ...]:
    """Return policies as asked for, with `every` in the place of `all`."""
    given = (policies,) if isinstance(policies, str | Policy) else tuple(policies)
    found: list[str | Policy] = []
    for each in given:
        found += every() if isinstance(each, str) and each.lower() == ALL else (each,)
    return tuple(dict.fromkeys(found))
