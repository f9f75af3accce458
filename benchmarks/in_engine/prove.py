"""Proves `engine run` and `engine check` in real servers: prove.py BUNDLE RESULTS [agree] [time].

Run by prove.sh; writes RESULTS/in-engine-PART.json and the servers' logs.

agree: recorded servers with CUDA graphs, the engine's kernel and ours, bf16 and fp8, shared layers,
requests that join, leave, are aborted and retracted; `engine check` on each; a recorder that is
stopped, a full disk, a killed server; the recorded trace against the answers over HTTP, row by row;
the metrics; token ids of both kernels.
time: milliseconds per token, 48 layers, prompts of 8,000: without HiSparse, with it, with counters,
with a recording, with our kernel; and profiles of three of these servers.
"""

import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
import traceback
import urllib.request
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from servers import WORK, Server, make_model, ms_per_token, profile, prompt, together, topk_of

READY_S = 240
T0 = time.time()
SMALL_DISK_MIB = 40
HTTP_JOBS = [(2300, 60), (5000, 60), (6000, 40)]


def say(*words):
    print(f"[{time.time() - T0:.0f} s]", *words, flush=True)


def up(servers):
    """Start them; returns those that answer."""
    ready = []
    for server in servers:
        server.start()
    for server in servers:
        try:
            say(server.name, f"ready after {server.wait(READY_S):.0f} s")
            ready.append(server)
        except RuntimeError as error:
            say(error)
    return ready


def down(servers, results):
    found = {}
    for server, status in zip(servers, together([s.stop for s in servers], 8), strict=True):
        log = server.log()
        faults = re.findall(r"hisparse-sim.* is off.*", log)
        errors = [line for line in log.splitlines() if "Traceback" in line]
        retracted = [int(n) for n in re.findall(r"#retracted_reqs: (\d+)", log)]
        found[server.name] = {
            "status": status,
            "plugin_faults": faults[:3],
            "tracebacks": len(errors),
            "retracted": sum(retracted),
        }
        say(server.name, found[server.name])
    return found


def keep_logs(servers, results, part):
    with tarfile.open(results / f"logs-{part}.txz", "w:xz") as kept:
        for server in servers:
            kept.add(WORK / f"{server.name}.log", f"{server.name}.log")


