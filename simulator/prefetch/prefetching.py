"""Replay with prefetch: one (request, layer), and the rules of a sweep that has it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hisparse_sim.policies import Policy, get_policy
from hisparse_sim.policies.registry import is_registered
from hisparse_sim.simulator.prefetch import PREFETCHERS
from hisparse_sim.simulator.prefetch.drafts import DRAFTS
from hisparse_sim.simulator.prefetch.kernel import STAMP, Counted, Hints, compiled
from hisparse_sim.simulator.prefetch.prefetcher import Prefetcher, PrefetchError, Setup, View
from hisparse_sim.simulator.prefetch.queries import with_hints
from hisparse_sim.simulator.replay.faults import Hook, called, check_hook, state_of
from hisparse_sim.simulator.replay.kept import Finished
from hisparse_sim.simulator.replay.kernel import Rows
from hisparse_sim.simulator.replay.ranking import columns_for, ranked
from hisparse_sim.simulator.replay.replaying import replay_part, rows_of
from hisparse_sim.simulator.replay.starts import WARM, counted
from hisparse_sim.simulator.replay.sweeping import TINY
from hisparse_sim.simulator.replay.tasks import Task, known_of
from hisparse_sim.traces import Demand, Part, Trace, TraceError
from hisparse_sim.traces.file.columns import QUERY
from hisparse_sim.traces.file.queries import has_drafts

_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Prefetch:
    """A prefetcher and what it may use.

    `budget`: entries that it may fetch per (request, layer) and step. `slots`, of the buffer's,
    hold them until they are used or make room; None: as many as the budget. `in_time`: entries
    that the link copies ahead of each step; what is not copied yet is late. None: all.
    """

    prefetcher: Prefetcher
    budget: int
    slots: int | None = None
    in_time: int | None = None
    start: None = None  # as asked for

    def __post_init__(self) -> None:
        if self.budget < 0 or (self.in_time or 0) < 0 or self.own_slots < self.budget:
            raise PrefetchError(
                f"a prefetch of {self.budget} entries, {self.in_time} in time, into"
                f" {self.own_slots} slots: none may be negative, and there must be a slot for each"
            )

    @property
    def own_slots(self) -> int:
        """Slots of the buffer that the policy does not have."""
        return self.budget if self.slots is None else self.slots * (self.budget > 0)

    @property
    def key(self) -> str | None:
        """The key of finished work, which tells this prefetcher and loop from others; None for a
        prefetcher of one's own, whose name does not tell it from its former versions."""
        if not is_registered(self.prefetcher, PREFETCHERS):
            return None
        setting = (self.budget, self.own_slots, self.in_time)
        return f"prefetch {self.prefetcher.name} {setting} {STAMP}"

    def policy(self, name: str) -> None:
        """Prefetch has no policies of its own."""

    def check(self, trace: Trace, policy: Policy, buffer_size: int) -> None:
        """Raise ValueError for a buffer that is too small, TraceError for a trace without what the
        prefetcher needs."""
        if self.budget > 0:
            check_trace(self.prefetcher, trace)
        if buffer_size - self.own_slots < trace.metadata.top_k:
            raise PrefetchError(
                f"a prefetch into {self.own_slots:,} slots leaves fewer than the top_k of"
                f" {trace.metadata.top_k:,} of a buffer of {buffer_size:,}; choose a smaller budget"
                " or a larger buffer"
            )

    def columns(
        self, trace: Trace, counts: Sequence[Mapping[str, int]], row: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the further columns of a result row; see docs/prefetch.md."""
        sums = {name: sum(each[name] for each in counts) for name in Counted._fields}
        return {
            "prefetcher": self.prefetcher.name,
            "budget": self.budget,
            "prefetch_slots": self.own_slots,
            **sums,
            "useless": sums["fetched"] - sums["useful"] - sums["late"],
        }

    def run(self, task: Task) -> list[Finished]:
        """Replay the runs of a task; misses are those that a step waits for: critical and late."""
        policies = [run.policy for run in task.runs]
        demand, hints = read_with_hints(
            task.trace, task.part, self.prefetcher, policies, task.steps
        )
        rows = counted(demand, task.start)
        known = known_of(rows)
        found = []
        for run in task.runs:
            done = prefetch_part(
                demand, hints, self, run.policy, run.buffer_size, task.start, seed=task.seed
            )
            counts = {name: int(each.sum()) for name, each in done._asdict().items()}
            found.append(Finished(*known, done.critical + done.late, rows.rows, counts))
        return found


def try_out(prefetcher: Prefetcher) -> None:
    """Run a prefetcher of one's own for a step, so that a slip in it does not show hours later.

    Raises PolicyError.
    """
    if not is_registered(prefetcher, PREFETCHERS):
        prefetch_part(TINY, no_hints(TINY), Prefetch(prefetcher, 1), get_policy("lru"), 2)


def check_trace(prefetcher: Prefetcher, trace: Trace) -> None:
    """Raise TraceError if a trace lacks what the prefetcher needs."""
    columns_for(trace, [prefetcher])
    if has_drafts(trace) != prefetcher.needs_drafts:
        has = "has drafts" if has_drafts(trace) else "has no rows of drafts"
        raise TraceError(
            f"prefetcher {prefetcher.name} does not apply to {trace.path}, which {has}"
        )
    if prefetcher.layer is not None and not _has_other_layers(prefetcher, trace):
        raise TraceError(
            f"prefetcher {prefetcher.name} needs the rows of another layer, and no request of"
            f" {trace.path} has them"
        )


def _has_other_layers(prefetcher: Prefetcher, trace: Trace) -> bool:
    """Return whether some part has the rows of the layer that its hints are made of."""
    assert prefetcher.layer is not None
    layers: dict[str, list[int]] = {}
    for part in trace.parts:
        layers.setdefault(part.request, []).append(part.layer)
    return any(
        prefetcher.layer(own, layer, prefetcher.parameters) is not None
        for own in layers.values()
        for layer in own
    )


def read_with_hints(
    trace: Trace,
    part: Part,
    prefetcher: Prefetcher,
    policies: Sequence[Policy] = (),
    steps: tuple[int, int] | None = None,
) -> tuple[Demand, Hints]:
    """Read a part as a prefetcher takes it, and the hints of its steps."""
    columns = columns_for(trace, [prefetcher, *policies])
    if has_drafts(trace):
        return with_hints(trace.read(part, (*columns, QUERY), steps))
    demand = trace.read(part, columns, steps)
    layers = [each.layer for each in trace.parts if each.request == part.request]
    if prefetcher.layer is not None:
        known = prefetcher.layer(layers, part.layer, prefetcher.parameters)
        if known is not None:
            (other,) = trace.select(part.request, known)
            there = trace.read(other, (), steps)
            if not np.array_equal(there.step, demand.step):
                raise TraceError(
                    f"{trace.path}, request {part.request!r}: layers {known} and {part.layer} have"
                    " other steps"
                )
            return demand, Hints(there.offsets, there.positions.view(np.uint32))
    return demand, no_hints(demand)


def without_prefetch(traces: Sequence[Trace]) -> Prefetch | None:
    """Return the rules under which a study replays traces with drafts, alone or with others: the
    first query of every step. None if there are no drafts."""
    return Prefetch(DRAFTS, 0) if any(map(has_drafts, traces)) else None


def no_hints(demand: Demand) -> Hints:
    """Return hints that tell nothing."""
    return Hints(np.zeros(demand.rows + 1, np.int64), np.zeros(0, np.uint32))


def prefetch_part(
    demand: Demand,
    hints: Hints,
    prefetch: Prefetch,
    policy: Policy,
    buffer_size: int,
    start: str = "staged",
    *,
    seed: int = 0,
) -> Counted:
    """Replay one (request, layer) with prefetch, and count what happens in every step.

    The policy has `buffer_size` less the slots of the prefetch for itself. Raises PrefetchError for
    a prefetcher that names what is not on the host.
    """
    own, prefetcher = buffer_size - prefetch.own_slots, prefetch.prefetcher
    cold = "staged" if start == WARM else start
    base = replay_part(demand, policy, own, cold, seed=seed, victims=True)
    assert base.victims is not None
    done = Counted(*(np.zeros(demand.rows, np.int32) for _ in Counted._fields))
    first = int(np.searchsorted(demand.seq_len, own, side="right"))
    if prefetch.budget == 0 or first == demand.rows:
        done.critical[:] = base.misses
        return _counted_steps(done, demand, start)
    rows, positions = rows_of(demand, own)
    told = ranked(demand, prefetcher)
    filled = cold == "staged" or demand.prompt_len <= own or first > 0
    token = np.full(own + 1, positions, np.uint32)
    present = np.zeros(positions + 1, np.uint8)
    if filled:
        token[:own] = np.arange(own)
        present[:own] = 1
    key = f"{seed}/{demand.request}/{demand.layer}".encode()
    of = f"prefetcher {prefetcher.name!r}"
    hook = Hook(of, "propose", prefetcher.propose, "(state, view, out)", View, "a whole number")
    check_hook(hook)
    state = state_of(
        of,
        prefetcher.state,
        Setup(
            prefetch.budget,
            prefetch.own_slots,
            positions,
            demand.rows,
            int.from_bytes(hashlib.sha256(key).digest()[:8], "little"),
            prefetcher.parameters,
        ),
    )
    with called(hook, state, f"request {demand.request!r}, layer {demand.layer}"):
        wrong = compiled(prefetcher.propose, prefetcher.base)(
            rows,
            told,
            hints,
            rows if prefetcher.needs_future else Rows(rows[0][:0], rows[1][:0], rows[2][:0]),
            first,
            base.victims,
            token,
            present,
            state,
            prefetch.budget,
            prefetch.own_slots,
            _NO_LIMIT if prefetch.in_time is None else prefetch.in_time,
            done,
        )
    if wrong >= 0:
        raise PrefetchError(
            f"prefetcher {prefetcher.name!r} proposed more than {prefetch.own_slots} positions, or"
            " one that is not below view.newest and so not on the host (request"
            f" {demand.request!r}, layer {demand.layer}, step {demand.step[wrong]})"
        )
    return _counted_steps(done, demand, start)


def _counted_steps(done: Counted, demand: Demand, start: str) -> Counted:
    first = demand.rows - counted(demand, start).rows
    return Counted(*(each[first:] for each in done))
