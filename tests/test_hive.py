"""A folder in hive layout is one trace: the same results as from one file, wherever rows lie."""

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from make_traces import drift, metadata, table, write, write_table
from test_sweep import Interrupted

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.traces import Demand, TraceError, open_trace, validate
from hisparse_sim.traces.file.metadata import KEY

KEYS = ("request", "layer")
REQUESTS = ["10", "a", "b c=d/é%"]  # the last as request=b%20c%3Dd%2F%C3%A9%25
PARTS = [
    drift(request=request, layer=layer, steps=9 + 2 * number, first_step=5 * number)
    for number, request in enumerate(REQUESTS)
    for layer in (0, 3)
]
ABOUT = metadata(prompt_len={part.request: part.prompt_len for part in PARTS})


def place(part: Demand, *keys: str) -> str:
    value = {"request": quote(part.request, safe=""), "layer": part.layer, "model": "m"}
    return "/".join(f"{key}={value[key]}" for key in keys)


def put(path: Path, parts: list[Demand], *keys: str, **options: Any) -> Path:
    """Write a file without the columns that its folders stand for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_table(path, table(parts).drop_columns(list(keys)), ABOUT, **options)


def hive(root: Path, *keys: str) -> Path:
    """Write each part to a file of its own, in folders of these keys."""
    for part in PARTS:
        put(root / place(part, *keys) / "part-0.parquet", [part], *(set(keys) & set(KEYS)))
    return root


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def nameless(result: str, trace: Path) -> str:
    """Return a result without the digest that names its trace."""
    return result.replace(open_trace(trace).sha256, "")


def swept(trace: Path, *more: str | Path) -> str:
    """Return the file that a sweep writes, without the digest."""
    out = trace.parent / "rows.json"
    sweep = ["sweep", trace, "--buffer", "8,16", "--policy", "lru,random", "--per-layer"]
    result = run(*sweep, "-o", out, *more)
    assert result.exit_code == 0, result.output
    return nameless(out.read_text("utf-8"), trace)


def same_trace(folder: Path, file: Path) -> None:
    ours, theirs = open_trace(folder), open_trace(file)
    assert ours.parts == theirs.parts
    assert replace(ours.metadata, notes=None) == replace(theirs.metadata, notes=None)
    assert ours.columns == theirs.columns
    for part in theirs.parts:
        found, expected = ours.read(part), theirs.read(part)
        for name in ("step", "seq_len", "offsets", "positions"):
            assert getattr(found, name).tolist() == getattr(expected, name).tolist()


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return write(tmp_path / "t.parquet", PARTS, ABOUT)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_results_are_those_of_one_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever the keys and their order, which steps lie in which file, and in which row group."""
    root = tmp_path_factory.mktemp("hive")
    keys = data.draw(st.sampled_from([KEYS, KEYS[::-1], KEYS[:1], KEYS[1:]]))
    dropped = keys if data.draw(st.booleans()) else ()
    files: dict[str, list[Demand]] = {}
    for part in PARTS:
        first, last = int(part.step[0]), int(part.step[-1]) + 1
        edges = sorted(data.draw(st.sets(st.integers(first + 1, last - 1), max_size=3)))
        numbers = sorted(data.draw(st.integers(0, 3)) for _ in range(len(edges) + 1))
        for number, begin, end in zip(numbers, [first, *edges], [*edges, last], strict=True):
            name = f"{place(part, *keys)}/part-{9 - number}.parquet"
            files.setdefault(name, []).append(part.cut(begin, end))
    group_rows = data.draw(st.sampled_from([None, 4]))
    for name in data.draw(st.permutations(sorted(files))):
        put(root / "t" / name, files[name], *dropped, row_group_size=group_rows)
    file = write(root / "t.parquet", PARTS, ABOUT)
    same_trace(root / "t", file)
    assert swept(root / "t", "--jobs", "2") == swept(file)


def test_what_pyarrow_writes_is_read(one: Path, tmp_path: Path) -> None:
    """Its quoting of values, and files that each hold a few rows."""
    flavor = ds.partitioning(
        pa.schema([("layer", pa.int16()), ("request", pa.string())]), flavor="hive"
    )
    options: Any = {"max_rows_per_file": 4, "max_rows_per_group": 4, "use_threads": False}
    written = pq.read_table(one)
    ds.write_dataset(written, tmp_path / "t", format="parquet", partitioning=flavor, **options)
    assert len(list((tmp_path / "t").rglob("*.parquet"))) > len(PARTS)
    same_trace(tmp_path / "t", one)
    back = ds.dataset(tmp_path / "t", partitioning=flavor).to_table()
    assert sorted(set(back["request"].to_pylist())) == list(open_trace(tmp_path / "t").requests)


