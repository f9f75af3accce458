"""What a server process tells the recorder: one JSON object a line, in a file of its own.

A file and not a pipe: nothing blocks if nobody reads, and what was written stays if either ends.
"""

import json
from pathlib import Path
from typing import Any

STARTED, ADMITTED, DIRECT, ENDED, FAULT = "started", "admitted", "direct", "ended", "fault"


def events_path(folder: Path, process: int) -> Path:
    return folder / f"events-{process}.jsonl"


def counts_path(folder: Path, process: int) -> Path:
    return folder / f"counts-{process}.json"


class EventWriter:
    """Appends events; there are a few for every request."""

    def __init__(self, folder: Path, process: int) -> None:
        self._path = events_path(folder, process)

    def write(self, kind: str, **values: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **values}) + "\n")


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
