"""What a server process tells the recorder: one JSON object a line, in a file of its own.

A file and not a pipe: nothing blocks if nobody reads, and what was written stays if either ends.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

# The engine's thread writes, and the one that reads the device.
_writing = Lock()

STARTED, ADMITTED, DIRECT, ENDED, FAULT = "started", "admitted", "direct", "ended", "fault"


def events_path(folder: Path, process: int) -> Path:
    return folder / f"events-{process}.jsonl"


def counts_path(folder: Path, process: int) -> Path:
    return folder / f"counts-{process}.json"


class EventWriter:
    """Appends events; there are a few for every request.

    What a full disk does not take waits in memory and is tried again with the next.
    """

    def __init__(self, folder: Path, process: int) -> None:
        self._path = events_path(folder, process)
        self._waiting = b""

    def write(self, kind: str, **values: Any) -> bool:
        """Whether it stands in the file."""
        line = json.dumps({"kind": kind, **values}) + "\n"
        with _writing:
            self._waiting += line.encode()
            return self._try()

    def again(self) -> None:
        """Try what waits."""
        with _writing:
            self._try()

    def _try(self) -> bool:
        if self._waiting:
            with suppress(OSError), self._path.open("ab", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                if file.write(self._waiting) < len(self._waiting):
                    file.truncate(before)
                else:
                    self._waiting = b""
        return not self._waiting


class EventReader:
    """Reads the events of one process as they come."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Whole lines since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines()]
