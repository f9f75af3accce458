"""Every way a trace file can be wrong: one sentence each, naming the place."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from make_traces import demand, drift, metadata, several, table, write, write_table

from hisparse_sim.traces import TraceError, open_trace, validate

Rows = list[dict[str, Any]]

# Two requests, two layers, five steps each: row 10 * request + 5 * layer + step.
GOOD = several(requests=2, layers=(0, 1), steps=5)
GOOD = [each for each in GOOD if each.rows == 5] + [
    drift(request="request-1", layer=layer, steps=5, first_step=10, first_seq_len=65)
    for layer in (0, 1)
]


def spoilt(path: Path, spoil: Callable[[Rows], Any], **about: Any) -> Path:
    """Write the good rows after `spoil` has changed them, `about` being metadata."""
    good = table(GOOD)
    rows = good.to_pylist()
    spoil(rows)
    return write_table(path, pa.Table.from_pylist(rows, good.schema), metadata(**about))


def read_all(path: Path, **options: Any) -> None:
    trace = open_trace(path, **options)
    for part in trace.parts:
        trace.read(part)


def refusal(path: Path, **options: Any) -> str:
    """Return the one sentence with which a file is refused."""
    with pytest.raises(TraceError) as caught:
        read_all(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def put(row: int, column: str, value: Any) -> Callable[[Rows], None]:
    return lambda rows: rows[row].update({column: value})


SPOILT = {
    "repeated position": (
        put(7, "positions", [3, 9, 3]),
        "request 'request-0', layer 1, step 2: position 3 is listed twice",
    ),
    "repeated neighbours": (put(7, "positions", [3, 3]), "position 3 is listed twice"),
    "position of the future": (
        put(16, "positions", [1, 66]),
        "request 'request-1', layer 1, step 11: position 66 is outside [0, seq_len = 66)",
    ),
    "negative position": (put(0, "positions", [-2, 5]), "step 0: position -2 is outside"),
    "shrinking seq_len": (
        put(3, "seq_len", 41),
        "request 'request-0', layer 0, step 3: seq_len shrinks from 42 to 41",
    ),
    "seq_len 0": (put(5, "seq_len", 0), "layer 1, step 0: seq_len is 0, expected at least 1"),
    "a step missing": (
        lambda rows: rows.pop(12),
        "request 'request-1', layer 0, step 13: the step before it is 11, and steps may have no",
    ),
    "a step twice": (put(4, "step", 3), "step 3: the step has more than one row"),
    "steps backwards": (put(4, "step", 2), "step 2: the step before it is 3"),
    "longer than top_k": (
        put(2, "positions", list(range(9))),
        "step 2: the row lists 9 positions, but top_k is 8",
    ),
    "null step": (put(6, "step", None), "layer 1, row 6: step is null"),
    "null seq_len": (put(6, "seq_len", None), "layer 1, step 1: seq_len is null"),
    "null row": (put(6, "positions", None), "layer 1, step 1: positions is null"),
    "null position": (put(6, "positions", [1, None]), "layer 1, step 1: positions holds a null"),
    "null request": (put(6, "request", None), "row 6: request is null"),
    "null layer": (put(6, "layer", None), "row 6: layer is null"),
    "request comes again": (
        lambda rows: rows.extend(rows[0:5]),
        "request 'request-0' starts again in row 20, layer 0; rows must be grouped by request",
    ),
    "layers descend": (
        lambda rows: rows.__setitem__(slice(0, 10), rows[5:10] + rows[0:5]),
        "request 'request-0' goes back from layer 1 to 0 in row 5; rows must be grouped",
    ),
    "steps outside layers": (
        lambda rows: rows.sort(key=lambda row: (row["request"], row["step"])),
        "request 'request-0' goes back from layer 1 to 0 in row 2",
    ),
    "negative layer": (put(0, "layer", -1), "rows of layer -1"),
    "layer beyond the model": (put(19, "layer", 4), "rows of layer 4, but the model has 4 layers"),
    "no rows": (lambda rows: rows.clear(), "holds no rows"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_rule_broken(tmp_path: Path, name: str) -> None:
    spoil, sentence = SPOILT[name]
    assert sentence in refusal(spoilt(tmp_path / "bad.parquet", spoil))


def test_good_rows_are_good(tmp_path: Path) -> None:
    read_all(spoilt(tmp_path / "good.parquet", lambda rows: None))


def test_prompt_len_must_be_before_the_first_step(tmp_path: Path) -> None:
    path = spoilt(tmp_path / "bad.parquet", lambda rows: None, prompt_len={"request-1": 65})
    assert "'request-1', layer 0, step 10: seq_len is 65, not above the prompt_len 65" in refusal(
        path
    )


def test_speculative_decoding_is_named(tmp_path: Path) -> None:
    good = table(GOOD).to_pylist()
    rows = [{**row, "row": number} for row in good for number in range(2)]
    path = write_table(tmp_path / "mtp.parquet", pa.Table.from_pylist(rows), metadata())
    assert "state in the metadata how many a step has at most, as draft_tokens" in refusal(path)


@pytest.mark.parametrize("value", [2**31, 2**40, -(2**33)])
def test_position_beyond_32_bits(tmp_path: Path, value: int) -> None:
    rows = table([demand([[1], [2], [3]], 9)])
    positions = pa.array([[1], [2], [value]], pa.list_(pa.int64()))
    path = write_table(
        tmp_path / "big.parquet", rows.set_column(4, "positions", positions), metadata()
    )
    assert f"step 2: positions holds {value}, which int32 cannot hold" in refusal(path)


@pytest.mark.parametrize("column", ["step", "seq_len", "layer"])
def test_number_beyond_its_type(tmp_path: Path, column: str) -> None:
    rows = table([demand([[1], [2], [3]], 9)])
    index = rows.schema.names.index(column)
    values = pa.array([0, 1, 2**33])
    path = write_table(tmp_path / "big.parquet", rows.set_column(index, column, values), metadata())
    assert f"{column} is {2**33}, which int" in refusal(path)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("positions", pa.array([["a"]] * 3)),
        ("positions", pa.array([[1.0]] * 3)),
        ("positions", pa.array([1, 2, 3])),
        ("step", pa.array([0.0, 1.0, 2.0])),
        ("seq_len", pa.array(["9", "10", "11"])),
        ("request", pa.array([1.5, 1.5, 1.5])),
        ("layer", pa.array([True, True, True])),
    ],
)
def test_column_of_another_type(tmp_path: Path, column: str, values: pa.Array) -> None:
    rows = table([demand([[1], [2], [3]], 9)])
    index = rows.schema.names.index(column)
    path = write_table(tmp_path / "bad.parquet", rows.set_column(index, column, values), metadata())
    found = str(values.type).split("<")[0]  # the name of a list's element may change
    message = refusal(path)
    assert f"has column {column} of type {found}" in message
    assert ", expected " in message


@pytest.mark.parametrize("column", ["request", "layer", "step", "seq_len", "positions"])
def test_column_missing(tmp_path: Path, column: str) -> None:
    path = write_table(tmp_path / "bad.parquet", table(GOOD).drop_columns(column), metadata())
    assert f"has no column {column} (it has " in refusal(path)
    assert "hive" not in refusal(path)


def test_columns_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page on clusters says makes a trace of a folder whose files are not in order."""
    root = tmp_path / "folder"
    for each in GOOD:
        folder = root / f"request={each.request}" / f"layer={each.layer}"
        folder.mkdir(parents=True)
        rows = table([each]).drop_columns(["request", "layer"])
        file = write_table(folder / "part-0.parquet", rows[::2], metadata())
        message = refusal(file)
        assert "has no column request, layer (it has step, seq_len, positions)" in message
        assert message.endswith(f"the folder that holds those of all (hive layout), {root}/")
        write_table(folder / "part-1.parquet", rows[1::2], metadata())
    assert "of the other overlap; docs/clusters.md shows how" in refusal(root)
    page = Path(__file__).parents[1] / "docs" / "clusters.md"
    _, _, code = page.read_text("utf-8").partition("```python\n")
    monkeypatch.chdir(tmp_path)
    exec(code.partition("```")[0], {})
    made, whole = open_trace("joined.parquet"), open_trace(write(tmp_path / "t.parquet", GOOD))
    assert made.parts == whole.parts
    for part in whole.parts:
        assert made.read(part).positions.tolist() == whole.read(part).positions.tolist()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "its metadata is not valid JSON"),
        ("[" * 100_000, "its metadata is not valid JSON"),
        ("[1]", "its metadata is not a JSON object"),
        ("{}", "its metadata has version null, and this release reads version 1"),
        ('{"version": 2}', "its metadata has version 2"),
        ('{"version": true}', "its metadata has version true"),
        ('{"version": 1}', "does not state the origin of its positions: give it with `provenance`"),
        ('{"version": 1, "provenance": "guessed"}', "expected one of dsa-serving, trained-indexer"),
        ('{"version": 1, "provenance": "synthetic", "top_k": 0}', "gives top_k as 0, expected a"),
        ('{"version": 1, "provenance": "synthetic", "top_k": 1e3}', "gives top_k as 1000.0"),
        ('{"version": 1, "provenance": "synthetic", "top_k": true}', "gives top_k as true"),
        ('{"version": 1, "provenance": "synthetic", "num_layers": "4"}', 'num_layers as "4"'),
        ('{"version": 1, "provenance": "synthetic", "prompt_len": {"a": -1}}', "gives prompt_len"),
        ('{"version": 1, "provenance": "synthetic", "prompt_len": [1]}', "gives prompt_len as [1]"),
        ('{"version": 1, "provenance": "synthetic", "model": 5}', "gives model as 5, expected a s"),
        (
            '{"version": 1, "provenance": "synthetic", "num_layers": 4, "layer_types": ["full"]}',
            "gives 1 layer_types for 4 layers",
        ),
    ],
)
def test_metadata(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refusal(write_table(tmp_path / "bad.parquet", table(GOOD), text))


def test_without_metadata_a_provenance_is_needed(tmp_path: Path) -> None:
    path = write_table(tmp_path / "bare.parquet", table(GOOD), None)
    assert "has no hisparse_trace metadata: state the origin of its positions with `prov" in (
        refusal(path)
    )
    trace = open_trace(path, provenance="dsa-serving")
    assert (trace.metadata.provenance, trace.metadata.top_k) == ("dsa-serving", 8)
    assert trace.metadata.num_layers is None
    with pytest.raises(ValueError, match="unknown provenance 'guessed'; choose one of dsa-serving"):
        open_trace(path, provenance="guessed")


def test_the_files_own_provenance_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "good.parquet", GOOD)
    assert open_trace(path, provenance="dsa-serving").metadata.provenance == "synthetic"


