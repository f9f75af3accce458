"""Knows the future: a bound for every prefetcher that sees as far and as much.

It sees `lookahead` steps ahead, and of each access there it knows with probability `recall`, drawn
once. The nearest are in the slots of the prefetch."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies import parameter
from hisparse_sim.policies.hook import hook, signed, wrapping_add, wrapping_multiply
from hisparse_sim.policies.policy import Floats, Indices, Positions, Words
from hisparse_sim.simulator.prefetch.prefetcher import Prefetcher, Setup, View


@dataclass(frozen=True)
class Parameters:
    recall: float = parameter(1.0, "share of the positions that it knows", least=0, most=1)
    lookahead: int = parameter(1, "steps that it sees", least=1, most=64)


class State(NamedTuple):
    listed: Indices  # [T + 1] the call in which a position was proposed
    call: Indices  # [1]
    lookahead: Indices  # [1]
    recall: Floats  # [1]
    seed: Words  # [1]


def state(setup: Setup) -> State:
    return State(
        np.zeros(setup.positions + 1, np.int32),
        np.zeros(1, np.int32),
        np.full(1, setup.parameters.lookahead, np.int32),
        np.full(1, float(setup.parameters.recall)),
        np.full(1, setup.seed, np.uint64),
    )


@hook
def _known(state: State, step: int, position: int) -> bool:
    """Return whether it is told of this access: a hash of both, splitmix64's last rounds."""
    word = wrapping_multiply(np.uint64(step), np.uint64(0x9E3779B97F4A7C15))
    word = wrapping_add(wrapping_add(word, np.uint64(position)), state.seed[0])
    word = wrapping_multiply(word ^ (word >> np.uint64(30)), np.uint64(0xBF58476D1CE4E5B9))
    word = wrapping_multiply(word ^ (word >> np.uint64(27)), np.uint64(0x94D049BB133111EB))
    word ^= word >> np.uint64(31)
    return bool(np.float64(word >> np.uint64(11)) * 2.0**-53 < state.recall[0])


@hook
def propose(state: State, view: View, out: Positions) -> int:
    state.call[0] += 1
    call, count = state.call[0], 0
    for step in range(view.now, min(view.now + state.lookahead[0], len(view.rows.seq_len))):
        for i in range(view.rows.offsets[step], view.rows.offsets[step + 1]):
            position = view.rows.positions[i]
            if count == len(out):
                return count
            if position >= view.newest or view.present[position] == 1:
                continue
            if state.listed[position] != call and _known(state, step, signed(position)):
                state.listed[position] = call
                out[count] = position
                count += 1
    return count


ORACLE = Prefetcher(
    name="oracle",
    summary="a share of what the coming steps select: a bound",
    reference="-",
    state=state,
    propose=propose,
    needs_future=True,
    parameters=Parameters(),
)
