"""The reference itself, step by step against hand-worked cases: the reasoning is in the comments.

Every case uses a handful of slots, written as the list of positions that they hold.
"""

import pytest
from reference import Random, Step, Stream, replay


def run(
    policy: str,
    rows: list[tuple[int, list[int]]],
    buffer_size: int,
    start: str = "staged",
    prompt_len: int | None = None,
) -> list[Step]:
    """Replay rows of (seq_len, positions); the prompt ends before the first of them."""
    prompt_len = rows[0][0] - 1 if prompt_len is None else prompt_len
    return replay(Stream("r", 0, prompt_len, rows), policy, buffer_size, start)


def decode(first_seq_len: int, *rows: list[int]) -> list[tuple[int, list[int]]]:
    """Rows of consecutive decode steps: seq_len grows by one."""
    return [(first_seq_len + step, positions) for step, positions in enumerate(rows)]


def victims(steps: list[Step]) -> list[list[int]]:
    return [step.victims for step in steps]


def test_lru_orders_left_alone_then_fetched_then_reused() -> None:
    first, second, third = run("lru", decode(11, [7, 1, 3], [8, 7, 11], [11, 3, 5, 1]), 4)

    # Slots 0 1 2 3 hold 0 1 2 3. Hits: slots 1 and 3. Evictable: 0, 2. Position 7 takes slot 0.
    # Order: slot 2 was left alone, slot 0 fetched, slots 1 and 3 re-used.
    assert (first.misses, first.victims) == ([7], [0])
    assert first.slots == [7, 1, 2, 3]
    assert first.order == [2, 0, 1, 3]

    # seq_len 12: 11 is the newest token, a hit in the reserved slot. Hit: slot 0 (7).
    # Evictable in the present order: 2, 1, 3; 8 takes slot 2.
    assert (second.misses, second.victims, second.hits) == ([8], [2], 2)
    assert second.slots == [7, 1, 8, 3]
    assert second.order == [1, 3, 2, 0]

    # One step later 11 lives on the host only: a miss. Hits: slots 1, 3, in the present order,
    # not in that of the row. Evictable: 2, 0, taken by 11 and 5 in the order of the row.
    # A textbook LRU would rank 5 above 3; here every re-used slot outranks every fetched one.
    assert (third.misses, third.victims) == ([11, 5], [2, 0])
    assert third.slots == [5, 1, 11, 3]
    assert third.order == [2, 0, 1, 3]


def test_lru_direct_fills_empty_slots_in_slot_order() -> None:
    first, second = run("lru", decode(11, [9, 2], [2, 5, 6, 7]), 4, "direct")

    assert (first.misses, first.victims) == ([9, 2], [0, 1])
    assert first.slots == [9, 2, None, None]
    assert first.order == [2, 3, 0, 1]  # the empty slots stay first in line

    # Hit: slot 1. Evictable: 2, 3 (empty), then 0.
    assert (second.misses, second.victims) == ([5, 6, 7], [2, 3, 0])
    assert second.slots == [7, 2, 5, 6]


@pytest.mark.parametrize("policy", ["lru", "fifo", "random", "clock", "lfu", "arc", "belady"])
@pytest.mark.parametrize("start", ["staged", "direct"])
def test_a_short_request_misses_nothing_and_grows_past_the_buffer(policy: str, start: str) -> None:
    steps = run(policy, decode(3, [0, 1, 2], [3, 1], [4, 3, 2], [4, 5]), 4, start)

    # seq_len 3 and 4 fit into 4 slots: no misses, whatever is demanded.
    # seq_len 5: 4 is the newest token; 2 and 3 are ordinary residents of slots 2 and 3, though 3
    # was the newest a step ago. seq_len 6: 4 is the first token that lives on the host only.
    assert [step.misses for step in steps] == [[], [], [], [4]]
    assert [step.hits for step in steps] == [3, 2, 3, 1]
    assert steps[2].slots == [0, 1, 2, 3]


@pytest.mark.parametrize(("prompt_len", "misses"), [(4, []), (5, [0, 3])])
def test_direct_preloads_a_prompt_that_fits_exactly(prompt_len: int, misses: list[int]) -> None:
    (step,) = run("lru", [(prompt_len + 1, [0, 3, prompt_len])], 4, "direct")
    assert step.misses == misses