def test_every_command_reads_it(one: Path, tmp_path: Path) -> None:
    folder = hive(tmp_path / "t", "layer", "request")
    assert swept(folder) == swept(one)
    for command in (
        ["trace", "sample", folder, "-o", tmp_path / "cut.parquet"],
        ["trace", "convert", folder, "-o", tmp_path / "other.arrow"],
    ):
        made = run(*command)
        assert made.exit_code == 0, made.output
        same_trace(folder, command[-1])  # type: ignore[arg-type]
    assert open_trace(tmp_path / "cut.parquet").has_digest
    described = run("trace", "info", folder)
    assert "3 requests, 2 layers of 4" in described.stdout
    checked = validate(folder)
    assert checked.ok
    assert len(checked.warnings) == 1  # there is no digest
    assert run("trace", "validate", folder).stdout.endswith("ok\n")
    for command in (["mrc"], ["curve", "--window", "2", "--buffer", "8", "--format", "csv"]):
        ours, theirs = run(*command, folder), run(*command, one)
        assert ours.exit_code == 0, ours.output
        assert nameless(ours.stdout, folder) == nameless(theirs.stdout, one)
    one_layer = hs.sweep(folder / "layer=3", ["lru"], [8]).rows
    assert one_layer.misses[0] == hs.sweep(one, ["lru"], [8], layers=[3]).rows.misses[0]
    for inside in ("layer=0/request=a/part-0.parquet", "layer=3/request=new/part-0.parquet"):
        refused = run("trace", "sample", folder, "--force", "-o", folder / inside)
        assert "it is read for this" in refused.stderr


