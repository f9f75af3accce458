"""Curves from one pass against textbook replays at every size, and the tables made of them."""

import json
from pathlib import Path

import make_traces
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from reference import Stream, replay, without_newest
from streams import cases, demand_of, stream_of

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.mrc import counting
from hisparse_sim.simulator.mrc.counting import page_of
from hisparse_sim.simulator.mrc.curves import Curve, engine_difference, interpolated, joined
from hisparse_sim.simulator.mrc.names import ONE_PASS
from hisparse_sim.simulator.mrc.one_pass import part_curve
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.simulator.views import figures
from hisparse_sim.traces import TraceError, open_trace


def textbook(stream: Stream, buffer_size: int, start: str) -> list[int]:
    """Misses per step of an LRU that stamps a step's positions in the order of the row."""
    order: list[int | None] = [None] * buffer_size  # next victim first
    if start == "staged" or stream.prompt_len <= buffer_size or stream.rows[0][0] <= buffer_size:
        order = list(range(buffer_size))
    misses = []
    for seq_len, positions in stream.rows:
        if seq_len <= buffer_size:
            misses.append(0)
            continue
        row = without_newest(seq_len, positions)
        missed = sum(position not in order for position in row)
        others = [position for position in order if position not in row]
        order = others[missed:] + row
        misses.append(missed)
    return misses


def longest(stream: Stream) -> int:
    return max(1, *(len(positions) for _, positions in stream.rows), 1)


def test_lru_hand_worked() -> None:
    # Positions 7, 1, 3; then 8, 7, 11; then 11, 3, 5, 1 (12 is the newest in the last row).
    rows = [(11, [7, 1, 3]), (12, [8, 7, 11]), (13, [11, 3, 5, 1])]
    demand = demand_of(Stream("r", 0, 10, rows))
    curve = part_curve(demand, "textbook-lru", 10, edges=np.arange(4))
    # 4 slots begin with 0 1 2 3, of which 0 goes first: 7 misses. Then 1 and 3 are left alone and
    # 7 is there: 8 misses; 11 is the newest token. Order 2 1 3 8 7 is cut to 1 3 8 7: of 11 3 5 1
    # two miss.
    assert curve[:, 4].tolist() == [1, 1, 2]
    # 6 slots begin with 0 .. 5, so 7 takes the place of 0, 8 that of 2; 11 that of 4, 5 is there.
    assert curve[:, 6].tolist() == [1, 1, 1]
    # 10 slots hold all but 11, which was the newest token a step before.
    assert curve[:, 10].tolist() == [0, 0, 1]
    # Empty at the start: all of the first row, then 8, then 11 and 5; 7 1 3 8 fit into 4 slots.
    assert part_curve(demand, "textbook-lru", 9, "direct", np.arange(4))[:, 4].tolist() == [3, 1, 2]
    # A buffer of 10 holds the whole prompt, whatever the start.
    assert part_curve(demand, "textbook-lru", 10, "direct")[10] == 1


def test_a_buffer_that_is_outgrown_forgets_what_was_demanded_before() -> None:
    # A buffer of 3 slots sees both demands of 0: its order is 1 2 0 when 5 evicts 2. One of 5 slots
    # starts with row 2, and its order is 0 1 2 3 4: 5 evicts 0, and the larger buffer misses more.
    rows: list[tuple[int, list[int]]] = [(4, [0]), (5, [0]), (6, []), (7, [1, 5]), (8, [0])]
    stream = Stream("r", 0, 3, rows)
    curve = part_curve(demand_of(stream), "textbook-lru", 5, edges=np.arange(6))
    assert curve[:, 3].tolist() == [0, 0, 0, 1, 0]
    assert curve[:, 5].tolist() == [0, 0, 0, 1, 1]
    assert [textbook(stream, size, "staged") for size in (3, 5)] == curve[:, [3, 5]].T.tolist()


