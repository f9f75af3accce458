"""A small server that speaks SGLang's protocol for returned top-k, and can misbehave."""

import base64
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from hisparse_sim.traces.capture.sglang import Model, Prompt

MODEL = Model("DeepSeek-V3.2", num_layers=3, top_k=4)
JSON = {"Content-Type": "application/json"}
# Faults that headers make: status, and the headers.
HEADERS: dict[str, tuple[int, dict[str, str]]] = {
    "busy": (429, {"Retry-After": "0.3"}),
    "starting": (503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    "redirect": (307, {"Location": "https://elsewhere/"}),
    "page": (200, {"Content-Type": "text/html; charset=utf-8"}),
    "packed": (200, {"Content-Encoding": "gzip"}),
}
PROMPTS = [Prompt("a", tuple(range(9))), Prompt("b", tuple(range(5))), Prompt("c", (7,) * 12)]
NEW_TOKENS = 6


def topk(prompt_len: int, output: int, seed: int) -> np.ndarray:
    """Return what the server answers: stale rows for the prompt, logical positions afterwards."""
    random = np.random.default_rng(seed)
    array = np.full((prompt_len + output - 1, MODEL.num_layers, MODEL.top_k), 123_456, np.int32)
    for row in range(prompt_len, len(array)):
        for layer in range(MODEL.num_layers):
            array[row, layer] = random.permutation(row + 1)[: MODEL.top_k]
    return array


class FakeServer(ThreadingHTTPServer):
    """`faults` maps a fault to how many requests it hits before the server behaves."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.active = self.most_active = 0
        self.output = NEW_TOKENS
        self.spoil: Callable[[int, np.ndarray], None] | None = None  # (prompt_len, rows)
        self.about: dict[str, Any] = {}  # more of meta_info
        self.release = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fault(self) -> str | None:
        with self.lock:
            for name in self.faults:
                if self.faults[name] > 0:
                    self.faults[name] -= 1
                    return name
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/tokenize":
            self.answer(json.dumps({"tokens": [len(word) for word in body["prompt"].split()]}))
            return
        server = self.server
        with server.lock:
            server.requests.append(body)
            server.active += 1
            server.most_active = max(server.most_active, server.active)
        try:
            self.generate(body)
        finally:
            with server.lock:
                server.active -= 1

    def generate(self, body: dict[str, Any]) -> None:
        fault = self.server.fault()
        ids = body["input_ids"]
        output = self.server.output
        array = topk(len(ids), output, sum(ids))
        if fault == "physical":
            array += 4096
        if self.server.spoil is not None:
            self.server.spoil(len(ids), array)
        if fault == "silent":
            self.server.release.wait(20)
            return
        if fault == "error":
            self.answer('{"error": "out of memory"}', 500)
            return
        if fault in HEADERS:
            self.answer(f'{{"error": "{fault}"}}', *HEADERS[fault])
            return
        if fault == "refused":
            self.answer('{"error": "unknown\\nfield"}', 400)
            return
        if fault == "wide":
            array = np.concatenate([array] * 2, axis=2)
        if fault == "narrow":
            array = array[:, :2]
        value = base64.b64encode(array.astype("<i4").tobytes()).decode()
        about: dict[str, Any] = {
            "id": "x", "prompt_tokens": len(ids), "completion_tokens": output,
            "indexer_topk": value, **self.server.about,
        }  # fmt: skip
        if fault == "no flag":
            del about["indexer_topk"]
        if fault == "null":
            about["indexer_topk"] = None
        if fault == "abort":
            about["finish_reason"] = {"type": "abort", "message": "out of\nmemory"}
            del about["indexer_topk"]
        if fault == "other count":
            about["prompt_tokens"] += 1
        text = json.dumps(
            {"text": 'an "indexer_topk": text', "output_ids": [1], "meta_info": about}
        )
        if fault == "no json":
            text = "<html>"
        if fault == "damaged":
            text = text.replace(value, value[:40] + "!" + value[41:])
        if fault in ("chunks", "cut chunks"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            whole = len(text) if fault == "chunks" else len(text) // 2
            for at in range(0, whole, 77):
                piece = text[at : at + 77].encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if fault == "chunks":
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.close_connection = True
            return
        cut = len(text) // 2 if fault == "cut" else None
        self.answer(text, cut=cut)

    def answer(
        self,
        text: str,
        status: int = 200,
        headers: Mapping[str, str] = JSON,
        cut: int | None = None,
    ) -> None:
        raw = text.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw[:cut])
        if cut is not None:
            self.close_connection = True


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()
