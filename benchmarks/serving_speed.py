"""How long `plan` and `serve` take, each in a process of its own, start of Python included.

    python benchmarks/serving_speed.py [--repeats N]

Processor time is that of all threads, start and imports included; wall time depends on what else
runs. The loops are compiled before. Writes results/serving-speed.json.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
from machine import describe_machine, describe_versions

RESULT = Path(__file__).parent / "results" / "serving-speed.json"
COMMANDS = {
    "start": "--version",
    "plan with confirmation": "plan",
    "serve 16,000 requests of unequal lengths": (
        "serve --mode hisparse --concurrency 256 --requests 16000 --range-ratio 0.2"
    ),
}


def once(words: str) -> tuple[float, float]:
    """Processor and wall seconds of one command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "hisparse_sim.cli", *words.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


@click.command()
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    rows: dict[str, Any] = {}
    for words in COMMANDS.values():
        once(words)
    for _ in range(repeats):  # in turn, so that a slow minute does not meet one of them alone
        for name, words in COMMANDS.items():
            row = rows.setdefault(name, {"command": words, "processor_s": [], "wall_s": []})
            for key, seconds in zip(("processor_s", "wall_s"), once(words), strict=True):
                row[key].append(round(seconds, 2))
    for row in rows.values():
        row["processor_s_median"] = statistics.median(row["processor_s"])
        row["wall_s_median"] = statistics.median(row["wall_s"])
    result = {
        "machine": describe_machine(),
        "load": os.getloadavg()[0],
        "versions": describe_versions(),
        "rows": rows,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    click.echo(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
