"""Traces in memory: what holds for a file holds for them."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from make_traces import drift, metadata, several, table, write, write_table
from test_trace_bad_input import GOOD, SPOILT, refusal

import hisparse_sim as hs
from hisparse_sim.traces import Demand, Trace, info, trace_from_array, trace_from_frame


def frame(demands: list[Demand]) -> pd.DataFrame:
    """The rows as somebody would hold them in pandas: a NumPy array in every row."""
    rows = table(demands).to_pandas()
    assert isinstance(rows["positions"][0], np.ndarray)
    return rows


def equal(one: Trace, other: Trace) -> bool:
    """Whether all parts read alike, array by array."""
    assert one.parts == other.parts
    for part in one.parts:
        ours, theirs = vars(one.read(part)), vars(other.read(part))
        for name, value in ours.items():
            if isinstance(value, np.ndarray):
                assert value.dtype == theirs[name].dtype, name
                assert np.array_equal(value, theirs[name]), name
            else:
                assert value == theirs[name], name
    return True


@pytest.fixture(scope="module")
def sample() -> Trace:
    return hs.open_trace(hs.sample_path())


def test_a_frame_is_read_like_the_file(tmp_path: Path) -> None:
    demands = several(ragged=True, shuffled=True)
    file = hs.open_trace(write(tmp_path / "t.parquet", demands, metadata()))
    held = trace_from_frame(
        frame(demands), provenance="synthetic", model="test", top_k=8, num_layers=4
    )
    assert equal(file, held)
    assert held.metadata == file.metadata


@pytest.mark.parametrize(
    ("request_type", "list_type"),
    [
        (pa.string(), pa.list_(pa.int64())),
        (pa.large_string(), pa.large_list(pa.int32())),
        (pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.uint16())),
    ],
)
def test_other_libraries_columns(request_type: pa.DataType, list_type: pa.DataType) -> None:
    """pandas, polars and DuckDB hand out these types."""
    rows = table(several())
    rows = rows.set_column(0, "request", rows["request"].cast(request_type))
    rows = rows.set_column(4, "positions", rows["positions"].cast(list_type))
    assert equal(trace_from_frame(rows), trace_from_frame(table(several())))


def test_the_sample_as_an_array_replays_like_the_file(sample: Trace) -> None:
    """Its rows have 2,048 positions each, so that they make an array (steps, layers, top_k)."""
    array = np.stack(
        [sample.read(part).positions.reshape(part.rows, -1) for part in sample.parts], axis=1
    )
    (request,) = sample.requests
    held = trace_from_array(
        array,
        prompt_len=sample.metadata.prompt_len[request],
        layers=sample.layers,
        request=request,
        provenance=sample.metadata.provenance,
        name="sample",
    )
    assert equal(held, sample)
    ours, theirs = (hs.sweep(trace, ["lru", "random"], [2048, 4096]) for trace in (held, sample))
    pd.testing.assert_frame_equal(
        ours.rows.drop(columns="trace_sha256"), theirs.rows.drop(columns="trace_sha256")
    )
    pd.testing.assert_frame_equal(ours.steps, theirs.steps)
    pd.testing.assert_frame_equal(hs.locality(held), hs.locality(sample))
    assert info(held).total == info(sample).total


def test_rows_by_hand() -> None:
    """Two layers, three steps, -1 is padding: step t stands at prompt_len + t."""
    positions = [[[3, 9], [0, -1]], [[4, 3], [10, 1]], [[5, 11], [-1, -1]]]
    trace = trace_from_array(np.array(positions), prompt_len=9, layers=[4, 7])
    first, second = (trace.read(part) for part in trace.parts)
    assert (trace.requests, trace.layers, trace.metadata.top_k) == (("request-0",), (4, 7), 2)
    assert (first.seq_len.tolist(), first.step.tolist()) == ([10, 11, 12], [0, 1, 2])
    assert first.positions.tolist() == [3, 9, 4, 3, 5, 11]
    assert second.offsets.tolist() == [0, 1, 3, 3]
    assert second.positions.tolist() == [0, 10, 1]
    assert trace.metadata.provenance == "synthetic"


def test_lists_of_any_length_and_a_seq_len_of_ones_own() -> None:
    trace = trace_from_array([[3], [], [0, 1, 2]], seq_len=[5, 5, 9])
    (part,) = trace.parts
    read = trace.read(part)
    assert read.offsets.tolist() == [0, 1, 1, 4]
    assert (read.seq_len.tolist(), read.prompt_len) == ([5, 5, 9], 4)
    assert trace.metadata.top_k == 3


@pytest.mark.parametrize("name", SPOILT)
def test_a_broken_rule_is_refused_at_once(name: str) -> None:
    spoil, sentence = SPOILT[name]
    good = table(GOOD)
    rows = good.to_pylist()
    spoil(rows)
    spoilt = pa.Table.from_pylist(rows, good.schema)
    with pytest.raises(hs.TraceError) as caught:
        trace_from_frame(spoilt, top_k=8, num_layers=4, name="mine")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("mine")


@pytest.mark.parametrize("column", ["request", "layer", "step", "seq_len", "positions", "row"])
def test_columns(tmp_path: Path, column: str) -> None:
    """Missing, of another type, or of speculative decoding: the sentence of the file."""
    rows = table(GOOD)
    if column == "row":
        rows = pa.Table.from_pylist(
            [{**row, "row": number} for row in rows.to_pylist() for number in range(2)]
        )
    else:
        rows = rows.drop_columns(column)
    path = tmp_path / "t.parquet"
    said = refusal(write_table(path, rows, metadata()))
    with pytest.raises(hs.TraceError) as caught:
        trace_from_frame(rows, top_k=8, num_layers=4, name=str(path))
    assert str(caught.value) == said


def test_a_prompt_of_no_request_is_refused() -> None:
    rows = {"request": "a", "layer": 0, "step": [0, 1], "seq_len": [3, 4]}
    frame = pd.DataFrame(rows | {"positions": [[0, 1], [1, 2]]})
    assert trace_from_frame(frame, prompt_len={"a": 2}).rows == 2
    with pytest.raises(ValueError, match="names the request 'typo', which has no rows"):
        trace_from_frame(frame, prompt_len={"a": 2, "typo": 5})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prompt_len": 3}, "step 0: position 9 is outside [0, seq_len = 4)"),
        ({"prompt_len": 9, "provenance": "guessed"}, "unknown provenance 'guessed'; choose one"),
        ({"prompt_len": 9, "top_k": 0}, "top_k must be at least 1, not 0"),
        ({"prompt_len": 9, "top_k": 1}, "the row lists 2 positions, but top_k is 1"),
        ({"prompt_len": 9, "unit": "page"}, 'gives unit as "page", expected one of token, block4'),
        ({"prompt_len": 9, "layers": [1, 2]}, "layers names 2, but positions has 1 layers"),
        ({"prompt_len": 9, "layers": [7], "num_layers": 4}, "rows of layer 7, but the model has 4"),
        ({"prompt_len": 10, "seq_len": [10, 11]}, "seq_len is 10, not above the prompt_len 10"),
        ({"seq_len": [10, 11, 12]}, "seq_len has the shape (3,), expected (2,): one per step"),
        ({"seq_len": [10.5, 11]}, "has column seq_len of type double, expected int32"),
        ({}, "give prompt_len (tokens of the prompt) or seq_len (tokens at every step)"),
    ],
)
def test_arguments(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        trace_from_array(np.array([[3, 9], [4, 3]]), **options)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "positions",
    [
        np.zeros((2, 2)),
        np.zeros((2, 2, 2, 2), int),
        np.zeros((0, 2), int),
        np.zeros(3, int),
        [[1], [2.5, 3.0]],
        [[[1], [2]], [[3]]],
        ["ab", "c"],
        [],
        7,
    ],
)
def test_no_array_of_positions(positions: Any) -> None:
    with pytest.raises(ValueError, match=r"positions must be whole numbers, \(steps, top_k\)"):
        trace_from_array(positions, prompt_len=9)


@pytest.mark.parametrize("wrong", [3, "text", {"request": 3}, [1, 2]])
def test_no_table(wrong: Any) -> None:
    with pytest.raises(hs.TraceError, match="mine is not the table of a trace: "):
        trace_from_frame(wrong, name="mine")


def test_digest_tells_traces_apart() -> None:
    def digest(**options: Any) -> str:
        return trace_from_frame(table([drift(**options)])).sha256

    assert digest() == digest()
    assert len({digest(), digest(seed=1), digest(layer=1), digest(request="b")}) == 4
    assert trace_from_frame(table([drift()]), model="other").sha256 != digest()


def test_scores_and_ranks_behind() -> None:
    rows = table([drift(steps=3)])
    scores = pa.array([[0.5] * 8] * 3, pa.list_(pa.float16()))
    following = pa.array([[1, -1], [], [2]], pa.list_(pa.int64()))
    whole = rows.append_column("scores", scores).append_column("next_positions", following)
    trace = trace_from_frame(whole)
    read = trace.read(trace.parts[0], ("scores", "next_positions"))
    assert read.scores is not None
    assert read.next_positions is not None
    assert read.scores.tolist() == [0.5] * 24
    assert read.next_positions.values.tolist() == [1, 2]
    spoilt = pa.array([[0.5] * 8, [0.5] * 7 + [np.nan], [0.5] * 8], pa.list_(pa.float32()))
    with pytest.raises(hs.TraceError, match="step 1: a score is NaN, not a number"):
        trace_from_frame(rows.append_column("scores", spoilt))
    outside = rows.append_column("next_positions", pa.array([[99], [], []]))
    with pytest.raises(hs.TraceError, match=r"next_position 99 is outside \[0, seq_len = 64\)"):
        trace_from_frame(outside)


def test_saved_and_sent_to_another_process(tmp_path: Path) -> None:
    held = trace_from_frame(table(several()), model="test")
    held.save(tmp_path / "t.parquet")
    opened = hs.open_trace(tmp_path / "t.parquet")
    assert equal(opened, held)
    assert opened.metadata == held.metadata
    assert equal(pickle.loads(pickle.dumps(held)), held)


def test_a_trace_keeps_its_rows_when_their_memory_is_filled_again() -> None:
    rows = np.sort(np.stack([np.random.default_rng(s).permutation(60)[:4] for s in range(30)]))
    buffer = rows.astype(np.int32)
    shared = pa.FixedSizeListArray.from_arrays(pa.array(buffer.reshape(-1)), 4)
    columns = {"request": ["a"] * 30, "layer": [0] * 30, "step": range(30)}
    lengths = {"seq_len": range(61, 91), "positions": shared}
    held = [
        trace_from_array(buffer, prompt_len=60),
        trace_from_frame(pa.table({**columns, **lengths})),
    ]
    buffer[:] = range(4)
    for trace in held:
        assert np.array_equal(trace.read(trace.parts[0]).positions, rows.reshape(-1))


def test_a_mask_is_refused_rather_than_ignored() -> None:
    rows = np.arange(8, dtype=np.int32).reshape(2, 4)
    masked = np.ma.array(rows, mask=rows % 2 == 0)
    with pytest.raises(ValueError, match=r"masked array: give positions\.filled\(-1\)"):
        trace_from_array(masked, prompt_len=20)
    held = trace_from_array(masked.filled(-1), prompt_len=20)
    assert held.read(held.parts[0]).positions.tolist() == [1, 3, 5, 7]


def test_numbers_of_numpy_are_taken_like_those_of_python() -> None:
    rows = np.arange(8).reshape(2, 4)
    plain = trace_from_array(rows, prompt_len=20, top_k=4, num_layers=3, layers=[2])
    of_numpy = trace_from_array(
        rows.astype(">i4"),
        prompt_len=np.int64(20),  # type: ignore[arg-type]
        top_k=np.int32(4),  # type: ignore[arg-type]
        num_layers=np.int64(3),  # type: ignore[arg-type]
        layers=np.array([2]),  # type: ignore[arg-type]
    )
    assert equal(plain, of_numpy)
    assert plain.metadata == of_numpy.metadata
    assert hs.replay(plain, "lru", 8, layers=np.int64(2)).misses.tolist() == [0, 0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"prompt_len": 2.5}, "prompt_len must be a whole number, not 2.5"),
        ({"prompt_len": True}, "prompt_len must be a whole number, not True"),
        ({"top_k": "4"}, "top_k must be a whole number, not '4'"),
        ({"num_layers": 1.5}, "num_layers must be a whole number, not 1.5"),
        ({"layers": [0.5]}, "layers must be a whole number, not 0.5"),
        ({"request": "\ud800"}, r"request must be a text of characters, not '\ud800'"),
        ({"layers": {5}}, "layers is a set, which has no order: give a list"),
        ({"request": 5}, "request must be a text of characters, not 5"),
    ],
)
def test_wrong_arguments_end_in_a_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(sentence)}$"):
        trace_from_array(np.arange(8).reshape(2, 4), **{"prompt_len": 20, **wrong})


@pytest.mark.parametrize("steps", [(5,), 5, (0, 1, 2), (0.5, 2), "ab"])
def test_steps_that_are_no_range(steps: Any) -> None:
    held = trace_from_array(np.arange(8).reshape(2, 4), prompt_len=20)
    for run in (hs.replay, hs.sweep):
        with pytest.raises(ValueError, match=r"^steps must be "):
            run(held, "lru", 8, steps=steps)


def test_layers_that_do_not_agree_are_doubted() -> None:
    """Layer 1 is as if of another request: its seq_len is 500 more, or half of it is missing."""
    for other in (drift(layer=1, first_seq_len=564), drift(layer=1, steps=20)):
        with pytest.warns(UserWarning, match="^mine: request 'a', layer 1: steps or seq_len diff"):
            trace_from_frame(table([drift(), other]), name="mine")
