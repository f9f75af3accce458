"""SIEVE: a queue that hits do not reorder, and a hand that moves from the oldest to the newest.

A hit marks its slot. The hand clears marks in passing and takes the first slot without one; what is
fetched goes to the newest end, so that the hand does not meet it soon. A slot that the step uses is
passed and keeps its mark.

Reference: Zhang et al., NSDI 2024, algorithm 1.
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.lists import Lists, append, lists, unlink, use
from hisparse_sim.policies.policy import Bytes, Longs, Policy, Setup, Step


class State(NamedTuple):
    queue: Lists  # of all slots
    visited: Bytes  # [B]
    hand: Longs  # [1] the slot that it looks at next, B for the oldest


def state(setup: Setup) -> State:
    size = setup.buffer_size
    # Empty slots are the oldest and have no marks, so they go first.
    return State(lists(size, 1, size), np.zeros(size, np.uint8), np.array([size]))


@hook
def step(state: State, step: Step, now: int) -> None:
    queue, visited = state.queue, state.visited
    size = len(visited)
    use(queue, step, now)
    for slot in step.hits:
        visited[slot] = 1
    hand = state.hand[0]
    for i in range(len(step.victims)):
        while hand == size or queue.last_use[hand] == now or visited[hand] == 1:
            if hand < size and queue.last_use[hand] != now:
                visited[hand] = 0
            hand = queue.following[hand]
        victim = hand
        hand = queue.following[hand]
        unlink(queue, victim)
        append(queue, victim, 0)
        queue.last_use[victim] = now
        step.victims[i] = victim
    state.hand[0] = hand


SIEVE = Policy(
    name="sieve",
    summary="a queue that hits do not reorder, and a hand that spares what was hit",
    reference="Zhang et al. 2024, SIEVE, NSDI '24",
    state=state,
    step=step,
)
