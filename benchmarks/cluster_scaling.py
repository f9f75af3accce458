"""Studies beyond one machine: memory of a large trace, cost of a part, and two workers against one.

    python benchmarks/cluster_scaling.py --gb 5 --parts 100000

Makes a trace of random rows (they compress badly, so they are many bytes to read) and sweeps it by
LRU on a local Dask cluster with 2 workers of at most 1 GB each, then a share of it with 1 worker
(strong: the same share with 2; weak: half of it with 1). Each figure is wall time, and processor
time of all workers, which other work on the machine does not lengthen. The time is split into
reading (decode and check), replay and the rest. Then a trace of many tiny parts is swept, by a
cluster and by threads: what a part costs. What 64 and 1,024 cores would do is modelled: the
processor time of a billion accesses divided by the cores.
"""

import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
from machine import describe_machine, describe_versions

from hisparse_sim.simulator.replay import replay_part, sweep
from hisparse_sim.simulator.replay.workers import Workers
from hisparse_sim.traces import Demand, Metadata, TraceWriter, open_trace

RESULT = Path(__file__).parent / "results" / "cluster-scaling.json"
TOP_K, PROMPT, STEPS, BUFFER = 2048, 100_000, 2000, 4096
GIB = 1 << 30


def demand(request: str, steps: int, top_k: int, prompt: int, seed: int) -> Demand:
    """Return rows of distinct random positions: one of every stretch of the prompt."""
    stretch = prompt // top_k
    starts = stretch * np.arange(top_k, dtype=np.int32)
    shifts = np.random.default_rng(seed).integers(0, stretch, (steps, top_k), np.int32)
    step = np.arange(steps, dtype=np.int32)
    offsets = top_k * np.arange(steps + 1, dtype=np.int64)
    positions = (starts + shifts).astype(np.int32).ravel()
    return Demand(request, 0, prompt, step, prompt + 1 + step, offsets, positions)


def write_trace(path: Path, parts: Iterator[Demand], top_k: int, least_bytes: float) -> None:
    """Write parts until the file has so many bytes."""
    about = Metadata(model="made", provenance="synthetic", top_k=top_k, num_layers=1)
    with TraceWriter(path, about) as writer:
        for part in parts:
            writer.write(part)
            written = next(path.parent.glob(f".{path.stem}-*")).stat().st_size
            if written >= least_bytes:
                break


@contextmanager
def local_workers(count: int, limit: str | int = "1GB") -> Iterator[tuple[Workers, Any]]:
    """Yield workers of one thread each and their client."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            memory_limit=limit,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(warm)
        yield Workers(client.get_executor(pure=False), count), client


def warm() -> None:
    """Import and compile what a replay needs."""
    from hisparse_sim.policies import get_policy
    from hisparse_sim.simulator.replay.sweeping import prepare

    prepare([get_policy("lru")])


def used() -> tuple[float, float]:
    """Return the processor time of this process in seconds, and its largest memory in GiB."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime, own.ru_maxrss * 1024 / GIB


def timed(workers: Workers, client: Any, trace: Any, requests: list[str]) -> dict[str, Any]:
    """Sweep some requests by LRU."""
    before = client.run(used)
    begin = time.perf_counter()
    swept = sweep(
        trace, ["lru"], [BUFFER], compare_min=False, requests=requests,
        executor=workers.executor, jobs=workers.threads,
    )  # fmt: skip
    wall_s = time.perf_counter() - begin
    after = client.run(used)
    return {
        "workers": workers.threads,
        "requests": len(requests),
        "accesses": int(swept.rows["accesses"].sum()),
        "wall_s": round(wall_s, 2),
        "worker_cpu_s": round(sum(after[one][0] - before[one][0] for one in after), 2),
        "largest_worker_gib": round(max(memory for _, memory in after.values()), 3),
    }


