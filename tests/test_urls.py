"""How URLs are spelt, and what lies on this machine for a file behind one."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from fake_sglang import MODEL, NEW_TOKENS, FakeServer, fake
from loopback import Site
from make_traces import assert_reads_as
from store_servers import S3

from hisparse_sim.cli import cli
from hisparse_sim.simulator.replay.kept import Kept
from hisparse_sim.traces import TraceError, open_trace, sample_path
from hisparse_sim.traces.commands.options import expand
from hisparse_sim.traces.files import work_of
from hisparse_sim.traces.publish import Target
from hisparse_sim.traces.remote import place_of
from hisparse_sim.traces.retries import asking

__all__ = ["fake"]  # a fixture
pytest_plugins = ["stores"]
pytestmark = pytest.mark.xdist_group("remote")

SWEEP = ["--buffer", "64", "--policy", "lru"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.mark.parametrize("start", ["file://", "FILE://", "file://localhost", "File://LocalHost"])
def test_file_urls_are_local_files(start: str, local: Path, here: Path) -> None:
    url = f"{start}{local}"
    assert_reads_as(url, local)
    assert expand([url, str(local), f"{start}{local.parent}/*.parquet"]) == [str(local)]
    assert run("sweep", url, *SWEEP, "-o", f"{start}{here}/rows.csv").exit_code == 0
    assert (here / "rows.csv").exists()


def test_the_case_of_a_scheme_does_not_matter(s3: S3, local: Path) -> None:
    s3.push("t.parquet", local.read_bytes())
    assert_reads_as("S3://bucket/t.parquet", local)
    assert expand(["S3://bucket/", "s3://bucket/*.parquet"]) == ["s3://bucket/t.parquet"]
    assert run("policies", "-o", "S3://bucket/policies.csv").exit_code == 0
    assert "a web server takes no files" in run("policies", "-o", "HTTPS://a/b.csv").stderr


@pytest.mark.parametrize("command", ["sweep {} --buffer 64", "trace sample {}", "plot policies {}"])
def test_a_command_writes_nothing_that_ends_with_it(command: str, local: Path) -> None:
    url = "memory://a/t.svg" if "plot" in command else "memory://a/t.parquet"
    refused = run(*command.format(local).split(), "-o", url)
    assert refused.exit_code == 2
    assert f"{url} ends with this command: name a file or another store" in refused.stderr


def test_what_to_install_is_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec", reason="needs the extra [remote]")
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(TraceError, match=r"^abfs://box/x cannot be opened: Install adlfs to"):
        place_of("abfs://box/x").exists()
    with pytest.raises(TraceError, match=r"'\.\[remote\]'"), asking("s3://b/x", "read"):
        raise ImportError("Install s3fs to access S3")


def test_work_has_the_name_of_the_whole_url() -> None:
    def name(url: str) -> str:
        return work_of(place_of(url)).name

    urls = [f"{start}/out.parquet" for start in ("s3://a", "s3://b", "gs://a", "s3://a/x")]
    urls += [f"abfs://{box}@a.dfs.core.windows.net/out.parquet" for box in "xy"]
    assert len(set(map(name, urls))) == len(urls)
    assert name("s3://a/out.parquet") == name("S3://key:secret@a/out.parquet")
    assert name("s3://a/out.parquet").startswith("out-")
    assert name("s3://a/out.parquet").endswith(".parquet.partial")
    assert "secret" not in name("s3://key:secret@a/secret@out.parquet").replace("secret@out", "")


def test_a_sweep_finds_its_own_work(s3: S3, local: Path, here: Path) -> None:
    url = "s3://bucket/a/rows.csv"
    s3.faulty_methods, s3.faults = ("PUT", "POST"), {"403": 10**6}
    assert "is kept, complete" in run("sweep", local, *SWEEP, "-o", url).stderr
    s3.forget()
    with Kept(work_of(place_of(url))):
        held = run("sweep", local, *SWEEP, "-o", url)
        assert (held.exit_code, "is in use" in held.stderr) == (1, True)
        other = run("sweep", local, *SWEEP, "-o", "s3://bucket/b/rows.csv")
        assert (other.exit_code, "resuming" in other.stderr) == (0, False), other.stderr
    again = run("sweep", local, *SWEEP, "-o", url)
    assert (again.exit_code, "resuming from" in again.stderr) == (0, True), again.stderr
    assert not [*here.glob("*.partial")]


def test_a_capture_to_a_store_resumes(s3: S3, fake: FakeServer, here: Path) -> None:
    Path("prompts.jsonl").write_text('{"text": "a bb ccc"}\n{"text": "a bb ccc dddd e"}\n')
    command = (
        f"trace capture sglang --url {fake.url} --model m --layers {MODEL.num_layers}"
        f" --top-k {MODEL.top_k} --max-new-tokens {NEW_TOKENS} --prompts prompts.jsonl"
        " --concurrency 1 -o"
    ).split()
    url = "s3://bucket/a/out.parquet"
    fake.faults |= {"none": 1, "refused": 9}  # the first request passes
    assert "1 of 2 requests are kept" in run(*command, url).stderr
    (kept,) = here.glob("*.partial")
    assert kept == here / work_of(Target(url))
    fake.faults.clear()
    assert run(*command, url).exit_code == 0
    assert len(fake.requests) == 3
    assert open_trace(url).requests == ("1", "2")
    assert not kept.exists()


def test_a_trace_is_converted_to_a_store(writable: Any) -> None:
    np.save("rows.npy", np.arange(24, dtype=np.int32).reshape(3, 2, 4) % 9 + 1)
    url = f"{writable.root}/rows.parquet"
    command = "trace convert rows.npy --prompt-len 20 --provenance synthetic -o"
    done = run(*command.split(), url)
    assert done.exit_code == 0, done.stderr
    assert open_trace(url).rows == 6


@pytest.mark.parametrize(
    "command",
    [
        "plan --workload {}",
        "plan --miss-curve {}",
        "plan --step-times {}",
        "plan --profiles {}",
        "trace convert {} -o t.parquet",
        "trace convert {} --from jsonl --provenance synthetic -o t.parquet",
        "trace synth --fit {} -o t.parquet",
        "gpu replay {}",
        "gpu calibrate link {} -o t.toml",
    ],
)
def test_an_option_that_names_a_file_keeps_the_credentials_of_a_url(
    command: str, site: Site
) -> None:
    url = site.url.replace("://", "://me:secret@") + "/t.jsonl?token=secret"
    done = run(*(url if word == "{}" else word for word in command.split()))
    assert done.exit_code in (1, 2)
    assert "secret" not in done.output
    assert "//127.0.0.1" in done.output or "gpu calibrate" in command
    assert not list(Path().iterdir())


def test_a_url_that_went_through_a_path_has_no_credentials_in_messages() -> None:
    for url in ("https://me:secret@a/b.csv?token=secret", "s3://me:secret@a/b"):
        assert "secret" not in str(TraceError(f"{Path(url)} is not there"))
    for text in ("C:/me@home/t.parquet is not there", "at a:/b@c"):
        assert str(TraceError(text)) == text


def test_a_trace_behind_a_url_is_written_again(site: Site, local: Path) -> None:
    site.files["/t.parquet"] = local.read_bytes()
    url = f"{site.url}/t.parquet?token=secret"
    done = run("trace", "convert", url, "-o", "t.arrow")
    assert done.exit_code == 0, done.output
    assert_reads_as("t.arrow", local)


def test_what_repeats_a_plan_has_no_credentials(site: Site) -> None:
    site.files["/t.parquet"] = sample_path().read_bytes()
    site.files["/mine.toml"] = b"[models]\n"
    start = site.url.replace("://", "://me:secret@")
    trace, profiles = (f"{start}/{name}?token=secret" for name in ("t.parquet", "mine.toml"))
    words = f"plan --trace {trace} --profiles {profiles} --buffer 4096 --ratio 2"
    load = "--concurrency 4 --requests 4 --prompt 34000 --output-len 8"
    for made in ("plan.json", "plan.csv"):
        done = run(*words.split(), *load.split(), "-o", made)
        assert done.exit_code == 0, done.output
        written = Path(made).read_text()
        assert "secret" not in written
        assert f"{site.url}/mine.toml?..." in written
    assert f"--trace '{site.url}/t.parquet?...'" in Path("plan.json").read_text()


@pytest.mark.parametrize("command", ["sweep {} --buffer 64", "curve {} --window 2", "policies"])
def test_links_that_lead_to_each_other_are_refused(command: str, local: Path, here: Path) -> None:
    (here / "a.csv").symlink_to("b.csv")
    (here / "b.csv").symlink_to("a.csv")
    done = run(*(local if word == "{}" else word for word in command.split()), "-o", "a.csv")
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: a.csv cannot be used: its links lead to each other\n",
    )
    with pytest.raises(TraceError, match="lead to each other"):
        work_of(Path("a.csv"))
    with pytest.raises(TraceError, match="lead to each other"), Kept(Path("a.csv")):
        pass
    (here / "c.csv").symlink_to("gone/c.csv")
    assert "there is no folder" in run("policies", "-o", "c.csv").stderr
