"""Where the time of a step of the engine's LRU goes, and how far it is from what it must touch.

    python benchmarks/lru_floor.py TRACE

The floor is a pass that only touches: it reads every position of a row and its slot, every slot of
the order and its mark, and writes the order again. Parts are timed alone, on the rows of one layer
and the buffer that it has in the middle; all in turns, by processor time, the least of all turns.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from machine import describe_machine, describe_versions
from replay_speed import one_core, seconds

from hisparse_sim.policies.lanes import LANES, look_up, split
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.simulator.replay.replaying import rows_of
from hisparse_sim.traces import Demand, open_trace
from hisparse_sim.traces.machine_code import compiled

RESULT = Path(__file__).parent / "results" / "lru_floor.json"


@compiled
def touch(rows: Any, slot: Any, order: Any, marks: Any, written: Any) -> int:
    """Read and write what no step can do without."""
    total = 0
    for now in range(len(rows.seq_len)):
        for at in range(rows.offsets[now], rows.offsets[now + 1]):
            total += slot[rows.positions[at]]
        for i in range(len(order)):
            total += marks[order[i]]
            written[i] = order[i]
    return total


@compiled
def look_up_all(rows: Any, slot: Any, absent: int, hits: Any, places: Any) -> int:
    """Look up every row."""
    total = 0
    for now in range(len(rows.seq_len)):
        row = rows.positions[rows.offsets[now] : rows.offsets[now + 1]]
        following = rows.positions[rows.offsets[now + 1] :]
        total += look_up(row, following, slot, absent, hits, places)
    return total


@compiled
def mark_all(steps: int, hits: Any, marks: Any) -> None:
    """Mark the same hits in every step."""
    for _ in range(steps):
        marks[:] = 0
        for hit in hits:
            marks[hit] = 1


@compiled
def split_all(steps: int, order: Any, marks: Any, others: Any, marked: Any) -> int:
    """Split the same order in every step."""
    total = 0
    for _ in range(steps):
        total += split(order, marks, others, marked)
    return total


def parts_of(demand: Demand, size: int) -> dict[str, Callable[[], object]]:
    """Return what is timed: the parts of a step with the buffer of the middle of `demand`."""
    rows, positions = rows_of(demand, size)
    middle = demand.rows // 2
    held = np.unique(demand.positions[: demand.offsets[middle]][::-1], return_index=True)
    recent = held[0][np.argsort(held[1])][:size]  # the last accessed ones
    stream = np.random.default_rng(0)
    order = stream.permutation(size).astype(np.uint16)
    slot = np.full(positions + 1, size, np.uint16)
    slot[recent] = stream.permutation(size)[: len(recent)]
    row = demand.row(middle)
    hits = slot[row][slot[row] != size]
    marks, room = np.zeros(size + LANES, np.uint8), size + LANES
    found, places = np.zeros(room, np.uint16), np.zeros(room, np.int32)
    others, marked = np.zeros((2, room), np.uint16)
    mark_all(1, hits, marks)
    steps = demand.rows
    return {
        "floor": lambda: touch(rows, slot, order, marks, others),
        "look_up": lambda: look_up_all(rows, slot, size, found, places),
        "mark": lambda: mark_all(steps, hits, marks),
        "split": lambda: split_all(steps, order, marks, others, marked),
        "replay": lambda: replay_part(demand, "lru", size),
    }


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--repeats", default=15, show_default=True)
@click.option("--note", default="", help="What to say about the machine, such as that it was busy.")
@click.option("-o", "output", default=RESULT, show_default=True, type=click.Path(path_type=Path))
def main(path: Path, repeats: int, note: str, output: Path) -> None:
    """Time the parts of a step at two and three times the top_k and write them as JSON."""
    trace = open_trace(path)
    demand = trace.read(trace.parts[len(trace.parts) // 2])
    result: dict[str, Any] = {
        "machine": describe_machine(),
        "note": note,
        "versions": describe_versions("hisparse-sim", "numba", "numpy"),
        "trace": path.name,
        "layer": demand.layer,
        "us_per_step": {},
    }
    with one_core():
        for times in (2, 3):
            size = times * trace.metadata.top_k
            works = parts_of(demand, size)
            least = dict.fromkeys(works, float("inf"))
            for _ in range(repeats + 1):  # the first compiles
                for name, work in works.items():
                    least[name] = min(least[name], seconds(work))
            found = {name: round(1e6 * each / demand.rows, 2) for name, each in least.items()}
            result["us_per_step"][size] = found
            click.echo(
                f"{size} slots, us per step: "
                + ", ".join(f"{name} {each}" for name, each in found.items())
                + f"; {found['replay'] / found['floor']:.1f} times the floor"
            )
    output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
