"""Result files of the GPU commands: one JSON object with what was run, where, and the rows."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as clipped
from typing import Any

from hisparse_sim.simulator.replay.former_names import COLUMNS
from hisparse_sim.traces import TraceError, atomic_path
from hisparse_sim.traces.documents import read_json


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


def _read(path: Path, key: str, kind: type) -> Any:
    found = read_json(path)
    value = found.get(key) if isinstance(found, dict) else None
    if not isinstance(value, kind):
        raise TraceError(f"{path} is not a result file of `gpu bench`: it has no {key}")
    return value


def read_rows(path: Path, needed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of a result file; TraceError if it is none.

    The `needed` columns hold numbers from 0, and those of times (`*_us`) numbers above 0; other
    times may be a list, one for each of several GPUs.
    """
    return [
        _row(row, needed, f"{path} is not a result file of `gpu bench`: row {number}")
        for number, row in enumerate(_read(path, "rows", list))
    ]


def _row(found: Any, needed: Sequence[str], place: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TraceError(f"{place} is not an object")
    named: dict[str, Any] = found
    row = {COLUMNS.get(name, name): value for name, value in named.items()}
    for column in (*needed, *(name for name in row if name.endswith("_us"))):
        value = row.get(column)
        several = isinstance(value, list) and column not in needed
        each = value if several and value else [value]
        if not all(_amount(one, above_0=column.endswith("_us")) for one in each):
            raise TraceError(f"{place} has {clipped(value)} as {clipped(column)}")
    return row


def _amount(value: Any, *, above_0: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > 0 if above_0 else value >= 0


def read_machine(path: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """The machine of a result file; TraceError if it is none, or lacks one of `keys`."""
    machine: dict[str, Any] = _read(path, "machine", dict)
    for key in keys:
        if key not in machine:
            raise TraceError(
                f"{path} is not a result file of `gpu bench`: its machine has no {key}"
            )
    return machine
