"""MIN, the offline optimum: evict the position whose next access is farthest in the future.

Why no schedule of evictions has fewer misses, although a step accesses all of its positions at
once. Only the contents of the slots matter for the counts; an empty slot counts as a position that
is never accessed. Let a schedule A first differ from ours in step t: it evicts a and keeps b, we
evict b and keep a. Neither is accessed in t, and the next access to b is no earlier than that to a.
We build a schedule A' that evicts b there, so that it agrees with ours in one more position, and
show that it has no more misses than A. As long as they differ, A' holds what A holds with one
position c (at first a) in place of b, and one of two things is true: the next access to c is no
later than that to b, or A' has one miss fewer so far. A' takes the victims of A in every later
step, except:

- A evicts b, c not accessed: A' evicts c instead. The two are equal from here on.
- A evicts b, c accessed: A misses c; A' does not, and evicts one position fewer. Equal, A' one miss
  ahead.
- c accessed, b kept and not accessed: A misses c; A' does not and keeps one of the victims, which
  is the new c. A' is one miss ahead.
- both accessed: A misses c, A' misses b, with the same victims. Equal.
- b accessed, c not: A' was one miss ahead. Now it misses b and evicts c as well. Equal.

The number of positions in a step plays no part in this. Repeated, it turns A into our schedule
without another miss. There is no bypass: a fetched token always takes a slot.

Ties go to the lowest slot; they cannot change a count. The keys are small integers, so a histogram
gives the M farthest slots in order: walk down from the farthest key until M slots are counted, then
place the slots with at least that key as in a counting sort.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Indices, Policy, Setup, Slots, Step, Words

_COUNTERS = 4  # for each value of `due`; a power of two


class State(NamedTuple):
    next_access: Indices  # [N] see Policy
    due: Indices  # [B + 1] step of the next access to the slot; the last entry is for absent ones
    slots_due: Indices  # [steps + 4, 4] slots per value of `due`: the sum of the four
    place: Indices  # [steps + 4] scratch: rank of the next slot with that value
    farthest: npt.NDArray[np.int64]  # [1] no finite `due` is above this
    far: npt.NDArray[np.uint8]  # [B, rounded to 8] scratch: 1 where `due` is far enough, else 0
    far_words: Words  # the same memory, 8 slots a word
    words: Slots  # [B] scratch: the words with far slots
    candidates: Slots  # [B + 8] scratch: the far slots


def state(setup: Setup) -> State:
    size = setup.buffer_size
    due = np.full(size + 1, setup.steps + 2, np.int32)
    if setup.filled:
        known = setup.first_access[:size]
        due[: len(known)] = known
        due[len(known) : size] = setup.steps + 1
    slots_due = np.zeros((setup.steps + 4, _COUNTERS), np.int32)
    slots_due[:, 0] = np.bincount(due[:size], minlength=setup.steps + 4)
    far = np.zeros((size + 7) // 8 * 8, np.uint8)
    return State(
        next_access=setup.next_access,
        due=due,
        slots_due=slots_due,
        place=np.zeros(setup.steps + 4, np.int32),
        farthest=np.full(1, setup.steps, np.int64),
        far=far,
        far_words=far.view(np.uint64),
        words=np.zeros(size, np.uint16),
        candidates=np.zeros(size + 8, np.uint16),
    )


@hook
def _count(state: State, key: int) -> int:
    total = 0
    for i in range(_COUNTERS):
        total += state.slots_due[key, i]
    return total


@hook
def _choose(state: State, victims: Slots) -> None:
    """Write the slots with the farthest `due`, the farthest first, of equal ones the lowest."""
    due, place = state.due, state.place
    empty = len(place) - 2
    farthest = state.farthest[0]
    key = empty
    ranked = 0
    while True:
        place[key] = ranked
        ranked += _count(state, key)
        if ranked >= len(victims):
            break
        key -= 1
        if key == empty - 2:
            while _count(state, farthest) == 0:
                farthest -= 1
            key = farthest
    state.farthest[0] = farthest

    # Few slots are far. Rule out eight at a time, and never branch on what is hard to predict.
    least = np.int32(key)
    for slot in range(len(due) - 1):
        state.far[slot] = due[slot] >= least
    words = 0
    for word in range(len(state.far_words)):
        state.words[words] = word
        words += state.far_words[word] != 0
    found = 0
    for word in state.words[:words]:
        for i in range(8):
            far = 8 * np.int64(word) + i
            state.candidates[found] = far
            found += state.far[far] != 0
    for slot in state.candidates[:found]:
        rank = place[due[slot]]
        if rank < len(victims):
            victims[rank] = slot
            place[due[slot]] = rank + 1
    for slot in victims:
        state.slots_due[due[slot], 0] -= 1


@hook
def step(state: State, step: Step, now: int) -> None:
    due, slots_due = state.due, state.slots_due
    if len(step.victims) > 0:
        _choose(state, step.victims)

    slots_due[now] = 0
    last = np.int32(len(slots_due) - 4)
    farthest = np.int32(state.farthest[0])
    next_access = state.next_access[step.first : step.first + len(step.row)]
    for i in range(len(next_access)):
        finite = next_access[i] if next_access[i] <= last else np.int32(0)
        farthest = max(farthest, finite)
    state.farthest[0] = farthest
    for i in range(len(next_access)):
        due[step.slot[step.row[i]]] = next_access[i]
        # Most are due in the very next step: a single counter would wait for itself.
        slots_due[next_access[i], i & (_COUNTERS - 1)] += 1
    for i in range(len(step.victims)):
        due[step.victims[i]] = next_access[step.places[i]]


BELADY = Policy(
    name="belady",
    summary="MIN, the offline optimum: evicts the farthest next access",
    reference="Belady 1966, doi:10.1147/sj.52.0078",
    state=state,
    step=step,
    needs_future=True,
)
