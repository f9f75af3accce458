"""LRU by steps, with LFU among what was last used in the same step: a step uses thousands at once.

The order of a step's slots among themselves is an accident of the row. Here the in-cache count
decides (1 when fetched and at the start), and only then the engine's order.
"""

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Policy, Step
from hisparse_sim.policies.valued import Values, evict_least, values

_COUNTS = 1 << 20  # a value is the step of the last use times this, plus the count


@hook
def step(state: Values, step: Step, now: int) -> None:
    of = state.of
    for slot in step.hits:
        position = step.token[slot]
        of[position] = now * _COUNTS + max(1.0, of[position] % _COUNTS) + 1.0
    evict_least(state, step)
    for position in step.missed:
        of[position] = now * _COUNTS + 1.0


LRU_LFU = Policy(
    name="lru-lfu",
    summary="least recently used step; within one, least frequently used; ties: LRU",
    reference="of this package",
    state=values,
    step=step,
)
