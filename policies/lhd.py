"""LHD: evict the lowest hit density, the hits that are still expected over the time they take.

Time is counted in steps, ages in units of 2^n of them: the least with which `ages` reach over 100
times the buffer's size in accesses, as in the authors' program. Slots are told apart by their age,
the time since their last use, and by class: by their ages at the last two uses, in powers of two,
with one class for what was not used again. For every class the hits and evictions at each age are
counted. Its density at age a is the number of hits at a or later, over that of the events at x or
later, summed over all x from a on. Every `period` times the buffer's size in accesses densities are
computed anew, and what was counted before weighs less. What is older than all that is told apart
goes first. So that ages are seen which densities would not allow, one use in 32 makes a slot an
explorer, up to a share of the buffer: it goes last, until it is used.

The paper draws 32 candidates for each eviction, and considers the last 8 admissions, too; here all
slots are candidates that the step does not use, of equal ones the least recent. It counts time in
accesses and tells 20,000 ages apart, computes densities every 2^20 accesses, and stops to explore
after a while; here every step is taken to have as many accesses as the first. All positions have
one size, and there are no applications. Slots filled at the start were fetched one step before the
first. libCacheSim is the authors' program, and so counts otherwise.

Reference: Beckmann, Chen and Cidon, NSDI 2018; densities at the start are those of their program.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Bytes, Floats, Indices, Longs, Policy, Setup, Step, Words
from hisparse_sim.policies.random import draw
from hisparse_sim.policies.valued import Values, evict_least, values

_CLASSES = 16
_USES_PER_EXPLORER = 32
_FIRST, _LAST = -2.0, 1.0  # densities are from 0 to 1


@dataclass(frozen=True)
class Parameters:
    ages: int = parameter(256, "ages that are told apart", least=2, most=65536)
    reach: float = parameter(100.0, "accesses that ages span, over the buffer", least=0, most=1e6)
    period: float = parameter(16.0, "accesses of a period, over the buffer", least=0, most=1e6)
    decay: float = parameter(0.9, "what a period leaves of the counts", least=0, most=1)
    explore: float = parameter(0.01, "share of the buffer for explorers", least=0, most=1)


class State(NamedTuple):
    values: Values
    last_use: Indices  # [T]
    last_ages: Indices  # [2, T] at the last use, and at the one before
    explores: Bytes  # [T]
    explorers: Longs  # [1] how many more there may be
    events: Floats  # [2, 16, A] hits and evictions by class and age
    density: Floats  # [16, A]
    random: Words  # [1] the generator
    steps: Longs  # [2] the unit of ages, a power of 2, and the period; 0 before the first step
    reach: Floats  # [2] accesses that ages span, and of a period
    decay: Floats  # [1]


def state(setup: Setup) -> State:
    chosen = setup.parameters
    classes = np.arange(1.0, _CLASSES + 1)[:, np.newaxis]
    density = classes / np.arange(1, chosen.ages + 1) / _CLASSES
    density[:, -1] = _FIRST
    last_ages = np.zeros((2, setup.positions), np.int32)
    last_ages[1] = chosen.ages
    return State(
        values(setup),
        np.zeros(setup.positions, np.int32),
        last_ages,
        np.zeros(setup.positions, np.uint8),
        np.array([int(chosen.explore * setup.buffer_size)]),
        np.zeros((2, _CLASSES, chosen.ages)),
        density,
        np.array([setup.seed], np.uint64),
        np.zeros(2, np.int64),
        np.array([chosen.reach, chosen.period]) * setup.buffer_size,
        np.array([chosen.decay]),
    )


@hook
def _class(state: State, position: int, ages: int) -> int:
    """Return the class of a position: the doublings that take its two ages to `ages`."""
    both = state.last_ages[0, position] + state.last_ages[1, position]
    found = 0
    while both < ages and found < _CLASSES - 1:
        both <<= 1
        found += 1
    return found


@hook
def _set_scale(state: State, accesses: int) -> None:
    """Choose the unit of ages and the period, in steps of so many accesses."""
    unit = 0
    while state.reach[0] > accesses * (state.density.shape[1] << unit):
        unit += 1
    state.steps[0] = unit
    state.steps[1] = max(1, int(state.reach[1] / accesses))


@hook
def _age(state: State, position: int, now: int) -> int:
    age: int = min((now - state.last_use[position]) >> state.steps[0], state.density.shape[1] - 1)
    return age


@hook
def _use(state: State, position: int, now: int) -> None:
    """Let a slot be used now that is no explorer."""
    state.last_use[position] = now
    explores = draw(state.random) % np.uint64(_USES_PER_EXPLORER) == 0 and state.explorers[0] > 0
    state.explores[position] = explores
    state.explorers[0] -= explores


@hook
def _count(state: State, kind: int, position: int, now: int) -> int:
    """Count a hit (0) or an eviction (1), end what the slot explored, and return its age."""
    ages = state.density.shape[1]
    age = _age(state, position, now)
    state.events[kind, _class(state, position, ages), age] += 1.0
    state.explorers[0] += state.explores[position]
    return age


@hook
def _model(state: State) -> None:
    """Compute the densities from what was counted."""
    events, density = state.events, state.density
    last = density.shape[1] - 1
    for kind in range(_CLASSES):
        hits, all_events, time = 0.0, 0.0, 0.0
        for age in range(last, -1, -1):
            hits += events[0, kind, age]
            all_events += events[0, kind, age] + events[1, kind, age]
            time += all_events
            if age < last:
                density[kind, age] = hits / time if time > 0.0 else 0.0
    for kind in range(_CLASSES):
        for age in range(last + 1):
            events[0, kind, age] *= state.decay[0]
            events[1, kind, age] *= state.decay[0]


@hook
def step(state: State, step: Step, now: int) -> None:
    last_ages = state.last_ages
    ages = state.density.shape[1]
    if state.steps[1] == 0:
        _set_scale(state, max(1, len(step.row)))
    for slot in step.hits:
        position = step.token[slot]
        age = _count(state, 0, position, now)
        last_ages[1, position] = last_ages[0, position]
        last_ages[0, position] = age
        _use(state, position, now)
    for position in step.token[:-1]:
        if position != len(state.last_use):  # else the slot is empty
            age = _age(state, position, now)
            density = state.density[_class(state, position, ages), age]
            state.values.of[position] = density + _LAST * state.explores[position]
    evict_least(state.values, step)
    for slot in step.victims:
        position = step.token[slot]
        if position != len(state.last_use):
            _count(state, 1, position, now)
    for position in step.missed:
        last_ages[0, position] = 0
        last_ages[1, position] = ages
        _use(state, position, now)
    if now % state.steps[1] == 0:
        _model(state)


LHD = Policy(
    name="lhd",
    summary="lowest density of hits still expected, by age and by class; ties: LRU",
    reference="Beckmann, Chen and Cidon 2018, NSDI '18",
    state=state,
    step=step,
    seeded=True,
    parameters=Parameters(),
)