@settings(max_examples=60, deadline=None)
@given(cases())
def test_lru_is_the_textbook_at_every_size(case: tuple[Stream, int]) -> None:
    stream, _ = case
    sizes = range(longest(stream), longest(stream) + 25)
    demand = demand_of(stream)
    for start in ("staged", "direct"):
        steps = part_curve(demand, "textbook-lru", sizes[-1], start, np.arange(demand.rows + 1))
        assert (steps.sum(axis=0) == part_curve(demand, "textbook-lru", sizes[-1], start)).all()
        for size in sizes:
            assert steps[:, size].tolist() == textbook(stream, size, start), (size, start)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_optimum_is_belady_at_every_size(case: tuple[Stream, int]) -> None:
    stream, _ = case
    sizes = range(longest(stream), longest(stream) + 12)
    demand = demand_of(stream)
    for start in ("staged", "direct"):
        curve = part_curve(demand, "belady", sizes[-1], start)
        for size in sizes:
            steps = replay(stream, "belady", size, start)
            assert curve[size] == sum(len(step.misses) for step in steps), (size, start)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_compulsory_misses_are_first_demands_of_what_the_start_left_out(
    case: tuple[Stream, int],
) -> None:
    stream, _ = case
    demand = demand_of(stream)
    for start in ("staged", "direct"):
        curve = part_curve(demand, "compulsory", 40, start)
        for size in range(longest(stream), 41):
            filled = start == "staged" or stream.prompt_len <= size or stream.rows[0][0] <= size
            seen = set(range(size)) if filled else set()
            misses = 0
            for seq_len, positions in stream.rows:
                new = set(without_newest(seq_len, positions)) - seen if seq_len > size else set()
                misses += len(new)
                seen |= new
            assert curve[size] == misses, (size, start)


@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_of_more_words_than_one(shuffled: bool) -> None:
    """Long rows and many of them: depths by words of bits, and times given anew."""
    demand = make_traces.drift(
        steps=120, top_k=150, first_seq_len=600, keep=0.8, ragged=True, shuffled=shuffled
    )
    stream = stream_of(demand)
    for start in ("staged", "direct"):
        steps = part_curve(demand, "textbook-lru", 760, start, np.arange(demand.rows + 1))
        for size in (150, 151, 200, 333, 500, 599, 600, 601, 650, 719, 720, 760):
            assert steps[:, size].tolist() == textbook(stream, size, start), (size, start)


@settings(max_examples=50, deadline=None)
@given(cases())
def test_the_replayed_textbook_is_the_textbook(case: tuple[Stream, int]) -> None:
    stream, size = case
    for start in ("staged", "direct"):
        found = replay_part(demand_of(stream), "textbook-lru", size, start).misses.tolist()
        assert found == textbook(stream, size, start)


def test_real_parts_at_every_size() -> None:
    trace = open_trace(hs.sample_path())
    for part in trace.parts:
        demand = trace.read(part, steps=(0, 40))
        start = "direct" if part.layer % 2 else "staged"
        lru, least, first = (part_curve(demand, name, 16384, start) for name in ONE_PASS)
        for size in (*range(2048, 2060), *range(2060, 16384, 97), 16384):
            assert lru[size] == replay_part(demand, "textbook-lru", size, start).misses.sum(), size
        for size in np.linspace(2048, 16384, 20).astype(int).tolist():
            assert least[size] == replay_part(demand, "belady", size, start).misses.sum(), size
        assert (np.diff(lru[2048:]) <= 0).all()
        assert (np.diff(least[2048:]) <= 0).all()
        assert (least[2048:] <= lru[2048:]).all()
        assert (first[2048:] <= least[2048:]).all()


def test_positions_beyond_any_table() -> None:
    """A seq_len that no context has: positions are numbered anew, and the start is kept."""
    rows = [[1, 5, 40_000_000], [5, 2_000_000_000, 3], [40_000_000, 1, 0], [2, 7, 1]]
    far = make_traces.demand(rows, 2_000_000_002)
    names = {40_000_000: 50, 2_000_000_000: 60}
    near = make_traces.demand([[names.get(p, p) for p in row] for row in rows], 100)
    for policy in ONE_PASS:
        for start in ("staged", "direct"):
            found = part_curve(far, policy, 20, start)
            assert found[3:].tolist() == part_curve(near, policy, 20, start)[3:].tolist()


