"""HTTP with an untrusted server: an answer must be complete in time, however it is sent.

The client is Python's own. httpx has no total deadline (an endless `100 Continue`, or a byte each
half second, holds `httpx.post(timeout=2)` for good) unless everything becomes a coroutine, and a GB
of an answer, of which a capture has a hundred, then takes 1.6 s of CPU instead of 0.2.
"""

import http.client
import io
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

from hisparse_sim.traces.errors import TraceError

LONGEST_TIMEOUT_S = 7 * 86_400.0

_CHUNK_BYTES = 1 << 20
_LONGEST_RETRY_AFTER_S = 600.0  # which a server asks for
_CONNECT_S = 30.0
_LARGEST_HEAD_BYTES = 1 << 20
_SLOWEST_BYTES_PER_S = 256 << 10  # of an answer, beside the time-out
_TEMPORARY = (408, 425, 429)  # and every 5xx


class Temporary(Exception):
    """A failure that may pass: the message says what happened."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        """`wait_s`: how long the server asks to be left alone."""
        super().__init__(message)
        self.wait_s = wait_s


class Unreachable(Temporary):
    """No server answers at the address."""


class _TimedOut(Temporary):
    """No answer, or not all of it, in time."""


class Stopped(Exception):
    """The capture was stopped while a request was under way."""


class Stop(threading.Event):
    """Set it to end every request at once, also one that waits for a silent server."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: set[http.client.HTTPConnection] = set()

    def set(self) -> None:
        """End the requests under way: their reads return at once."""
        super().set()
        for connection in list(self.connections):
            if connection.sock is not None:
                with suppress(OSError):
                    # Not TLS's own, which takes the state from under the thread that reads.
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


@dataclass(frozen=True)
class Server:
    """The address of the server, and the time-outs."""

    url: str
    api_key: str | None = None
    timeout_s: float = 600.0  # without a byte; for a whole answer, plus the time of its bytes
    attempts: int = 5
    first_wait_s: float = 1.0  # doubles with every attempt
    tell: Callable[[str], None] | None = None  # of every attempt that failed and is made again
    reached: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)

    def check(self) -> None:
        """Raise ValueError if the URL is none, or a value cannot be."""
        parts = _split(self.url)
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(f"{self.url!r} holds more than a server and a path: give --api-key")
        if not 0 < self.timeout_s <= LONGEST_TIMEOUT_S or self.attempts < 1:
            raise ValueError(
                f"a time-out is above 0 s and at most {LONGEST_TIMEOUT_S:g} s, and there is at "
                f"least 1 attempt"
            )
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("the API key holds characters that no HTTP header can")


def _split(url: str) -> SplitResult:
    """Return the parts of a server's URL; raises ValueError if it is none."""
    with suppress(ValueError):  # of a port that is no number
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise ValueError(f"{url!r} is not the URL of a server, such as http://localhost:30000")


class _Bounded(io.RawIOBase):
    """The bytes of a connection until a deadline; TimeoutError after it, or after a silence."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, silence_s: float, end: float):
        """`end`: by the monotonic clock."""
        self._raw, self._sock, self._silence_s, self._end = raw, sock, silence_s, end
        self.most_bytes = float(_LARGEST_HEAD_BYTES)  # that may still come

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(min(self._silence_s, left_s))
        count = self._raw.readinto(buffer)
        self.most_bytes -= count or 0
        if self.most_bytes < 0:
            raise http.client.HTTPException(f"more than {_LARGEST_HEAD_BYTES} bytes of headers")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer that must end in time, from its first byte on."""

    def __init__(
        self, sock: socket.socket, *args: Any, silence_s: float, end: float, **options: Any
    ):
        super().__init__(sock, *args, **options)
        self._source = _Bounded(self.fp.detach(), sock, silence_s, end)
        self.fp = io.BufferedReader(self._source)

    def begin(self) -> None:
        """Read the headers, before which there may be any number of `100 Continue`."""
        super().begin()
        self._source.most_bytes = math.inf


@contextmanager
def post(
    server: Server, path: str, body: dict[str, Any], most_bytes: int, stop: Stop
) -> Iterator[Iterator[bytes]]:
    """Send JSON and yield the chunks of the answer, in which the caller finds the end.

    `most_bytes`, which the answer may have, decide how long it may take. Raises Temporary if it is
    worth another try, TraceError if it is not, Stopped when `stop` is set.
    """
    headers = {"Content-Type": "application/json"}
    if server.api_key is not None:
        headers["Authorization"] = f"Bearer {server.api_key}"
    whole_s = server.timeout_s + most_bytes / _SLOWEST_BYTES_PER_S
    target = urlsplit(server.url).path.rstrip("/") + path
    try:
        with _answer(server, "POST", target, whole_s, stop, json.dumps(body), headers) as response:
            _check_response(server, path, response)
            yield _chunks(response, stop)
    except _TimedOut as error:
        raise Temporary(f"{error} (--timeout waits longer)") from None


