"""The one reader of result files: every name stays what it is, every number is one, and what is
hostile ends in one sentence."""

import json
import os
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from make_traces import drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.replay import result_files
from hisparse_sim.simulator.replay.joining import joined
from hisparse_sim.simulator.replay.result_files import cell_of, read_rows, text_of
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.views.report import read_results
from hisparse_sim.simulator.views.report.results import rows_of
from hisparse_sim.simulator.views.tables import write_rows
from hisparse_sim.traces import TraceError

FORMATS = ("csv", "json", "jsonl", "parquet")
# Names that some reader takes for a missing value, a number, a truth or a formula.
NAMES = ["NA", "null", "nan", "None", "N/A", "", "7", "007", "1e5", "inf", "True", "-", "=1+1",
         "+x", "@y", "-z", "'=q", "''=q", "'x",
         " pad ", 'a,"b"\nc', "\r", "\ttab", "é"]  # fmt: skip
GOLDEN = [
    Path(__file__).parent / "golden" / f"rows-version-1.{form}" for form in ("json", "parquet")
]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One sweep of requests with such names, in all formats."""
    folder = tmp_path_factory.mktemp("results")
    parts = [
        drift(request=name, layer=layer, steps=12) for name in NAMES if name for layer in (0, 3)
    ]
    write(folder / "7.parquet", parts, metadata())
    for form in FORMATS:
        words = ["--policy", "lru,belady", "--buffer", "16", "--per-layer", "--quiet"]
        result = run("sweep", folder / "7.parquet", *words, "-o", folder / f"rows.{form}")
        assert result.exit_code == 0, result.output
    return folder


@pytest.mark.parametrize("form", FORMATS)
def test_names_stay_what_they_are(folder: Path, form: str) -> None:
    rows = read_rows(folder / f"rows.{form}")
    named = [name for name in NAMES if name]
    assert rows["request"].drop_duplicates().tolist() == named
    assert set(rows["trace"]) == {"7"}
    assert rows["seed"].tolist() == ["0"] * len(rows)
    swept = hs.sweep(folder / "7.parquet", ["lru", "belady"], 16, per_layer=True).rows
    for name in ("misses", "accesses", "miss_rate", "p95", "excess_over_min", "layer"):
        assert rows[name].tolist() == swept[name].tolist()  # to the bit


def test_all_formats_hold_the_same(folder: Path) -> None:
    first = read_rows(folder / "rows.csv")
    for form in FORMATS[1:]:
        pd.testing.assert_frame_equal(read_rows(folder / f"rows.{form}"), first)


def test_rows_of_version_1_are_read_for_ever() -> None:
    """A sweep of 0.1.0, per layer and with the time of its misses, of a request called NA."""
    rows, packed = map(read_rows, GOLDEN)
    pd.testing.assert_frame_equal(rows, packed)
    assert rows["request"].tolist() == ["NA"] * 12
    assert rows["layer"].tolist() == [0] * 6 + [2] * 6
    assert rows["policy"].tolist() == ["lru", "lru", "random", "random", "belady", "belady"] * 2
    assert rows["buffer"].tolist() == [8, 16] * 6
    assert rows["misses"].tolist() == [86, 77, 86, 77, 85, 58, 90, 82, 91, 85, 89, 63]
    assert rows["excess_over_min"].iloc[1] == 77 / 58 - 1
    results = read_results(GOLDEN)
    assert [each.kind for each in results] == ["sweep", "sweep"]
    assert results[0].parameters["engine"] == "sglang-0.5.23"
    summed = totals(joined(rows_of(results, "sweep")))  # in two formats, counted once
    assert summed["misses"].tolist() == [176, 159, 177, 162, 174, 121]
    assert summed["steps"].tolist() == [80] * 6


@pytest.mark.parametrize("form", FORMATS)
def test_no_request_vanishes_from_a_report(folder: Path, form: str, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    page = tmp_path / "page.html"
    assert run("report", folder / f"rows.{form}", "-o", page).exit_code == 0
    steps = 12 * len([name for name in NAMES if name])
    assert f"7 (synthetic), replayed: 2 layers x {steps:,} steps, " in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("steps", "size"),
    [
        ({("a", 0): 12, ("a", 3): 12, ("b", 0): 5, ("b", 3): 5}, "2 layers x 17 steps"),
        ({("a", 0): 12, ("a", 3): 12, ("b", 0): 6}, "30 steps, summed over layers"),
        ({("a", 0): 12, ("b", 3): 5}, "17 steps, summed over layers"),
    ],
)
def test_layers_with_steps_of_their_own_are_summed(
    steps: dict[tuple[str, int], int], size: str, tmp_path: Path
) -> None:
    """Also where the sum is a multiple of the layers."""
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    parts = [
        drift(request=request, layer=layer, steps=count)
        for (request, layer), count in steps.items()
    ]
    trace, rows, page = (tmp_path / name for name in ("t.parquet", "rows.csv", "page.html"))
    write(trace, parts, metadata())
    words = ["--policy", "lru", "--buffer", "16", "--per-layer", "--quiet"]
    assert run("sweep", trace, *words, "-o", rows).exit_code == 0
    assert run("report", rows, "-o", page).exit_code == 0
    assert f"t (synthetic), replayed: {size}, " in page.read_text("utf-8")


def test_cells_of_a_spreadsheet() -> None:
    """By hand: what a spreadsheet computes gets one quote, what begins with quotes before such a
    sign one more; numbers get none."""
    texts = ("=1+1", "+x", "@y", "-z", "\tt", "'=q", "'x", "a=b", "")
    cells = ["'=1+1", "'+x", "'@y", "'-z", "'\tt", "''=q", "'x", "a=b", ""]
    assert [cell_of(text) for text in texts] == cells
    rows = pd.DataFrame({"request": ["-5"], "value": [-5.0]})
    assert result_text(rows) == "request,value\n'-5,-5.0\n"


def result_text(rows: pd.DataFrame) -> str:
    with redirect_stdout(StringIO()) as stdout:
        write_rows(rows, "csv", None)
    return stdout.getvalue()


def test_a_carriage_return_beside_gaps(tmp_path: Path) -> None:
    """What is missing stays so: a gap in quotes would be an empty text."""
    full = ROW | {"request": "a\rb", "layer": 1, "p95": 3.0}
    rows = pd.DataFrame([full, full | {"layer": 2, "p95": None, "excess_over_min": 0.5}])
    write_rows(rows, "csv", tmp_path / "rows.csv")
    found = read_rows(tmp_path / "rows.csv")
    assert found["request"].tolist() == ["a\rb"] * 2
    assert found["p95"].isna().tolist() == [False, True]
    assert found["excess_over_min"].isna().tolist() == [True, False]


@given(st.text(alphabet="'=+-@\t\rab", max_size=5))
def test_cells_give_their_text_back(text: str) -> None:
    assert text_of(cell_of(text)) == text
    assert not cell_of(text).startswith(("=", "+", "-", "@", "\t", "\r"))


ROW = {
    "trace": "t",
    "provenance": "synthetic",
    "request": None,
    "layer": None,
    "policy": "lru",
    "buffer": 16,
    "start": "staged",
    "steps": 10,
    "accesses": 80,
    "misses": 20,
    "miss_rate": 0.25,
    "misses_per_step": 2.0,
}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "list for a request": ({"request": ["a"]}, "row 1: request is ['a'], not a text"),
    "object for a trace": ({"trace": {"a": 1}}, "trace is {'a': 1}, not a text"),
    "null trace": ({"trace": None}, "row 1: trace is missing"),
    "infinite buffer": ({"buffer": 1e400}, "buffer is inf, not a whole number from 0 to 32767"),
    "buffer 1.5": ({"buffer": 1.5}, "buffer is 1.5, not a whole number"),
    "buffer true": ({"buffer": True}, "buffer is True, not a whole number"),
    "buffer as text": ({"buffer": "many"}, "buffer is 'many', not a whole number"),
    "huge buffer": ({"buffer": 10**400}, "buffer is 1000000000"),
    "negative misses": ({"misses": -1}, "misses is -1, not a finite whole number"),
    "no misses": ({"misses": None}, "misses is missing"),
    "NaN misses": ({"misses": float("nan")}, "misses is missing"),
    "more misses than accesses": ({"misses": 81}, "row 1: there are more misses than accesses"),
    "another rate": ({"miss_rate": 0.5}, "miss_rate is 0.5, but misses / accesses is 0.25"),
    "rate above 1": ({"miss_rate": 2}, "miss_rate is 2, not a number from 0 to 1"),
    "list of parameters": ({"parameters": "[1]"}, "parameters are no JSON object"),
    "deep parameters": ({"parameters": "[" * 10**5}, "parameters nests deeper than"),
    "parameters that are none": ({"parameters": "{"}, "parameters is not valid JSON"),
    "too many to sum": ({"accesses": 2**53, "misses": 0, "miss_rate": 0.0}, "no sum"),
}


@pytest.mark.parametrize(("wrong", "words"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_rows_end_in_one_sentence(
    wrong: dict[str, Any], words: str, tmp_path: Path
) -> None:
    rows = [{**ROW, **wrong}] * (600 if words == "no sum" else 1)
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    words = "more accesses than can be summed" if words == "no sum" else words
    result = run("report", tmp_path / "rows.json", "-o", tmp_path / "page.html")
    assert result.exit_code == 1, result.output
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "rows.json" in result.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_a_missing_column_is_named(form: str, tmp_path: Path) -> None:
    rows = pd.DataFrame([ROW]).drop(columns="trace")
    write_rows(rows, form, tmp_path / f"rows.{form}")
    with pytest.raises(TraceError, match="lacks the column trace of sweep"):
        read_results([tmp_path / f"rows.{form}"])
    write_rows(rows.drop(columns="accesses"), form, tmp_path / f"rows.{form}")
    with pytest.raises(TraceError, match=r"no rows of sweep.*\(sweep without accesses\)"):
        read_results([tmp_path / f"rows.{form}"])


FILES: dict[str, tuple[str, bytes, str]] = {
    "deep json": ("r.json", b"[" * 10**6, "nested too deeply"),
    "endless digits": ("r.json", b'[{"misses": ' + b"9" * 10**5 + b"}]", "cannot be read as json"),
    "no UTF-8": ("r.json", b"\xff\xfe", "cannot be read as json"),
    "a number": ("r.json", b"3", "not a list of rows"),
    "a line of no object": ("r.jsonl", b"{}\n[]\n", "not a list of rows"),
    "a broken line": ("r.jsonl", b'{"a": 1}\n{\n', "line 2 cannot be read as json"),
    "two columns of one name": ("r.csv", b"policy,policy\n1,2\n", "no names of their own"),
    "a cell too many": ("r.csv", b"policy,buffer\nlru,1,2\n", "Expected 2 columns, got 3"),
    "a cell too few": ("r.csv", b"policy,buffer\nlru\n", "Expected 2 columns, got 1"),
    "no text": ("r.csv", b"\xff,\x00\n\xff,1\n", "cannot be read as csv"),
    "empty": ("r.csv", b"", "no rows of sweep"),
    "damaged": ("r.parquet", b"PAR1" + bytes(100) + b"PAR1", "cannot be read"),
}


@pytest.mark.parametrize(("name", "content", "words"), FILES.values(), ids=FILES)
def test_files_that_are_none(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    result = run("report", tmp_path / name, "-o", tmp_path / "page.html")
    assert result.exit_code == 1, result.output
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr[:-1].isprintable()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "folder.parquet").mkdir()
    for name, words in (("pipe.json", "device or pipe"), ("zero.csv", "device or pipe"),
                        ("folder.parquet", "is a folder")):  # fmt: skip
        for command in (("report",), ("plan", "--miss-curve")):
            result = run(*command, tmp_path / name)
            assert result.exit_code == 1
            assert words in result.stderr


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_beyond_the_bounds(form: str, tmp_path: Path) -> None:
    with (tmp_path / f"large.{form}").open("wb") as file:
        file.truncate(result_files.MOST_BYTES + 1)  # takes no space
    with pytest.raises(TraceError, match="more than the 268 of a result file"):
        read_rows(tmp_path / f"large.{form}")


def test_parquet_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    """A text of a megabyte in 100,000 rows takes a few kilobytes on the disk."""
    path = tmp_path / "bomb.parquet"
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), ["x" * 10**6])
    pq.write_table(pa.table({"policy": text}), path, compression="zstd")
    assert path.stat().st_size < 10**5
    with pytest.raises(TraceError, match="its texts take too much memory"):
        read_rows(path)
    count = pa.array(np.zeros(result_files.MOST_ROWS + 1, np.int8))
    pq.write_table(pa.table({"buffer": count}), path)
    with pytest.raises(TraceError, match="are too much"):
        read_rows(path)


def test_result_files_name_no_files_to_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `profiles` path inside of rows is not looked at; one that the user gives is."""
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    monkeypatch.chdir(tmp_path)
    pipe = tmp_path / "pipe.toml"
    if hasattr(os, "mkfifo"):
        os.mkfifo(pipe)
    given = json.dumps({"profiles": str(pipe)})
    row = {**ROW, "link": "mine", "swap_in_kernel": "sglang", "batch": 1, "parameters": given}
    Path("rows.json").write_text(json.dumps([row]))
    result = run("report", "rows.json")
    assert result.exit_code == 1
    assert "name the link mine, which this report cannot look up" in result.stderr
    assert "--profiles" in result.stderr
    from hisparse_sim.simulator.serving import profiles

    shipped = Path(profiles.__file__).with_name("links.toml").read_text()
    Path("own.toml").write_text(shipped.replace("h200-pcie5", "mine"))
    assert run("report", "rows.json", "--profiles", "own.toml", "--quiet").exit_code == 0
    Path("rows.json").write_text(json.dumps([{**row, "link": None}]))
    assert run("report", "rows.json", "--quiet").exit_code == 0
    named = {"model": "mine", "kv_dtype": "bf16"}
    Path("rows.json").write_text(json.dumps([{**ROW, **named}]))
    assert "name the model mine" in run("report", "rows.json").stderr
    named = {"model": "glm-5.1", "kv_dtype": "int3"}
    Path("rows.json").write_text(json.dumps([{**ROW, **named}]))
    assert "KV entries of type 'int3'" in run("report", "rows.json").stderr


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)
KINDS: dict[str, dict[str, Any]] = {
    "sweep": ROW,
    "curve": {"trace": "t", "policy": "lru", "buffer": 16, "step": 9, "misses_per_step": 1.0,
              "p10": 0.5, "p90": 2.0, "window": 10, "skip_steps": 0},
    "plan": {"buffer": 16, "ratio": 2, "requests": 8, "batch": 2, "tokens_per_s": 9.0,
             "tpot_ms": 4.0, "host_gb": 1.0, "limit": "host", "meets": True, "flags": "--x"},
    "serve": {"mode": "hisparse", "load": "8", "tokens_per_s": 9.0, "tpot_p50_ms": 4.0},
    "reproduce": {"what": "a", "published": 1.0, "ours": 2.0, "error": 1.0, "how": "b",
                  "gap": "c", "source": "d"},
    "bench of several": {"what": "copy", "gpus": 2, "sum_gb_s": 9.0, "us": [1.0, 2.0]},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_value_in_any_place_is_read_or_refused(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever stands in a row: a page, or one sentence."""
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    from hisparse_sim.simulator.views.report.page import Page

    row = dict(KINDS[kind])
    for name in data.draw(st.lists(st.sampled_from(sorted(row)), min_size=1, max_size=2)):
        row[name] = data.draw(VALUES)
    folder = tmp_path_factory.mktemp("any")
    (folder / "sweep.json").write_text(json.dumps([ROW]))
    (folder / "other.json").write_text(json.dumps([KINDS[kind], row]))
    with suppress(TraceError):
        Page(read_results([folder / "sweep.json", folder / "other.json"]), None)


def document(**beside: Any) -> dict[str, Any]:
    return {"candidates": [KINDS["plan"]], "parameters": {}, "trace": "t", **beside}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (document(candidates=3), "not a list of rows"),
        (document(candidates=[3]), "not a list of rows"),
        (document(candidates=[]), "no rows"),
        (document(parameters=[1]), "parameters are no JSON object"),
        (document(trace=["a"]), "trace is ['a'], not a text"),
    ],
)
def test_documents_of_plans(found: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([ROW]))
    (tmp_path / "plan.json").write_text(json.dumps(found))
    result = run("report", tmp_path / "rows.json", tmp_path / "plan.json")
    assert result.exit_code == 1, result.output
    assert words in result.stderr


def test_numbers_are_read_to_the_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    values = np.concatenate([rng.random(2000), 10.0 ** rng.integers(-300, 300, 500), [5e-324]])
    rows = pd.DataFrame({"policy": "lru", "buffer": 1, "tokens_per_s": values})
    writers: dict[str, Callable[[Path], None]] = {
        form: lambda path, form=form: write_rows(rows, form, path) for form in FORMATS
    }
    for form, writer in writers.items():
        path = tmp_path / f"rows.{form}"
        writer(path)
        assert read_rows(path)["tokens_per_s"].tolist() == values.tolist()


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_a_key_that_is_there_twice_is_refused(name: str, tmp_path: Path) -> None:
    row = '{"policy": "lru", "misses": 1, "misses": 2}'
    (tmp_path / name).write_text(row if name.endswith("l") else f"[{row}]")
    with pytest.raises(TraceError, match="has the key 'misses' twice"):
        read_rows(tmp_path / name)


@pytest.mark.parametrize("column", ["steps", "accesses"])
def test_a_report_refuses_rows_of_nothing(column: str, tmp_path: Path) -> None:
    row = {"trace": "t", "policy": "lru", "buffer": 8, "steps": 5, "accesses": 40, "misses": 0}
    (tmp_path / "rows.json").write_text(json.dumps([row | {column: 0}]))
    with pytest.raises(TraceError, match=f"row 1: {column} is 0"):
        read_results([tmp_path / "rows.json"])
