"""CLOCK-Pro: LIRS as a clock, whose hits only mark: hot and cold slots, and a test of cold ones.

All positions stand in one circle as they were accessed: those of hot slots, those of cold slots and
some that were evicted. What is fetched is cold, on test, and enters behind the hot hand. The cold
hand passes cold slots: without a mark, the slot is the victim, and its position stays in the circle
if it is on test; with a mark, the mark goes, and the slot enters anew, hot if it was on test, else
cold and on test. What is fetched while it is on test is hot. When there are too many hot slots, the
hot hand takes the marks of those it passes and makes the first without one cold; it ends the tests
of cold positions on its way to the next hot slot. If more evicted positions are on test than
`ghost` says, the test hand ends tests. The number of cold slots that hot ones leave room for grows
with every use on test, and shrinks with every test that ends without one.

The step's own slots are passed and keep their marks. A step may miss more than there are cold
slots: when it uses them all, the hot hand makes one cold. If it uses all hot slots, there are too
many for a while. Slots filled at the start, and empty slots, are hot as long as there is room. When
no slot is cold, the cold hand is where the hot hand is.

The number of cold slots at the start, never less later, is that of the authors' program.
libCacheSim has no tests of slots, and does not fetch what it has no cold room for, and so counts
otherwise.

Reference: Jiang, Chen and Zhang, USENIX ATC 2005.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Indices, Longs, Policy, Setup, Step

# Rows of `nodes`: the positions after and before in the circle, in the circle of cold slots; what
# the position is; the step that hit it last, if it is marked, or minus that which fetched it; the
# slot that it is in.
_ALL, _COLDS, _KIND, _MARK, _SLOT = 0, 2, 4, 5, 6

# What a position is; the first is not in the circle.
_UNKNOWN, _HOT, _COLD, _TESTED, _EVICTED = 0, 1, 2, 3, 4

# Indices of `numbers`: positions at the three hands, and the first in a cold slot from the hot hand
# on; how many slots are to be cold, and are hot, how many positions in the circle are evicted, how
# many hot and cold slots the step does not use, how many slots are in use (the others are the
# highest); the least slots that are cold, the most evicted positions, and all slots.
_AT_HOT, _AT_COLD, _AT_TEST, _FIRST_COLD = 0, 1, 2, 3
_ROOM, _HOTS, _EVICTEDS, _FREE_HOTS, _FREE_COLDS, _FILLED = 4, 5, 6, 7, 8, 9
_LEAST, _MOST, _SIZE = 10, 11, 12

_NONE = -1  # no position


@dataclass(frozen=True)
class Parameters:
    cold: float = parameter(0.05, "share of the buffer for cold slots, at least", least=0, most=1)
    ghost: float = parameter(1.0, "evicted positions on test, in buffers", least=0)


class State(NamedTuple):
    nodes: Indices  # [7, T]
    numbers: Longs  # [13]


def state(setup: Setup) -> State:
    size, chosen = setup.buffer_size, setup.parameters
    filled = size if setup.filled else 0
    least = max(1, int(chosen.cold * size))
    hots = min(filled, size - least)
    nodes = np.zeros((7, setup.positions), np.int32)
    nodes[_KIND, :hots] = _HOT
    nodes[_KIND, hots:filled] = _TESTED
    nodes[_SLOT] = np.arange(setup.positions)
    for circle, first in ((_ALL, 0), (_COLDS, hots)):
        positions = np.arange(first, filled)
        nodes[circle, positions] = np.roll(positions, -1)
        nodes[circle + 1, positions] = np.roll(positions, 1)
    hands = [0, _NONE, _NONE, hots] if setup.filled else [_NONE] * 4
    most = int(chosen.ghost * size)
    return State(nodes, np.array([*hands, least, hots, 0, 0, 0, filled, least, most, size]))


@hook
def _insert(nodes: Indices, circle: int, position: int, at: int) -> int:
    """Put a position before another, or alone; return the other, or the position if alone."""
    if at == _NONE:
        at = position
        nodes[circle + 1, at] = position
    before = nodes[circle + 1, at]
    nodes[circle, before] = position
    nodes[circle + 1, position] = before
    nodes[circle, position] = at
    nodes[circle + 1, at] = position
    return at


@hook
def _remove(nodes: Indices, circle: int, position: int) -> int:
    """Take a position out, and return the one after it, none if it was alone."""
    after, before = nodes[circle, position], nodes[circle + 1, position]
    nodes[circle, before] = after
    nodes[circle + 1, after] = before
    return int(after) if after != position else _NONE


@hook
def _enter(nodes: Indices, numbers: Longs, position: int, kind: int) -> None:
    """Put a position behind the hot hand."""
    numbers[_AT_HOT] = _insert(nodes, _ALL, position, numbers[_AT_HOT])
    if kind != _HOT:
        numbers[_FIRST_COLD] = _insert(nodes, _COLDS, position, numbers[_FIRST_COLD])
    nodes[_KIND, position] = kind


@hook
def _leave(nodes: Indices, numbers: Longs, position: int) -> None:
    """Take a position out of the circle; the hands that are there move on."""
    after = _remove(nodes, _ALL, position)
    if numbers[_AT_HOT] == position:
        numbers[_AT_HOT] = after
    if numbers[_AT_TEST] == position:
        numbers[_AT_TEST] = after


@hook
def _leave_colds(nodes: Indices, numbers: Longs, position: int) -> None:
    after = _remove(nodes, _COLDS, position)
    if numbers[_AT_COLD] == position:
        numbers[_AT_COLD] = after
    if numbers[_FIRST_COLD] == position:
        numbers[_FIRST_COLD] = after


@hook
def _end_test(nodes: Indices, numbers: Longs, position: int) -> None:
    """End the test of a position, if it is on one."""
    unused = False
    if nodes[_KIND, position] == _TESTED:
        nodes[_KIND, position] = _COLD
        unused = bool(nodes[_MARK, position] <= 0)
    elif nodes[_KIND, position] == _EVICTED:
        nodes[_KIND, position] = _UNKNOWN
        numbers[_EVICTEDS] -= 1
        _leave(nodes, numbers, position)
        unused = True
    if unused:
        numbers[_ROOM] = max(numbers[_LEAST], numbers[_ROOM] - 1)


@hook
def _cool(nodes: Indices, numbers: Longs, now: int) -> int:
    """Run the hot hand: make one hot slot cold that the step does not use, and return it."""
    cooled = _NONE
    while cooled == _NONE or (numbers[_HOTS] > 0 and nodes[_KIND, numbers[_AT_HOT]] != _HOT):
        position = int(numbers[_AT_HOT])
        if nodes[_KIND, position] == _EVICTED:
            _end_test(nodes, numbers, position)
        else:
            numbers[_AT_HOT] = nodes[_ALL, position]
            if nodes[_KIND, position] != _HOT:
                _end_test(nodes, numbers, position)
                numbers[_FIRST_COLD] = nodes[_COLDS, position]
            elif abs(nodes[_MARK, position]) != now:
                if nodes[_MARK, position] <= 0:
                    cooled = position
                    nodes[_KIND, position] = _COLD
                    numbers[_FIRST_COLD] = _insert(nodes, _COLDS, position, numbers[_FIRST_COLD])
                    numbers[_HOTS] -= 1
                    numbers[_FREE_HOTS] -= 1
                    numbers[_FREE_COLDS] += 1
                nodes[_MARK, position] = 0
    return cooled


@hook
def _heat(nodes: Indices, numbers: Longs, position: int, now: int) -> None:
    """Let a position that was used on test enter the circle as hot."""
    size = numbers[_SIZE]
    _enter(nodes, numbers, position, _HOT)
    numbers[_HOTS] += 1
    numbers[_ROOM] = min(size, numbers[_ROOM] + 1)
    while numbers[_HOTS] > size - numbers[_ROOM] and numbers[_FREE_HOTS] > 0:
        _cool(nodes, numbers, now)


@hook
def _free(nodes: Indices, numbers: Longs, now: int) -> int:
    """Run the cold hand: return a slot that the step does not use."""
    victim = _NONE
    while victim == _NONE:
        if numbers[_FREE_COLDS] == 0:  # the hand would pass all others
            numbers[_AT_COLD] = _cool(nodes, numbers, now)
        elif numbers[_AT_COLD] == _NONE:
            numbers[_AT_COLD] = numbers[_FIRST_COLD]
        position = int(numbers[_AT_COLD])
        if abs(nodes[_MARK, position]) == now:
            numbers[_AT_COLD] = nodes[_COLDS, position]
        elif nodes[_MARK, position] <= 0:
            victim = position
        else:
            nodes[_MARK, position] = 0
            _leave(nodes, numbers, position)
            _leave_colds(nodes, numbers, position)
            if nodes[_KIND, position] == _TESTED:
                numbers[_FREE_COLDS] -= 1
                numbers[_FREE_HOTS] += 1
                _heat(nodes, numbers, position, now)
            else:
                _enter(nodes, numbers, position, _TESTED)
    _leave_colds(nodes, numbers, victim)
    numbers[_FREE_COLDS] -= 1
    if nodes[_KIND, victim] == _TESTED:
        nodes[_KIND, victim] = _EVICTED
        numbers[_EVICTEDS] += 1
    else:
        nodes[_KIND, victim] = _UNKNOWN
        _leave(nodes, numbers, victim)
    return int(nodes[_SLOT, victim])


@hook
def _fetch(nodes: Indices, numbers: Longs, slot: int, position: int, kind: int, now: int) -> None:
    nodes[_SLOT, position] = slot
    nodes[_MARK, position] = -now
    if nodes[_KIND, position] == _EVICTED:
        numbers[_EVICTEDS] -= 1
        _leave(nodes, numbers, position)
        _heat(nodes, numbers, position, now)
    else:
        numbers[_HOTS] += kind == _HOT
        _enter(nodes, numbers, position, kind)
    while numbers[_EVICTEDS] > numbers[_MOST]:
        if numbers[_AT_TEST] == _NONE:
            numbers[_AT_TEST] = numbers[_AT_HOT]
        tested = int(numbers[_AT_TEST])
        numbers[_AT_TEST] = nodes[_ALL, tested]
        _end_test(nodes, numbers, tested)


@hook
def step(state: State, step: Step, now: int) -> None:
    nodes, numbers = state.nodes, state.numbers
    size = numbers[_SIZE]
    hots = 0
    for slot in step.hits:
        position = step.token[slot]
        nodes[_MARK, position] = now
        hots += nodes[_KIND, position] == _HOT
    numbers[_FREE_HOTS] = numbers[_HOTS] - hots
    numbers[_FREE_COLDS] = numbers[_FILLED] - numbers[_HOTS] - (len(step.hits) - hots)
    for i in range(len(step.victims)):
        kind = _TESTED
        if numbers[_FILLED] < size:
            victim = numbers[_FILLED]
            numbers[_FILLED] += 1
            if numbers[_HOTS] < size - numbers[_ROOM]:
                kind = _HOT
        else:
            victim = _free(nodes, numbers, now)
        _fetch(nodes, numbers, victim, step.missed[i], kind, now)
        step.victims[i] = victim


CLOCK_PRO = Policy(
    name="clock-pro",
    summary="LIRS as a clock: hits mark, and three hands tell hot, cold and tested",
    reference="Jiang, Chen and Zhang 2005, USENIX ATC '05",
    state=state,
    step=step,
    parameters=Parameters(),
)
