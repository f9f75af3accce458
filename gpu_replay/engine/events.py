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
    """Appends events; every line is written at once."""

    def __init__(self, folder: Path, process: int) -> None:
        self._file = events_path(folder, process).open("a", encoding="utf-8", buffering=1)

    def write(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")


class EventReader:
    """Reads the events of one process as they come."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8")
        self._rest = ""

    def read(self) -> list[dict[str, Any]]:
        """Whole lines since the last call."""
        self._rest += self._file.read()
        *lines, self._rest = self._rest.split("\n")
        return [json.loads(line) for line in lines if line]

    def close(self) -> None:
        self._file.close()
