"""Starts the user's own server command with the plugin, records beside it, sums up at the end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from hisparse_sim.gpu_replay.engine import events
from hisparse_sim.gpu_replay.engine.options import ENTRY_POINT, Options
from hisparse_sim.gpu_replay.engine.recording import Budget, Recording, Source, read_counts
from hisparse_sim.gpu_replay.engine.releases import EngineError, check_package
from hisparse_sim.gpu_replay.engine.summary import sum_up
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.layer_types import SHARED
from hisparse_sim.traces.file.model_config import ModelConfig, read_config
from hisparse_sim.traces.files import atomic_path

SUMMARY = "engine.json"
_IDLE_S = 0.02

# Asked of the interpreter that will run the server; prints what it has. Imports no sglang.
_PROBE = """
import importlib.metadata as m, importlib.util as u, json
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
spec = u.find_spec("sglang")
print(json.dumps({
    "sglang": version("sglang"),
    "package": next(iter(spec.submodule_search_locations)) if spec else None,
    "plugin": any(e.name == %r for e in m.entry_points(group="sglang.srt.plugins")),
}))
"""


@dataclass(frozen=True)
class Server:
    """A server command that can be run with the plugin."""

    command: tuple[str, ...]
    release: str
    model: str  # as the command names it, "" if it does not
    doubt: str = ""  # what is known to go wrong with it


def check_server(command: Sequence[str]) -> Server:
    """Find out, before anything is started, whether the command's SGLang can be watched.

    Raises EngineError with the reason, ValueError for a command that is none.
    """
    if not command:
        raise ValueError("give the server's command behind --: -- python3 -m sglang.launch_server")
    python = command[0] if Path(command[0]).name.startswith("python") else sys.executable
    try:
        asked = subprocess.run(
            [python, "-c", _PROBE % ENTRY_POINT], capture_output=True, text=True, check=True
        )
        found = json.loads(asked.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError) as error:
        raise EngineError(f"{python} does not run: {error}") from None
    if found["sglang"] is None or found["package"] is None:
        raise EngineError(f"{python} has no sglang: run this in the server's own environment")
    if not found["plugin"]:
        raise EngineError(
            f"{python} has SGLang but not hisparse-sim, so the server would not find the plugin: "
            f"install it there too ({python} -m pip install . in a clone)"
        )
    check_package(Path(found["package"]), found["sglang"])
    model = _option(command, "--model-path", "--model")
    return Server(tuple(command), found["sglang"], model, _doubt(command, found["sglang"]))


def _doubt(command: Sequence[str], release: str) -> str:
    if "--enable-hisparse" not in command:
        return "the command has no --enable-hisparse: without it there is nothing to count"
    if "--enable-return-indexer-topk" in command and release.startswith("0.5.17"):
        return (
            "SGLang 0.5.17 with --enable-hisparse and --enable-return-indexer-topk dies once the "
            "requests in flight reach past --max-total-tokens: leave --enable-return-indexer-topk "
            "out, `engine run --record` does not need it"
        )
    return ""


def _option(command: Sequence[str], *names: str) -> str:
    """The value of the first of these options in the command, "" if it has none."""
    for at, word in enumerate(command):
        for name in names:
            if word == name and at + 1 < len(command):
                return command[at + 1]
            if word.startswith(name + "="):
                return word.removeprefix(name + "=")
    return ""


def model_config(server: Server, config: Path | None) -> ModelConfig | None:
    """The model's layers, from `config` or from the folder that the command names; else None."""
    folder = Path(server.model) if server.model else None
    if config is None and folder is not None and (folder / "config.json").is_file():
        config = folder
    return None if config is None else read_config(config)