def test_not_a_trace_file(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.parquet")
    assert "is a folder without traces" in refusal(tmp_path)
    (tmp_path / "text.parquet").write_text("request,layer,step")
    assert "is not a Parquet file" in refusal(tmp_path / "text.parquet")
    (tmp_path / "empty.parquet").write_bytes(b"")
    assert "is not a Parquet file" in refusal(tmp_path / "empty.parquet")
    (tmp_path / "short.parquet").write_bytes(b"PAR1")
    assert "was cut off" in refusal(tmp_path / "short.parquet")


def test_truncated_anywhere(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.parquet", GOOD)
    whole = path.read_bytes()
    for size in range(4, len(whole), 97):
        path.write_bytes(whole[:size])
        assert "was cut off" in refusal(path)
    path.write_bytes(whole[:-2000] + whole[-100:])
    refusal(path)


@pytest.mark.parametrize("rows", [[[5, 3, 2**31 - 2]], [[5, 2**31 - 2, 5]]])
def test_absurd_seq_len_takes_no_memory(tmp_path: Path, rows: list[list[int]]) -> None:
    path = write_table(tmp_path / "trace.parquet", table([demand(rows, 2**31 - 1)]), metadata())
    tracemalloc.start()
    try:
        problems = validate(path).problems
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 << 20
    assert bool(problems) == (rows[0][0] == rows[0][2])


@pytest.mark.skipif(sys.platform != "linux", reason="no limit of the address space elsewhere")
def test_memory_that_ends_is_no_damage(tmp_path: Path) -> None:
    """100 MB of positions, written by another program, where 64 MB can be had."""
    steps, top_k = 1000, 25_000
    rows = pa.table(
        {
            "request": pa.array(["a"] * steps),
            "layer": np.zeros(steps, np.int16),
            "step": np.arange(steps, dtype=np.int32),
            "seq_len": np.full(steps, top_k, np.int32),
            "positions": pa.FixedSizeListArray.from_arrays(
                np.tile(np.arange(top_k, dtype=np.int32), steps), top_k
            ),
        }
    )
    path = write_table(tmp_path / "large.parquet", rows, metadata(top_k=top_k))
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from hisparse_sim.traces import TraceError, open_trace, sample_path\n"
        "trace = open_trace(sample_path())\n"
        "trace.read(trace.parts[0])  # Numba is loaded\n"
        "trace = open_trace(sys.argv[1])\n"
        "held = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (held + (64 << 20),) * 2)\n"
        "try:\n"
        "    trace.read(trace.parts[0])\n"
        "except TraceError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    # Other allocators reserve more than they use.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.startswith(f"{path}: request 'a', layer 0 needs more memory than there is (")


def test_optional_column_that_is_not_there(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "trace.parquet", GOOD))
    with pytest.raises(TraceError, match="has no column scores"):
        trace.read(trace.parts[0], columns=("scores",))
    with pytest.raises(ValueError, match="unknown column 'score'; choose of scores, next_positi"):
        trace.read(trace.parts[0], columns=("score",))


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        (
            "scores",
            [[0.5], [0.5], [0.5]],
            "step 1: the row does not have as many scores as positions",
        ),
        ("scores", [[0.5], None, [0.5]], "step 1: scores is null"),
        ("scores", [[0.5], [0.5, float("nan")], [0.5]], "step 1: a score is NaN, not a number"),
        ("next_positions", [[8], [10], [1]], "step 1: next_position 10 is outside [0, seq_len = "),
        ("next_positions", [[8], [None], [1]], "step 1: next_positions holds a null"),
    ],
)
def test_optional_column_spoilt(tmp_path: Path, name: str, values: Any, sentence: str) -> None:
    rows = table([demand([[1], [2, 3], [3]], 9)]).append_column(name, pa.array(values))
    path = write_table(tmp_path / "bad.parquet", rows, metadata())
    trace = open_trace(path)
    trace.read(trace.parts[0])  # not asked for, not looked at
    with pytest.raises(TraceError) as caught:
        trace.read(trace.parts[0], columns=(name,))
    assert sentence in str(caught.value)
    assert sentence in validate(path).problems[0]
