"""The optimum: evict what is demanded again farthest in the future.

Why this is optimal although a whole step is demanded at once. Take any schedule of evictions and the first
step t at which it differs from ours: some miss evicts a, while ours evicts b, and b is demanded again later
than a (or never). Neither is demanded at t, so both choices are allowed. Change the schedule to evict b and
keep a, and from then on let a take the part of b in it. Until a is demanded, the two differ only in which
of a and b they hold (if the old schedule evicts b in between, evict a instead: then they are equal). At the
step that demands a, the old schedule must fetch a, and evicts some c; the new one holds a and does not miss
it. If c is b, they are equal from here on, one miss to the good. Else evict c where the new schedule next
needs a victim in this step or, if b is demanded, when it fetches b: at most one extra miss, paid by the one
saved. Nothing in this uses that a step demands one position: all that is needed is that neither a nor b is
demanded between t and the demand of a, and that a step may fetch b and a both only if the old one fetched a
in it (if a and b are demanded by the same step the two are interchangeable). So each exchange costs nothing,
and after finitely many of them the schedule is ours. There is no bypass: the kernel must have every
demanded token in a slot, so a fetched token always evicts.

Ties go to the lowest slot; they cannot change a count. Slots that are never demanded again tie at
infinity. The keys are small integers, so the M farthest slots in order come from a histogram: walk it down
from the farthest until M slots are counted, then place the slots at or above that key as in a counting sort.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Indices, Policy, Setup, Step


class State(NamedTuple):
    next_demand: Indices  # [N] see Policy
    due: Indices  # [B + 1] the next step that demands the slot; the last one takes what is not resident
    slots_due: Indices  # [steps + 4] slots per value of `due`
    place: Indices  # [steps + 4] scratch: rank of the next slot with that value
    farthest: npt.NDArray[np.int64]  # [1] no finite `due` is above this


def state(setup: Setup) -> State:
    size = setup.buffer_size
    due = np.full(size + 1, setup.steps + 2, np.int32)
    if setup.filled:
        known = setup.first_demand[:size]
        due[: len(known)] = known
        due[len(known) : size] = setup.steps + 1
    return State(
        next_demand=setup.next_demand,
        due=due,
        slots_due=np.bincount(due[:size], minlength=setup.steps + 4).astype(np.int32),
        place=np.zeros(setup.steps + 4, np.int32),
        farthest=np.full(1, setup.steps, np.int64),
    )


@hook
def step(state: State, step: Step, now: int) -> None:
    due, slots_due = state.due, state.slots_due
    misses = len(step.victims)
    size = len(due) - 1
    empty = len(slots_due) - 2
    if misses > 0:
        key = empty
        ranked = 0
        while True:
            state.place[key] = ranked
            ranked += slots_due[key]
            if ranked >= misses:
                break
            key -= 1
            if key == empty - 2:
                while slots_due[state.farthest[0]] == 0:
                    state.farthest[0] -= 1
                key = state.farthest[0]
        for slot in range(size):
            if due[slot] >= key:
                rank = state.place[due[slot]]
                if rank < misses:
                    step.victims[rank] = slot
                    state.place[due[slot]] = rank + 1
        for slot in step.victims:
            slots_due[due[slot]] -= 1

    slots_due[now] = 0
    farthest = state.farthest[0]
    for i in range(len(step.row)):
        next_now = state.next_demand[step.first + i]
        due[step.slot[step.row[i]]] = next_now
        slots_due[next_now] += 1
        if next_now > farthest and next_now < empty - 1:
            farthest = next_now
    state.farthest[0] = farthest
    for i in range(misses):
        due[step.victims[i]] = state.next_demand[step.first + step.index[i]]


BELADY = Policy(
    name="belady",
    summary="the offline optimum: farthest next demand goes",
    reference="Belady 1966, doi:10.1147/sj.52.0078",
    state=state,
    step=step,
    needs_future=True,
)
