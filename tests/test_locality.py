"""The locality report against hand-worked rows and plain-Python definitions."""

from collections import Counter
from pathlib import Path

import make_traces
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import cases, demand_of

from hisparse_sim.traces import Demand, open_trace
from hisparse_sim.traces.locality import (
    RECENT,
    SINKS,
    adjacent_overlap,
    cross_overlap,
    measure_locality,
    part_locality,
    summary,
)

ROWS = [[0, 1, 2], [1, 2, 3], [9, 2, 0], [0, 1]]


def test_hand_worked() -> None:
    found = part_locality(make_traces.demand(ROWS, 10, layer=2))
    assert found.accesses == 11
    assert found.distinct == 5
    # Lag 1: {1, 2} of 3, {2} of 3, {0} of 2. Lag 2: {0, 2} of 3, {1} of 2. Lag 3 is not listed.
    assert found.overlap == {1: 4 / 8, 2: 3 / 5}
    assert found.working_set == {1: 11 / 4, 2: (4 + 4) / 2, 4: 5}
    # Returns: 1 and 2 after one step (nothing between); then 2 after one; 0 after two steps, with
    # 1, 2, 3 between; 0 after one; 1 after two, with 9, 2, 0 between.
    assert found.reuse_distance == {1: 4 / 11, 4: 2 / 11}
    assert found.reuse_interval == {2: 4 / 11, 4: 2 / 11}
    assert found.first_demands == 5 / 11
    assert found.sink_share == 10 / 11  # all but position 9
    assert found.recent_share == 1.0  # ages up to 12
    assert found.newest_share == 0  # 9 was the newest token at seq_len 10, two steps before
    # The halves demand 1, 2 (twice), then 0; and 0 (twice), then 1, 2.
    assert found.drift == 0


def plain(demand: Demand) -> dict[str, object]:
    """Return the same numbers by the definitions, with sets."""
    rows = [demand.row(i).tolist() for i in range(demand.rows)]
    accesses = sum(map(len, rows))
    distances: Counter[int] = Counter()
    intervals: Counter[int] = Counter()
    last: dict[int, int] = {}
    for now, row in enumerate(rows):
        for position in row:
            if position in last:
                between = set().union(*rows[last[position] + 1 : now])
                distances[1 << len(between).bit_length()] += 1
                intervals[1 << (now - last[position]).bit_length()] += 1
        last.update(dict.fromkeys(row, now))
    overlap = {}
    lag = 1
    while lag < len(rows):
        pairs = list(zip(rows, rows[lag:], strict=False))
        listed = sum(len(later) for _, later in pairs)
        shared = sum(len(set(early) & set(later)) for early, later in pairs)
        overlap[lag] = shared / listed if listed else float("nan")
        lag *= 2
    ages = [demand.seq_len[i] - 1 - each for i, row in enumerate(rows) for each in row]
    return {
        "distinct": len(last),
        "overlap": overlap,
        "reuse_distance": {key: value / accesses for key, value in distances.items()},
        "reuse_interval": {key: value / accesses for key, value in intervals.items()},
        "first_demands": len(last) / max(1, accesses),
        "sink_share": sum(each < SINKS for row in rows for each in row) / max(1, accesses),
        "recent_share": sum(age < RECENT for age in ages) / max(1, accesses),
        "newest_share": sum(age == 0 for age in ages) / max(1, accesses),
    }


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_agrees_with_the_definitions(case: object) -> None:
    demand = demand_of(case[0])  # type: ignore[index]
    found = part_locality(demand)
    for name, expected in plain(demand).items():
        assert getattr(found, name) == pytest.approx(expected, nan_ok=True), name
    sizes = list(found.working_set.values())
    assert sizes == sorted(sizes) or demand.rows % 2  # windows of odd lengths drop a rest


@given(st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_cross_layer_overlap(first: int, second: int) -> None:
    """Steps are matched by number, whichever layer starts later."""
    one = make_traces.drift(steps=9, layer=0, first_step=first)
    two = make_traces.drift(steps=9, layer=1, first_step=second)
    shared = listed = 0
    for i, step in enumerate(two.step.tolist()):
        if step in one.step:
            row = two.row(i)
            listed += len(row)
            shared += len(np.intersect1d(row, one.row(step - first)))
    assert cross_overlap(one, two) == shared / listed
    assert cross_overlap(one, one) == 1
    late = make_traces.drift(steps=3, first_step=90)
    assert np.isnan(cross_overlap(one, late))


def test_measure_a_file(tmp_path: Path) -> None:
    parts = make_traces.several(requests=2, layers=(0, 1, 3))
    trace = open_trace(make_traces.write(tmp_path / "t.parquet", parts))
    calls: list[tuple[int, int]] = []
    found = measure_locality(trace, progress=lambda *call: calls.append(call))
    assert [(each.request, each.layer) for each in found] == [
        (part.request, part.layer) for part in parts
    ]
    assert calls[-1] == (6, 6)
    # The first layer of a request has none before it, of whichever request.
    assert [each.cross_layer_overlap is None for each in found] == [True, False, False] * 2
    assert found[1].cross_layer_overlap == cross_overlap(parts[0], parts[1])
    means = summary(found)
    assert means["distinct"] == np.mean([each.distinct for each in found])
    assert means["overlap"][1] == pytest.approx(np.mean([adjacent_overlap(each) for each in parts]))
    assert means["lowest_overlap"] <= means["overlap"][1] <= means["highest_overlap"]
    assert sum(means["reuse_distance"].values()) + means["first_demands"] == pytest.approx(1)
    assert summary([]) == {}
    some = measure_locality(trace, layers=[3], steps=(0, 12))
    assert [(each.layer, each.steps) for each in some] == [(3, 12), (3, 2)]


def test_single_step_and_empty_rows() -> None:
    single = part_locality(make_traces.demand([[3, 1]], 9))
    assert single.drift is None
    assert single.overlap == {}
    empty = part_locality(make_traces.demand([[], []], 9))
    assert empty.accesses == 0
    assert np.isnan(empty.overlap[1])
    assert empty.drift == 1


def test_large_positions_need_little_memory() -> None:
    found = part_locality(make_traces.demand([[2**31 - 3, 5], [5]], 2**31 - 2))
    assert found.distinct == 2