def split(trace: Any, parts: int) -> dict[str, float]:
    """Return the processor time of reading and of replaying a billion accesses, in this process."""
    from hisparse_sim.policies import get_policy

    lru = get_policy("lru")
    replay_part(trace.read(trace.parts[0]), lru, BUFFER)  # what only the first one costs
    reading = replaying = 0.0
    # One after the other as a worker does it, so that memory is used again.
    for part in trace.parts[:parts]:
        begin = time.process_time()
        demand = trace.read(part)
        between = time.process_time()
        replay_part(demand, lru, BUFFER)
        reading += between - begin
        replaying += time.process_time() - between
    accesses = sum(part.rows for part in trace.parts[:parts]) * TOP_K / 1e9
    return {
        "reading_cpu_s_per_billion": round(reading / accesses, 2),
        "replay_cpu_s_per_billion": round(replaying / accesses, 2),
    }


def many_parts(folder: Path, count: int) -> dict[str, Any]:
    """Sweep a trace of so many parts of one step."""
    path = folder / "many.parquet"
    write_trace(
        path, (demand(str(number), 1, 8, 64, number) for number in range(count)), 8, float("inf")
    )
    begin, begin_cpu = time.perf_counter(), time.process_time()
    trace = open_trace(path)
    found: dict[str, Any] = {"parts": count, "open_s": round(time.perf_counter() - begin, 2)}
    for name in ("threads", "2 workers"):
        with local_workers(2, 0) as (workers, client):
            if name == "2 workers":
                client.run(open_trace, path)
            given = {"executor": workers.executor} if name == "2 workers" else {}
            begin, begin_cpu = time.perf_counter(), time.process_time()
            sweep(trace, ["lru"], [16], compare_min=False, **given)
            found[name] = {
                "wall_s": round(time.perf_counter() - begin, 2),
                "client_cpu_s": round(time.process_time() - begin_cpu, 2),
                "client_cpu_us_per_part": round((time.process_time() - begin_cpu) / count * 1e6),
            }
    return found


def modelled(cpu_s_per_billion: float, cores: int) -> dict[str, float]:
    """What so many cores would take for a billion accesses, if nothing is shared but the client."""
    return {"cores": cores, "s_per_billion_accesses": round(cpu_s_per_billion / cores, 4)}


@click.command()
@click.option("--gb", default=5.0, show_default=True)
@click.option("--parts", default=100_000, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=RESULT)
def main(gb: float, parts: int, output: Path) -> None:
    """Measure all, write the result."""
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
    try:
        path = folder / "large.parquet"
        source = (demand(f"r{n}", STEPS, TOP_K, PROMPT, n) for n in range(10**6))
        write_trace(path, source, TOP_K, gb * 1e9)
        trace = open_trace(path)
        print(f"made {trace.size_bytes / 1e9:.2f} GB, {len(trace.parts)} parts", flush=True)
        requests = list(trace.requests)
        eighth = requests[: max(2, len(requests) // 8 // 2 * 2)]
        runs = {}
        with local_workers(2) as (workers, client):
            runs["whole"] = timed(workers, client, trace, requests)
            print(runs["whole"], flush=True)
            runs["share, 2 workers"] = timed(workers, client, trace, eighth)
        with local_workers(1) as (workers, client):
            runs["share, 1 worker"] = timed(workers, client, trace, eighth)
            runs["half of the share, 1 worker"] = timed(
                workers, client, trace, eighth[: len(eighth) // 2]
            )
        costs = split(trace, 32)
        whole = runs["whole"]
        total = whole["worker_cpu_s"] / whole["accesses"] * 1e9
        costs["all_cpu_s_per_billion"] = round(total, 2)
        costs["scheduling_cpu_s_per_billion"] = round(
            max(
                0.0, total - costs["reading_cpu_s_per_billion"] - costs["replay_cpu_s_per_billion"]
            ),
            2,
        )
        print(costs, flush=True)
        result = {
            "what": "measured, but for `modelled`",
            "machine": describe_machine(),
            "versions": describe_versions(
                "hisparse-sim", "distributed", "numba", "numpy", "pyarrow"
            ),
            "trace_gb": round(trace.size_bytes / 1e9, 2),
            "trace_parts": len(trace.parts),
            "worker_limit_gb": 1,
            "runs": runs,
            "costs": costs,
            "many_parts": many_parts(folder, parts),
            "modelled": [modelled(total, cores) for cores in (64, 1024)],
        }
    finally:
        shutil.rmtree(folder)
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
