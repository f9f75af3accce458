"""The locality report against hand-worked rows and plain-Python definitions."""

from bisect import bisect_right
from collections import Counter, OrderedDict
from pathlib import Path

import make_traces
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from locality_tables import ALIKE, REUSED, locality_lines
from reference import Stream
from streams import cases, demand_of

import hisparse_sim as hs
from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.simulator.views.locality_view import curve, locality_table, missed
from hisparse_sim.traces import Demand, TraceError, open_trace
from hisparse_sim.traces.locality import measure as library
from hisparse_sim.traces.locality.measure import (
    EDGES,
    RECENT,
    SINKS,
    measure_locality,
    part_locality,
)

ROWS = [[0, 1, 2], [1, 2, 3], [9, 2, 0], [0, 1]]


def test_hand_worked() -> None:
    found = part_locality(make_traces.demand(ROWS, 10, layer=2))
    assert found.accesses == 11
    assert found.distinct == 5
    # Lag 1: {1, 2} of 3, {2} of 3, {0} of 2. Lag 2: {0, 2} of 3, {1} of 2. Lag 3 is not listed.
    assert found.overlap == {1: 4 / 8, 2: 3 / 5}
    assert found.working_set == {1: 11 / 4, 2: (4 + 4) / 2, 4: 5}
    # What returns, and which others were demanded since, this step apart: 1 (2), 2 (none);
    # 2 (3), 0 (1, 2, 3); 0 (none), 1 (2, 3, 9, 0).
    assert found.reuse_distance == {1: 2 / 11, 2: 2 / 11, 4: 1 / 11, 5: 1 / 11}
    # Without those of the row itself; with all of it.
    assert found.reuse_nearest == {1: 4 / 11, 4: 2 / 11}
    assert found.reuse_farthest == {3: 4 / 11, 4: 1 / 11, 5: 1 / 11}
    assert found.reuse_interval == {2: 4 / 11, 4: 2 / 11}
    assert (found.reuse_p50, found.reuse_p90) == (1, 4)
    assert found.first_accesses == 5 / 11
    assert found.sink_share == 10 / 11  # all but position 9
    assert found.recent_share == 1.0  # ages up to 12
    assert found.newest_share == 0  # 9 was the newest token at seq_len 10, two steps before
    assert found.density == 11 / (10 + 11 + 12 + 13)
    assert found.sink_coverage == 10 / 16
    assert found.recent_coverage == 11 / 46  # no more than there are
    # The halves demand 1, 2 (twice), then 0; and 0 (twice), then 1, 2.
    assert found.drift == 0


