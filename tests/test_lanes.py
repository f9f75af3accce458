"""The primitives that take several elements at a time, compiled and plain, against lists."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.policies import hook, lanes
from hisparse_sim.traces.machine_code import compiled

UNTOUCHED = 60000


@compiled
def compiled_split(slots: Any, marks: Any, others: Any, marked: Any) -> int:
    return lanes.split(slots, marks, others, marked)


@compiled
def compiled_look_up(
    row: Any, following: Any, slot: Any, absent: int, hits: Any, places: Any
) -> int:
    return lanes.look_up(row, following, slot, absent, hits, places)


@compiled
def compiled_outside(numbers: Any, start: int, low: int, high: int) -> Any:
    return hook.outside(numbers, start, low, high)


@pytest.mark.parametrize("split", [lanes.split, compiled_split])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_split_keeps_the_order(split: Any, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 70))
    slots = np.array(data.draw(st.permutations(range(size))), np.uint16)
    marks = np.zeros(size + lanes.LANES, np.uint8)
    marks[:size] = data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
    marks[size:] = 1  # of no slot
    others, marked = np.full((2, size + lanes.LANES + 1), UNTOUCHED, np.uint16)
    count = split(slots, marks, others, marked)
    assert others[:count].tolist() == [slot for slot in slots if not marks[slot]]
    assert marked[: size - count].tolist() == [slot for slot in slots if marks[slot]]
    assert others[count + lanes.LANES :].tolist() == [UNTOUCHED] * (size + 1 - count)
    assert marked[size - count + lanes.LANES :].tolist() == [UNTOUCHED] * (count + 1)


@pytest.mark.parametrize("look_up", [lanes.look_up, compiled_look_up])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_look_up_keeps_the_order_of_the_row(look_up: Any, data: st.DataObject) -> None:
    positions = data.draw(st.integers(1, 90))
    absent = data.draw(st.sampled_from([1, 300, 32767]))
    here = st.integers(0, absent)
    slot = np.array(data.draw(st.lists(here, min_size=positions, max_size=positions)), np.uint16)
    row = np.array(data.draw(st.permutations(range(positions))), np.uint32)
    row = row[: data.draw(st.integers(0, positions))]
    following = row[data.draw(st.integers(0, len(row))) :]
    hits = np.full(len(row) + lanes.LANES + 1, UNTOUCHED, np.uint16)
    places = np.full(len(row) + lanes.LANES + 1, UNTOUCHED, np.int32)
    count = look_up(row, following, slot, absent, hits, places)
    found = slot[row].tolist()
    missing = [place for place, each in enumerate(found) if each == absent]
    assert hits[:count].tolist() == [each for each in found if each != absent]
    assert places[: len(row) - count].tolist() == missing
    assert hits[count + lanes.LANES :].tolist() == [UNTOUCHED] * (len(row) + 1 - count)
    assert places[len(missing) + lanes.LANES :].tolist() == [UNTOUCHED] * (count + 1)


@pytest.mark.parametrize("outside", [hook.outside, compiled_outside])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_outside_of_a_range(outside: Any, data: st.DataObject) -> None:
    number = st.sampled_from([0, 1, 2, 3, 7, 2**31 - 1])
    numbers = np.array(data.draw(st.lists(number, min_size=80, max_size=80)), np.int32)
    low = data.draw(number)
    high = data.draw(number.filter(lambda each: each >= low))
    start = data.draw(st.integers(0, 16))
    bits = int(outside(numbers, start, low, high))
    wanted = [not low <= each <= high for each in numbers[start : start + hook.WORD]]
    assert [bool(bits >> place & 1) for place in range(hook.WORD)] == wanted
    assert bits == 0 or wanted[hook.lowest_one(np.uint64(bits))]
    assert not any(wanted[: hook.lowest_one(np.uint64(bits))] if bits else wanted)
