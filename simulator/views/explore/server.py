"""A server for one page and its answers, on this machine only."""

import json
import secrets
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hisparse_sim.simulator.views.explore.calculator import Calculator

HOST = "127.0.0.1"


class Server(ThreadingHTTPServer):
    """Serves `page` at /, and /answer for a choice, to who knows the token in its `url`."""

    daemon_threads = True

    def __init__(self, page: str, calculator: Calculator, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.page, self.calculator = page.encode("utf-8"), calculator
        self.token = secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/?token={self.token}"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "hisparse-sim", ""
    timeout = 30  # s, for a client that sends nothing

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        try:
            asked = parse_qs(parts.query, max_num_fields=16)
        except ValueError:
            return self._send(400, "text/plain", b"too many fields\n")
        given = {name: values[0] for name, values in asked.items()}
        host = f"{HOST}:{self.server.server_port}"
        known = compare_digest(given.get("token", "").encode(), self.server.token.encode())
        if self.headers.get("Host") != host or not known:  # another page, by another name
            return self._send(403, "text/plain", b"open the address that the command printed\n")
        if parts.path == "/":
            return self._send(200, "text/html; charset=utf-8", self.server.page)
        if parts.path != "/answer":
            return self._send(404, "text/plain", b"not found\n")
        try:
            found: Any = self.server.calculator.answer(self.server.calculator.choice(given))
        except ValueError as error:
            return self._send(400, "text/plain; charset=utf-8", f"{error}\n".encode())
        return self._send(200, "application/json", json.dumps(found).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the address has the token."""
