"""Replay and sweep over trace files: tidy rows, selections, executors, interrupts."""

import math
import pickle
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import demand, drift, metadata
from make_traces import write as write_trace

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import POLICIES, STANDARD
from hisparse_sim.policies.hook import hook
from hisparse_sim.simulator.replay import replay_part, sweeping
from hisparse_sim.simulator.replay.metrics import excess_over_min, rolling_mean, tidy_row
from hisparse_sim.simulator.serving.costs import add_costs
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.scenario import deployment_of
from hisparse_sim.traces import TraceError
from hisparse_sim.traces.machine_code import machine_code_folder

COLUMNS = (
    "trace provenance request layer policy buffer start steps accesses misses miss_rate "
    "misses_per_step p50 p95 max excess_over_min seed trace_sha256 selected_requests "
    "selected_layers selected_steps"
).split()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two requests of two layers; b is shorter and starts at step 5."""
    parts = [drift(request="a", layer=layer, steps=40) for layer in (0, 3)]
    parts += [drift(request="b", layer=layer, steps=25, first_step=5) for layer in (0, 3)]
    return write_trace(tmp_path_factory.mktemp("traces") / "two.parquet", parts, metadata())


def test_a_worked_example(tmp_path: Path) -> None:
    # B = 3, staged: slots hold 0 1 2. Step 0 demands 0 and 5: 5 is missed and takes the slot of 1.
    # Step 1 demands 1 (evicted) and 5: one miss. Step 2 demands its newest token 8 and 5: none.
    rows = [[0, 5], [1, 5], [5, 8]]
    made = write_trace(tmp_path / "t.parquet", [demand(rows, 7)], metadata(top_k=2))
    found = hs.replay(made, "lru", 3, victims=True)
    assert found.misses.tolist() == [1, 1, 0]
    assert found.misses.dtype == np.int32
    assert found.victims is not None
    assert found.victims.tolist() == [1, 2]
    row = found.rows.iloc[0]
    assert list(found.rows.columns) == COLUMNS
    assert (row["steps"], row["accesses"], row["misses"]) == (3, 6, 2)
    assert row["miss_rate"] == pytest.approx(2 / 6)
    assert row["misses_per_step"] == pytest.approx(2 / 3)
    assert (row["p50"], row["max"]) == (1, 1)
    assert math.isnan(row["excess_over_min"])


def test_percentiles_are_numpys_linear_ones() -> None:
    row = tidy_row(np.array([0, 1, 2, 3, 10], np.int32), 100)
    assert (row["p50"], row["p95"], row["max"]) == (2, pytest.approx(8.6), 10)


def test_excess_over_min_of_nothing() -> None:
    assert excess_over_min(0, 0) == 0
    assert excess_over_min(3, 0) == math.inf
    assert excess_over_min(15, 10) == pytest.approx(0.5)


def test_replay_keeps_file_order_and_agrees_with_its_parts(path: Path) -> None:
    trace = hs.open_trace(path)
    found = hs.replay(trace, "arc", 16)
    by_part = [replay_part(trace.read(part), "arc", 16).misses for part in trace.parts]
    assert found.misses.tolist() == np.concatenate(by_part).tolist()
    assert found.rows["request"].tolist() == ["a", "a", "b", "b"]
    assert found.rows["layer"].tolist() == [0, 3, 0, 3]
    assert found.rows["misses"].tolist() == [misses.sum() for misses in by_part]


def test_replay_of_a_selection(path: Path) -> None:
    found = hs.replay(path, "lru", 16, requests=["a"], layers=[3], steps=(10, 20))
    assert len(found.misses) == 10
    assert found.rows[["request", "layer", "steps"]].values.tolist() == [["a", 3, 10]]


def test_a_policy_object_serves_like_its_name(path: Path) -> None:
    by_name, by_object = (hs.replay(path, policy, 16) for policy in ("lru", POLICIES["lru"]))
    assert by_name.misses.tolist() == by_object.misses.tolist()


def test_sweep_sums_up_what_replay_finds(path: Path) -> None:
    swept = hs.sweep(path, ["lru", "random"], [8, 16], seed=3)
    assert list(swept.rows.columns) == COLUMNS
    assert not swept.interrupted
    for _, row in swept.rows.iterrows():
        alone = hs.replay(path, row["policy"], row["buffer"], seed=3)
        best = hs.replay(path, "belady", row["buffer"])
        assert row["misses"] == alone.misses.sum()
        assert row["p95"] == np.percentile(alone.misses, 95)
        assert row["excess_over_min"] == pytest.approx(alone.misses.sum() / best.misses.sum() - 1)
        assert pd.isna(row["request"])
        assert pd.isna(row["layer"])


def test_per_layer_rows_are_those_of_replay(path: Path) -> None:
    swept = hs.sweep(path, ["fifo"], [16], per_layer=True, compare_min=False)
    alone = hs.replay(path, "fifo", 16).rows
    pd.testing.assert_frame_equal(swept.rows, alone)


def test_a_single_policy_and_buffer_need_no_list(path: Path) -> None:
    plain = hs.sweep(path, "lru", 16).rows
    pd.testing.assert_frame_equal(plain, hs.sweep(path, ["lru"], [16]).rows)


def test_per_step_misses(path: Path) -> None:
    steps = hs.sweep(path, ["lru"], [16], compare_min=False).steps
    assert list(steps.columns) == "trace request layer policy buffer step misses".split()
    assert steps["misses"].tolist() == hs.replay(path, "lru", 16).misses.tolist()
    assert steps.loc[steps["request"] == "b", "step"].min() == 5


def test_several_traces_keep_apart(path: Path, tmp_path: Path) -> None:
    other = write_trace(tmp_path / "other.parquet", [drift(seed=9)], metadata())
    swept = hs.sweep([path, other], ["lru"], [16])
    assert swept.rows["trace"].tolist() == ["two", "other"]
    assert swept.rows["request"].isna().tolist() == [True, False]


@pytest.mark.parametrize("jobs", [1, 2, 7])
def test_the_number_of_threads_changes_nothing(path: Path, jobs: int) -> None:
    one = hs.sweep(path, ["lru", "arc", "random"], [8, 16], jobs=1, per_layer=True)
    many = hs.sweep(path, ["lru", "arc", "random"], [8, 16], jobs=jobs, per_layer=True)
    pd.testing.assert_frame_equal(one.rows, many.rows)


def test_processes_do_the_same_work(path: Path) -> None:
    from multiprocessing import get_context

    threads = hs.sweep(path, ["lru"], [16])
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        found = hs.sweep(path, ["lru"], [16], executor=processes)
    pd.testing.assert_frame_equal(threads.rows, found.rows)


def test_tasks_pickle(path: Path) -> None:
    trace = hs.open_trace(path)
    run = sweeping.Run(POLICIES["lru"], 16)
    task = sweeping.Task(trace, trace.parts[0], (run,), "staged", 0, None)
    again = pickle.loads(pickle.dumps(task))
    (found,), (expected,) = sweeping.run_task(again), sweeping.run_task(task)
    assert found.misses.tolist() == expected.misses.tolist()


def test_progress_counts_every_step_of_every_run(path: Path) -> None:
    seen: list[sweeping.Progress] = []
    hs.sweep(path, ["lru", "fifo"], [8, 16], compare_min=False, jobs=1, progress=seen.append)
    assert [now.steps for now in seen] == [160, 320, 420, 520]
    assert seen[-1].steps == seen[-1].total_steps
    assert seen[-1].accesses == 4 * hs.replay(path, "lru", 16).rows["accesses"].sum()


class Interrupted(Executor):
    """Runs two tasks; then somebody presses Ctrl-C."""

    def __init__(self) -> None:
        self.ran = 0

    def submit(self, call, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        if self.ran < 2:
            future.set_result(call(*args, **kwargs))
        else:
            future.set_exception(KeyboardInterrupt())
        self.ran += 1
        return future


def test_an_interrupt_keeps_what_is_finished(path: Path) -> None:
    whole = hs.sweep(path, ["lru"], [16], per_layer=True, jobs=1)
    cut = hs.sweep(path, ["lru"], [16], per_layer=True, jobs=1, executor=Interrupted())
    assert cut.interrupted
    assert (cut.finished, cut.parts) == (2, 4)
    assert set(cut.rows["selected_requests"]) == {'["a"]'}
    of_a = whole.rows.iloc[:2].assign(selected_requests='["a"]')
    pd.testing.assert_frame_equal(cut.rows, of_a)


def test_one_read_serves_all_runs_of_a_part(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hisparse_sim.traces.file.reader import Trace

    reads: list[str] = []
    read, lock = Trace.read, threading.Lock()

    def counted(self, part, *args, **kwargs):  # type: ignore[no-untyped-def]
        with lock:
            reads.append(f"{part.request}{part.layer}")
        return read(self, part, *args, **kwargs)

    monkeypatch.setattr(Trace, "read", counted)
    hs.sweep(path, ["lru", "fifo", "arc"], [8, 16], jobs=1)
    assert sorted(reads) == ["a0", "a3", "b0", "b3"]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"policies": ["lur"]}, ValueError, "unknown policy 'lur'; known are lru"),
        ({"buffers": [7]}, TraceError, "top_k = 8 positions per step"),
        ({"buffers": [32768]}, ValueError, "not in 1..32767"),
        ({"buffers": []}, ValueError, "nothing to sweep"),
        ({"start": "cold"}, ValueError, "choose staged or direct or warm"),
        ({"layers": [2]}, TraceError, "has no layer 2; it has 0, 3"),
        ({"layers": []}, ValueError, "nothing to sweep"),
    ],
)
def test_bad_arguments(path: Path, arguments: dict, error: type[Exception], words: str) -> None:
    given = {"policies": ["lru"], "buffers": [16], **arguments}
    with pytest.raises(error, match=words):
        hs.sweep(path, **given)


def test_a_row_longer_than_the_buffer_names_its_step() -> None:
    with pytest.raises(TraceError, match="layer 2, step 11 selects 3 positions"):
        replay_part(demand([[0], [1, 2, 3]], 9, layer=2, first_step=10), "lru", 2)


@pytest.mark.parametrize("wrong", ["no slot", "demanded", "twice"])
def test_a_foreign_policy_with_a_wrong_victim_is_stopped(wrong: str) -> None:
    from hisparse_sim.policies import Policy

    @hook
    def demanded(state, step, now):  # type: ignore[no-untyped-def]
        for i in range(len(step.victims)):
            step.victims[i] = step.hits[0]

    @hook
    def no_slot(state, step, now):  # type: ignore[no-untyped-def]
        for i in range(len(step.victims)):
            step.victims[i] = 65000

    @hook
    def twice(state, step, now):  # type: ignore[no-untyped-def]
        for i in range(len(step.victims)):
            step.victims[i] = 3

    hooks = {"no slot": no_slot, "demanded": demanded, "twice": twice}
    policy = Policy("mine", "", "", POLICIES["fifo"].state, hooks[wrong])
    rows = [[0, 1], [0, 7, 8]]  # slots 0 1 2 3 hold 0 1 2 3: step 1 hits slot 0 and misses twice
    with pytest.raises(ValueError, match=r"'mine' chose a victim that is not a slot.*step 1\)"):
        replay_part(demand(rows, 12), policy, 4)


def test_steps_that_the_trace_does_not_have(path: Path) -> None:
    with pytest.raises(TraceError, match="has no steps from 600 to 699"):
        hs.sweep(path, ["lru"], [16], steps=(600, 700))
    with pytest.raises(TraceError, match="has no steps from 600 to 699"):
        hs.replay(path, "lru", 16, steps=(600, 700))


def test_machine_code_is_kept_outside_the_installation() -> None:
    kept = machine_code_folder()
    assert kept is not None
    assert not kept.is_relative_to(Path(hs.__file__ or "").parent)


def test_traces_of_one_stem_are_told_apart(tmp_path: Path) -> None:
    paths = []
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        paths.append(
            write_trace(tmp_path / str(seed) / "t.parquet", [drift(seed=seed)], metadata())
        )
    swept = hs.sweep(paths, "lru", 16)
    assert swept.rows["trace"].tolist() == [str(path) for path in paths]
    assert swept.digests == {str(path): hs.open_trace(path).sha256 for path in paths}


def test_a_file_that_changes_under_a_replay_is_refused(tmp_path: Path) -> None:
    file = write_trace(tmp_path / "t.parquet", [drift()], metadata())
    trace = hs.open_trace(file)
    write_trace(file, [drift(seed=5, steps=60)], metadata())
    with pytest.raises(TraceError, match="has changed since it was opened"):
        hs.replay(trace, "lru", 16)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int16])
def test_numpy_buffer_sizes(path: Path, kind: type[np.integer]) -> None:
    for policy in STANDARD:
        plain = hs.replay(path, policy, 16).misses.tolist()
        assert hs.replay(path, policy, kind(16)).misses.tolist() == plain
    assert len(hs.sweep(path, "lru", np.array([8, 16], kind)).rows) == 2


def test_one_request_by_name(path: Path) -> None:
    assert hs.replay(path, "lru", 16, requests="b", layers=3).rows["request"].tolist() == ["b"]


def test_rolling_mean_is_trailing() -> None:
    values = np.array([4, 0, 2, 6], np.int32)
    assert rolling_mean(values, 2).tolist() == [2, 1, 4]
    assert rolling_mean(values, 4).tolist() == [3]
    assert rolling_mean(values, 5).tolist() == []
    with pytest.raises(ValueError, match="at least 1"):
        rolling_mean(values, 0)


def test_a_table_of_several_traces_has_no_blanks(path: Path, tmp_path: Path) -> None:
    """One request in some traces, several in another: its sums have no request to show."""
    single = [
        write_trace(tmp_path / f"{name}.parquet", [drift(request=name)], metadata())
        for name in ("c", "d")
    ]
    shown = table_of("sweep", path, *single, "--buffer", "16")
    assert "nan" not in shown
    assert [line.split()[:2] for line in shown.splitlines() if "miss %" in line] == [
        ["policy", "buffer"]
    ] * 3
    shown = table_of("sweep", path, *single, "--buffer", "16", "--per-layer", "--no-min")
    assert "nan" not in shown
    assert [line.split()[:2] for line in shown.splitlines() if "miss %" in line] == [
        ["request", "layer"]
    ] * 3
    assert {line.split()[0] for line in shown.splitlines()[4:11]} == {"a"}


def test_prices_do_not_change_the_default_buffers(path: Path) -> None:
    """A model that is not named has the top_k of the trace, and the note says so."""
    plain = CliRunner().invoke(cli, ["sweep", str(path), "--format", "csv"])
    priced = CliRunner().invoke(cli, ["sweep", str(path), "--format", "csv", "--ratio", "4"])
    linked = CliRunner().invoke(
        cli, ["sweep", str(path), "--format", "csv", "--link", "h200-pcie5"]
    )
    for result in (plain, priced, linked):
        assert result.exit_code == 0, result.output
        rows = pd.read_csv(StringIO(result.stdout))
        assert sorted(set(rows["buffer"])) == [8, 16, 24]
    note = "(test has no profile; --model names another; with the top_k of the trace, 8, instead of"
    assert f"{note} 2,048)" in priced.stderr
    rows = pd.read_csv(StringIO(priced.stdout))
    model = replace(load_model("glm-5.1"), top_k=8)
    wanted = add_costs(hs.sweep(path, ["lru"], [8]), deployment_of(model), [4]).iloc[0]
    found = rows[(rows["policy"] == "lru") & (rows["buffer"] == 8)].iloc[0]
    for column in ("bytes_per_step", "hot_buffer_bytes", "requests_per_gpu"):
        assert found[column] == wanted[column]
    named = CliRunner().invoke(cli, ["sweep", str(path), "--ratio", "4", "--model", "glm-5.1"])
    assert named.exit_code == 2
    assert "device_buffer_size 8 is smaller than the top-k 2048 of glm-5.1" in named.stderr


def table_of(*words: str | Path) -> str:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout
