"""Results written to stores by several runs: none replaces what another one wrote meanwhile."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from loopback import Asked
from store_servers import S3

from hisparse_sim.cli import cli
from hisparse_sim.traces import TraceError, atomic_path, publish
from hisparse_sim.traces.publish import Changed, Target
from hisparse_sim.traces.remote import place_of

pytest_plugins = ["stores"]
pytestmark = pytest.mark.xdist_group("remote")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is empty."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"ours")
    return path


def begun(url: str, force: bool = False) -> Target:
    """Return the target of a run that begins now."""
    target = Target(url, force)
    target.refuse_unwritable()
    return target


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def content(url: str) -> bytes:
    with place_of(url).open("rb") as file:
        return file.read()


def uploads(asked: Asked) -> bool:
    return asked.method in ("PUT", "POST") and bool({"PUT", "upload", "commit"} & _words(asked))


def _words(asked: Asked) -> set[str]:
    return {asked.method, *asked.path.partition("?")[0].split("/")}


def meanwhile(store: Any, name: str, other: bytes) -> None:
    """Let another run write a file after this one has looked for the last time and before its
    upload arrives."""

    def push(asked: Asked) -> None:
        if uploads(asked):
            store.meanwhile = None
            store.push(name, other)

    store.meanwhile = push


def test_a_new_file_and_one_that_is_as_it_was(writable: Any, source: Path) -> None:
    url = f"{writable.root}/rows.csv"
    begun(url).put(source)
    assert content(url) == b"ours"
    source.write_bytes(b"ours again")
    begun(url).put(source)
    assert content(url) == b"ours again"


@pytest.mark.parametrize("before", [None, b"former"])
def test_what_another_run_wrote_stays(writable: Any, source: Path, before: bytes | None) -> None:
    url = f"{writable.root}/rows.csv"
    if before is not None:
        writable.push("rows.csv", before)
    for late in (False, True):
        target = begun(url)
        if late:
            meanwhile(writable, "rows.csv", b"theirs, late")
        else:
            writable.push("rows.csv", b"theirs")
        with pytest.raises(Changed, match=f"^{url} has been changed by another run"):
            target.put(source)
        assert content(url) == (b"theirs, late" if late else b"theirs")
        assert writable.meanwhile is None


def test_what_another_run_wrote_is_replaced_by_force(writable: Any, source: Path) -> None:
    url = f"{writable.root}/rows.csv"
    target = begun(url, force=True)
    writable.push("rows.csv", b"theirs")
    target.put(source)
    assert content(url) == b"ours"


def test_the_same_result_of_another_run_is_no_conflict(writable: Any, source: Path) -> None:
    target = begun(f"{writable.root}/rows.csv")
    writable.push("rows.csv", b"ours")
    target.put(source)


def test_an_upload_whose_answer_was_lost_has_succeeded(writable: Any, source: Path) -> None:
    url = f"{writable.root}/rows.csv"
    target = begun(url)
    writable.faulty_methods, writable.faults = ("PUT", "POST"), {"lost": 1}
    target.put(source)
    assert content(url) == b"ours"
    assert writable.faults == {"lost": 0}


def test_a_file_that_cannot_be_put_is_kept(writable: Any, here: Path) -> None:
    url = f"{writable.root}/rows.csv"
    said = pytest.raises(TraceError, match=f"^{url} cannot be written: ")
    with said as refused, atomic_path(url) as path:
        path.write_bytes(b"ours")
        writable.faulty_methods, writable.faults = ("PUT", "POST"), {"403": 10**6}
    (kept,) = here.iterdir()
    assert str(refused.value).endswith(f"; the result is kept, complete, in {kept}")
    assert (kept.read_bytes(), kept.suffix, path.exists()) == (b"ours", ".csv", False)
    assert kept.name.startswith("rows-")


def test_ctrl_c_during_an_upload_keeps_the_file(
    s3: S3, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(publish._UPLOADS, "s3", interrupt)
    done = run("policies", "-o", "s3://bucket/policies.csv")
    assert done.exit_code == 130
    (kept,) = here.iterdir()
    assert (
        f"interrupted while the result was uploaded; the result is kept, complete, in {kept}"
        in (done.output.replace("\n", ""))
    )


def test_an_exception_before_the_end_keeps_nothing(s3: S3, here: Path) -> None:
    with pytest.raises(KeyboardInterrupt), atomic_path("s3://bucket/rows.csv") as path:  # noqa: PT012
        path.write_bytes(b"half")
        raise KeyboardInterrupt
    assert not path.parent.exists()
    assert not [*here.iterdir()]
    assert not place_of("s3://bucket/rows.csv").exists()


def test_where_nothing_can_be_kept_it_stays_where_it_was_made(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/proc")
    with pytest.raises(TraceError) as refused, atomic_path("s3://bucket/rows.csv") as path:  # noqa: PT012
        path.write_bytes(b"ours")
        s3.push("rows.csv", b"theirs")
    assert str(refused.value).endswith(f" in {path}")
    assert path.read_bytes() == b"ours"
    path.unlink()
    path.parent.rmdir()


def test_a_repository_that_is_not_there_is_told_before_the_work(hub: Any) -> None:
    with pytest.raises(TraceError, match="there is no such repository"):
        begun("hf://datasets/lab/none/rows.csv")


def test_a_bucket_that_may_not_be_looked_at_is_there(s3: S3, source: Path) -> None:
    s3.faulty_methods, s3.faults = ("HEAD", "GET"), {"403": 10**6}
    begun("s3://bucket/rows.csv", force=True).put(source)
    s3.forget()
    assert content("s3://bucket/rows.csv") == b"ours"


def test_commits_to_other_files_are_no_conflict(hub: Any, source: Path) -> None:
    url = f"{hub.root}/rows.csv"
    target = begun(url)
    meanwhile(hub, "README.md", b"a commit")
    target.put(source)
    assert content(url) == b"ours"


def test_the_condition_goes_with_an_upload_in_parts(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs import S3FileSystem

    whole = S3FileSystem._put_file

    async def in_parts(*args: Any) -> None:
        await whole(*args, chunksize=5 << 20)

    monkeypatch.setattr(S3FileSystem, "_put_file", in_parts)
    large = tmp_path / "large"
    large.write_bytes(bytes(11 << 20))
    target = begun("s3://bucket/large")

    def push(asked: Asked) -> None:
        if asked.method == "POST" and "uploadId" in asked.path:  # the last request
            s3.meanwhile = None
            s3.push("large", b"theirs")

    s3.meanwhile = push
    with pytest.raises(Changed):
        target.put(large)
    assert content("s3://bucket/large") == b"theirs"
    begun("s3://bucket/large").put(large)
    assert place_of("s3://bucket/large").stat().st_size == 11 << 20


def test_of_a_client_that_knows_no_conditions_the_later_upload_remains(
    s3: S3, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    target = begun("s3://bucket/rows.csv")
    model = fsspec.filesystem("s3").s3.meta.service_model.operation_model("PutObject")
    monkeypatch.delitem(model.input_shape.members, "IfNoneMatch")
    meanwhile(s3, "rows.csv", b"theirs")
    target.put(source)
    assert content("s3://bucket/rows.csv") == b"ours"


def test_a_store_without_conditions_is_looked_at_before_the_upload(source: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs the extra [remote]")
    fsspec.filesystem("memory").pipe_file("/rows.csv", b"former")
    target = begun("memory://rows.csv")
    target.put(source)
    target = begun("memory://rows.csv")
    fsspec.filesystem("memory").pipe_file("/rows.csv", b"theirs")
    with pytest.raises(Changed):
        target.put(source)
    assert content("memory://rows.csv") == b"theirs"
    fsspec.filesystem("memory").rm("/rows.csv")


def test_a_command_refuses_and_names_the_way_out(s3: S3, here: Path) -> None:
    url = "s3://bucket/policies.csv"
    assert run("policies", "-o", url).exit_code == 0
    assert run("policies", "-o", url).exit_code == 0  # it was there when the run began
    ours = content(url)
    meanwhile(s3, "policies.csv", b"theirs")
    refused = run("policies", "-o", url)
    (kept,) = here.iterdir()
    assert refused.exit_code == 1
    assert refused.stderr == (
        f"Error: {url} has been changed by another run since this one began; run again to replace"
        f" it; the result is kept, complete, in {kept}\n"
    )
    assert (kept.read_bytes(), content(url)) == (ours, b"theirs")
    assert run("policies", "-o", url).exit_code == 0
    assert content(url) == ours
    meanwhile(s3, "policies.csv", b"theirs again")
    assert run("policies", "-o", url, "--force").exit_code == 0
    assert content(url) == ours


def test_of_two_processes_one_publishes_and_the_other_keeps(s3: S3, here: Path) -> None:
    url = "s3://bucket/profiles.csv"
    both = threading.Barrier(2)

    def wait(asked: Asked) -> None:
        if uploads(asked):
            both.wait(60)  # until the other one has looked for the last time, too

    s3.meanwhile = wait
    program = [sys.executable, "-c", "from hisparse_sim.cli import cli; cli()", "profiles"]
    kinds = ["links", "models"]
    runs = [subprocess.Popen([*program, each, "-o", url], stderr=subprocess.PIPE) for each in kinds]
    said = [each.communicate(timeout=120)[1].decode() for each in runs]
    codes = [each.returncode for each in runs]
    assert sorted(codes) == [0, 1], said
    assert not both.broken
    winner, loser = codes.index(0), codes.index(1)
    (kept,) = here.iterdir()
    assert f"Error: {url} has been changed by another run" in said[loser]
    assert str(kept) in said[loser]
    for kind, found in [(kinds[winner], content(url)), (kinds[loser], kept.read_bytes())]:
        assert run("profiles", kind, "-o", f"{kind}.csv").exit_code == 0
        assert found == Path(f"{kind}.csv").read_bytes()
