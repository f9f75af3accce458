"""Tiny SGLang servers, with and without `hisparse-sim engine run`, and what is asked of them."""

import base64
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass, field
from pathlib import Path

WORK = Path(os.environ.get("IN_ENGINE", "."))
TOP_K, BUFFER = 2048, 4096
FIRST_PORT = 30100


def make_model(bundle, name, source, **changes):
    """The folder of a model with random weights: a config and a tokenizer."""
    folder = WORK / "models" / name
    folder.mkdir(parents=True, exist_ok=True)
    config = {**json.loads((bundle / "models" / f"{source}.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundle / "models" / file, folder)
    return folder


@dataclass
class Server:
    """A server; `plugin` are the options of `engine run`, none if it is started plainly."""

    name: str
    model: Path
    plugin: tuple = ()
    hisparse: bool = True
    ratio: int = 4
    fp8: bool = False
    tokens: int = 32768
    more: tuple = ()
    environment: dict = field(default_factory=dict)
    port: int = field(init=False)
    process: subprocess.Popen = field(init=False)

    count = 0

    def start(self):
        self.port = FIRST_PORT + Server.count
        Server.count += 1
        backend = "flashmla_kv" if self.fp8 else "flashmla_sparse"
        command = ["python3", "-m", "sglang.launch_server", "--model-path", str(self.model)]
        command += f"--load-format dummy --host 127.0.0.1 --port {self.port}".split()
        command += f"--attention-backend dsa --dsa-prefill-backend {backend}".split()
        command += f"--dsa-decode-backend {backend} --page-size 64 --disable-radix-cache".split()
        command += f"--kv-cache-dtype {'fp8_e4m3' if self.fp8 else 'bfloat16'}".split()
        command += "--grammar-backend none --sampling-backend pytorch".split()
        command += "--disable-prefill-cuda-graph --cuda-graph-max-bs-decode 8".split()
        command += "--max-running-requests 16 --mem-fraction-static 0.3".split()
        command += "--skip-server-warmup --watchdog-timeout 900".split()
        command += f"--max-total-tokens {self.tokens}".split()
        if self.hisparse:
            sizes = {"top_k": TOP_K, "device_buffer_size": BUFFER}
            sizes["host_to_device_ratio"] = self.ratio
            command += ["--enable-hisparse", "--hisparse-config", json.dumps(sizes)]
        command += self.more
        if self.plugin:
            run = ["python3", "-m", "hisparse_sim.cli", "engine", "run", *self.plugin, "--"]
            command = run + command
        log = (WORK / f"{self.name}.log").open("wb")
        self.process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **self.environment},
        )

    def wait(self, seconds):
        """Seconds until it answers; raises RuntimeError with the end of its log."""
        began = time.time()
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=3):
                    return time.time() - began
            except OSError:
                if self.process.poll() is not None or time.time() - began > seconds:
                    raise RuntimeError(f"{self.name} is not ready: {self.log()[-1500:]}") from None
                time.sleep(0.5)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def log(self):
        return (WORK / f"{self.name}.log").read_text(errors="replace")

    def stop(self):
        """End it as an operator would; what hangs for half a minute is killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        return self.process.returncode

    def ask(self, tokens, new, *, topk=False, abort_s=None, name=None):
        """The answer to one request, greedy; aborted after some seconds if `abort_s` says so."""
        sampling = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": tokens, "sampling_params": sampling}
        if topk:
            body["return_indexer_topk"] = True
        name = name or uuid.uuid4().hex
        timer = threading.Timer(abort_s or 0, self.post, ("abort_request", {"rid": name}))
        if abort_s is not None:
            timer.start()
        try:
            return json.loads(self.post("generate", {**body, "rid": name}))
        except urllib.error.HTTPError:
            if abort_s is None:
                raise
            return None  # aborted before it began
        finally:
            timer.cancel()

    def post(self, path, body, timeout=240):
        """The body of an answer, bytes."""
        with urllib.request.urlopen(post(self.url, body, path), timeout=timeout) as answer:
            return answer.read()


def post(url, body, path="generate"):
    kind = {"Content-Type": "application/json"}
    return urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), kind)


def prompt(length, seed):
    draw = random.Random(seed)
    return [draw.randrange(2, 258) for _ in range(length)]


def topk_of(answer, layers):
    """[prompt + new - 1, layers, TOP_K] of an answer."""
    import numpy as np

    raw = base64.b64decode(answer["meta_info"]["indexer_topk"])
    return np.frombuffer(raw, "<i4").reshape(-1, layers, TOP_K)


def together(calls, at_once):
    """Run calls, so many at once; returns their results in order. Raises the first error."""
    results, errors, lock = [None] * len(calls), [], threading.Lock()
    waiting = list(enumerate(calls))

    def work():
        while True:
            with lock:
                if not waiting or errors:
                    return
                index, call = waiting.pop(0)
            try:
                results[index] = call()
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def ms_per_token(server, batch, new, length):
    """Median over the batch of milliseconds per token while all its requests decode, by streams."""
    seen = [[] for _ in range(batch)]

    def stream(i):
        sampling = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": prompt(length, 77 + i), "stream": True, "sampling_params": sampling}
        with urllib.request.urlopen(post(server.url, body), timeout=240) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    done = json.loads(line[6:])["meta_info"]["completion_tokens"]
                    seen[i].append((time.perf_counter(), done))

    together([lambda i=i: stream(i) for i in range(batch)], batch)
    first, last = max(s[0][0] for s in seen), min(s[-1][0] for s in seen)
    found = []
    for times in seen:
        steady = [each for each in times if first <= each[0] <= last]
        (begin, few), (end, many) = steady[0], steady[-1]
        found.append(1e3 * (end - begin) / (many - few))
    return sorted(found)[len(found) // 2]


def profile(server, folder, steps=10):
    """The path of a trace of the GPU during some decode steps of one request."""
    folder.mkdir()
    running = threading.Thread(
        target=server.ask, args=(prompt(8000, 5), 4000), kwargs={"abort_s": 20}
    )
    running.start()
    time.sleep(2)  # the prompt is done
    wanted = {"output_dir": str(folder), "num_steps": steps, "activities": ["GPU"]}
    server.post("start_profile", wanted)
    found = []
    for _ in range(200):
        if found := list(folder.glob("*.trace.json.gz")):
            break
        time.sleep(0.1)
    server.post("abort_request", {"abort_all": True})
    running.join()
    if not found:
        raise RuntimeError("the profiler wrote nothing")
    time.sleep(0.5)  # until it is whole
    return found[0]
