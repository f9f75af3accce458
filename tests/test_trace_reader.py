"""What is written is read, whatever the layout of the file, from any thread and process."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_traces import demand, drift, growing, metadata, several, table, write, write_table

from hisparse_sim.traces import Demand, Metadata, Ragged, TraceError, TraceWriter, open_trace
from hisparse_sim.traces.file import layout, writer
from hisparse_sim.traces.file.ahead import read_ahead
from hisparse_sim.traces.file.reader import Trace
from hisparse_sim.traces.file.rules import LARGEST_STAMP


def assert_same(found: Demand, wanted: Demand) -> None:
    assert (found.request, found.layer) == (wanted.request, wanted.layer)
    assert found.prompt_len == wanted.prompt_len
    for name, dtype in [
        ("step", np.int32),
        ("seq_len", np.int32),
        ("offsets", np.int64),
        ("positions", np.int32),
    ]:
        array = getattr(found, name)
        assert array.dtype == dtype
        # A read-only array is another type to Numba: each kernel would be compiled twice.
        assert array.flags.c_contiguous
        assert array.flags.writeable
        np.testing.assert_array_equal(array, getattr(wanted, name), err_msg=name)


def assert_holds(trace: Trace, wanted: list[Demand]) -> None:
    assert len(trace.parts) == len(wanted)
    assert trace.rows == sum(each.rows for each in wanted)
    for part, each in zip(trace.parts, wanted, strict=True):
        assert_same(trace.read(part), each)


@st.composite
def demands(draw: st.DrawFn) -> list[Demand]:
    """Return what a file may hold: several requests and layers, rows ragged and in any order."""
    result = []
    requests = draw(st.lists(st.text(max_size=5), min_size=1, max_size=3, unique=True))
    for request in requests:
        for layer in sorted(draw(st.sets(st.integers(0, 3), min_size=1, max_size=3))):
            growths = draw(st.lists(st.integers(0, 3), min_size=0, max_size=6))
            seq_len = np.cumsum([draw(st.integers(1, 12)), *growths]).tolist()
            rows = [
                draw(st.lists(st.integers(0, length - 1), max_size=8, unique=True))
                for length in seq_len
            ]
            first_step = draw(st.integers(0, 2**31 - 10))
            result.append(
                demand(rows, seq_len, request=request, layer=layer, first_step=first_step)
            )
    return result


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(wanted=demands())
def test_round_trip(tmp_path: Path, wanted: list[Demand]) -> None:
    assert_holds(open_trace(write(tmp_path / "trace.parquet", wanted)), wanted)


FOREIGN: dict[str, dict[str, pa.DataType]] = {
    "as we write": {},
    "dictionary": {"request": pa.dictionary(pa.int16(), pa.string())},
    "large": {"request": pa.large_string(), "positions": pa.large_list(pa.int32())},
    "wide": {
        "layer": pa.int64(),
        "step": pa.int64(),
        "seq_len": pa.uint32(),
        "positions": pa.list_(pa.int64()),
    },
    "unsigned": {"layer": pa.uint8(), "positions": pa.list_(pa.uint32())},
    "coded": {"layer": pa.dictionary(pa.int8(), pa.int16())},
}


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    wanted=demands(),
    types=st.sampled_from(list(FOREIGN.values())),
    row_group_size=st.sampled_from([1, 2, 3, 7, None]),
    version=st.sampled_from(["1.0", "2.0"]),
)
def test_foreign_layouts(
    tmp_path: Path,
    wanted: list[Demand],
    types: dict[str, pa.DataType],
    row_group_size: int | None,
    version: str,
) -> None:
    rows = table(wanted)
    for name, wanted_type in types.items():
        index = rows.schema.names.index(name)
        column = rows.column(index).combine_chunks()
        if pa.types.is_dictionary(wanted_type):
            column = column.dictionary_encode()
        rows = rows.set_column(index, name, column.cast(wanted_type))
    rows = rows.append_column("of no interest", pa.nulls(rows.num_rows))
    path = write_table(
        tmp_path / "trace.parquet", rows, metadata(), row_group_size, data_page_version=version
    )
    assert_holds(open_trace(path), wanted)


def test_fixed_size_lists_and_numbered_requests(tmp_path: Path) -> None:
    rows = table([drift(request="17"), drift(request="18", layer=2)])
    lists = rows["positions"].combine_chunks().cast(pa.list_(pa.int32(), 8))
    rows = rows.set_column(4, "positions", lists)
    rows = rows.set_column(0, "request", rows["request"].cast(pa.int64()))
    path = write_table(tmp_path / "trace.parquet", rows, metadata(), 13)
    assert_holds(open_trace(path), [drift(request="17"), drift(request="18", layer=2)])


def test_a_pandas_file(tmp_path: Path) -> None:
    wanted = several()
    frame = table(wanted).to_pandas()
    frame.attrs = {}
    frame.to_parquet(tmp_path / "trace.parquet")
    trace = open_trace(tmp_path / "trace.parquet", provenance="synthetic")
    assert_holds(trace, wanted)
    assert isinstance(pd.read_parquet(write(tmp_path / "ours.parquet", wanted)), pd.DataFrame)


def test_padding_is_skipped_wherever_it_stands(tmp_path: Path) -> None:
    padded = demand([[-1, 4, -1, 2], [-1, -1], [5, 3, -1]], 9)
    scores = [[0.0, 4.0, 0.0, 2.0], [0.0, 0.0], [5.0, 3.0, 0.0]]
    rows = table([padded]).append_column("scores", pa.array(scores))
    path = write_table(tmp_path / "trace.parquet", rows, metadata(top_k=2))
    trace = open_trace(path)
    assert_same(trace.read(trace.parts[0]), demand([[4, 2], [], [5, 3]], 9))
    scored = trace.read(trace.parts[0], columns=("scores",))
    assert scored.scores is not None
    assert scored.scores.tolist() == [4.0, 2.0, 5.0, 3.0]
    ours = write(tmp_path / "ours.parquet", [padded], metadata(top_k=2))
    assert pq.read_table(ours)["positions"].to_pylist() == [[4, 2], [], [5, 3]]
    bare = write_table(tmp_path / "bare.parquet", rows, None)
    assert open_trace(bare, provenance="synthetic").metadata.top_k == 2


def test_scores_and_next_positions(tmp_path: Path) -> None:
    plain = demand([[4, 2], [7], []], 9)
    wanted = replace(
        plain,
        scores=np.array([0.5, 0.25, 1.0], dtype=np.float16),
        next_positions=Ragged(np.array([0, 2, 2, 3]), np.array([1, 0, 8], dtype=np.int32)),
    )
    trace = open_trace(write(tmp_path / "trace.parquet", [wanted]))
    assert trace.read(trace.parts[0]).scores is None
    found = trace.read(trace.parts[0], columns=("scores", "next_positions"))
    assert found.scores is not None
    assert found.next_positions is not None
    assert wanted.scores is not None
    assert found.scores.dtype == np.float16
    assert found.scores.tolist() == wanted.scores.tolist()
    assert found.next_positions.offsets.tolist() == [0, 2, 2, 3]
    assert found.next_positions.values.tolist() == [1, 0, 8]
    last = trace.read(trace.parts[0], columns=("scores", "next_positions"), steps=(1, 3))
    assert last.scores is not None
    assert last.next_positions is not None
    assert last.scores.tolist() == [1.0]
    assert last.next_positions.offsets.tolist() == [0, 0, 1]
    assert last.next_positions.values.tolist() == [8]


def test_steps(tmp_path: Path) -> None:
    whole = drift(first_step=100, steps=20)
    trace = open_trace(write(tmp_path / "trace.parquet", [whole]))
    cut = trace.read(trace.parts[0], steps=(105, 110))
    assert cut.step.tolist() == [105, 106, 107, 108, 109]
    assert cut.offsets[0] == 0
    assert all(cut.row(i).tolist() == whole.row(5 + i).tolist() for i in range(5))
    assert cut.prompt_len == whole.prompt_len  # of the request, not of the cut
    assert_same(trace.read(trace.parts[0], steps=(0, 1000)), whole)
    for steps in [(0, 100), (120, 200), (110, 105)]:
        assert trace.read(trace.parts[0], steps=steps).rows == 0


def test_select(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "trace.parquet", several()))
    assert trace.requests == ("request-0", "request-1", "request-2")
    assert trace.layers == (0, 1, 3)
    assert trace.select() == trace.parts
    chosen = trace.select(["request-2", "request-0"], [3])
    assert [(part.request, part.layer) for part in chosen] == [("request-0", 3), ("request-2", 3)]
    with pytest.raises(TraceError, match="has no layer 2; it has 0, 1, 3"):
        trace.select(layers=[0, 2])
    with pytest.raises(TraceError, match="has no request 'x'; it has 'request-0', 'request-1'"):
        trace.select(["x"])


def test_prompt_len_of_the_metadata(tmp_path: Path) -> None:
    about = metadata(prompt_len={"a": 5})
    trace = open_trace(write(tmp_path / "trace.parquet", [drift(first_seq_len=64)], about))
    assert trace.read(trace.parts[0]).prompt_len == 5


def test_a_group_of_many_parts_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [drift(request=f"r{i}", layer=layer) for i in range(9) for layer in range(4)]
    trace = open_trace(write_table(tmp_path / "trace.parquet", table(wanted), metadata()))
    assert trace.shared_groups == 1
    monkeypatch.setattr(layout, "BATCH_BYTES", 1000)
    opened = []
    original = layout._Cursor

    def counted(*arguments: Any) -> Any:
        opened.append(original(*arguments))
        return opened[-1]

    monkeypatch.setattr(layout, "_Cursor", counted)
    trace._groups._window = 80
    for part, each in zip(trace.parts, wanted, strict=True):
        assert_same(trace.read(part), each)
        assert_same(trace.read(part), each)  # once more: it is remembered
        kept = [batch.num_rows for _, batch in opened[0]._kept]
        assert sum(kept) < 80 + 2 * max(kept)
    assert len(opened) == 1
    assert_same(trace.read(trace.parts[0]), wanted[0])  # long forgotten: from the start again
    assert len(opened) == 2


@pytest.mark.parametrize("row_group_size", [None, 40, 33])
def test_many_threads(tmp_path: Path, row_group_size: int | None) -> None:
    wanted = [drift(request=f"r{i}", layer=layer) for i in range(12) for layer in range(4)]
    path = write_table(tmp_path / "trace.parquet", table(wanted), metadata(), row_group_size)
    trace = open_trace(path)
    with ThreadPoolExecutor(4) as threads:
        for found, each in zip(threads.map(trace.read, trace.parts), wanted, strict=True):
            assert_same(found, each)


def test_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = several()
    write(tmp_path / "trace.parquet", wanted)
    monkeypatch.chdir(tmp_path)
    trace = open_trace("trace.parquet")
    sent = pickle.dumps((trace, trace.parts[0]))
    monkeypatch.chdir("/")
    again, part = pickle.loads(sent)
    assert_holds(again, wanted)
    assert part == trace.parts[0]
    assert pickle.loads(sent)[0] is again  # opened once a process
    with pytest.raises(TraceError, match=r"^trace.parquet cannot be read: .*No such file"):
        trace.read(part)
    monkeypatch.chdir(tmp_path)
    assert again.sha256 == trace.sha256
    trace = open_trace(write(tmp_path / "trace.parquet", [growing()]))
    sent = pickle.dumps(trace)
    write(tmp_path / "trace.parquet", several(seed=1))
    with pytest.raises(TraceError, match="was changed while it was in use"):
        pickle.loads(sent)


def test_positions_that_need_renumbering(tmp_path: Path) -> None:
    """Rows out of order with positions too high for a table of them."""
    high = LARGEST_STAMP + 5
    wanted = demand([[high, 3], [7, high - 1, high], []], high + 1)
    assert_holds(open_trace(write(tmp_path / "trace.parquet", [wanted])), [wanted])


def test_a_large_part_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LARGEST_GROUP", 50)
    wanted = [drift(ragged=True), drift(layer=1, top_k=4)]
    path = write(tmp_path / "trace.parquet", wanted)
    assert pq.read_metadata(path).num_row_groups > 6
    assert_holds(open_trace(path), wanted)


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (drift(layer=1), "layer 1: layers must ascend, and 1 came before"),
        (drift(layer=4), "layer 4: the model has 4 layers"),
        (replace(drift(layer=2), step=np.empty(0, np.int32)), "there are no rows"),
        (demand([[1, 1]], 9, layer=2), "layer 2, step 0: position 1 is listed twice"),
        (demand([[1]], 9, layer=2, prompt_len=9), "seq_len 9 is not above prompt_len 9"),
        (replace(drift(layer=2), offsets=np.array([0, 1])), "do not have the same rows"),
        (
            replace(drift(layer=2), offsets=np.full(41, 10**6)),
            "offsets do not divide the positions into rows",
        ),
        (
            replace(drift(layer=2), scores=np.zeros(320, np.float16)),
            "scores and next_positions are in all parts or in none",
        ),
        (replace(drift(layer=2), scores=np.zeros(3, np.float16)), "not as many scores as posit"),
    ],
)
def test_writer_refuses(tmp_path: Path, second: Demand, sentence: str) -> None:
    path = tmp_path / "trace.parquet"
    path.write_text("as it was")
    with (  # noqa: PT012
        pytest.raises(TraceError, match=sentence),
        TraceWriter(path, metadata()) as out,
    ):
        out.write(drift(layer=1))
        out.write(second)
    assert [each.name for each in tmp_path.iterdir()] == ["trace.parquet"]
    assert path.read_text() == "as it was"


def test_writer_keeps_requests_together(tmp_path: Path) -> None:
    with (  # noqa: PT012
        pytest.raises(TraceError, match="parts of a request must follow each other"),
        TraceWriter(tmp_path / "trace.parquet", metadata()) as out,
    ):
        for request in "aba":
            out.write(drift(request=request))


def test_writer_without_rows(tmp_path: Path) -> None:
    with (
        pytest.raises(TraceError, match="no rows were given"),
        TraceWriter(tmp_path / "trace.parquet", metadata()),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_metadata_round_trip(tmp_path: Path) -> None:
    about = Metadata(
        model="m",
        provenance="trained-indexer",
        top_k=8,
        num_layers=2,
        source="engine 1",
        dataset="d",
        layer_types=("full", "shared"),
        order="indexer",
        prompt_len={"a": 3},
        created="2026-01-01",
        notes={"any": ["thing", 1, None]},
    )
    assert open_trace(write(tmp_path / "trace.parquet", [drift()], about)).metadata == about


def test_what_is_loaded_when() -> None:
    """Neither the package nor opening a file may load Numba: the command line starts with it."""
    code = """
import sys
import hisparse_sim.traces as traces
assert not {"numpy", "pyarrow", "numba"} & set(sys.modules)
traces.open_trace(traces.sample_path())
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing tells what is open")
def test_one_file_stays_open(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{number}.parquet", several()) for number in range(9)]
    traces = [open_trace(path) for path in paths]
    for trace in traces:
        for part in trace.parts:
            trace.read(part)
    opened = {link.resolve() for link in Path("/proc/self/fd").iterdir()}
    assert opened & {path.resolve() for path in paths} == {paths[-1].resolve()}


def test_reading_ahead_yields_the_same_and_raises_in_turn(tmp_path: Path) -> None:
    wanted = several()
    trace = open_trace(write(tmp_path / "trace.parquet", wanted))
    read = list(read_ahead(trace, trace.parts))
    assert [part for part, _ in read] == list(trace.parts)
    for (_, found), each in zip(read, wanted, strict=True):
        assert_same(found, each)
    first, _ = next(read_ahead(trace, trace.parts))  # and no more
    assert first == trace.parts[0]
    assert list(read_ahead(trace, ())) == []
    (tmp_path / "trace.parquet").unlink()
    with pytest.raises(TraceError, match="cannot be read"):
        next(read_ahead(trace, trace.parts))