def checked(folder):
    """What `engine check` says of a folder, and its summary."""
    done = subprocess.run(
        [sys.executable, "-m", "hisparse_sim.cli", "engine", "check", str(folder)],
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    summary = json.loads(folder.with_suffix(".json").read_text())
    process = summary["processes"][0]
    by_layer = process.get("by_layer", [])
    counted = [
        sum(pq.read_table(path, columns=["misses"])["misses"].to_pylist())
        for path in folder.glob("counted/*.parquet")
    ]
    say(folder.name, lines[-1:] or done.stderr[-300:])
    return {
        "exit": done.returncode,
        "verdict": lines[-1] if lines else done.stderr[-300:],
        "first_differing": [line for line in lines if "differ, first" in line][:3],
        "steps_counted": process.get("steps"),
        "misses_counted": sum(layer["misses"] for layer in by_layer),
        "misses_of_recorded_calls": sum(counted),
        "requests_ended": process.get("requests_ended"),
        "recorded": {**summary["recorded"], "files": len(summary["recorded"]["files"])},
        "faults": summary["faults"],
    }


def load(server, requests, seed, at_once=6, seconds=None):
    """Requests of many lengths that join and leave; every seventh is aborted on the way.

    No new ones begin after `seconds`. Returns answers by the reason why they ended.
    """
    draw = random.Random(seed)
    began = time.time()
    calls = []
    for i in range(requests):
        length, new = draw.randrange(2300, 9000), draw.randrange(40, 220)
        abort_s = draw.uniform(0.3, 1.5) if i % 7 == 6 else None

        def call(i=i, length=length, new=new, abort_s=abort_s):
            if seconds is not None and time.time() - began > seconds:
                return "not sent"
            answer = server.ask(prompt(length, seed + i), new, abort_s=abort_s)
            if answer is None:
                return "abort"
            return answer["meta_info"]["finish_reason"]["type"]

        calls.append(call)
    return dict(Counter(together(calls, at_once)))


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
    time.sleep(2)
    recorded = {}
    for path in sorted(folder.glob("request-*.parquet")):
        trace = open_trace(path)
        recorded[trace.parts[0].request] = trace
    rows = different = wasted = 0
    for i, (length, new) in enumerate(jobs):
        wanted = topk_of(answers[i], layers)
        trace = recorded[f"http{i}"]
        for part in trace.parts:
            demand = trace.read(part)
            wasted += len(demand.seq_len) - (new - 1)
            for step in range(new - 1):
                row = wanted[length + step, part.layer]
                rows += 1
                different += not np.array_equal(demand.row(step), row[row >= 0])
    return {"rows": rows, "different": different, "steps_behind_the_answer": wasted}


def metrics_of(server):
    """Sums over layers of the plugin's metrics, as the server shows them."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    found = Counter()
    for name, value in re.findall(r"^(sglang:hisparse_\w+)\{.*\} (\S+)$", text, re.M):
        found[name] += float(value)
    return {name: int(value) for name, value in found.items()}


def recorders(server):
    """Process numbers of what records in a server's folder: of its scheduler, and of engine run."""
    folder = WORK / f"rec-{server.name}"
    paths = folder.glob("events-*.jsonl")
    return [int(p.stem.split("-")[1]) for p in paths], server.process.pid


def strain(server):
    """A disk that stands still for some seconds, and then is full."""
    began = time.time()
    late = threading.Timer(4, os.kill, (server.process.pid, signal.SIGSTOP))
    again = threading.Timer(10, os.kill, (server.process.pid, signal.SIGCONT))
    late.start()
    again.start()
    return {"answered": load(server, 1000, 70, seconds=22), "seconds": round(time.time() - began)}


def killed(server):
    """The scheduler is killed while it decodes."""
    (scheduler,), _ = recorders(server)
    threading.Timer(6, os.kill, (scheduler, signal.SIGKILL)).start()
    try:
        load(server, 100, 60)
    except (OSError, http.client.HTTPException) as error:
        return f"killed: {type(error).__name__}"
    return "not killed"


def small_disk(folder):
    """A file system of a few MiB for the folder, if this user may mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    size = f"size={SMALL_DISK_MIB}m"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)])
    return done.returncode == 0


def agree(bundle, results):
    deepseek = make_model(bundle, "deepseek", "deepseek")
    glm = make_model(bundle, "glm", "glm")
    rings = ("--host-ring-mib", "512", "--device-ring-mib", "128")

    def record(name, *more, rings=rings):
        folder = WORK / f"rec-{name}"
        return ("--record", str(folder), *rings, *more, "-o", str(folder.with_suffix(".json")))

    native = ("--kernel", "native")
    torch_topk = ("--dsa-topk-backend", "torch", "--enable-metrics")
    retract = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "97"}
    fused = {"SGLANG_DSA_FUSE_TOPK": "1"}
    mounted = small_disk(WORK / "rec-strained")
    small = ("--host-ring-mib", "8", "--device-ring-mib", "8")
    same_ids = {"more": torch_topk, "environment": retract}
    sglang = Server("sglang", deepseek, record("sglang"), **same_ids)
    ours = Server("native", deepseek, record("native", *native), **same_ids)
    returned = ("--enable-return-indexer-topk",)
    over_http = Server("http", deepseek, record("http"), more=returned, tokens=65536)
    strained = Server("strained", deepseek, record("strained", rings=small))
    servers = [
        sglang,
        ours,
        Server("glm", glm, record("glm", *native), environment={**retract, **fused}),
        Server("glm-sglang", glm, record("glm-sglang"), environment=retract),
        Server("fp8", deepseek, record("fp8", *native), fp8=True, environment=retract),
        over_http,
        strained,
    ]
    ready = up(servers)
    found = {"small_disk": mounted, "ready": [s.name for s in ready]}

    def ids(server):
        return [server.ask(prompt(n, n), 100)["output_ids"] for n in (3000, 6000, 8000)]

    def part(name, call, *arguments):
        try:
            found[name] = call(*arguments)
        except Exception as error:
            found[name] = f"failed: {type(error).__name__}: {error}"
        say(name, found[name])

    def token_ids():
        ones, others = together([lambda: ids(sglang), lambda: ids(ours)], 2)
        return {"answers": len(ones), "equal": ones == others}

    part("token_ids", token_ids)
    loads = {"native": 700, "fp8": 350, "glm": 350, "sglang": 150, "glm-sglang": 150}
    together(
        [
            lambda s=s: part(f"load {s.name}", load, s, loads[s.name], 50, 6, 60)
            for s in ready
            if s.name in loads
        ]
        + [
            lambda: part("http", equal_to_http, over_http, WORK / "rec-http", 4, HTTP_JOBS),
            lambda: part("strain", strain, strained),
        ],
        7,
    )
    part("killed", killed, over_http)
    time.sleep(1.5)  # the counts are written once a second
    for server in (sglang, ours):
        part(f"metrics {server.name}", metrics_of, server)
    found["servers"] = down(ready, results)
    keep_logs(servers, results, "agree")

    def verdict(server):
        try:
            return checked(WORK / f"rec-{server.name}")
        except Exception as error:
            return f"failed: {type(error).__name__}: {error}"

    verdicts = together([lambda s=s: verdict(s) for s in ready], 7)
    found["checked"] = dict(zip((s.name for s in ready), verdicts, strict=True))
    return found


TURNS, NEW = 5, 120
PROFILED = ("none", "sglang", "native")
SIZES = (1, 8)


def times(bundle, results):
    deep = make_model(bundle, "deep", "deepseek", num_hidden_layers=48, first_k_dense_replace=48)
    native = ("--kernel", "native")

    def server(name, plugin=(), **more):
        return Server(name, deep, plugin, ratio=2, **{"tokens": 49152, **more})

    record = ("--record", str(WORK / "rec-time"), "--host-ring-mib", "2048")
    record += ("--max-gib", "40", "-o", str(WORK / "rec-time.json"))
    servers = up(
        [
            server("none", hisparse=False, tokens=98304),
            server("sglang"),
            server("sglang-counted", ("--count",)),
            server("sglang-recorded", record),
            server("native", native),
            server("native-counted", ("--count", *native)),
        ]
    )
    ms = {s.name: {b: [] for b in SIZES} for s in servers}
    # In turns, so that a drift of the machine meets all alike; the first warms up.
    for turn in range(TURNS + 1):
        for s in servers:
            for b in SIZES:
                found = ms_per_token(s, b, NEW if turn else 16, 8000)
                if turn:
                    ms[s.name][b].append(round(found, 4))
        say("turn", turn, {name: [by[b][-1:] for b in SIZES] for name, by in ms.items()})
    median = {name: {b: float(np.median(by[b])) for b in by} for name, by in ms.items()}
    added = {
        name: {b: round(by[b] - median["none"][b], 4) for b in by} for name, by in median.items()
    }

    def cost(name, of):
        return {b: round(median[name][b] / median[of][b] - 1, 4) for b in SIZES}

    out = {
        "prompt": 8000,
        "new_tokens": NEW,
        "ms_per_token": ms,
        "added_by_hisparse_ms": added,
        "added_over_that_of_sglang": {
            name: {b: round(by[b] / added["sglang"][b], 3) for b in SIZES}
            for name, by in added.items()
        },
        "counting_costs": {of: cost(f"{of}-counted", of) for of in ("sglang", "native")},
        "recording_costs": cost("sglang-recorded", "sglang"),
    }
    say(out)
    with tarfile.open(results / "profiles.tar", "w") as kept:
        for s in servers:
            if s.name in PROFILED:
                try:
                    kept.add(profile(s, WORK / f"profile-{s.name}"), f"{s.name}.json.gz")
                except (OSError, RuntimeError) as error:
                    say("no profile of", s.name, error)
    out["servers"] = down(servers, results)
    keep_logs(servers, results, "time")
    out["checked"] = checked(WORK / "rec-time")
    return out


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
    failed = False
    for part in sys.argv[3:] or ["agree", "time"]:
        began = time.time()
        try:
            found = {"agree": agree, "time": times}[part](bundle, results)
        except Exception:
            traceback.print_exc()
            failed = True
            continue
        out = {"machine": about, "seconds": round(time.time() - began), **found}
        (results / f"in-engine-{part}.json").write_text(json.dumps(out, indent=1) + "\n")
        say(part, "done")
    sys.exit(failed)


if __name__ == "__main__":
    main()
