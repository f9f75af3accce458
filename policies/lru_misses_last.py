"""The engine's LRU with its last rule reversed: what was fetched is safer than what was hit.

An ablation: how much LRU's misses depend on where the fetched slots go in the order.
"""

from hisparse_sim.policies.hook import copy, hook
from hisparse_sim.policies.ordered import Order, begin, order, take_first
from hisparse_sim.policies.policy import Policy, Step


@hook
def step(state: Order, step: Step, now: int) -> None:
    unused = begin(state, step)
    take_first(state, step, unused)
    kept, hits = unused - len(step.victims), len(state.slots) - unused
    copy(state.slots[kept:], state.hits[:hits])
    copy(state.slots[kept + hits :], step.victims)


LRU_MISSES_LAST = Policy(
    name="lru-misses-last",
    summary="the engine's LRU, but misses become more recent than hits",
    reference="of this package",
    state=order,
    step=step,
)
