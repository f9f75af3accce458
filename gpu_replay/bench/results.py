"""Result files of the GPU commands, one JSON object with what was run, where, and the rows; and the
rows as lines of text."""

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
        raise TraceError(f"{path} is no result file of `gpu bench`: it has no {key}")
    return value


def read_rows(path: Path, needed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of a result file; TraceError if it is none.

    The `needed` columns hold numbers from 0, and those of times (`*_us`) numbers above 0.
    """
    return [
        _row(row, needed, f"{path} is no result file of `gpu bench`: row {number}")
        for number, row in enumerate(_read(path, "rows", list))
    ]


def _row(found: Any, needed: Sequence[str], place: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TraceError(f"{place} is no object")
    named: dict[str, Any] = found
    row = {COLUMNS.get(name, name): value for name, value in named.items()}
    for column in (*needed, *(name for name in row if name.endswith("_us"))):
        value = row.get(column)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value < 0
            or (value == 0 and column.endswith("_us"))
        ):
            raise TraceError(f"{place} has {clipped(value)} as {clipped(column)}")
    return row


def read_machine(path: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """The machine of a result file; TraceError if it is none, or lacks one of `keys`."""
    machine: dict[str, Any] = _read(path, "machine", dict)
    for key in keys:
        if key not in machine:
            raise TraceError(f"{path} is no result file of `gpu bench`: its machine has no {key}")
    return machine


def together_line(row: dict[str, Any]) -> str:
    """One measurement on several GPUs, or the memory of the host pools."""
    if row["what"] == "pools":
        size, used = (row[name] / 1e9 for name in ("pool_bytes", "used_bytes"))
        return (
            f"{row['host_pool']} host pools: {row['pools']} of {size:.2f} GB take {used:.2f} GB of "
            f"host memory, pinned in {row['pin_s']:.1f} s"
        )
    place = ""
    if "batch" in row:
        place = f"entry {row['entry_bytes']} buffer {row['buffer']} batch {row['batch']} "
        place += f"misses {row['misses']}"
    each = " ".join(f"{rate:.1f}" for rate in row["gb_s"])
    return (
        f"{row['what']:6} {place:44} {row['gpus']} at once: {row['sum_gb_s']:7.1f} GB/s ({each}), "
        f"{max(row['us']):.1f} us, overlap {row['overlap']:.2f}"
    )


_NAMES = ("sglang", "native", "sglang_plan", "native_plan", "gather")
HEADING = "bytes buffer batch misses " + "".join(f"{name:>12}" for name in _NAMES) + "   ratio"


def point_line(row: dict[str, Any]) -> str:
    """One point, us each; `ratio` is the engine's time over ours."""
    times = "".join(f"{row[f'{n}_us']:12.1f}" if f"{n}_us" in row else f"{'':12}" for n in _NAMES)
    place = f"{row['entry_bytes']:<5} {row['buffer']:6} {row['batch']:5} {row['misses']:6} "
    both = "sglang_us" in row and "native_us" in row
    return place + times + (f"{row['sglang_us'] / row['native_us']:8.2f}" if both else "")