def test_bad_arguments() -> None:
    demand = make_traces.drift()
    with pytest.raises(ValueError, match="'arc' has no one-pass curve; textbook-lru, belady"):
        part_curve(demand, "arc", 16)
    with pytest.raises(ValueError, match="buffer size 40000"):
        part_curve(demand, "belady", 40000)
    with pytest.raises(ValueError, match="unknown start"):
        part_curve(demand, "belady", 16, "cold")


# --- tables --------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_traces.write(tmp_path / "several.parquet", make_traces.several(top_k=8))


def test_rows_are_those_of_a_sweep(path: Path) -> None:
    rows = hs.mrc(path, ["textbook-lru", "belady", "lru", "fifo"], [8, 12, 20]).rows
    swept = hs.sweep(path, ["belady", "lru", "fifo"], [8, 12, 20], compare_min=False).rows
    keys = ["trace", "policy", "buffer"]
    exact = rows[rows["method"] != "interpolated"]
    both = swept.merge(exact, on=keys, suffixes=("", "_curve"))
    assert len(both) == 9
    for column in ("provenance", "start", "steps", "accesses", "misses", "miss_rate"):
        assert (both[column] == both[f"{column}_curve"]).all()
    assert both["misses_per_step"].tolist() == pytest.approx(both["misses_per_step_curve"].tolist())
    every = rows[rows["policy"] == "textbook-lru"]
    assert every["buffer"].tolist() == list(range(8, 65))  # top_k to 8 times that
    between = rows[(rows["policy"] == "fifo") & (rows["method"] == "interpolated")]
    assert between["buffer"].tolist() == [9, 10, 11, *range(13, 20)]


def test_lines_add_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = hs.mrc(path, ["textbook-lru", "belady", "clock"], [8, 16, 64])
    layers = hs.mrc(path, ["textbook-lru", "belady", "clock"], [8, 16, 64], per_layer=True)
    windows = hs.mrc(path, ["textbook-lru", "belady", "clock"], [8, 16, 64], window=6, jobs=1)
    assert len(whole.lines) == 1
    assert len(layers.lines) == 9
    assert windows.lines.loc[:3, "first_step"].tolist() == [0, 6, 12, 18]
    assert windows.lines.loc[:3, "steps"].tolist() == [6, 6, 6, 2]
    pd.testing.assert_frame_equal(layers.summed().rows, whole.rows)
    pd.testing.assert_frame_equal(windows.summed().rows, whole.rows)
    pd.testing.assert_frame_equal(windows.summed(["request", "layer"]).rows, layers.rows)
    one = layers.select(layers=[3], requests=["request-1"])
    asked = hs.mrc(
        path, list(whole.of), [8, 16, 64], per_layer=True, layers=3, requests="request-1"
    )
    pd.testing.assert_frame_equal(one.rows, asked.rows)
    twice = joined([one, one]).summed()
    for policy, curve in one.of.items():
        assert (twice.of[policy].misses == 2 * curve.misses).all()
    assert twice.lines["steps"].tolist() == [2 * one.lines["steps"].sum()]
    monkeypatch.setattr(counting, "_TOGETHER", 2)  # sums up as it goes
    again = hs.mrc(path, ["textbook-lru", "belady", "clock"], [8, 16, 64])
    pd.testing.assert_frame_equal(again.rows, whole.rows)


def test_skipped_steps_count_on(path: Path) -> None:
    late = hs.mrc(path, ["textbook-lru", "lru"], [8, 16], skip_steps=5, requests="request-0").rows
    steps = hs.sweep(path, "lru", [8, 16], compare_min=False, requests="request-0").steps
    for size in (8, 16):
        wanted = steps.loc[(steps["buffer"] == size) & (steps["step"] >= 5), "misses"].sum()
        found = late[(late["policy"] == "lru") & (late["buffer"] == size)]
        assert found["misses"].tolist() == [wanted]
        assert found["steps"].tolist() == [3 * 15]


