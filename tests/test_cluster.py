"""Studies on a Dask cluster: the same results as by threads, whatever is lost on the way."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from make_traces import drift, metadata, table, write, write_table

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.replay import kept, workers
from hisparse_sim.simulator.replay.kept import Kept
from hisparse_sim.simulator.replay.sweeping import Progress
from hisparse_sim.simulator.replay.workers import (
    Workers,
    as_they_end,
    calls_of,
    cluster,
    in_order,
    workers_of,
)
from hisparse_sim.traces import TraceError

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.xdist_group("cluster")

OWN = """
from dataclasses import dataclass
from hisparse_sim.policies import Policy, get_policy
from hisparse_sim.simulator.prefetch import Prefetcher, get_prefetcher
@dataclass(frozen=True)
class Given:
    factor: float = 1.0
lru = get_policy("lru")
mine = Policy("mine", "the same as lru", "", lru.state, lru.step, parameters=Given())
slash = get_prefetcher("slash")
ahead = Prefetcher("ahead", "as slash", "", slash.state, slash.propose, parameters=slash.parameters)
"""


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1"
    ) as started:
        yield started.scheduler_address


@pytest.fixture
def path(tmp_path: Path) -> Path:
    names = [(request, layer) for request in "ab" for layer in (0, 1, 2, 3)]
    parts = [drift(request=request, layer=layer, steps=120) for request, layer in names]
    return write(tmp_path / "t.parquet", parts, metadata())


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def same(scheduler: str, tmp_path: Path, suffix: str, *command: str | Path) -> None:
    """Check that a command writes the same bytes with and without the cluster."""
    here, there = tmp_path / f"here{suffix}", tmp_path / f"there{suffix}"
    for output, more in ((here, []), (there, ["--scheduler", scheduler])):
        result = run(*command, "-o", output, *more)
        assert result.exit_code == 0, result.output
    assert there.read_bytes() == here.read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_every_study_is_the_same(scheduler: str, path: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN)
    sweep: list[str | Path] = ["sweep", path, "--buffer", "16,32", "--per-layer", "--policy"]
    same(scheduler, tmp_path, ".jsonl", *sweep, "random,arc", "--policy", f"{own}:mine:factor=2")
    same(scheduler, tmp_path, ".csv", "sweep", path, "--draft-tokens", "4", "--buffer", "2048")
    same(scheduler, tmp_path, ".csv", "curve", path, "--buffer", "16", "--format", "csv")
    same(scheduler, tmp_path, ".csv", "mrc", path, "--per-layer", "--policy", "belady,fifo")
    same(scheduler, tmp_path, ".parquet", "mrc", path, "--window", "8")
    same(scheduler, tmp_path, ".csv", "trace", "info", path, "--full")
    study = "--buffer 16,24 --policy clock --prefetch previous-layer --budget 4".split()
    same(
        scheduler, tmp_path, ".parquet", "study", path, *study, "--prefetch", f"{own}:ahead:shift=2"
    )


def test_a_folder_of_requests_and_layers_is_one_trace(scheduler: str, tmp_path: Path) -> None:
    for layer in (0, 1):
        folder = tmp_path / "t" / f"layer={layer}" / "request=a"
        folder.mkdir(parents=True)
        rows = table([drift(layer=layer)]).drop_columns(["request", "layer"])
        write_table(folder / "part-0.parquet", rows, metadata())
    sweep: list[str | Path] = ["sweep", tmp_path / "t", "--buffer", "16,32", "--per-layer"]
    same(scheduler, tmp_path, ".csv", *sweep)


def test_a_lost_worker_costs_its_task(scheduler: str, path: Path) -> None:
    seen: list[int] = []

    with cluster(scheduler) as found:
        (victim, *_) = found.executor._client.run(os.getpid).values()  # type: ignore[attr-defined]

        def kill(now: Progress) -> None:
            seen.append(now.steps)
            if len(seen) == 2:
                os.kill(victim, signal.SIGKILL)

        rows = hs.sweep(
            path, ["lru", "arc"], [16], executor=found.executor, jobs=found.threads, progress=kill
        ).rows
    assert seen == sorted(set(seen))  # no task is counted twice
    pd.testing.assert_frame_equal(rows, hs.sweep(path, ["lru", "arc"], [16]).rows)


def test_a_killed_client_resumes(scheduler: str, tmp_path: Path) -> None:
    parts = [drift(layer=layer, steps=4000, top_k=64) for layer in range(4)]
    path = write(tmp_path / "long.parquet", parts, metadata(top_k=64))
    out, partial = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl.partial"
    sweep: list[str | Path] = [
        "sweep",
        path,
        "--buffer",
        "128:1280:64",
        "--policy",
        "lfu",
        "--per-layer",
    ]
    command = [*sweep, "--scheduler", scheduler, "-o", out]
    client = subprocess.Popen(
        [sys.executable, "-m", "hisparse_sim.cli", *map(str, command)], stderr=subprocess.DEVNULL
    )
    while not (partial.exists() and partial.stat().st_size > 10_000) and client.poll() is None:
        time.sleep(0.002)
    client.kill()
    client.wait()
    assert not out.exists()
    before = partial.read_bytes()
    copy = tmp_path / "copy"
    os.link(partial, copy)
    again = run(*command)
    assert again.exit_code == 0, again.output
    assert "resuming from the finished work" in again.stderr
    assert copy.read_bytes().startswith(before)
    names = [line.partition(b'"first_step"')[0] for line in copy.read_bytes().split(b"\n")[1:]]
    whole = [name.partition(b" ")[2] for name in names if name]
    assert len(whole) - len(set(whole)) <= 1  # but for a line that was cut short
    assert run(*sweep, "-o", tmp_path / "whole.jsonl").exit_code == 0
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


STARTED = """
from distributed import LocalCluster
if __name__ == "__main__":
    here = LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1"
    )
    print(here.scheduler_address, flush=True)
    input()
