"""Result files of the GPU commands: one JSON object with what was run, where, and the rows."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hisparse_sim.simulator.replay.former_names import COLUMNS
from hisparse_sim.traces import TraceError, atomic_path


def write_result(
    path: Path,
    machine: Mapping[str, Any],
    parameters: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    **more: Any,
) -> None:
    """Write machine, parameters and rows (one line each, so that differences can be read)."""
    head = {"machine": machine, "parameters": parameters, **more}
    text = json.dumps(head, indent=1, default=str)[:-2]
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    with atomic_path(path) as temporary:
        temporary.write_text(f'{text},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def _read(path: Path, key: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))[key]
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise TraceError(f"{path} is no result file of `gpu bench`: it has no {key}") from None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a result file; TraceError if it is none."""
    rows: list[dict[str, Any]] = _read(path, "rows")
    return [{COLUMNS.get(name, name): value for name, value in row.items()} for row in rows]


def read_machine(path: Path) -> dict[str, Any]:
    """The machine of a result file; TraceError if it is none."""
    machine: dict[str, Any] = _read(path, "machine")
    return machine
