"""Long work survives an interrupt: nothing half written, nothing done twice, nothing passed off
as whole."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from make_traces import drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import POLICIES, STANDARD, Policy
from hisparse_sim.simulator.replay import sweeping
from hisparse_sim.simulator.replay.kept import Kept
from hisparse_sim.traces import TraceError

SWEEP = ["--policy", "lru,random", "--buffer", "16", "--jobs", "1"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    parts = [drift(request="a", layer=layer, steps=120) for layer in (0, 1, 2, 3)]
    return write(tmp_path / "t.parquet", parts, metadata())


@pytest.fixture
def heeded() -> Iterator[None]:
    """A shell that starts the tests in the background has them ignore Ctrl-C, nohup the end of the
    terminal, as would their children."""
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGHUP, hangup)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


class Interrupting:
    """Stands for `run_task`: counts, and presses Ctrl-C once, in the last layer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[tuple[int, str]] = []
        self.pressed = False
        self.run_task = sweeping.run_task
        monkeypatch.setattr(sweeping, "run_task", self)

    def __call__(self, task: sweeping.Task) -> list[sweeping.Finished]:
        if task.part.layer == 3 and not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        self.ran += [(task.part.layer, run.policy.name) for run in task.runs]
        return self.run_task(task)


@pytest.mark.parametrize("more", [[], ["--per-layer"], ["--ratio", "4", "--model", "glm-5.1"]])
def test_an_interrupted_sweep_goes_on(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    options = [*SWEEP, *more]
    if "--ratio" in more:
        options[3] = "2048"
    out, whole = tmp_path / "rows.jsonl", tmp_path / "whole.jsonl"
    assert run("sweep", path, *options, "-o", whole).exit_code == 0
    out.write_text("of another day")
    interrupting = Interrupting(monkeypatch)
    cut = run("sweep", path, *options, "-o", out)
    kept = tmp_path / "rows.jsonl.partial"
    assert cut.exit_code == 130
    assert cut.stdout == ""
    assert f"interrupted: 3 of 4 (request, layer) parts were finished; {kept} keeps" in cut.stderr
    assert out.read_text() == "of another day"
    interrupting.ran.clear()
    again = run("sweep", path, *options, "-o", out)
    assert again.exit_code == 0, again.output
    assert f"resuming from the finished work in {kept}" in again.stderr
    assert {layer for layer, _ in interrupting.ran} == {3}
    assert out.read_text() == whole.read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "rows.jsonl",
        "t.parquet",
        "whole.jsonl",
    ]