"""


def test_a_lost_scheduler_costs_what_has_not_come_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = drift(steps=4000, top_k=64)
    parts = [replace(one, layer=layer) for layer in range(24)]
    path = write(tmp_path / "long.parquet", parts, metadata(top_k=64, num_layers=24))
    keep, script = tmp_path / "rows.partial", tmp_path / "started.py"
    script.write_text(STARTED)
    given: dict[str, Any] = {"policies": "lfu", "buffers": [256, 1024], "keep": keep}
    before: list[Progress] = []
    after: list[Progress] = []

    def kill(now: Progress) -> None:
        before.append(now)
        started.kill()

    started = subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with started:
        assert started.stdout is not None
        address = started.stdout.readline().strip()
        with (
            pytest.raises(TraceError, match="was lost: start it and run the same command again"),
            cluster(address) as found,
        ):
            hs.sweep(
                path,
                executor=found.executor,
                jobs=found.threads,
                progress=kill,
                **given,
            )
    assert "Traceback" not in capfd.readouterr().err
    rows = hs.sweep(path, progress=after.append, **given).rows
    assert 0 < after[-1].total_steps < before[-1].total_steps
    pd.testing.assert_frame_equal(rows, hs.sweep(path, "lfu", [256, 1024]).rows)


def test_two_runs_never_write_one_file(scheduler: str, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    with Kept(tmp_path / "rows.csv.partial"):
        second = run("sweep", path, "--buffer", "16", "--scheduler", scheduler, "-o", out)
    assert second.exit_code == 1
    assert "in use" in second.stderr
    assert not out.exists()


def test_what_a_worker_refuses_is_one_sentence(
    scheduler: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep: list[str | Path] = ["sweep", path, "--buffer", "16", "--scheduler", scheduler]
    monkeypatch.setattr(kept, "STAMP", 1)
    other = run(*sweep)
    assert other.exit_code == 1
    assert "a worker runs another hisparse-sim" in other.stderr
    monkeypatch.undo()
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 3] ^= 1
    path.write_bytes(damaged)
    bad = run(*sweep)
    assert bad.exit_code == 1
    assert "checksum" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_what_workers_do_not_see_is_one_sentence(scheduler: str, path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs the extra [remote]")
    fsspec.filesystem("memory").put_file(str(path), "/seen-here.parquet")
    refused = run("sweep", "memory://seen-here.parquet", "--buffer", "16", "--scheduler", scheduler)
    fsspec.filesystem("memory").rm("/seen-here.parquet")
    assert refused.exit_code == 1
    assert "memory://seen-here.parquet does not exist" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert run("sweep", path, "--buffer", "16", "--scheduler", scheduler).exit_code == 0


def test_bad_clusters_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_FIRST_WORKER_S", 1)
    sweep: list[str | Path] = ["sweep", path, "--buffer", "16"]
    assert "give only one of" in run(*sweep, "--jobs", "1", "--workers", "2").stderr
    with distributed.LocalCluster(
        n_workers=0, dashboard_address="127.0.0.1:0", host="127.0.0.1"
    ) as empty:
        refused = run(*sweep, "--scheduler", empty.scheduler_address)
        assert refused.exit_code == 1
        assert "no cluster with a worker answers at tcp" in refused.stderr
    for address in ("tcp://127.0.0.1:1", "nonsense://x"):
        with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
            refused = run(*sweep, "--scheduler", address)
        assert refused.exit_code in (1, 2)
        assert "Traceback" not in refused.stderr
        assert address in refused.stderr


class Counting(Executor):
    """Runs a call when its result is wanted, and knows how many wait."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def submit(self, function, /, *given, **named):  # type: ignore[no-untyped-def]
        assert {type(each) for each in given} <= {list, bytes}  # nothing that opens a file
        done: Future[list[object]] = Future()
        done.set_result(function(*given, **named))
        self.calls.append(len(done.result()))
        return done


