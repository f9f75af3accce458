"""Replays what was recorded in a server and compares it with what the server counted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.engine.recording import COUNTED, NOTES
from hisparse_sim.gpu_replay.engine.releases import EngineError
from hisparse_sim.simulator.replay import replay
from hisparse_sim.traces import TraceError, open_trace


@dataclass(frozen=True)
class Checked:
    """One recorded request, replayed and compared.

    Attributes
    ----------
    calls
        Swap-ins compared: one layer, one step.
    simulated, counted
        Misses of all of them.
    differing
        Calls whose misses differ.
    first
        The first of these as (layer, step, simulated, counted).
    """

    path: Path
    request: str
    calls: int
    simulated: int
    counted: int
    differing: int
    first: tuple[int, int, int, int] | None


def check_folder(folder: Path) -> Iterator[Checked]:
    """Check the requests recorded in a folder, one after the other.

    Raises EngineError if it holds none, or if a file is missing or not of such a recording.
    """
    paths = sorted(folder.glob("request-*.parquet"))
    if not paths:
        raise EngineError(
            f"{folder} holds no recorded requests: record some with `engine run --record {folder}`"
        )
    for path in paths:
        yield _check(path)


def _check(path: Path) -> Checked:
    trace = open_trace(path)
    notes = trace.metadata.notes
    facts = notes.get(NOTES) if isinstance(notes, dict) else None
    if not isinstance(facts, dict) or not {"device_buffer_size", "start"} <= set(facts):
        raise EngineError(f"{path} was not recorded in a server: it says nothing of its buffer")
    layers, steps, counted = _counted(path)
    simulated = replay(trace, "lru", facts["device_buffer_size"], start=facts["start"]).misses
    parts = [np.full(part.rows, part.layer) for part in trace.parts]
    if len(simulated) != len(counted) or not np.array_equal(np.concatenate(parts), layers):
        raise EngineError(f"{path.parent / COUNTED / path.name} counts other calls than {path} has")
    differs = np.flatnonzero(simulated != counted)
    first = None
    if len(differs):
        at = int(differs[0])
        first = int(layers[at]), int(steps[at]), int(simulated[at]), int(counted[at])
    return Checked(
        path,
        trace.parts[0].request,
        len(counted),
        int(simulated.sum()),
        int(counted.sum()),
        len(differs),
        first,
    )


def _counted(path: Path) -> tuple[NDArray[np.int64], ...]:
    """Layer, step and misses of every call, in the order of the trace."""
    counted = path.parent / COUNTED / path.name
    try:
        table = pq.read_table(counted, columns=["layer", "step", "misses"])
    except FileNotFoundError:
        raise EngineError(f"{counted} is missing: it says what the server counted") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{counted} cannot be read: {error}") from None
    return tuple(table[name].to_numpy().astype(np.int64) for name in table.column_names)


def checked_line(checked: Checked) -> str:
    """One request in a line."""
    line = (
        f"{checked.path.name}: {checked.calls:,} swap-ins, misses simulated {checked.simulated:,}, "
        f"counted {checked.counted:,}"
    )
    if checked.first is None:
        return f"{line}: equal in every call"
    layer, step, simulated, counted = checked.first
    return (
        f"{line}: {checked.differing:,} calls differ, first layer {layer}, step {step}: "
        f"simulated {simulated:,}, counted {counted:,}"
    )


def verdict(found: Sequence[Checked]) -> str:
    """All requests in a line."""
    calls = sum(checked.calls for checked in found)
    differing = sum(checked.differing for checked in found)
    if differing:
        return f"{differing:,} of {calls:,} swap-ins differ: the simulator is wrong for this engine"
    return f"the simulator counts what the engine did, in all of {calls:,} swap-ins"
