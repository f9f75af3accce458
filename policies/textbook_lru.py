"""Textbook LRU: a step moves its slots behind the others in the order of its row.

The engine's own order (`lru`) puts what was fetched before what was hit; this one does not tell
them apart, so that a larger buffer holds whatever a smaller one does.
"""

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.ordered import Order, begin, order, take_first
from hisparse_sim.policies.policy import Policy, Step


@hook
def step(state: Order, step: Step, now: int) -> None:
    unused = begin(state, step)
    take_first(state, step, unused)
    size = len(state.slots)
    place, miss = unused - len(step.victims), 0
    for position in step.row:
        if miss < len(step.missed) and step.missed[miss] == position:
            state.slots[place] = step.victims[miss]
            miss += 1
            place += 1
        elif step.slot[position] != size:  # else the newest token, in the reserved page
            state.slots[place] = step.slot[position]
            place += 1


TEXTBOOK_LRU = Policy(
    name="textbook-lru",
    summary="least recently used, a step in the order of its row",
    reference="Mattson et al. 1970, doi:10.1147/sj.92.0078",
    state=order,
    step=step,
)