def test_windows_of_what_is_selected(path: Path) -> None:
    windows = hs.mrc(path, "textbook-lru", window=6)
    assert set(windows.lines["first_step"]) == {0, 6, 12, 18, 10, 16, 22, 28, 20, 26, 32, 38, 44}
    early = windows.select(requests=["request-0"], steps=(0, 12))
    assert early.lines["first_step"].tolist() == 3 * [0, 6]
    with pytest.raises(ValueError, match="step 9 is inside a window"):
        windows.select(requests=["request-0"], steps=(0, 9))
    with pytest.raises(ValueError, match="no layer 7"):
        windows.select(layers=[7])


def test_pages() -> None:
    assert [page_of(top_k) for top_k in (1, 16, 64, 512, 2047, 2048, 4096)] == [
        1, 1, 2, 16, 32, 64, 64
    ]  # fmt: skip


def test_interpolation_goes_through_what_is_known_and_never_rises() -> None:
    curve = Curve("replay", np.array([10, 20, 40, 80]), np.array([[800, 400, 100, 0]]))
    (found,) = interpolated(curve, np.arange(10, 81))
    assert found[[0, 10, 30, 70]].tolist() == [800, 400, 100, 0]
    assert found[5] == round(800 * 10 / 15)  # misses fall as 1 / slots between 10 and 20
    assert (np.diff(found) <= 0).all()


def test_the_engine_is_set_beside_the_textbook() -> None:
    curves = hs.mrc(hs.sample_path(), ["textbook-lru", "lru"], [2048, 2560, 4096], layers=[4, 29])
    difference = engine_difference(curves)
    assert difference is not None
    rows = curves.rows.set_index(["policy", "buffer"])["miss_rate"]
    apart = {size: rows["lru", size] - rows["textbook-lru", size] for size in (2048, 2560, 4096)}
    size = max(apart, key=lambda each: abs(apart[each]))
    assert difference == (pytest.approx(apart[size]), size)
    assert engine_difference(hs.mrc(hs.sample_path(), "belady", layers=4, steps=(0, 3))) is None


def test_what_cannot_be_counted(path: Path) -> None:
    with pytest.raises(TraceError, match="selects top_k = 8 positions per step"):
        hs.mrc(path, "lru", [7])
    with pytest.raises(ValueError, match="name at least one"):
        hs.mrc(path, [])
    with pytest.raises(TraceError, match="no steps from 900"):
        hs.mrc(path, steps=(900, 1000))
    with pytest.raises(ValueError, match="7 steps cannot be skipped"):
        hs.mrc(path, window=3, skip_steps=7)
    with pytest.raises(ValueError, match="window is 0"):
        hs.mrc(path, window=0)


# --- the command and the figure ------------------------------------------------------------------


def run(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [*map(str, arguments), "--quiet"])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_command(path: Path, tmp_path: Path) -> None:
    text = run("mrc", path, "--layer", 0, "--buffer", "8,16,32")
    assert text.splitlines()[1].split() == ["buffer", "textbook-lru", "belady", "lru"]
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["8", "16", "32"]
    assert "counted at every size from 8 to 64 in one pass" in text
    assert "the engine's lru differs from textbook-lru by at most" in text
    rows = json.loads(run("mrc", path, "--policy", "belady", "--format", "json", "--largest", 9))
    assert [row["buffer"] for row in rows] == [8, 9]
    assert {row["method"] for row in rows} == {"one pass"}
    assert len(rows[0]["trace_sha256"]) == 64
    run("mrc", path, "-o", tmp_path / "curve.svg")
    assert "Miss ratio by buffer size" in (tmp_path / "curve.svg").read_text()


def test_figure_marks_what_was_replayed(path: Path) -> None:
    rows = hs.mrc(path, ["textbook-lru", "lru", "fifo"], [8, 16, 32]).rows
    axes = figures.miss_ratio(rows)
    lines = {str(line.get_label()).split("\n")[0]: line for line in axes.get_lines()}
    assert lines["LRU (textbook)"].get_marker() == "None"
    assert lines["LRU"].get_linestyle() == "None"
    assert lines["FIFO"].get_label() == "FIFO\n(line interpolated)"
    marked = lines["FIFO"].get_xdata()[lines["FIFO"].get_markevery()]  # type: ignore[index]
    assert marked.tolist() == [8, 16, 32]
