"""Servers on loopback for tests of URLs: they keep what they were asked, and fail when told to."""

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str  # with the query
    headers: HTTPMessage
    body: bytes

    @property
    def range(self) -> str:
        return str(self.headers.get("Range", ""))


class Answer(NamedTuple):
    """What is answered to it."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Server(ThreadingHTTPServer):
    """A server for which a client that leaves is no error."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Loopback:
    """A server whose `answer` a subclass says; it counts, delays, cuts and refuses."""

    def __init__(self) -> None:
        self.forget()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                outer._handle(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def forget(self) -> None:
        """Forget what was asked, and the faults."""
        self.asked: list[Asked] = []
        self.bytes_read = 0
        self.delay_s = 0.0
        # Kind -> how many requests still meet it: those of a range, or of one of these methods.
        self.faults: dict[str, int] = {}
        self.faulty_methods: tuple[str, ...] = ()
        # Called with each request before that is answered.
        self.meanwhile: Callable[[Asked], None] | None = None

    def answer(self, asked: Asked) -> Answer:
        raise NotImplementedError

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length) if length else _chunks(handler)
        asked = Asked(handler.command, handler.path, handler.headers, body)
        self.asked.append(asked)
        meets = asked.method in self.faulty_methods if self.faulty_methods else bool(asked.range)
        fault = next((kind for kind, left in self.faults.items() if meets and left > 0), "")
        if fault:
            self.faults[fault] -= 1
        time.sleep(self.delay_s)
        if self.meanwhile is not None:
            self.meanwhile(asked)
        answer = Answer(int(fault)) if fault.isdigit() else self.answer(asked)
        if fault == "lost":  # it was done, and nobody hears of it
            answer = Answer(500)
        content = answer.body
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        if "content-length" not in map(str.lower, answer.headers):
            handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if asked.method == "HEAD":
            return
        if fault == "cut":
            handler.wfile.write(content[: len(content) // 2])
            handler.close_connection = True
            return
        if fault == "changed":
            content = content[:-1] + bytes([content[-1] ^ 1])
        self.bytes_read += len(content) * (asked.method == "GET")
        handler.wfile.write(content)


def _chunks(handler: BaseHTTPRequestHandler) -> bytes:
    """Read a body that comes in chunks, or none."""
    body = b""
    if handler.headers.get("Transfer-Encoding", "") == "chunked":
        while size := int(handler.rfile.readline(), 16):
            body += handler.rfile.read(size)
            handler.rfile.readline()
        handler.rfile.readline()
    return body


class Between(Loopback):
    """A server between client and another one."""

    def __init__(self, other: tuple[str, int]) -> None:
        super().__init__()
        self._other = other

    def answer(self, asked: Asked) -> Answer:
        connection = HTTPConnection(*self._other)
        headers = dict(asked.headers)
        if headers.pop("Transfer-Encoding", None):
            headers["Content-Length"] = str(len(asked.body))
        connection.request(asked.method, asked.path, asked.body, headers)
        found = connection.getresponse()
        body = found.read()
        connection.close()
        dropped = ("connection", "transfer-encoding", "server", "date")
        kept = {name: value for name, value in found.getheaders() if name.lower() not in dropped}
        return Answer(found.status, body, kept)


class Site(Loopback):
    """A web server of files, as its settings make it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = self.url
        self.files: dict[str, bytes] = {}  # by path
        self.moved: dict[str, str] = {}  # path -> where to
        self.ignores_ranges = False
        self.tells_sizes = True

    def push(self, name: str, content: bytes) -> None:
        self.files[f"/{name}"] = content

    def answer(self, asked: Asked) -> Answer:
        path = asked.path.partition("?")[0]
        if path in self.moved:
            return Answer(302, headers={"Location": self.moved[path]})
        if path.endswith("/"):
            return self._listing(path)
        if any(name.startswith(f"{path}/") for name in self.files):
            return Answer(301, headers={"Location": f"{path}/"})
        if path not in self.files:
            return Answer(404)
        return part(asked, self.files[path]) if not self.ignores_ranges else self._whole(path)

    def _whole(self, path: str) -> Answer:
        told = {} if self.tells_sizes else {"Content-Encoding": "gzip"}
        return Answer(200, self.files[path], told)

    def _listing(self, folder: str) -> Answer:
        below = [path.removeprefix(folder) for path in self.files if path.startswith(folder)]
        names = {re.sub("/.*", "/", name) for name in below}
        links = "".join(f'<a href="{name}">{name}</a>\n' for name in sorted(names))
        return Answer(200, links.encode(), {"Content-Type": "text/html"})


def part(asked: Asked, content: bytes, headers: Mapping[str, str] | None = None) -> Answer:
    """Return the bytes of a file that a request is for."""
    headers = {"ETag": f'"{hash(content):x}"', "Accept-Ranges": "bytes", **(headers or {})}
    if asked.method == "HEAD":
        return Answer(200, headers=headers | {"Content-Length": str(len(content))})
    if not (found := re.fullmatch(r"bytes=(\d+)-(\d+)", asked.range)):
        return Answer(200, content, headers)
    begin, last = map(int, found.groups())
    shown = f"bytes {begin}-{min(last, len(content) - 1)}/{len(content)}"
    return Answer(206, content[begin : last + 1], headers | {"Content-Range": shown})


@contextmanager
def serving(loopback: Loopback) -> Iterator[None]:
    """Answer requests until the block ends."""
    threading.Thread(target=loopback.server.serve_forever, args=(0.01,), daemon=True).start()
    yield
    loopback.server.shutdown()
    loopback.server.server_close()