def plain(demand: Demand) -> dict[str, object]:
    """Return the same numbers by the definitions, with sets."""
    rows = [demand.row(i).tolist() for i in range(demand.rows)]
    kept = [
        [each for each in row if each != seq_len - 1]
        for row, seq_len in zip(rows, demand.seq_len.tolist(), strict=True)
    ]
    accesses = sum(map(len, rows))
    names = ("reuse_distance", "reuse_nearest", "reuse_farthest", "reuse_interval")
    bins: dict[str, Counter[int]] = {name: Counter() for name in names}
    distances = []
    last: dict[int, int] = {}
    first = 0
    for now, row in enumerate(kept):
        for position in row:
            if position not in last:
                first += 1
                continue
            then = last[position]
            between = set().union(*kept[then + 1 : now])
            behind = set(kept[then][kept[then].index(position) + 1 :])
            beside = set(kept[then]) - {position}
            values = [len(between | more) for more in (behind, set(), beside)]
            distances.append(values[0])
            for name, value in zip(names, values, strict=False):
                bins[name][int(EDGES[bisect_right(EDGES.tolist(), value)])] += 1
            bins["reuse_interval"][1 << (now - then).bit_length()] += 1
        last.update(dict.fromkeys(row, now))
    overlap = {}
    working_set = {}
    size = 1
    while size <= len(rows):
        if size < len(rows):
            pairs = list(zip(rows, rows[size:], strict=False))
            listed = sum(len(later) for _, later in pairs)
            shared = sum(len(set(early) & set(later)) for early, later in pairs)
            overlap[size] = shared / listed if listed else float("nan")
        windows = [rows[i : i + size] for i in range(0, len(rows) - size + 1, size)]
        working_set[size] = np.mean([len(set().union(*window)) for window in windows])
        size *= 2
    ages = [demand.seq_len[i] - 1 - each for i, row in enumerate(rows) for each in row]
    sinks = sum(each < SINKS for row in rows for each in row)
    recent = sum(age < RECENT for age in ages)
    lengths = demand.seq_len.tolist()
    distances.sort()
    ranks = [-(-len(distances) * tenths // 10) - 1 for tenths in (5, 9)]
    quantiles = [distances[rank] if distances else float("nan") for rank in ranks]
    return {
        "distinct": len(set().union(*rows)),
        "overlap": overlap,
        "working_set": working_set,
        **{
            name: {key: value / accesses for key, value in own.items()}
            for name, own in bins.items()
        },
        "reuse_p50": quantiles[0],
        "reuse_p90": quantiles[1],
        "first_accesses": first / max(1, accesses),
        "sink_share": sinks / max(1, accesses),
        "recent_share": recent / max(1, accesses),
        "newest_share": sum(age == 0 for age in ages) / max(1, accesses),
        "sink_coverage": sinks / sum(min(SINKS, length) for length in lengths),
        "recent_coverage": recent / sum(min(RECENT, length) for length in lengths),
        "density": accesses / sum(lengths),
        "drift": plain_drift(rows),
    }


def plain_drift(rows: list[list[int]]) -> float | None:
    if len(rows) < 2:
        return None
    halves = []
    for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        counts = Counter(each for row in half for each in row)
        popular = sorted(counts, key=lambda each: (-counts[each], each))
        halves.append(set(popular[: max(map(len, rows))]))
    return 1 - len(halves[0] & halves[1]) / max(1, len(halves[0]))


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_agrees_with_the_definitions(case: tuple[Stream, int]) -> None:
    demand = demand_of(case[0])
    found = part_locality(demand)
    for name, expected in plain(demand).items():
        assert getattr(found, name) == pytest.approx(expected, nan_ok=True), name


def lru_misses(demand: Demand, slots: int) -> int:
    """Replay an LRU that ranks the positions of a step in the order of its row; the start is
    empty, the newest token is apart."""
    order: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for i in range(demand.rows):
        row = [each for each in demand.row(i).tolist() if each != demand.seq_len[i] - 1]
        misses += sum(each not in order for each in row)
        for each in row:
            order[each] = None
            order.move_to_end(each)
        while len(order) > slots:
            order.popitem(last=False)
    return misses


@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_reuse_distances_are_the_misses_of_an_lru(case: tuple[Stream, int]) -> None:
    """Of the plain one exactly; the engine's own order within a step stays inside the bounds."""
    stream, slots = case
    demand = demand_of(stream)
    found = part_locality(demand)
    slots = min(slots, 8)  # up to it every number is the end of a bin, and can be read off
    longest = max(len(demand.row(i)) for i in range(demand.rows))
    if not found.accesses or longest > slots:
        return

    def read_off(bins: dict[int, float]) -> float:
        hits = sum(share for end, share in bins.items() if end <= slots)
        return round((1 - found.newest_share - hits) * found.accesses, 6)

    assert read_off(found.reuse_distance) == lru_misses(demand, slots)
    if demand.seq_len[0] > slots and demand.prompt_len > slots:
        engine = replay_part(demand, get_policy("lru"), slots, "direct").misses.sum()
        low, high = read_off(found.reuse_nearest), read_off(found.reuse_farthest)
        assert low <= engine <= high


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("together", [1 << 25, 20])  # positions compared at once
def test_cross_layer_overlap(
    together: int, tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]]
) -> None:
    """Steps are matched by number, whichever layer starts later or ends earlier."""
    parts = [
        make_traces.drift(steps=steps, layer=2 * i, first_step=first, ragged=True)
        for i, (first, steps) in enumerate(spans)
    ]
    path = make_traces.write(
        tmp_path_factory.mktemp("layers") / "t.parquet", parts, make_traces.metadata(num_layers=7)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "_TOGETHER", together)
        found = measure_locality(open_trace(path))
    for one, measured in zip(parts, found, strict=True):
        expected = {}
        for other in parts:
            rows = dict(zip(other.step.tolist(), map(other.row, range(other.rows)), strict=True))
            pairs = [
                (set(one.row(i).tolist()), set(rows[step].tolist()))
                for i, step in enumerate(one.step.tolist())
                if step in rows
            ]
            listed = sum(len(own) for own, _ in pairs)
            if other is not one and listed:
                expected[other.layer] = sum(len(own & its) for own, its in pairs) / listed
        assert measured.cross_layer == expected


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
    assert found[2].cross_layer_overlap == found[2].cross_layer[1]
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


