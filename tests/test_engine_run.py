"""`engine run` and `engine check`, with a stand-in for the engine in processes of its own."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch")

from hisparse_sim.cli import cli  # noqa: E402
from hisparse_sim.gpu_replay.engine import launching  # noqa: E402
from hisparse_sim.gpu_replay.engine.launching import check_server  # noqa: E402
from hisparse_sim.gpu_replay.engine.options import Options  # noqa: E402
from hisparse_sim.gpu_replay.engine.recording import Recording  # noqa: E402
from hisparse_sim.gpu_replay.engine.releases import EngineError  # noqa: E402
from hisparse_sim.traces import open_trace  # noqa: E402

FAKE = Path(__file__).parent / "fake_engine"
SERVER = ["--", sys.executable, "-m", "sglang.launch_server"]
RINGS = ["--device-ring-mib", "1", "--host-ring-mib", "1"]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    return CliRunner().invoke(cli, ["engine", "run", *words])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder that a whole run recorded, and the summary of the run."""
    folder = tmp_path_factory.mktemp("run")
    model = folder / "model"
    model.mkdir()
    about = {"num_hidden_layers": 3, "index_topk": 8, "index_topk_pattern": "FFS"}
    (model / "config.json").write_text(json.dumps(about))
    with pytest.MonkeyPatch.context() as patch:
        words = ["--record", str(folder / "rec"), *RINGS, "-o", str(folder / "summary.json")]
        load = ["--model-path", str(model), "requests=3", "steps=30"]
        done = run(patch, *words, *SERVER, *load)
    assert done.exit_code == 0, done.output
    return folder / "rec", json.loads((folder / "summary.json").read_text())


