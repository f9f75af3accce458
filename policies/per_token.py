"""A step hook made of three functions for one token at a time: the short way to a policy.

Most policies in the literature are defined by what they do on a hit and on a miss. `lift` turns
such functions into the hook that a replay calls, and keeps the rules for a step that accesses many
positions at once: hits first, in row order; then each miss gets a victim that the step does not
use, and is inserted before the next; empty slots first.
"""

from collections.abc import Callable
from typing import Any

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Step


def lift(
    touch: Callable[[Any, int, int], None],
    evict: Callable[[Any, int], int],
    insert: Callable[[Any, int, int], None],
) -> Callable[[Any, Step, int], None]:
    """Return the step hook that calls three hooks token by token.

    `touch(state, slot, position)` reports a hit. `evict(state, now)` returns a slot whose
    `state.last_use` is not `now`. `insert(state, slot, position)` reports a fetched position, after
    its slot was emptied. All three must be marked with `hook`. The state must have a field
    `last_use`, int32 [B], zeros at the start, which only the lifted hook writes.

    A lifted policy is compiled anew in every process (its code is not cached on disk), and cannot
    be sent to another process. This one evicts the most recently used slot. It searches B slots per
    miss; the policies of the package show how to avoid that:

        from typing import NamedTuple

        import hisparse_sim as hs
        import numpy as np

        class State(NamedTuple):
            last_use: np.ndarray  # [B] kept by the lifted hook: the last step that used the slot
            used: np.ndarray  # [B + 1] when each slot was used; the last is the clock

        def state(setup):
            size = setup.buffer_size  # as if filled in slot order, whatever the start
            return State(np.zeros(size, np.int32), np.arange(size + 1))

        @hs.hook
        def use(state, slot, position):
            state.used[-1] += 1
            state.used[slot] = state.used[-1]

        @hs.hook
        def evict(state, now):
            chosen = -1
            for slot in range(len(state.last_use)):
                if state.last_use[slot] != now:  # else this step uses it
                    if chosen < 0 or state.used[slot] > state.used[chosen]:
                        chosen = slot
            return chosen

        mru = hs.Policy("mru", "most recently used", "-", state, hs.lift(use, evict, insert=use))
        hs.replay(hs.sample_path(), mru, 4096)
    """

    @hook
    def step(state: Any, step: Step, now: int) -> None:
        for slot in step.hits:
            state.last_use[slot] = now
        for slot in step.hits:
            touch(state, slot, step.token[slot])
        size = len(state.last_use)
        empty = len(step.slot) - 1
        # Slots are filled in their order, so a full last one spares the search.
        free = 0 if step.token[size - 1] == empty else size
        for i in range(len(step.missed)):
            while free < size and step.token[free] != empty:
                free += 1
            victim = free
            if free < size:
                free += 1
            else:
                victim = evict(state, now)
            state.last_use[victim] = now
            step.victims[i] = victim
            insert(state, victim, step.missed[i])

    return step