def test_the_table_holds_every_number_once(tmp_path: Path) -> None:
    parts = make_traces.several(requests=2, layers=(0, 1, 3))
    path = make_traces.write(tmp_path / "t.parquet", parts)
    rows = hs.locality(path)
    assert not rows.duplicated(["trace", "request", "layer", "measure", "at"]).any()
    found = {(each.request, each.layer): each for each in measure_locality(open_trace(path))}
    for (request, layer, measure), own in rows.groupby(["request", "layer", "measure"]):
        value = getattr(found[request, layer], str(measure))
        if own["at"].isna().all():
            assert own["value"].tolist() == pytest.approx([value or np.nan], nan_ok=True)
        else:
            assert dict(zip(own["at"], own["value"], strict=True)) == value
    assert set(rows["provenance"]) == {"synthetic"}


def test_means_over_layers(tmp_path: Path) -> None:
    demands = [
        make_traces.demand([[0, 1], [1, 2], [1, 9], [0, 5]], 20, layer=2),
        make_traces.demand([[0, 1], [0, 1]], 20, layer=3),
    ]
    rows = hs.locality(make_traces.write(tmp_path / "t.parquet", demands))
    (line,) = locality_table(rows).to_dict("records")
    assert line["overlap_1"] == np.mean([2 / 6, 1])
    assert np.isnan(line["overlap_16"])
    assert line["layers"] == 2
    assert line["cross_layer_overlap"] == 3 / 4  # of layer 3; layer 2 is the first
    assert list(curve(rows, "overlap").columns) == [1]  # layer 3 has no two steps between
    # Layer 2 returns at distances 0, 1, 3 among 8 demands, layer 3 at 1, 0 among 4.
    lru = missed(rows)
    assert lru[1] == np.mean([7 / 8, 3 / 4])
    assert lru[2] == np.mean([6 / 8, 2 / 4])
    assert lru[3] == lru[2]  # no distance there
    assert lru[4] == np.mean([5 / 8, 2 / 4])
    assert lru.index[-1] == 4
    only = hs.locality(tmp_path / "t.parquet", layers=[3], steps=(0, 1))
    assert missed(only).tolist() == [1.0]  # nothing is demanded twice
    with pytest.raises(ValueError, match="one without a selected step"):
        hs.locality(tmp_path / "t.parquet", steps=(90, 99))
    with pytest.raises(TraceError, match="layer"):
        hs.locality(tmp_path / "t.parquet", layers=[7])


def test_the_sample_misses_what_it_replays() -> None:
    """The reading is 0.1 points from the engine's LRU on the bundled trace, the bounds hold it."""
    trace = hs.open_trace(hs.sample_path())
    rows = hs.locality(trace, layers=[9, 24])
    buffers = [2048, 4096, 6144]
    swept = hs.sweep(trace, "lru", buffers, "direct", compare_min=False, layers=[9, 24]).rows
    replayed = swept["miss_rate"].to_numpy()
    measures = ("reuse_nearest", "reuse_distance", "reuse_farthest")
    low, read, high = (missed(rows, measure)[buffers].to_numpy() for measure in measures)
    assert (low <= replayed).all()
    assert (replayed <= high).all()
    np.testing.assert_allclose(read, replayed, atol=0.001)


def test_the_page_shows_the_sample() -> None:
    """docs/locality.md has the line that benchmarks/locality_tables.py prints for it."""
    page = (Path(__file__).parents[1] / "docs" / "locality.md").read_text().splitlines()
    rows = hs.locality(hs.sample_path(), steps=(0, 512))
    for columns in (ALIKE, REUSED):
        heading, _, line = locality_lines(rows, columns)
        assert heading in page
        assert line in page
