"""LeCaR: evict by LRU or by LFU, drawn with weights that learn from what either was sorry for.

The two policies choose among the slots that the step does not use; if they agree, that slot goes,
else one of them is drawn. Each has a ghost of the positions that went by its choice. If a position
is missed that is in a ghost, the weight of the other policy is multiplied by exp(rate * d^t), where
t is the number of accesses since the eviction and d^B is `discount`; then both are scaled to a sum
of 1, and the ghost forgets it. The generator is that of `random`. A step's hits are accesses before
its misses. A slot has count 1 when fetched, and slots filled at the start as well; empty slots come
first, without a draw.

That no ghost remembers what both chose, and the size of the ghosts, are of the authors' program,
which also restores the counts of what it remembers; here, and in libCacheSim, they are forgotten.
libCacheSim draws hundredths from a generator of its own, and so counts otherwise unless the weights
are 0 and 1.

Reference: Vietri et al., HotStorage 2018.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies import lfu
from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.lists import Lists, append, lists, move, oldest, unlink
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Floats, Longs, Policy, Setup, Step, Words
from hisparse_sim.policies.random import draw

_LRU, _LFU = 0, 1


@dataclass(frozen=True)
class Parameters:
    rate: float = parameter(0.45, "of learning", least=0, most=100)
    discount: float = parameter(0.005, "of a mistake B accesses old", least=0, most=1, above=True)
    lru: float = parameter(0.5, "weight of LRU at the start", least=0, most=1)
    ghost: float = parameter(0.5, "positions remembered of each policy, in buffers", least=0)


class State(NamedTuple):
    random: Words  # [1] the generator
    recency: Lists  # one, of slots
    frequency: lfu.State
    ghosts: Lists  # of positions that went by LRU, by LFU
    evicted: Longs  # [T] the access at which a position went
    clock: Longs  # [1] accesses
    weights: Floats  # [2]
    learning: Floats  # [2] rate, and d
    most: Longs  # [1] of each ghost
    filled: Longs  # [1] slots in use; the others are the highest


def state(setup: Setup) -> State:
    size, chosen = setup.buffer_size, setup.parameters
    return State(
        np.array([setup.seed], np.uint64),
        lists(size, 1, size),
        lfu.state(setup),
        lists(setup.positions, 2),
        np.zeros(setup.positions, np.int64),
        np.zeros(1, np.int64),
        np.array([chosen.lru, 1.0 - chosen.lru]),
        np.array([chosen.rate, chosen.discount ** (1.0 / size)]),
        np.array([int(chosen.ghost * size)]),
        np.array([size if setup.filled else 0]),
    )


@hook
def _learn(state: State, position: int) -> None:
    """Give the weight to the policy that did not evict a missed position, if the other did."""
    sorry = state.ghosts.of[position]
    if sorry >= 0:
        unlink(state.ghosts, position)
        weights, age = state.weights, float(state.clock[0] - state.evicted[position])
        weights[1 - sorry] *= np.exp(state.learning[0] * state.learning[1] ** age)
        whole = weights[_LRU] + weights[_LFU]
        weights[_LRU] /= whole
        weights[_LFU] /= whole


@hook
def _evict(state: State, step: Step) -> int:
    ghosts = state.ghosts
    by_recency = oldest(state.recency, 0)  # what the step uses is at the newest end
    by_frequency = lfu.least(state.frequency)
    if by_recency == by_frequency:
        return by_recency
    share = float(draw(state.random) >> np.uint64(11)) / 2.0**53
    by = _LRU if share < state.weights[_LRU] else _LFU
    victim = by_recency if by == _LRU else by_frequency
    position = step.token[victim]
    append(ghosts, position, by)
    state.evicted[position] = state.clock[0]
    if ghosts.size[by] > state.most[0]:
        unlink(ghosts, oldest(ghosts, by))
    return victim


@hook
def step(state: State, step: Step, now: int) -> None:
    recency, filled = state.recency, state.filled
    for slot in step.hits:
        move(recency, slot, 0)
    lfu.begin(state.frequency, step, now)
    state.clock[0] += len(step.hits)
    for i in range(len(step.victims)):
        _learn(state, step.missed[i])
        if filled[0] < len(recency.of):
            victim = filled[0]
            filled[0] += 1
        else:
            victim = _evict(state, step)
        move(recency, victim, 0)
        lfu.fetch(state.frequency, victim, now)
        state.clock[0] += 1
        step.victims[i] = victim
    lfu.end(state.frequency, step)


LECAR = Policy(
    name="lecar",
    summary="LRU or LFU, drawn with weights that learn from what comes back",
    reference="Vietri et al. 2018, HotStorage '18",
    state=state,
    step=step,
    seeded=True,
    parameters=Parameters(),
)