def record_folder(folder: Path) -> Path:
    """The folder for a recording, made if need be. Raises EngineError if it holds one already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineError(f"{folder} cannot be made: {error.strerror or error}") from None
    if next(folder.glob("request-*.parquet"), None) or (folder / SUMMARY).exists():
        raise EngineError(f"{folder} holds a recording already: name another folder")
    return folder.resolve()


def keep_summary(summary: dict[str, Any], path: Path) -> None:
    """Write the summary as JSON, whole or not at all. Raises TraceError if it cannot be written."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def run_server(
    server: Server,
    options: Options,
    *,
    config: Path | None = None,
    most_bytes: int | None = None,
    environment: dict[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Run the command to its end, with the plugin; returns its exit status and the summary.

    The folder of `options` receives the trace files, if any, and `engine.json`. Signals that ask
    this process to end are passed on, and the end of the server is awaited. The status is that of
    the command, 128 + N if signal N ended it.
    """
    folder = Path(options.folder)
    layers = model_config(server, config)
    types = None if layers is None else layers.layer_types
    if types is not None:
        shared = tuple(layer for layer, kind in enumerate(types) if kind == SHARED)
        options = replace(options, shared=shared)
    source = Source(server.model, options.kernel or "sglang", types)
    started = time.time()
    follower = Follower(folder, source, Budget(most_bytes))
    base = dict(os.environ) if environment is None else environment
    process = subprocess.Popen(server.command, env=options.environment(base))
    with _passed_on(process):
        while process.poll() is None:
            if not follower.worked():
                time.sleep(_IDLE_S)
    status = process.returncode
    follower.close(
        "the server ended" if status >= 0 else f"the server was ended by signal {-status}"
    )
    about = {
        "hisparse_sim": version("hisparse-sim"),
        "engine": server.release,
        "kernel": source.kernel,
        "command": list(server.command),
        "status": status,
        "seconds": round(time.time() - started, 1),
    }
    summary = sum_up(
        about,
        follower.processes,
        read_counts(folder),
        list(follower.recordings.values()),
        follower.budget,
        follower.faults,
    )
    with suppress(TraceError):  # a full disk must not hide how the server ended
        keep_summary(summary, folder / SUMMARY)
    for process_id in follower.processes:
        for path in (events.events_path, events.counts_path):
            path(folder, process_id).unlink(missing_ok=True)
    return (status if status >= 0 else 128 - status), summary


@contextmanager
def _passed_on(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Signals that ask to end are for the server; Ctrl-C reaches it without our help."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Follower:
    """Follows what the server's processes tell, and records.

    Attributes
    ----------
    processes
        What every process said of itself when it started, by its number.
    recordings
        Of the processes that record.
    faults
        What went wrong inside the server's processes: (process, part, message).
    """

    def __init__(self, folder: Path, source: Source, budget: Budget) -> None:
        self._folder, self._source, self.budget = folder, source, budget
        self._readers: dict[Path, events.EventReader] = {}
        self._numbers = count(1)
        self._failed = False
        self.processes: dict[int, dict[str, Any]] = {}
        self.recordings: dict[int, Recording] = {}
        self.faults: list[tuple[int, str, str]] = []

    def work(self) -> bool:
        """Take in what there is; whether there was anything."""
        busy = False
        for path in self._folder.glob("events-*.jsonl"):
            if path not in self._readers:
                self._readers[path] = events.EventReader(path)
            process = int(path.stem.removeprefix("events-"))
            for event in self._readers[path].read():
                busy = True
                self._heard(process, event)
        for recording in self.recordings.values():
            busy |= recording.work()
        return busy

    def worked(self) -> bool:
        """As `work`, until that fails: then the server is only waited for, and its fault kept."""
        try:
            return not self._failed and self.work()
        except Exception as error:  # of any kind: nobody else waits for the server
            self._fail(error)
            return False

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self.faults.append((os.getpid(), "recording", str(error) or type(error).__name__))

    def _heard(self, process: int, event: dict[str, Any]) -> None:
        kind = event.pop("kind")
        if kind == events.STARTED:
            self.processes[process] = event
            if "ring" in event:
                self.recordings[process] = Recording(
                    self._folder, event, self._source, self.budget, lambda: next(self._numbers)
                )
        elif kind == events.FAULT:
            self.faults.append((process, event["part"], event["message"]))
        elif process in self.recordings:
            self.recordings[process].heard({"kind": kind, **event})

    def close(self, why: str) -> None:
        """The server has ended: take in the rest."""
        while self.worked():
            pass
        for recording in self.recordings.values():
            try:
                recording.close(why)
            except Exception as error:
                self._fail(error)
