"""Decodes random requests, then ends: `python -m sglang.launch_server key=value...`.

steps, requests, layers, top_k, buffer, prompt: sizes; rows: requests at once; direct=1: that start;
kill=N: this process kills itself in step N; pause=S: seconds between steps; seed.
"""

import os
import signal
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch

from sglang.srt.plugins import load_plugins

SETTINGS = {
    "steps": 30, "requests": 3, "layers": 3, "top_k": 8, "buffer": 16, "prompt": 20, "rows": 2,
    "direct": 0, "kill": -1, "pause": 0.0, "seed": 0,
}  # fmt: skip


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word and word[0] != "-")
    s = SimpleNamespace(**{k: type(v)(given.get(k, v)) for k, v in SETTINGS.items()})
    load_plugins()
    from sglang.srt.managers.hisparse_coordinator import HiSparseCoordinator

    draw = np.random.default_rng(s.seed)
    coordinator = HiSparseCoordinator(s.layers, s.rows + 1, s.top_k, s.buffer)
    waiting = [
        SimpleNamespace(rid=f"r{i}", prompt_len=s.prompt + i, req_pool_idx=0, left=s.steps)
        for i in range(s.requests)
    ]
    running, free, step = [], list(range(s.rows, 0, -1)), 0
    while waiting or running:
        while waiting and free:
            request = waiting.pop(0)
            request.req_pool_idx, request.seq_len = free.pop(), request.prompt_len
            admit = (
                coordinator.admit_request_direct if s.direct else coordinator.alloc_device_buffer
            )
            admit(request)
            running.append(request)
        for request in running:
            request.seq_len += 1
        # As a graph for the next larger batch: rows behind the real ones are padding.
        rows = torch.tensor([r.req_pool_idx for r in running] + [0])
        lengths = torch.tensor([r.seq_len for r in running] + [1])
        coordinator.num_real_reqs.fill_(len(running))
        for layer in range(s.layers):
            top_k = torch.full((len(rows), s.top_k), -1, dtype=torch.int32)
            for i, request in enumerate(running):
                listed = draw.permutation(request.seq_len)[: s.top_k]
                top_k[i, : len(listed)] = torch.from_numpy(listed.astype(np.int32))
            coordinator.swap_in_selected_pages(rows, lengths, top_k, layer)
        for request in tuple(running):
            request.left -= 1
            if request.left == 0:
                coordinator.request_finished(request)
                free.append(request.req_pool_idx)
                running.remove(request)
        step += 1
        if step == s.kill:
            time.sleep(0.5)  # as long as the reading thread needs for what is there
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(s.pause)
    time.sleep(1.2)  # a server lives on; the counts are written once a second
    print("served")


if __name__ == "__main__":
    main()