def test_an_interrupted_curve_goes_on(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupting = Interrupting(monkeypatch)
    arguments = ["curve", path, "--buffer", "16", "--jobs", "1", "-o", tmp_path / "c.png"]
    assert run(*arguments).exit_code == 130
    assert not (tmp_path / "c.png").exists()
    interrupting.ran.clear()
    assert run(*arguments).exit_code == 0
    assert interrupting.ran == [(3, "lru")]
    assert (tmp_path / "c.png").exists()
    assert not (tmp_path / "c.png.partial").exists()


def test_without_a_file_the_finished_rows_are_shown_and_marked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Interrupting(monkeypatch)
    cut = run("sweep", path, *SWEEP, "--per-layer", "--format", "jsonl")
    assert cut.exit_code == 130
    rows = [json.loads(line) for line in cut.stdout.splitlines()]
    assert {row["layer"] for row in rows} == {0, 1, 2}
    assert {json.loads(row["parameters"])["interrupted"] for row in rows} == {"3 of 4 parts"}
    Interrupting(monkeypatch)
    assert "Incomplete: 3 of 4 (request, layer) parts." in run("sweep", path, *SWEEP).stdout


CHANGES = {
    "seed": {"seed": 1},
    "start": {"start": "direct"},
    "steps": {"steps": (0, 50)},
    "buffer": {"buffers": [12]},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_work_under_other_settings_is_not_taken(
    path: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    settings = {"policies": ["random"], "buffers": [16], "keep": tmp_path / "kept"}
    hs.sweep(path, **settings)  # type: ignore[arg-type]
    changed = {**settings, **change}
    expected = hs.sweep(path, **{**changed, "keep": None})  # type: ignore[arg-type]
    for _ in range(2):
        found = hs.sweep(path, **changed)  # type: ignore[arg-type]
        pd.testing.assert_frame_equal(found.rows, expected.rows)


def test_work_on_another_trace_or_by_another_program_is_not_taken(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hisparse_sim.simulator.replay import kept

    keep = tmp_path / "kept"
    hs.sweep(path, "lru", 16, keep=keep)
    interrupting = Interrupting(monkeypatch)
    interrupting.pressed = True
    hs.sweep(path, "lru", 16, keep=keep)
    assert interrupting.ran == []
    monkeypatch.setattr(kept, "STAMP", 1)
    hs.sweep(path, "lru", 16, keep=keep)
    assert len(interrupting.ran) == 8
    other = write(path, [drift(seed=5)], metadata())
    expected = hs.sweep(other, "lru", 16).rows
    pd.testing.assert_frame_equal(hs.sweep(other, "lru", 16, keep=keep).rows, expected)


def test_kept_work_is_one_sweep_s_at_a_time(path: Path, tmp_path: Path) -> None:
    """The second is told, at once, and takes nothing from the first."""
    out, kept = tmp_path / "rows.csv", tmp_path / "rows.csv.partial"
    with Kept(kept) as work:
        hs.sweep(path, ["lru", "fifo"], 16, keep=work)
        content = kept.read_bytes()
        for words in (["sweep", *SWEEP], ["curve", "--buffer", "16"]):
            second = run(words[0], path, *words[1:], "-o", out)
            assert second.exit_code == 1
            assert f"{kept} is in use: a sweep (process {os.getpid()} on " in second.stderr
            assert "wait for it, or name another file" in second.stderr
        with pytest.raises(TraceError, match="is in use"):
            hs.sweep(path, "lru", 16, keep=kept)
        assert kept.read_bytes() == content
    assert run("sweep", path, *SWEEP, "-o", out).exit_code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "rows.csv",
        "rows.csv.partial",  # of the first sweep, whose work on fifo nobody asked for again
        "t.parquet",
    ]


def test_a_link_leads_to_the_same_lock(path: Path, tmp_path: Path) -> None:
    out, link = tmp_path / "rows.csv", tmp_path / "link.csv"
    link.symlink_to(out)
    with Kept(tmp_path / "rows.csv.partial"):
        second = run("sweep", path, *SWEEP, "-o", link)
    assert second.exit_code == 1
    assert "rows.csv.partial is in use: a sweep (process " in second.stderr
    assert not out.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_place_of_the_lock(path: Path, tmp_path: Path) -> None:
    lock = tmp_path / ".rows.csv.partial.lock"
    os.mkfifo(lock)
    result = run("sweep", path, *SWEEP, "-o", tmp_path / "rows.csv")
    assert result.exit_code == 1
    assert f"{lock} is a device or pipe, where the lock of" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_lock_of_a_process_that_was_killed_is_free(path: Path, tmp_path: Path) -> None:
    code = """
import os, signal, sys
from hisparse_sim.simulator.replay.kept import Kept
Kept(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""
    kept, out = tmp_path / "rows.csv.partial", tmp_path / "rows.csv"
    ended = subprocess.run([sys.executable, "-c", code, str(kept)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (tmp_path / ".rows.csv.partial.lock").exists()
    assert run("sweep", path, *SWEEP, "-o", out).exit_code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows.csv", "t.parquet"]


def test_a_lock_is_taken_by_one_of_many(tmp_path: Path) -> None:
    """Whoever opens and closes, and removes the lock: never two at once."""
    code = """
import sys, time
from pathlib import Path
from hisparse_sim.simulator.replay.kept import Kept
from hisparse_sim.traces import TraceError
path, inside = Path(sys.argv[1]), Path(sys.argv[2])
end, held = time.monotonic() + 3, 0
while time.monotonic() < end:
    try:
        with Kept(path):
            inside.touch(exist_ok=False)
            inside.unlink()
            held += 1
    except TraceError as error:
        assert "is in use" in str(error), error
print(held)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "kept"), str(tmp_path / "inside")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        told, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert int(told) > 0


def test_work_of_another_sweep_stays(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sweep with the same output ends between an interrupt and its resumption."""
    out, kept = tmp_path / "rows.csv", tmp_path / "rows.csv.partial"
    interrupting = Interrupting(monkeypatch)
    assert run("sweep", path, *SWEEP, "-o", out).exit_code == 130
    other = run("sweep", path, *SWEEP, "--seed", "5", "-o", out)
    assert other.exit_code == 0, other.output
    assert f"{kept} still keeps the finished work of another run" in other.stderr
    interrupting.ran.clear()
    resumed = run("sweep", path, *SWEEP, "-o", out)
    assert resumed.exit_code == 0, resumed.output
    assert {layer for layer, _ in interrupting.ran} == {3}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows.csv", "t.parquet"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_place_of_kept_work(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv.partial")
    result = run("sweep", path, *SWEEP, "-o", tmp_path / "rows.csv")
    assert result.exit_code == 1
    assert "is a device or pipe" in result.stderr


def test_a_damaged_line_counts_for_nothing(path: Path, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    expected = hs.sweep(path, ["lru", "fifo"], 16, keep=keep).rows
    content = keep.read_bytes()
    for cut in (0, 1, 38, 39, 60, len(content) // 2, len(content) - 3):
        flipped = content[:cut] + b"\xff" + content[cut + 1 :]
        for damaged in (content[:cut], flipped if cut > 38 else b""):
            keep.write_bytes(damaged)
            for _ in range(2):
                found = hs.sweep(path, ["lru", "fifo"], 16, keep=keep).rows
                pd.testing.assert_frame_equal(found, expected)


@pytest.mark.parametrize("there", ["a trace", "some text"])
def test_another_file_of_that_name_is_left_alone(path: Path, tmp_path: Path, there: str) -> None:
    kept = tmp_path / "rows.csv.partial"
    content = path.read_bytes() if there == "a trace" else b"mine\n"
    kept.write_bytes(content)
    given = kept if there == "a trace" else path
    result = run("sweep", given, *SWEEP, "-o", tmp_path / "rows.csv")
    assert result.exit_code == 1
    assert "already exists and does not hold the work of a sweep" in result.stderr
    assert kept.read_bytes() == content


def test_a_policy_of_the_user_is_replayed_anew(path: Path, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    hs.sweep(path, "fifo", 16, compare_min=False, keep=keep)
    mine = Policy("fifo", "", "", POLICIES["lru"].state, POLICIES["lru"].step)
    found = hs.sweep(path, mine, 16, compare_min=False, keep=keep)
    expected = hs.sweep(path, "lru", 16, compare_min=False)
    assert found.rows["misses"].tolist() == expected.rows["misses"].tolist()


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_leaves_no_file(tmp_path: Path, name: str) -> None:
    code = """
import sys, time, click
from hisparse_sim.traces.files import atomic_path
from hisparse_sim.traces.commands.group import Group

@click.group(cls=Group)
def cli(): pass

@cli.command()
def work():
    with atomic_path(sys.argv[2]) as path:
        path.write_text("half")
        print("ready", flush=True)
        while True:  # a signal just before a sleep is answered after it
            time.sleep(0.01)

sys.argv, out = ["cli", "work"], sys.argv[1]
sys.argv.append(out)
cli(["work"])
"""
    out = tmp_path / "out.txt"
    command = [sys.executable, "-c", code, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        number = getattr(signal, name)
        process.send_signal(number)
        assert process.wait(timeout=30) == 128 + number

    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_to_a_sweep(tmp_path: Path, name: str) -> None:
    parts = [drift(layer=layer, steps=400, first_seq_len=3000) for layer in range(60)]
    path = write(tmp_path / "t.parquet", parts, metadata(num_layers=60))
    out, kept = tmp_path / "rows.csv", tmp_path / "rows.csv.partial"
    command = [sys.executable, "-m", "hisparse_sim.cli", "sweep", str(path), "--jobs", "1"]
    command += ["--buffer", "8,16,24,32,40,48,56,64", "-o", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not kept.exists():
        time.sleep(0.01)
    process.send_signal(getattr(signal, name))
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + getattr(signal, name), error
    assert "Traceback" not in error
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows.csv.partial", "t.parquet"]
    again = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "resuming from the finished work" in again.stderr
    assert sorted(os.listdir(tmp_path)) == ["rows.csv", "t.parquet"]
    assert len(pd.read_csv(out)) == 8 * len(STANDARD)


def test_ctrl_c_after_the_end_comes_too_late(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = Kept.remove

    def interrupted(kept: Kept) -> bool:
        signal.raise_signal(signal.SIGINT)
        return remove(kept)

    monkeypatch.setattr(Kept, "remove", interrupted)
    before = signal.getsignal(signal.SIGINT)
    for command, words in (("sweep", SWEEP), ("study", ["--buffer", "16", "--prefetch", "none"])):
        ended = run(command, path, *words, "-o", tmp_path / "rows.csv")
        assert ended.exit_code == 0, ended.output
        assert sorted(os.listdir(tmp_path)) == ["rows.csv", "t.parquet"]
        assert signal.getsignal(signal.SIGINT) is before


LATE = {
    "ratio": (["--ratio", "0"], 2, "0 is not at least 1"),
    "huge ratio": (["--ratio", str(10**30)], 2, "a number of more than 64 bits"),
    "pool": (["--ratio", "2", "--device-pool-gib", "nan"], 2, "nan is not in the range"),
    "host": (["--ratio", "2", "--host-gib", "inf"], 2, "inf is not between"),
    "buffer": (["--buffer", "0"], 2, "0 is not at least 1"),
    "large buffer": (["--buffer", "40000"], 2, "not in 1..32767"),
    "model": (["--model", "glm-5.1", "--buffer", "64"], 2, "smaller than the top-k 2048"),
    "unknown model": (["--model", "x"], 2, "unknown model 'x'"),
    "link": (["--link", "x"], 2, "unknown link 'x'"),
    "policy": (["--policy", "x"], 2, "unknown policy"),
    "steps": (["--steps", "500:600"], 1, "has no steps from 500 to 599"),
    "layer": (["--layer", "9"], 1, "has no layer 9"),
    "request": (["--request", "z"], 1, "has no request 'z'"),
    "folder": (["-o", "/nowhere/x.csv"], 1, "there is no folder"),
    "parquet": (["--format", "parquet"], 2, "name a file with -o"),
}


@pytest.mark.parametrize(("options", "status", "words"), LATE.values(), ids=LATE)
def test_arguments_are_checked_before_the_work(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    status: int,
    words: str,
) -> None:
    interrupting = Interrupting(monkeypatch)
    result = run("sweep", path, *options)
    assert interrupting.ran == []
    assert result.exit_code == status, result.output
    assert words in result.stderr


@pytest.mark.parametrize(
    "options", [["--window", "200"], ["--skip-steps", "100"], ["--steps", "0:50"], ["-o", "c.xyz"]]
)
def test_a_curve_is_checked_before_the_work(
    path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    interrupting = Interrupting(monkeypatch)
    result = run("curve", path, "--buffer", "16", *options)
    assert interrupting.ran == []
    assert result.exit_code == 2
    assert "choose" in result.stderr
