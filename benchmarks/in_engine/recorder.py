"""What the recorder takes on the host: memory, time and bytes for one long answer.

    python benchmarks/in_engine/recorder.py [--steps 2000] [--layers 61] [-o RESULT.json]

Fills the ring as a server process would, as fast as it is emptied, and lets the recorder make the
trace file of it. No GPU. Selections drift as real ones do: nine of ten positions stay.
"""

import argparse
import json
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from machine import describe_machine, describe_versions

from hisparse_sim.gpu_replay.engine import events
from hisparse_sim.gpu_replay.engine.host_ring import SHARED_MEMORY, HostRing, entries_within
from hisparse_sim.gpu_replay.engine.recording import Budget, Recording, Source

TOP_K, PROMPT, STAY = 2048, 32_000, 0.9


def drift(positions: np.ndarray, seq_len: int, draw: np.random.Generator) -> None:
    """The next step's selection of every layer, [layers, TOP_K], in place and distinct."""
    for row in positions:
        new = draw.choice(seq_len, TOP_K, replace=False).astype(np.int32)
        fresh = np.setdiff1d(new, row, assume_unique=True)[: round(TOP_K * (1 - STAY))]
        row[draw.choice(TOP_K, len(fresh), replace=False)] = fresh


class Memory(threading.Thread):
    """The most memory that this process has held: its own, and the ring's shared memory.

    Pages of the scratch file that are mapped for a while are not counted: the system takes them
    back when it wants.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most_mib = 0.0

    def run(self) -> None:
        while True:
            text = Path("/proc/self/status").read_text()
            held = re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", text)
            self.most_mib = max(self.most_mib, sum(map(int, held)) / 1024)
            time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--ring-mib", type=int, default=256)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    layers, steps = given.layers, given.steps
    draw = np.random.default_rng(0)
    memory = Memory()
    memory.start()
    with tempfile.TemporaryDirectory() as scratch:
        entries = entries_within(given.ring_mib << 20, layers, layers, TOP_K)
        path = SHARED_MEMORY / f"recorder-{time.time_ns()}"
        ring = HostRing(path, entries, layers, layers, TOP_K, make=True)
        facts = {
            "ring": {"path": str(path), "entries": entries, "recorded": list(range(layers))},
            "layers": layers, "top_k": TOP_K, "buffer": 4096, "entry_bytes": 1152, "engine": "none",
        }  # fmt: skip
        recording = Recording(Path(scratch), facts, Source("", "none"), Budget(), lambda: 1)
        recording.heard({"kind": events.ADMITTED, "epoch": 1, "request": "r", "start": "staged"})
        first = [draw.choice(PROMPT, TOP_K, replace=False) for _ in range(layers)]
        positions = np.array(first, np.int32)
        taken_s = 0.0
        for step in range(steps):
            drift(positions, PROMPT + step + 1, draw)
            at = ring.head % entries
            ring.heads[at, :2] = 1, PROMPT + step + 1
            ring.positions[at] = positions
            ring.head += 1
            began = time.process_time()
            recording.work()
            taken_s += time.process_time() - began
        recording.heard({"kind": events.ENDED, "epoch": 1, "at": steps, "steps": steps})
        began, wall = time.process_time(), time.perf_counter()
        recording.close("done")
        found = {
            "steps": recording.steps,
            "layers": layers,
            "raw_bytes": steps * layers * TOP_K * 4,
            "trace_bytes": recording.written[0].stat().st_size,
            "spooling_cpu_s": round(taken_s, 2),
            "writing_cpu_s": round(time.process_time() - began, 2),
            "writing_wall_s": round(time.perf_counter() - wall, 2),
            "most_memory_mib": round(memory.most_mib),
            "of_which_ring_mib": given.ring_mib,
        }
    versions = describe_versions("numpy", "pyarrow", "hisparse-sim")
    found = {"machine": describe_machine(), "versions": versions, **found}
    text = json.dumps(found, indent=1)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