def test_few_tasks_have_a_call_each_and_many_small_ones_share() -> None:
    executor = Counting()
    found: dict[int, int] = {}
    here = Workers(executor, threads=2)
    few = calls_of(range(9), lambda _: 1, here)
    as_they_end(here, abs, few, found.__setitem__)
    assert executor.calls == [1] * 9
    assert found == {number: number for number in range(9)}
    many = calls_of(range(100_000), lambda _: 2, here)
    assert list(in_order(here, abs, many)) == list(range(100_000))
    assert max(executor.calls) == 4096  # 8,192 steps
    assert len(executor.calls) == 9 + 25


def test_calls_that_wait_are_bounded() -> None:
    pulled: list[int] = []

    def calls() -> Iterator[list[int]]:
        for number in range(10**6):
            pulled.append(number)
            yield [number]

    here = Workers(Counting(), threads=100)
    results = in_order(here, abs, calls())
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert len(pulled) == here.ahead + 2 == 402


def test_an_interrupt_in_a_finalizer_is_not_lost() -> None:
    class Dying:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    done = []

    def finish(task: int, _: int) -> None:
        done.append(task)
        if len(done) == 5:
            Dying()

    before = signal.getsignal(signal.SIGINT)
    with workers_of(2, None) as two:
        assert as_they_end(two, abs, ([number] for number in range(100_000)), finish)
    assert 5 <= len(done) < 100_000
    assert signal.getsignal(signal.SIGINT) == before


def test_an_interrupt_is_answered_once(tmp_path: Path) -> None:
    """A terminal sends it to the workers as well, who must leave it to the client."""
    one = drift(steps=2000, first_seq_len=3000)
    parts = [replace(one, layer=layer) for layer in range(60)]
    path = write(tmp_path / "long.parquet", parts, metadata(num_layers=60))
    out, kept = tmp_path / "study.parquet", tmp_path / "study.parquet.partial"
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from hisparse_sim.cli import cli; cli()"
    words = "--policy lru,fifo --buffer 16,32,64 --prefetch none --workers 2 -o".split()
    command = [sys.executable, "-c", code, "study", str(path), *words, str(out)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while process.poll() is None and not (kept.exists() and kept.stat().st_size > 2000):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Process Dask" not in said
