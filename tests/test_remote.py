"""Traces and results behind URLs, in an S3-compatible store on loopback, with the faults of one."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from make_traces import drift, metadata, table, write, write_table
from store_servers import S3

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.replay.result_files import read_rows
from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.publish import Target
from hisparse_sim.traces.remote import place_of

pytest_plugins = ["stores"]
pytestmark = pytest.mark.xdist_group("remote")


PARTS = [
    drift(request=request, layer=layer, steps=60, top_k=32)
    for request in "ab"
    for layer in range(4)
]


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return write(tmp_path / "t.parquet", PARTS, metadata(top_k=32))


def put(local: Path, *urls: str) -> str:
    for url in urls:
        Target(url, force=True).put(local)
    return urls[0]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def counted(trace: str | Path, *settings: Any) -> pd.DataFrame:
    """Return the rows of a sweep, without what names the file."""
    return hs.sweep(trace, *settings).rows.drop(columns="trace_sha256")


def test_a_trace_is_read_from_a_store(s3: S3, local: Path) -> None:
    url = put(local, "s3://bucket/traces/t.parquet")
    trace = open_trace(url)
    here = open_trace(local)
    assert (trace.name, trace.parts, trace.metadata) == ("t", here.parts, here.metadata)
    for part in here.parts:
        assert trace.read(part).positions.tolist() == here.read(part).positions.tolist()
    pd.testing.assert_frame_equal(
        counted(url, ["lru", "belady"], [64]), counted(local, ["lru", "belady"], [64])
    )
    pd.testing.assert_frame_equal(hs.locality(url), hs.locality(local))


def test_only_the_columns_and_row_groups_asked_for_are_read(s3: S3, tmp_path: Path) -> None:
    from dataclasses import replace

    import numpy as np

    scored = [
        replace(part, scores=np.random.default_rng(0).random(len(part.positions)).astype("f2"))
        for part in (drift(layer=layer, steps=1000, top_k=64) for layer in range(8))
    ]
    local = write(tmp_path / "scored.parquet", scored, metadata(top_k=64, num_layers=8))
    trace = open_trace(put(local, "s3://bucket/scored.parquet"))
    footer_bytes = s3.bytes_read
    s3.asked.clear()
    trace.read(trace.parts[5])
    assert {asked.method for asked in s3.asked} == {"GET"}
    assert len(s3.asked) == 5  # request, layer, step, seq_len, positions
    group = trace._groups.metadata.row_group(5)  # type: ignore[attr-defined]
    sizes = [group.column(number).total_compressed_size for number in range(5)]
    assert s3.bytes_read - footer_bytes == sum(sizes)
    whole = local.stat().st_size
    assert trace.sha256  # told by the digest
    assert s3.bytes_read < whole / 4


@pytest.mark.parametrize(("fault", "times"), [("500", 2), ("cut", 2), ("cut", 5)])
def test_faults_that_pass_are_passed(s3: S3, local: Path, fault: str, times: int) -> None:
    url = put(local, "s3://bucket/t.parquet")
    expected = counted(local, ["lru"], [64])
    s3.faults = {fault: times}
    pd.testing.assert_frame_equal(counted(url, ["lru"], [64]), expected)
    assert s3.faults[fault] == 0


def test_a_slow_store_is_waited_for(s3: S3, local: Path) -> None:
    url = put(local, "s3://bucket/t.parquet")
    s3.delay_s = 0.05
    assert len(hs.sweep(url, ["lru"], [64]).rows) == 1


def test_faults_that_stay_are_one_sentence(
    s3: S3, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put(local, "s3://bucket/t.parquet")
    s3.faults = {"changed": 10**6}
    changed = run("sweep", url, "--buffer", "64")
    assert (changed.exit_code, "Traceback" in changed.stderr) == (1, False)
    assert url in changed.stderr
    trace = None
    s3.faults = {}
    trace = open_trace(url)
    s3.faults = {"changed": 10**6}
    with pytest.raises(TraceError, match="checksum"):
        trace.read(trace.parts[0])
    s3.faults = {}
    for wrong, said in [
        ("s3://bucket/none.parquet", "s3://bucket/none.parquet does not exist"),
        ("s3://bucket/none/*.parquet", "no file matches"),
        ("http://127.0.0.1:1/t.parquet", "cannot be read: Cannot connect to host 127.0.0.1:1"),
        ("what://x/t.parquet", "cannot be opened"),
    ]:
        refused = run("sweep", wrong, "--buffer", "64")
        assert refused.exit_code in (1, 2), wrong
        assert said in refused.stderr, refused.stderr
        assert "Traceback" not in refused.stderr


def test_globs_folders_and_hive_layout(s3: S3, local: Path, tmp_path: Path) -> None:
    names = ["model=a/part-0.parquet", "model=a/part-1.parquet", "model=b/part-0.parquet"]
    urls = [f"s3://bucket/set/{name}" for name in names]
    put(local, *urls, "s3://bucket/set/_metadata", "s3://bucket/set/_tmp/x.parquet")
    for pattern, count in [
        ("s3://bucket/set/", 3),
        ("s3://bucket/set/**/part-0.parquet", 2),
        ("s3://bucket/set/model=a/*.parquet", 2),
    ]:
        out = tmp_path / "rows.csv"
        swept = run("sweep", pattern, "--buffer", "64", "--policy", "lru", "-o", out)
        assert swept.exit_code == 0, swept.stderr
        assert len(pd.read_csv(out)) == count
    assert set(pd.read_csv(out)["trace"]) == {"part-0", "part-1"}
    folder = tmp_path / "set" / "model=a"
    folder.mkdir(parents=True)
    (folder / "x.parquet").write_bytes(local.read_bytes())
    (folder / "_SUCCESS").touch()
    assert run("sweep", folder.parent, "--buffer", "64", "--policy", "lru").exit_code == 0


def test_folders_of_requests_and_layers_are_one_trace(s3: S3, local: Path, tmp_path: Path) -> None:
    for part in PARTS:
        rows = table([part]).drop_columns(["request", "layer"])
        file = write_table(tmp_path / "part.parquet", rows, metadata(top_k=32))
        put(file, f"s3://bucket/t/layer={part.layer}/request={part.request}/part-0.parquet")
    trace = open_trace("s3://bucket/t/")
    assert trace.parts == open_trace(local).parts
    again = open_trace("s3://bucket/t/")
    s3.asked.clear()
    assert trace.sha256 == again.sha256
    assert not s3.asked
    trace.read(trace.parts[5])
    assert {unquote(asked.path) for asked in s3.asked} == {
        "/bucket/t/layer=1/request=b/part-0.parquet"
    }
    pd.testing.assert_frame_equal(
        counted("s3://bucket/t/", ["lru"], [64]), counted(local, ["lru"], [64])
    )
    sampled = run("trace", "sample", "s3://bucket/t/", "-o", tmp_path / "one.parquet")
    assert sampled.exit_code == 0, sampled.stderr
    assert open_trace(tmp_path / "one.parquet").parts == trace.parts
    inside = "s3://bucket/t/layer=0/request=new/part-0.parquet"
    assert "it is read for this" in run("trace", "sample", "s3://bucket/t/", "-o", inside).stderr
    put(file, "s3://bucket/t/layer=0/request=a/part-0.parquet")
    with pytest.raises(TraceError, match=r"layer=0/request=a/part-0\.parquet has changed since"):
        trace.read(trace.parts[0])
    with pytest.raises(TraceError, match=r"open the folder .*, s3://bucket/t/"):
        open_trace("s3://bucket/t/layer=0/request=a/part-0.parquet")


def test_results_are_written_to_a_store_and_read(
    s3: S3, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = put(local, "s3://bucket/t.parquet")
    sweep = ["sweep", url, "--buffer", "64", "--policy", "lru,fifo"]
    for suffix in ("csv", "jsonl", "parquet"):
        out = f"s3://bucket/results/rows.{suffix}"
        assert run(*sweep, "-o", out).exit_code == 0
        assert len(read_rows(place_of(out))) == 2
        assert run(*sweep, "-o", f"here.{suffix}").exit_code == 0
        assert place_of(out).open("rb").read() == Path(f"here.{suffix}").read_bytes()
    assert run("mrc", url, "-o", "s3://bucket/facts.parquet").exit_code == 0
    assert run("sweep", "s3://bucket/facts.parquet", "--buffer", "64").exit_code == 0
    plotted = run("plot", "policies", "s3://bucket/results/rows.csv", "-o", "s3://bucket/p.svg")
    assert plotted.exit_code == 0, plotted.stderr
    if find_spec("vl_convert"):
        assert run("report", "s3://bucket/results/rows.csv", "-o", "r.html").exit_code == 0
    cut = run("trace", "sample", url, "--layer", "1", "-o", "s3://bucket/cut.parquet")
    assert cut.exit_code == 0, cut.stderr
    assert open_trace("s3://bucket/cut.parquet").layers == (1,)
    assert run("trace", "validate", "s3://bucket/cut.parquet").exit_code == 0
    for bad, said in [
        (url, "it is read for this"),
        ("s3://nobucket/x.csv", "there is no such bucket"),
        ("https://example.invalid/x.csv", "a web server takes no files"),
    ]:
        refused = run(*sweep, "--format", "csv", "-o", bad)
        assert (refused.exit_code, said in refused.stderr) == (1, True), refused.stderr
    assert not list(tmp_path.glob("*.partial"))


def test_arrow_and_traces_of_other_writers(s3: S3, local: Path, tmp_path: Path) -> None:
    arrow = write(tmp_path / "t.arrow", PARTS, metadata(top_k=32))
    with pytest.raises(TraceError, match="copy it to one"):
        open_trace(put(arrow, "s3://bucket/t.arrow"))
    import pyarrow.parquet as pq

    other = tmp_path / "other.parquet"
    pq.write_table(pq.read_table(local), other, row_group_size=100)  # no digest, shared groups
    trace = open_trace(put(other, "s3://bucket/other.parquet"))
    assert trace.sha256 == open_trace(other).sha256
    for part in trace.parts:
        assert (
            trace.read(part).positions.tolist() == open_trace(other).read(part).positions.tolist()
        )
    put(local, "s3://bucket/other.parquet")
    with pytest.raises(TraceError, match="has changed since it was opened"):
        trace.read(trace.parts[0])
