"""Kills workers and clients of a sweep on a Dask cluster at random, and compares the results.

    python benchmarks/cluster_kills.py --rounds 50

Each round starts the same sweep at a scheduler with two workers and ends, at a random moment of it,
a worker or the client by SIGKILL, or the client by Ctrl-C; then the same command runs until it is
done. Three things are checked: the result has the bytes of a sweep by threads that nothing
interrupted; everything that a client had kept when it was killed is still there; and no kept
(request, layer, policy, buffer) was replayed again.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np
from machine import describe_machine, describe_versions

from hisparse_sim.traces import Demand, Metadata, TraceWriter

RESULT = Path(__file__).parent / "results" / "cluster-kills.json"
STEPS, TOP_K, PROMPT = 1500, 512, 16384
SWEEP = ["--policy", "lru,arc,random", "--buffer", "1024,2048", "--per-layer", "--quiet"]


def write_trace(path: Path, parts: int) -> None:
    """Write a trace of random rows."""
    about = Metadata(model="made", provenance="synthetic", top_k=TOP_K, num_layers=parts)
    source = np.random.default_rng(0)
    with TraceWriter(path, about) as writer:
        for layer in range(parts):
            rows = [
                np.sort(source.choice(PROMPT, TOP_K, replace=False).astype(np.int32))
                for _ in range(STEPS)
            ]
            step = np.arange(STEPS, dtype=np.int32)
            offsets = TOP_K * np.arange(STEPS + 1)
            demand = Demand(
                "r", layer, PROMPT, step, PROMPT + 1 + step, offsets, np.concatenate(rows)
            )
            writer.write(demand)


def entries(kept: Path) -> list[str]:
    """Return what each whole line of a file of kept work is about."""
    lines = [line.partition(b" ")[2] for line in kept.read_bytes().split(b"\n")[1:]]
    return [json.dumps(json.loads(line)["of"]) for line in lines if line.endswith(b"}")]


def workers_of(scheduler: str) -> list[int]:
    """Return the processes that work for a scheduler."""
    from distributed import Client

    with Client(scheduler, set_as_default=False) as client:
        client.wait_for_workers(2)
        found = client.run(os.getpid, on_error="ignore")
        return [pid for pid in found.values() if isinstance(pid, int)] or workers_of(scheduler)


def one_round(
    folder: Path, scheduler: str, whole: bytes, chance: random.Random, longest_s: float
) -> dict[str, Any]:
    """Run the sweep once, with a kill before `longest_s` are over; return what happened."""
    out, trace = folder / "rows.jsonl", folder / "trace.parquet"
    kept, copy = folder / "rows.jsonl.partial", folder / "copy"
    for path in (out, copy):
        path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "hisparse_sim.cli", "sweep", str(trace), *SWEEP]
    command += ["--scheduler", scheduler, "-o", str(out)]
    what = chance.choice(["worker", "client", "Ctrl-C"]) if longest_s else "nothing"
    pids = workers_of(scheduler)
    client = subprocess.Popen(command)
    while not kept.exists() and client.poll() is None:
        time.sleep(0.01)
    if kept.exists():
        os.link(kept, copy)  # the same file, which stays when the client removes it
    begin = time.monotonic()
    if longest_s:
        time.sleep(chance.uniform(0, 0.8 * longest_s))
    done = client.poll() is not None
    if what == "worker":
        os.kill(chance.choice(pids), signal.SIGKILL)
    elif not done and longest_s:
        client.send_signal(signal.SIGKILL if what == "client" else signal.SIGINT)
    client.wait()
    took_s = time.monotonic() - begin
    known = entries(copy)
    again = 0
    while not out.exists():
        again += 1
        subprocess.run(command, check=True)
    after = entries(copy)
    return {
        "killed": "nothing" if done else what,
        "took_s": round(took_s, 2),
        "kept_before": len(known),
        "kept_after": len(after),
        "resumed": again,
        "lost": len(set(known) - set(after)),
        "replayed_again": sum(count - 1 for count in Counter(after).values()),
        "equal_bytes": out.read_bytes() == whole,
    }


@click.command()
@click.option("--rounds", default=50, show_default=True)
@click.option("--parts", default=24, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=RESULT)
def main(rounds: int, parts: int, seed: int, output: Path) -> None:
    """Kill at random, resume, compare."""
    from distributed import LocalCluster

    signal.signal(signal.SIGINT, signal.default_int_handler)  # of a job behind `&`: ignored
    chance = random.Random(seed)
    folder = Path(tempfile.mkdtemp())
    write_trace(folder / "trace.parquet", parts)
    trace, reference = folder / "trace.parquet", folder / "whole.jsonl"
    subprocess.run(
        [sys.executable, "-m", "hisparse_sim.cli", "sweep", trace, *SWEEP, "-o", reference],
        check=True,
    )
    found: list[dict[str, Any]] = []
    try:
        with LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1"
        ) as cluster:
            whole, address = reference.read_bytes(), cluster.scheduler_address
            took_s = one_round(folder, address, whole, chance, 0)["took_s"]
            while len(found) < rounds:
                one = one_round(folder, address, whole, chance, took_s)
                if one["killed"] != "nothing":  # a moment too late does not count
                    found.append(one)
                print(len(found), one, flush=True)
    finally:
        shutil.rmtree(folder)
    result = {
        "what": "measured: a sweep at a Dask scheduler with 2 workers, one kill a round",
        "machine": describe_machine(),
        "versions": describe_versions("hisparse-sim", "distributed", "numba", "numpy", "pyarrow"),
        "rounds": len(found),
        "killed": dict(Counter(one["killed"] for one in found)),
        "equal_bytes": sum(one["equal_bytes"] for one in found),
        "lost": sum(one["lost"] for one in found),
        "replayed_again": sum(one["replayed_again"] for one in found),
        "each": found,
    }
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
