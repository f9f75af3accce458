"""Proves `engine run` and `engine check` in real servers: prove.py BUNDLE RESULTS [agree] [time].

Run by prove.sh; writes RESULTS/in-engine-PART.json and the servers' logs.

agree: recorded servers with CUDA graphs, the engine's kernel and ours, bf16 and fp8, shared layers,
requests that join, leave and are aborted; `engine check` on each; the recorded trace against the
answers over HTTP, row by row; token ids of both kernels.
time: milliseconds per token, 48 layers, prompts of 8,000: without HiSparse, with it, with counters,
with a recording, with our kernel.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from servers import WORK, Server, make_model, ms_per_token, prompt, together, topk_of

READY_S = 240
T0 = time.time()


def say(*words):
    print(f"[{time.time() - T0:.0f} s]", *words, flush=True)


def up(servers):
    for server in servers:
        server.start()
    for server in servers:
        say(server.name, f"ready after {server.wait(READY_S):.0f} s")


def down(servers, results):
    found = {}
    for server, status in zip(servers, together([s.stop for s in servers], 8), strict=True):
        log = server.log()
        shutil.copy(WORK / f"{server.name}.log", results)
        faults = re.findall(r"hisparse-sim.* is off.*", log)
        found[server.name] = {"status": status, "plugin_faults": faults[:3]}
        say(server.name, found[server.name])
    return found


def checked(folder):
    """What `engine check` says of a folder, and its summary."""
    done = subprocess.run(
        [sys.executable, "-m", "hisparse_sim.cli", "engine", "check", str(folder)],
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    summary = json.loads((folder / "engine.json").read_text())
    process = summary["processes"][0]
    say(folder.name, lines[-1:] or done.stderr[-300:])
    return {
        "exit": done.returncode,
        "verdict": lines[-1] if lines else done.stderr[-300:],
        "first_differing": [line for line in lines if "differ, first" in line][:3],
        "steps": process.get("steps"),
        "misses": sum(layer["misses"] for layer in process.get("by_layer", [])),
        "recorded": {**summary["recorded"], "files": len(summary["recorded"]["files"])},
        "faults": summary["faults"],
    }


def load(server, requests, seed, at_once=6):
    """Requests of many lengths that join and leave; every seventh is abandoned on the way."""
    draw = random.Random(seed)
    calls = []
    for i in range(requests):
        length, new = draw.randrange(2300, 9000), draw.randrange(40, 220)
        abandon_s = 1.0 if i % 7 == 6 else None
        calls.append(
            lambda i=i, length=length, new=new, abandon_s=abandon_s: server.ask(
                prompt(length, seed + i), new, abandon_s=abandon_s
            )
        )
    return sum(answer is not None for answer in together(calls, at_once))


def equal_to_http(server, folder, layers, jobs):
    """Rows of answers over HTTP that the recording has as well: compared, and different."""
    from hisparse_sim.traces import open_trace

    answers = together(
        [
            lambda i=i, job=job: server.ask(
                prompt(job[0], 900 + i), job[1], topk=True, name=f"http{i}"
            )
            for i, job in enumerate(jobs)
        ],
        len(jobs),
    )
    server.stop()
    recorded = {}
    for path in sorted(folder.glob("request-*.parquet")):
        trace = open_trace(path)
        recorded[trace.parts[0].request] = trace
    rows = different = 0
    for i, (length, _) in enumerate(jobs):
        wanted = topk_of(answers[i], layers)
        trace = recorded[f"http{i}"]
        for part in trace.parts:
            demand = trace.read(part)
            for step in range(len(wanted) - length):  # the recording has one step more
                row = wanted[length + step, part.layer]
                rows += 1
                different += not np.array_equal(demand.row(step), row[row >= 0])
    return {"rows": rows, "different": different}


def agree(bundle, results):
    deepseek = make_model(bundle, "deepseek", "deepseek")
    glm = make_model(bundle, "glm", "glm")
    rings = ("--host-ring-mib", "1024", "--device-ring-mib", "256")

    def record(name, *more):
        return ("--record", str(WORK / f"rec-{name}"), *rings, *more)

    native = ("--kernel", "native")
    torch_topk = ("--dsa-topk-backend", "torch")
    http = Server(
        "http", deepseek, record("http"), more=("--enable-return-indexer-topk",), tokens=65536
    )
    servers = [
        Server("sglang", deepseek, record("sglang")),
        Server("native", deepseek, record("native", *native)),
        Server("glm", glm, record("glm", *native)),
        Server("fp8", deepseek, record("fp8", *native), fp8=True),
        http,
        Server("ids-sglang", deepseek, ("--count",), more=torch_topk),
        Server("ids-native", deepseek, ("--count", *native), more=torch_topk),
    ]
    up(servers)
    answered = together(
        [lambda s=s: load(s, 160 if s.name == "native" else 20, 50) for s in servers[:4]], 4
    )
    say("answered", answered)
    found = {"answered": dict(zip((s.name for s in servers[:4]), answered, strict=True))}
    found["http"] = equal_to_http(http, WORK / "rec-http", 4, [(2300, 60), (5000, 60), (6000, 40)])
    ids = [
        [s.ask(prompt(n, n), 100)["output_ids"] for n in (3000, 6000, 8000)] for s in servers[5:]
    ]
    found["token_ids"] = {"answers": len(ids[0]), "equal": ids[0] == ids[1]}
    say(found)
    found["servers"] = down(servers, results)
    found["checked"] = {s.name: checked(WORK / f"rec-{s.name}") for s in servers[:5]}
    return found


def times(bundle, results):
    deep = make_model(bundle, "deep", "deepseek", num_hidden_layers=48, first_k_dense_replace=48)
    native = ("--kernel", "native")

    def server(name, plugin=(), **more):
        return Server(name, deep, plugin, ratio=2, **{"tokens": 65536, **more})

    record = ("--record", str(WORK / "rec-time"), "--host-ring-mib", "2048", "--max-gib", "40")
    servers = [
        server("none", hisparse=False, tokens=131072),
        server("sglang"),
        server("sglang-counted", ("--count",)),
        server("sglang-recorded", record),
        server("native", native),
        server("native-counted", ("--count", *native)),
    ]
    up(servers)
    found = {s.name: {1: [], 8: []} for s in servers}
    # In turns, so that a drift of the machine meets all alike; the first warms up.
    for turn in range(4):
        for s in servers:
            for batch in (1, 8):
                ms = ms_per_token(s, batch, 120 if turn else 16, 8000)
                if turn:
                    found[s.name][batch].append(round(ms, 4))
        say("turn", turn, {name: {b: t[-1:] for b, t in by.items()} for name, by in found.items()})
    added = {
        name: {b: round(np.median(by[b]) - np.median(found["none"][b]), 4) for b in by}
        for name, by in found.items()
    }
    return {
        "ms_per_token": found,
        "added_by_hisparse_ms": added,
        "native_over_sglang": {
            b: round(added["native"][b] / added["sglang"][b], 3) for b in (1, 8)
        },
        "counting_costs": {
            of: {
                b: round(np.median(found[f"{of}-counted"][b]) / np.median(found[of][b]) - 1, 4)
                for b in (1, 8)
            }
            for of in ("sglang", "native")
        },
        "recording_costs": {
            b: round(np.median(found["sglang-recorded"][b]) / np.median(found["sglang"][b]) - 1, 4)
            for b in (1, 8)
        },
        "servers": down(servers, results),
        "checked": checked(WORK / "rec-time"),
    }


def main():
    bundle, results = Path(sys.argv[1]), Path(sys.argv[2])
    import torch

    settings = {k: v for k, v in os.environ.items() if k.startswith(("SGLANG_", "TORCHDYN"))}
    about = {
        "gpu": torch.cuda.get_device_name(0),
        "cuda": torch.version.cuda,
        **{name: version(name) for name in ("torch", "transformers", "sglang", "hisparse-sim")},
        "environment": settings,
    }
    for part in sys.argv[3:] or ["agree", "time"]:
        began = time.time()
        found = {"agree": agree, "time": times}[part](bundle, results)
        out = {"machine": about, "seconds": round(time.time() - began), **found}
        (results / f"in-engine-{part}.json").write_text(json.dumps(out, indent=1) + "\n")
        say(part, "done")


if __name__ == "__main__":
    main()
