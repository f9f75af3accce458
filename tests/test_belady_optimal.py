"""Belady's rule gives the fewest misses there are, by exhaustive search over all victims.

All positions of a step are demanded at once, so the textbook proof, for one access at a time,
does not apply as it stands. The search knows nothing of slots or policies: its state is the set
of resident positions, and a step may drop any of them that it does not demand.
"""

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Stream, replay, without_newest
from streams import demand_of

from hisparse_sim.simulator.replay import replay_part


def fewest_misses(stream: Stream, buffer_size: int, start: str) -> int:
    """Try every choice of victims in every step and return the smallest number of misses."""

    @cache
    def from_step(step: int, resident: frozenset[int]) -> int:
        if step == len(stream.rows):
            return 0
        seq_len, positions = stream.rows[step]
        if seq_len <= buffer_size:
            return from_step(step + 1, resident)
        demanded = frozenset(without_newest(seq_len, positions))
        kept = resident | demanded
        droppable = sorted(kept - demanded)
        surplus = max(0, len(kept) - buffer_size)
        return len(demanded - resident) + min(
            from_step(step + 1, kept.difference(dropped))
            for dropped in combinations(droppable, surplus)
        )

    preloaded = start == "staged" or stream.prompt_len <= buffer_size
    return from_step(0, frozenset(range(buffer_size) if preloaded else ()))


@st.composite
def tiny_cases(draw: st.DrawFn) -> tuple[Stream, int]:
    """At most five slots, nine positions and nine steps: few enough to try everything."""
    buffer_size = draw(st.integers(1, 5))
    seq_len = draw(st.integers(2, 9))
    prompt_len = seq_len - 1
    rows = []
    for _ in range(draw(st.integers(1, 9))):
        positions = st.lists(
            st.integers(0, seq_len - 1), min_size=1, max_size=min(3, buffer_size), unique=True
        )
        rows.append((seq_len, draw(positions)))
        seq_len = min(9, seq_len + draw(st.integers(0, 1)))
    return Stream("tiny", 0, prompt_len, rows), buffer_size


@pytest.mark.parametrize("start", ["staged", "direct"])
@settings(max_examples=80, deadline=None)
@given(case=tiny_cases())
def test_belady_misses_as_few_as_exhaustive_search(start: str, case: tuple[Stream, int]) -> None:
    stream, buffer_size = case
    fewest = fewest_misses(stream, buffer_size, start)
    assert sum(len(step.misses) for step in replay(stream, "belady", buffer_size, start)) == fewest
    fast = replay_part(demand_of(stream), "belady", buffer_size, start)
    assert int(fast.misses.sum()) == fewest


def test_exhaustive_search_beats_a_greedy_choice() -> None:
    """The search is not trivial: the fewest misses are below those of every other policy."""
    rows = [(9, [2, 3]), (9, [0, 4]), (9, [1, 5]), (9, [0, 2]), (9, [1, 3]), (9, [0, 5])]
    stream = Stream("tiny", 0, 8, rows)
    fewest = fewest_misses(stream, 3, "staged")
    others = ("lru", "fifo", "clock", "lfu", "arc")
    assert fewest < min(
        sum(len(step.misses) for step in replay(stream, policy, 3, "staged")) for policy in others
    )