def test_lru_order_does_not_change_while_the_request_is_short() -> None:
    steps = run("lru", decode(4, [3, 1], [0, 4], [5, 2]), 4)
    assert steps[0].order == [0, 1, 2, 3]
    # seq_len 5: slot 0 is re-used and moves to the safe end.
    assert steps[1].order == [1, 2, 3, 0]
    # seq_len 6: 5 is newest, slot 2 re-used.
    assert steps[2].order == [1, 3, 0, 2]


def test_a_repeated_seq_len_keeps_its_newest_token_out_of_the_slots() -> None:
    steps = run("fifo", [(9, [8, 5]), (9, [8, 6]), (10, [8, 9])], 3)
    # 8 is newest twice, then a token like any other.
    assert [step.misses for step in steps] == [[5], [6], [8]]


def test_fifo_leaves_demanded_slots_their_place() -> None:
    steps = run("fifo", decode(9, [0, 5], [6, 7], [0]), 3)
    # 1: the queue is 0 1 2. Slot 0 is demanded and stays in front; 5 takes slot 1: queue 0 2 1.
    # 2: 6 takes slot 0, 7 takes slot 2: queue 1 0 2.
    # 3: 0 takes slot 1.
    assert victims(steps) == [[1], [0, 2], [1]]
    assert steps[-1].slots == [6, 0, 7]


def test_clock_passes_demanded_slots_without_clearing_their_bit() -> None:
    steps = run("clock", decode(9, [0, 1], [1, 5], [6, 7], [8, 6]), 3)
    # 1: two hits set bits 0 and 1.
    # 2: 5 misses. Hand at 0: bit set, cleared. Slot 1: demanded, passed, its bit stays.
    #    Slot 2: bit clear, taken. Hand at 0 again.
    # 3: 6 finds slot 0 clear. 7: slot 1 still has its bit, which is cleared now; slot 2 was
    #    fetched with a clear bit and is taken. Hand at 0.
    # 4: 6 is a hit in slot 0. 8: slot 0 is demanded; slot 1 is clear, taken.
    assert victims(steps) == [[], [2], [0, 2], [1]]
    assert steps[-1].slots == [6, 8, 7]


def test_lfu_counts_in_cache_only_and_breaks_ties_by_recency() -> None:
    steps = run("lfu", decode(9, [1, 0], [5], [5, 6], [1], [7]), 3)
    # 1: slots 1 and 0 are used, in this order: counts 2 2 1.
    # 2: 5 takes slot 2, the only one with count 1.
    # 3: 5 is used: count 2. 6 misses; slots 0 and 1 tie at 2, slot 1 was used before slot 0.
    # 4: 1 comes back with count 1: slot 1 (6, count 1) goes, the others have 2.
    # 5: what 1 was used for before it left is forgotten: slot 1 goes again.
    assert victims(steps) == [[], [2], [1], [1], [1]]
    assert steps[-1].slots == [0, 7, 5]


def test_arc_walks_through_its_cases() -> None:
    rows = decode(9, [0], [1, 5], [2], [5, 0], [6, 7], [8])
    steps = run("arc", rows, 3)
    # Start: T1 = 0 1 2 (least recent first), c = 3, p = 0.
    # 1: hit (case I): T1 = 1 2, T2 = 0.
    # 2: 1 is hit: T1 = 2, T2 = 0 1. 5 is new (case IV B): |T1| = 1 > p, so T1 gives 2, which
    #    becomes a ghost: B1 = 2. T1 = 5 in slot 2.
    # 3: 2 is in B1 (case II): p = 1. |T1| = 1 is not above p: T2 gives 0 in slot 0: B2 = 0.
    #    2 joins T2: T2 = 1 2, B1 empty.
    # 4: 5 is hit: T1 empty, T2 = 1 2 5. 0 is in B2 (case III): p = 0. T1 is empty: T2 gives 1 in
    #    slot 1: B2 = 1 once 0 has moved to T2 = 2 5 0.
    # 5: 6 is new: T2 gives 2 in slot 0: B2 = 1 2, T1 = 6. 7 is new: |T1| = 1 > p names T1, but 6
    #    is demanded in this very step; T2 gives 5 in slot 2: B2 = 1 2 5, T1 = 6 7, T2 = 0.
    # 6: 8 is new and the four lists hold 6 = 2c: B2 forgets 1. T1 gives 6 in slot 0.
    assert victims(steps) == [[], [2], [0], [1], [0, 2], [0]]
    assert steps[-1].slots == [8, 0, 7]


