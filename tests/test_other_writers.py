"""Trace files of other writers: every type, layout and encoding that holds the same rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_traces import demand, metadata, several, table, write_table

from hisparse_sim.traces import TraceError, open_trace, sample, validate
from hisparse_sim.traces.file.columns import request_codes
from hisparse_sim.traces.file.metadata import KEY

ROWS = [
    *several(requests=2, layers=(0, 3), steps=4, ragged=True, shuffled=True),
    demand([[], [], []], 9, request="empty, or nearly"),
]
THREE = table([demand([[1], [2], [3]], 9)])

TEXTS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]
NUMBERS = [
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.dictionary(pa.int32(), pa.int64()),
]
ENCODINGS = {
    "request": ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"],
    "step": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "positions.list.element": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
}


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[str, pa.DataType], dict[str, Any]]:
    """Types of the columns, and options of the writer."""
    types = {"request": draw(st.sampled_from(TEXTS))}
    for name in ("layer", "step", "seq_len"):
        types[name] = draw(st.sampled_from(NUMBERS))
    element = draw(st.sampled_from([pa.int16(), pa.int32(), pa.int64(), pa.uint32(), pa.uint64()]))
    types["positions"] = draw(st.sampled_from([pa.list_, pa.large_list]))(element)
    options = {
        "row_group_size": draw(st.integers(1, 30)),
        "compression": draw(st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4"])),
        "version": draw(st.sampled_from(["1.0", "2.4", "2.6"])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "data_page_size": draw(st.sampled_from([256, 1 << 20])),
        "write_statistics": draw(st.booleans()),
        "store_schema": draw(st.booleans()),
        "use_dictionary": draw(st.booleans()),
    }
    if not options["use_dictionary"]:
        options["column_encoding"] = {
            name: draw(st.sampled_from(encodings)) for name, encodings in ENCODINGS.items()
        }
        if pa.types.is_dictionary(types["request"]):
            options["column_encoding"]["request"] = "PLAIN"  # pyarrow reads no other as a category
    return types, options


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(layout=layouts())
def test_same_rows_in_any_layout(tmp_path: Path, layout: Any) -> None:
    types, options = layout
    rows = table(ROWS)
    for index, (name, kind) in enumerate(types.items()):
        column = rows.column(name).combine_chunks()
        coded = pa.types.is_dictionary(kind)
        column = column.cast(kind.value_type).dictionary_encode() if coded else column.cast(kind)
        rows = rows.set_column(index, name, column)
    path = tmp_path / "other.parquet"
    rows_a_group = options.pop("row_group_size")
    with pq.ParquetWriter(path, rows.schema, **options) as writer:
        writer.write_table(rows, rows_a_group)
        writer.add_key_value_metadata({KEY: metadata().to_json()})
    trace = open_trace(path)
    assert [(part.request, part.layer) for part in trace.parts] == [
        (each.request, each.layer) for each in ROWS
    ]
    for part, each in zip(trace.parts, ROWS, strict=True):
        read = trace.read(part)
        for name in ("step", "seq_len", "offsets", "positions"):
            found, made = getattr(read, name), getattr(each, name)
            assert found.dtype == made.dtype
            np.testing.assert_array_equal(found, made)


def test_encoding_that_cannot_be_decoded_is_no_damage(tmp_path: Path) -> None:
    rows = THREE.set_column(0, "request", THREE.column("request").dictionary_encode())
    encoding = {"request": "DELTA_BYTE_ARRAY"}
    path = tmp_path / "t.parquet"
    write_table(path, rows, metadata(), use_dictionary=False, column_encoding=encoding)
    with pytest.raises(TraceError, match="is encoded in a way that pyarrow cannot decode"):
        open_trace(path)


@pytest.mark.parametrize("name", ["scores", "next_positions"])
def test_optional_column_of_nothing_is_none(tmp_path: Path, name: str) -> None:
    path = write_table(
        tmp_path / "t.parquet", THREE.append_column(name, pa.nulls(3)), metadata(prompt_len={})
    )
    assert name not in open_trace(path).columns
    assert validate(path).ok
    assert sample(open_trace(path), tmp_path / "cut.parquet").exists()


def test_lists_that_are_all_empty_need_no_type(tmp_path: Path) -> None:
    empty = pa.array([[], [], []], pa.list_(pa.null()))
    rows = THREE.set_column(4, "positions", empty).append_column("next_positions", empty)
    trace = open_trace(write_table(tmp_path / "t.parquet", rows, metadata()))
    read = trace.read(trace.parts[0], ["next_positions"])
    assert read.positions.dtype == np.int32
    assert read.offsets.tolist() == [0, 0, 0, 0]
    rows = rows.set_column(4, "positions", pa.array([[], [None], []], pa.list_(pa.null())))
    trace = open_trace(write_table(tmp_path / "t.parquet", rows, metadata()))
    with pytest.raises(TraceError, match="step 1: positions holds a null"):
        trace.read(trace.parts[0])


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_score_beyond_half_precision(tmp_path: Path, kind: pa.DataType) -> None:
    fine = pa.array([[65504.0], [-np.inf], [2.0]], pa.list_(kind))
    path = write_table(tmp_path / "t.parquet", THREE.append_column("scores", fine), metadata())
    read = open_trace(path).read(open_trace(path).parts[0], ["scores"])
    assert read.scores is not None
    assert read.scores.tolist() == [65504, -65504, 2]  # infinite ones as the largest
    large = pa.array([[1.0], [1e6], [2.0]], pa.list_(kind))
    path = write_table(tmp_path / "t.parquet", THREE.append_column("scores", large), metadata())
    trace = open_trace(path)
    with pytest.raises(TraceError, match=r"step 1: scores holds 1000000\.0, which float16 cannot"):
        trace.read(trace.parts[0], ["scores"])


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('"model": "\\ud800"', "model"),
        ('"prompt_len": {"\\udfff": 3}', "prompt_len"),
        ('"notes": [{"a": "\\ud800"}]', "notes"),
    ],
)
def test_half_a_character_in_metadata(tmp_path: Path, text: str, field: str) -> None:
    about = f'{{"version": 1, "provenance": "synthetic", "top_k": 8, {text}}}'
    path = write_table(tmp_path / "t.parquet", THREE, about)
    with pytest.raises(TraceError, match=f"gives '{field}' with a lone surrogate"):
        open_trace(path)


def test_names_of_a_row_group_are_not_all_looked_up_for_each_part() -> None:
    everyone = pa.array([f"request-{number}" for number in range(1000)]).dictionary_encode()
    known: dict[str, int] = {}
    assert request_codes([everyone[40:42], everyone[41:43]], known).tolist() == [0, 1, 1, 2]
    assert list(known) == ["request-40", "request-41", "request-42"]


def test_many_requests_in_one_row_group(tmp_path: Path) -> None:
    demands = [demand([[number % 7]], 9, request=str(number)) for number in range(300)]
    trace = open_trace(write_table(tmp_path / "t.parquet", table(demands), metadata()))
    assert [trace.read(part).positions[0] for part in trace.parts] == [
        number % 7 for number in range(300)
    ]