def test_a_run_counts_and_records(recorded: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = recorded
    process = summary["processes"][0]
    assert summary["engine"] == process["engine"] == "0.5.17"
    assert process["steps"] == 90
    assert summary["recorded"]["steps"] == 90
    assert summary["recorded"]["steps_dropped"] == 0
    assert summary["recorded"]["cut"] == {}
    assert summary["faults"] == []
    assert summary == json.loads((folder / "engine.json").read_text())
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["counted", "engine.json", *summary["recorded"]["files"]]
    assert not list(Path("/dev/shm").glob(f"hisparse-sim-{process['process']}-*"))


def test_its_traces_say_where_they_come_from(recorded: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = recorded
    trace = open_trace(folder / "request-00001.parquet")
    assert trace.metadata.provenance == "dsa-serving"
    assert trace.metadata.layer_types == ("full", "full", "shared")
    assert [part.layer for part in trace.parts] == [0, 1]  # the shared layer once, as layer 1
    assert trace.metadata.notes["engine"]["start"] == "staged"
    done = CliRunner().invoke(cli, ["trace", "validate", str(folder / "request-00001.parquet")])
    assert done.exit_code == 0, done.output


def test_check_finds_them_equal(recorded: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = recorded
    done = CliRunner().invoke(cli, ["engine", "check", str(folder)])
    assert done.exit_code == 0, done.output
    assert "in all of 180 swap-ins" in done.output
    misses = [layer["misses"] for layer in summary["processes"][0]["by_layer"]]
    counted = [
        pq.read_table(path).to_pandas() for path in sorted((folder / "counted").glob("*.parquet"))
    ]
    for layer in (0, 1):
        assert misses[layer] == sum(t[t.layer == layer].misses.sum() for t in counted)


def test_check_names_the_first_call_that_differs(
    recorded: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(recorded[0], tmp_path / "rec"))
    path = folder / "counted" / "request-00002.parquet"
    table = pq.read_table(path).to_pandas()
    at = table.index[(table.layer == 1) & (table.step == 7)][0]
    table.loc[at, "misses"] += 5
    table.to_parquet(path)
    done = CliRunner().invoke(cli, ["engine", "check", str(folder)])
    assert done.exit_code == 1
    assert "1 calls differ, first layer 1, step 7: simulated" in done.output
    assert "1 of 180 swap-ins differ" in done.output


def test_check_refuses_what_is_no_recording(
    recorded: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    for change, why in (
        (lambda f: shutil.rmtree(f / "counted"), "is missing: it says what the server counted"),
        (lambda f: [p.unlink() for p in f.glob("request-*")], "holds no recorded requests"),
        (lambda f: (f / "counted/request-00001.parquet").write_bytes(b"x"), "cannot be read"),
    ):
        folder = Path(shutil.copytree(recorded[0], tmp_path / "rec"))
        change(folder)
        done = CliRunner().invoke(cli, ["engine", "check", str(folder)])
        assert done.exit_code == 1
        assert why in done.output
        assert "Traceback" not in done.output
        shutil.rmtree(folder)


def test_a_recording_is_not_mixed_with_another(
    recorded: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(monkeypatch, "--record", str(recorded[0]), *SERVER)
    assert done.exit_code == 1
    assert "holds a recording already" in done.output


def test_a_killed_server_leaves_what_it_had_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Killed in its 40th step: the first two of three requests had ended, one had begun."""
    load = ["requests=3", "steps=30", "kill=40", "direct=1"]
    done = run(monkeypatch, "--record", str(tmp_path / "rec"), *RINGS, *SERVER, *load)
    assert done.exit_code == 128 + 9
    summary = json.loads((tmp_path / "rec" / "engine.json").read_text())
    assert summary["recorded"]["steps"] == 30 + 30 + 10
    assert summary["recorded"]["cut"] == {"the server was ended by signal 9": 1}
    checked = CliRunner().invoke(cli, ["engine", "check", str(tmp_path / "rec")])
    assert checked.exit_code == 0, checked.output
    assert "in all of 210 swap-ins" in checked.output


def test_a_fault_of_the_recorder_leaves_the_server_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "work", lambda _: 1 / 0)
    server = launching.Server((sys.executable, "-m", "sglang.launch_server"), "0.5.17", "m")
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    status, summary = launching.run_server(server, Options(str(tmp_path), record=True))
    assert status == 0
    assert {each["message"] for each in summary["faults"]} == {"division by zero"}
    assert summary["processes"][0]["steps"] == 90


# --- before anything is started ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--count", "--", "pythonx", "-m", "sglang.launch_server"], "pythonx does not run"),
        (["--", "python"], "say what to do: --count, --record DIR or --kernel native"),
    ],
)
def test_what_cannot_be_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, words: list[str], why: str
) -> None:
    done = run(monkeypatch, *words)
    assert done.exit_code in (1, 2)
    assert why in done.output


def test_what_is_known_to_go_wrong_is_said_before_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    words = ["-m", "sglang.launch_server", "--enable-hisparse", "--enable-return-indexer-topk"]
    command = [sys.executable, *words]
    assert "dies once the requests in flight reach past" in check_server(command).doubt
    assert check_server(command[:-1]).doubt == ""
    assert "nothing to count" in check_server(command[:-2]).doubt


def test_a_server_without_sglang_or_plugin_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launching, "ENTRY_POINT", "nobody's")
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    with pytest.raises(EngineError, match="has SGLang but not hisparse-sim"):
        check_server([sys.executable])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match="has no sglang"):
        check_server([sys.executable])


def test_a_signal_to_end_is_passed_on_and_the_end_awaited(tmp_path: Path) -> None:
    """The server here takes its time to end, as a real one does."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), sys.exit(7)))\n"
        "open(sys.argv[1], 'w').close(); time.sleep(60)"
    )
    ready = tmp_path / "ready"
    server = launching.Server((sys.executable, "-c", code, str(ready)), "0.5.17", "")

    def end() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    status, summary = launching.run_server(server, Options(str(tmp_path), count=True))
    thread.join()
    assert status == summary["status"] == 7
    assert (tmp_path / "engine.json").exists()
