"""What holds of a trace behind every kind of URL: https://, s3://, gs:// and hf://."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from make_traces import assert_reads_as

from hisparse_sim.cli import cli
from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.commands.options import expand

pytest_plugins = ["stores"]
pytestmark = pytest.mark.xdist_group("remote")


@pytest.fixture
def url(store: Any, local: Path) -> str:
    store.push("set/t.parquet", local.read_bytes())
    store.forget()
    return f"{store.root}/set/t.parquet"


def test_it_is_read(url: str, local: Path) -> None:
    assert_reads_as(url, local)


def test_only_the_columns_asked_for_are_fetched(store: Any, url: str) -> None:
    trace = open_trace(url)
    store.forget()
    trace.read(trace.parts[2])
    group = trace._groups.metadata.row_group(2)  # type: ignore[attr-defined]
    sizes = [group.column(number).total_compressed_size for number in range(5)]
    asked = [list(map(int, each.range[6:].split("-"))) for each in store.asked if each.range]
    assert sorted(last - first + 1 for first, last in asked) == sorted(sizes)


@pytest.mark.parametrize("fault", ["503", "cut"])
def test_a_fault_that_passes_is_passed(store: Any, url: str, local: Path, fault: str) -> None:
    store.faults = {fault: 1}
    assert_reads_as(url, local)
    assert store.faults[fault] == 0


def test_what_is_refused_is_one_sentence(store: Any, url: str) -> None:
    trace = open_trace(url)
    store.faults = {"403": 10**6}
    with pytest.raises(TraceError, match=f"^{url} cannot be read: .*(403|Forbidden)"):
        trace.read(trace.parts[0])


def test_what_is_not_there_is_one_sentence(store: Any, url: str) -> None:
    none = url.replace("t.parquet", "none.parquet")
    refused = CliRunner().invoke(cli, ["trace", "info", none])
    assert (refused.exit_code, refused.stderr) == (1, f"Error: {none} does not exist\n")


@pytest.mark.parametrize("name", ["t.parquet", "set/", "*.parquet"])
def test_a_bucket_or_repository_that_is_not_there_is_told(writable: Any, name: str) -> None:
    none = f"{writable.root.rpartition('/')[0]}/none-of-these/{name}"
    kind = "repository" if none.startswith("hf") else "bucket"
    refused = CliRunner().invoke(cli, ["trace", "info", none])
    said = f"Error: {none} does not exist: there is no such {kind}\n"
    assert (refused.exit_code, refused.stderr) == (1, said)


def test_a_glob_and_a_folder(store: Any, url: str) -> None:
    for name in ("set/x/a.parquet", "set/_tmp/b.parquet", "set/README.md"):
        store.push(name, b"some bytes")
    folder = f"{store.root}/set/"
    assert expand([folder]) == [f"{folder}t.parquet", f"{folder}x/a.parquet"]
    assert expand([f"{folder}*.parquet"]) == [f"{folder}t.parquet"]
    none = CliRunner().invoke(cli, ["trace", "info", f"{folder}*.arrow"])
    assert (none.exit_code, "no file matches" in none.stderr) == (2, True)
    if not folder.startswith("http"):  # a page like any other there
        bare = CliRunner().invoke(cli, ["trace", "info", folder[:-1]])
        assert "set is a folder: with a / at its end" in bare.stderr


@pytest.mark.parametrize("name", ["t.parquet", "bad.parquet", "none.parquet", "*.arrow"])
@pytest.mark.parametrize("command", ["info", "validate"])
def test_no_message_tells_credentials(site: Any, local: Path, command: str, name: str) -> None:
    site.push("t.parquet", local.read_bytes())
    site.push("bad.parquet", b"PAR1 and no more of it")
    host = site.root.removeprefix("http://")
    url = f"http://user:secret@{host}/{name}?X-Amz-Signature=secret&Expires=9"
    done = CliRunner().invoke(cli, ["trace", command, url])
    assert name in done.output
    assert "secret" not in done.output
    assert "user" not in done.output


def test_no_result_holds_credentials(site: Any, local: Path, tmp_path: Path) -> None:
    site.push("t.parquet", local.read_bytes())
    urls = [f"{site.root}/t.parquet?secret={each}" for each in "ab"]
    for given in (urls[:1], urls, [*urls, str(local)]):
        out = tmp_path / "rows.json"
        sweep = ["sweep", *given, "--buffer", "64", "--policy", "lru", "-o", str(out)]
        assert CliRunner().invoke(cli, sweep).exit_code == 0
        assert "secret" not in out.read_text()
        assert len({row["trace"] for row in json.loads(out.read_text())}) == len(given)


def test_what_is_left_of_a_url_in_a_sentence() -> None:
    said = str(TraceError("https://a:b@c:1/x.parquet?sig=d%2F&e=f: no; s3://k:s@b/t?.parquet, u@v"))
    assert said == "https://c:1/x.parquet?...: no; s3://b/t?.parquet, u@v"
    assert str(TraceError(said)) == said
    said = str(
        TraceError("HTTPS://a:b@c/x?sig=d; abfs://box@a.dfs.core.windows.net/x az://box@a/x")
    )
    assert said == "HTTPS://c/x?...; abfs://box@a.dfs.core.windows.net/x az://box@a/x"