def test_other_keys_separate_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any place; and files beside the folders are traces as they were."""
    monkeypatch.chdir(tmp_path)
    for number, keys in enumerate([("model", *KEYS), ("layer", "model", "request")]):
        hive(Path(f"set/{number}"), *keys)
    write(Path("set/x.parquet"), PARTS)
    put(Path("set/_tmp/y.parquet"), PARTS)
    checked = run("trace", "validate", "set")
    names = [line.partition(":")[0] for line in checked.stdout.splitlines()]
    assert names == ["set/0/model=m", "set/1/layer=*/model=m", "set/x.parquet"]
    for name in names:
        trace = open_trace(name)
        assert trace.requests == tuple(REQUESTS)
        assert trace.name == ("x" if name.endswith("x.parquet") else "model=m")
        assert pickle.loads(pickle.dumps(trace)).parts == trace.parts
    with pytest.raises(TraceError, match=r"set is a folder, not .* such as set/0/model=m"):
        open_trace("set")
    monkeypatch.chdir("set/0/model=m/request=a")
    here = open_trace(".")
    assert (here.name, here.requests) == ("request=a", ("a",))
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with pytest.raises(TraceError, match="empty is a folder without traces"):
        open_trace("empty")
    assert "empty is a folder without traces" in run("sweep", "empty").stderr


def test_the_digest_tells_the_rows_and_no_order(tmp_path: Path) -> None:
    digest = open_trace(hive(tmp_path / "t", *KEYS)).sha256
    assert open_trace(hive(tmp_path / "u", *KEYS[::-1])).sha256 == digest
    part = tmp_path / "t" / place(PARTS[0], *KEYS)
    (part / "part-0.parquet").rename(part / "other.parquet")
    assert open_trace(tmp_path / "t").sha256 == digest
    part.rename(part.parent / "layer=1")
    assert open_trace(tmp_path / "t").sha256 != digest


def test_an_interrupted_sweep_resumes(one: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"policies": ["lru", "fifo"], "buffers": [8], "per_layer": True}
    kept: dict[str, Any] = {"keep": tmp_path / "rows.partial", "jobs": 1}
    folder = hive(tmp_path / "t", *KEYS)
    stopped = hs.sweep(folder, **given, **kept, executor=Interrupted())
    assert (stopped.finished, stopped.parts) == (2, len(PARTS))
    seen: list[int] = []
    rows = hs.sweep(folder, **given, **kept, progress=lambda now: seen.append(now.steps)).rows
    assert len(seen) == len(PARTS) - 2
    expected = hs.sweep(one, **given).rows
    assert rows.drop(columns="trace_sha256").equals(expected.drop(columns="trace_sha256"))


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    trace = open_trace(hive(tmp_path / "t", *KEYS))
    path = tmp_path / "t" / place(PARTS[2], *KEYS) / "part-0.parquet"
    os.utime(path, ns=(1, 1))
    trace.read(trace.parts[0])
    with pytest.raises(TraceError, match=r"layer=0/part-0.parquet has changed since it was opened"):
        trace.read(trace.parts[2])


FLOATS = pa.list_(pa.float32())
A = "request=a/layer=0"  # of PARTS[2], steps 5 to 15


def spoil_keys(root: Path, spelt: str) -> None:
    put(root / spelt / "part-0.parquet", [PARTS[2]], *KEYS)


SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "two of a key": (
        lambda root: spoil_keys(root, "request=a/layer=0/request=b"),
        "request=b/part-0.parquet: two of its folders say a request, and one may",
    ),
    "null": (
        lambda root: spoil_keys(root, "request=__HIVE_DEFAULT_PARTITION__/layer=0"),
        "part-0.parquet: its folder stands for rows whose request is null",
    ),
    "no number": (
        lambda root: spoil_keys(root, "request=z/layer=first"),
        "its folder layer=first does not say the number of a layer",
    ),
    "no UTF-8": (
        lambda root: spoil_keys(root, "request=%FF/layer=0"),
        "its folder request=%FF does not encode UTF-8",
    ),
    "no layer": (
        lambda root: spoil_keys(root, "request=z"),
        "request=z/part-0.parquet has no column layer (it has step, seq_len, positions, request)",
    ),
    "other rows": (
        lambda root: put(root / "request=b/layer=0/part-0.parquet", [PARTS[2]], "layer"),
        "part-0.parquet has rows of request 'a', and its folder says 'b'",
    ),
    "missing steps": (
        lambda root: put(root / A / "part-1.parquet", [drift(steps=3, first_step=18)], *KEYS),
        "part-1.parquet: request 'a', layer 0: the steps 16 to 17 between them are missing",
    ),
    "steps twice": (
        lambda root: put(root / A / "part-1.parquet", [drift(steps=3, first_step=14)], *KEYS),
        "part-1.parquet: request 'a', layer 0: the steps 5 to 15 of the one and 14 to 16 of the",
    ),
    "a step twice": (
        lambda root: put(root / A / "part-1.parquet", [PARTS[2].cut(15, 16)], *KEYS),
        "request 'a', layer 0, step 15: the step has more than one row",
    ),
    "other metadata": (
        lambda root: write_table(
            root / A / "part-1.parquet", table([PARTS[2]]), metadata(model="other")
        ),
        "part-1.parquet have different metadata (hisparse_trace), and the files of a trace have",
    ),
    "another column": (
        lambda root: write_table(
            root / A / "part-1.parquet",
            table([PARTS[2]]).append_column("scores", table([PARTS[2]])["positions"].cast(FLOATS)),
            ABOUT,
        ),
        "has scores, and the files of a trace have the same columns",
    ),
    "damage": (
        lambda root: (root / A / "part-0.parquet").write_bytes(b"PAR1"),
        "part-0.parquet was cut off",
    ),
    "no rows": (
        lambda root: (shutil.rmtree(root), put(root / A / "part-0.parquet", [], *KEYS)),
        "holds no rows",
    ),
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_is_wrong_is_one_sentence(how: str, tmp_path: Path) -> None:
    root = hive(tmp_path / "t", *KEYS)
    spoil, said = SPOILT[how]
    spoil(root)
    refused = run("sweep", root, "--buffer", "8", "--quiet")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert said in refused.stderr
    assert str(root) in refused.stderr


def test_files_without_rows_add_none(one: Path, tmp_path: Path) -> None:
    root = hive(tmp_path / "t", *KEYS)
    put(root / A / "empty.parquet", [], *KEYS)
    same_trace(root, one)


def test_arrow_files_count(one: Path, tmp_path: Path) -> None:
    root = hive(tmp_path / "t", *KEYS)
    path = root / A / "part-0.parquet"
    rows = pq.read_table(path, partitioning=None)
    assert KEY in rows.schema.metadata
    for opens, options in (
        (pa.ipc.new_file, None),
        (pa.ipc.new_file, "lz4"),
        (pa.ipc.new_stream, None),
    ):
        path.unlink()
        path = root / A / "part-0.arrow"
        with opens(path, rows.schema, options=pa.ipc.IpcWriteOptions(compression=options)) as file:
            file.write_table(rows)
        same_trace(root, one)


def test_links_are_followed_except_back(tmp_path: Path) -> None:
    root = hive(tmp_path / "set", *KEYS)
    (root / "request=a").rename(tmp_path / "elsewhere")
    (root / "request=a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(root)
    assert open_trace(root).requests == tuple(sorted(REQUESTS))


def test_what_cannot_be_read_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = hive(tmp_path / "set", *KEYS)
    dangling = root / "request=a" / "layer=0" / "part-1.parquet"
    dangling.symlink_to("nowhere")
    with pytest.raises(TraceError, match=f"^{dangling} does not exist$"):
        open_trace(root)
    dangling.unlink()
    listed = Path.iterdir

    def refused(folder: Path) -> Any:
        if folder.name == "request=a":
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(TraceError, match=r"request=a cannot be read: Permission denied$"):
        open_trace(root)


def test_a_folder_whose_name_is_not_utf8_is_named(tmp_path: Path) -> None:
    file = put(tmp_path / "request=a" / "part-0.parquet", PARTS[:1], "request")
    try:
        file.parent.rename(tmp_path / os.fsdecode(b"request=\xff"))
    except OSError:
        pytest.skip("the file system takes UTF-8 only")
    with pytest.raises(TraceError, match=r"part-0\.parquet: its folder .* does not encode UTF-8$"):
        open_trace(tmp_path)
