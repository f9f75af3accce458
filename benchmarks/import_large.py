"""Measure the memory that importing a huge answer takes: one of 10 GB by default.

    python benchmarks/import_large.py [GIGABYTES]

An answer as SGLang gives it for DeepSeek-V3.2 (61 layers of 2,048 positions, 501 decode steps after
a prompt as long as it takes) is written to a temporary file, which `trace convert` reads. Reported
is the most anonymous memory of the process; pages of files are the kernel's and not counted.
"""

import base64
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from hisparse_sim.traces import open_trace
from hisparse_sim.traces.importers.convert import convert

LAYERS, TOP_K = 61, 2048
DECODED = 501  # rows behind the prompt; it and the prompt are whole groups of three rows
ROW_BYTES = 4 * LAYERS * TOP_K  # divisible by 3 three rows at a time


def write_answer(path: Path, prompt_len: int) -> None:
    """Write the answer: a prompt of zeros, then rows of random positions."""
    about = f'"prompt_tokens": {prompt_len}, "completion_tokens": {DECODED + 1}'
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(b'{"text": "", "meta_info": {%s, "indexer_topk": "' % about.encode())
        zeros = base64.b64encode(bytes(3 * ROW_BYTES))
        for _ in range(prompt_len // 3):
            file.write(zeros)
        for _ in range(DECODED // 3):
            rows = random.integers(0, prompt_len - TOP_K, (3, LAYERS, 1), np.int32)
            block = (rows + np.arange(TOP_K, dtype=np.int32)).astype("<i4").tobytes()
            file.write(base64.b64encode(block))
        file.write(b'"}}')


def anonymous_bytes() -> int:
    """Return the anonymous resident memory of this process (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon in /proc/self/status")


def main(gigabytes: float) -> None:
    """Run it and print what it took."""
    rows = int(gigabytes * 1e9 * 3 / 4 / ROW_BYTES)
    prompt_len = (rows - DECODED) // 3 * 3
    if prompt_len <= TOP_K:
        raise SystemExit(f"{gigabytes} GB are too few for a prompt of {TOP_K} tokens")
    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "answer", Path(folder) / "trace.parquet"
        write_answer(source, prompt_len)
        before, peak, done = anonymous_bytes(), 0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.02):
                peak = max(peak, anonymous_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        begin = time.perf_counter()
        convert(source, target, "sglang", num_layers=LAYERS, top_k=TOP_K)
        seconds = time.perf_counter() - begin
        done.set()
        watcher.join()
        trace = open_trace(target)
        print(
            f"{gigabytes:g} GB of JSON, {trace.rows} rows written: {seconds:.0f} s, "
            f"{(peak - before) / 1e6:.0f} MB of memory at most"
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