def test_arc_leaves_no_ghost_when_t1_fills_the_cache() -> None:
    steps = run("arc", decode(9, [5], [0], [0], [6], [7], [5]), 2)
    # Start: T1 = 0 1, c = 2.
    # 1: |T1| = c (case IV A): 0 goes from slot 0 without a ghost. T1 = 1 5.
    # 2: so 0 is new, and the case is the same: 1 goes from slot 1. T1 = 5 0.
    # 3: 0 is hit: T1 = 5, T2 = 0.
    # 4: 6 is new, |L1| = 1 < c: 5 goes from slot 0: B1 = 5, T1 = 6.
    # 5: 7 is new, |L1| = 2 = c with |T1| < c: B1 forgets 5, then 6 goes from slot 0: B1 = 6.
    # 6: so 5 is new, B1 forgets 6, and T1 gives 7 in slot 0. (Had 5 been a ghost, p would be 1
    #    and T2 would give slot 1.)
    assert victims(steps) == [[0], [1], [], [0], [0], [0]]
    assert steps[-1].slots == [5, 0]


def test_belady_looks_farthest_and_takes_the_lowest_of_the_never_used() -> None:
    steps = run("belady", decode(9, [5], [1], [2, 1], [0]), 3)
    # 1: 1 is demanded next in step 2, 2 in step 3, 0 in step 4: slot 0 goes.
    # 4: nothing is demanded again: the lowest slot goes.
    assert victims(steps) == [[0], [], [], [0]]


def test_random_draws_from_the_standard_splitmix64() -> None:
    # First outputs for the seed 1234567, as published on Rosetta Code.
    random = Random("")
    random.state = 1234567
    assert [random._draw() for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_random_removes_a_drawn_slot_from_its_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([5, 2, 0])
    monkeypatch.setattr(Random, "_draw", lambda self: next(draws))
    (step,) = run("random", decode(9, [1, 5, 6, 7]), 5)
    # Slot 1 is demanded: candidates 0 2 3 4. 5 mod 4 = 1: slot 2, whose place 4 takes: 0 4 3.
    # 2 mod 3 = 2: slot 3: 0 4. 0 mod 2 = 0: slot 0.
    assert step.victims == [2, 3, 0]


def test_random_uses_empty_slots_without_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([1])
    monkeypatch.setattr(Random, "_draw", lambda self: next(draws))
    steps = run("random", decode(9, [5, 6], [7, 4]), 3, "direct")
    # Step 1 fills slots 0 and 1. In step 2 7 fills slot 2 and is demanded from then on, so 4 is
    # drawn from slots 0 and 1.
    assert victims(steps) == [[0, 1], [2, 1]]


def test_random_depends_on_every_part_of_its_key() -> None:
    keys = ["0/r/0/8", "1/r/0/8", "0/s/0/8", "0/r/1/8", "0/r/0/9"]
    draws = [Random(key)._draw() for key in keys]
    assert len(set(draws)) == len(keys)


def test_a_larger_lru_buffer_need_not_contain_a_smaller_one() -> None:
    """No stack property, so no one-pass miss curve: the larger buffer may have been asleep."""
    rows = [(3, [0]), (4, [3]), (5, [3])]
    small = run("lru", rows, 2)
    large = run("lru", rows, 3)
    # seq_len 3 fits into 3 slots but not into 2: only the small buffer learns that 0 was used.
    # seq_len 4: the newest token, no change. seq_len 5: 3 takes the first slot in line, which is
    # that of 1 in the small buffer and that of 0 in the large one.
    assert small[-1].slots == [0, 3]
    assert large[-1].slots == [3, 1, 2]