def get(url: str, timeout_s: float, most_bytes: int) -> bytes:
    """Return what a server sends at a URL; of what is longer than `most_bytes`, more than these.

    Raises ValueError if it is no URL, TraceError if not all is there after `timeout_s`.
    """
    parts = _split(url)
    if parts.username is not None:
        raise ValueError("the URL holds a user name: save what it shows, and give the file")
    server, stop, body = Server(url, timeout_s=timeout_s), Stop(), bytearray()
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        with _answer(server, "GET", target, timeout_s, stop) as response:
            _check_status(server, parts.path, response)
            for chunk in _chunks(response, stop):
                body += chunk
                if len(body) > most_bytes:
                    break
    except Temporary as error:
        raise TraceError(f"{url} cannot be read ({error}): is the server running?") from None
    return bytes(body)


@contextmanager
def _answer(
    server: Server,
    method: str,
    target: str,
    whole_s: float,
    stop: Stop,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[http.client.HTTPResponse]:
    """Yield the answer to a request; all of it must have come `whole_s` after the call."""
    parts = urlsplit(server.url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port)
    connection.timeout = min(_CONNECT_S, server.timeout_s)
    end = time.monotonic() + whole_s
    response_class: Any = partial(_Response, silence_s=server.timeout_s, end=end)
    connection.response_class = response_class
    stop.connections.add(connection)
    try:
        try:
            connection.connect()
        except (ConnectionRefusedError, socket.gaierror) as error:
            raise Unreachable(f"the connection failed: {error.strerror or error}") from None
        server.reached.set()
        connection.sock.settimeout(server.timeout_s)
        if stop.is_set():
            raise Stopped
        connection.request(method, target, body, headers or {})
        with closing(connection.getresponse()) as response:
            yield response
    except TimeoutError:
        what = f"it sent nothing for {server.timeout_s:g} s"
        if time.monotonic() >= end:
            what = f"its answer to {urlsplit(target).path} did not end in {whole_s:.3g} s"
        raise _TimedOut(what) from None
    except (OSError, http.client.HTTPException) as error:
        raise Temporary(
            f"the connection failed: {_line(str(error)) or type(error).__name__}"
        ) from None
    finally:
        stop.connections.discard(connection)
        connection.close()


def _line(text: str) -> str:
    """Return what a server sent as a short line that any terminal can show."""
    shown = "".join(each if each.isprintable() else " " for each in text[:2000])
    return " ".join(shown.split())[:200]


def _check_status(server: Server, path: str, response: http.client.HTTPResponse) -> None:
    """Raise Temporary or TraceError if it is not what was asked for."""
    status = response.status
    if 300 <= status < 400:
        where = response.headers.get("Location", "nowhere")
        raise TraceError(
            f"{server.url} answered {path} with {status}, a redirection to {_line(where)}: give "
            f"the URL that it ends at"
        )
    if status != 200:
        said = _line(response.read(2000).decode(errors="replace"))
        sentence = f"answered {path} with {status} {_line(response.reason)}: {said}"
        if status >= 500 or status in _TEMPORARY:
            raise Temporary(f"it {sentence}", _retry_after_s(response.headers.get("Retry-After")))
        raise TraceError(f"{server.url} {sentence}")


def _check_response(server: Server, path: str, response: http.client.HTTPResponse) -> None:
    """Raise Temporary or TraceError if it is not the JSON asked for."""
    _check_status(server, path, response)
    kind = response.headers.get("Content-Type")
    coding = response.headers.get("Content-Encoding", "identity")
    if (kind and "json" not in kind.lower()) or coding.lower() != "identity":
        what = f"{_line(kind or 'JSON')} ({_line(coding)})"
        raise TraceError(
            f"{server.url} answered {path} with {what}, expected plain JSON: "
            f"is it an SGLang server, without a proxy in between?"
        )


def _retry_after_s(text: str | None) -> float:
    """Return the seconds that a header asks for, by their number or a date; 0 if it is neither."""
    try:
        wait_s = float(text or 0)
    except ValueError:
        try:
            date = parsedate_to_datetime(text or "")
            wait_s = (date.astimezone(UTC) - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):
            return 0.0
    return min(_LONGEST_RETRY_AFTER_S, wait_s) if wait_s > 0 else 0.0


def _chunks(response: http.client.HTTPResponse, stop: Stop) -> Iterator[bytes]:
    announced = response.length
    received = 0
    while chunk := response.read1(_CHUNK_BYTES):
        if stop.is_set():
            raise Stopped
        received += len(chunk)
        yield chunk
    if announced is not None and received < announced:
        raise Temporary(f"its answer was cut after {received} of {announced} bytes")
