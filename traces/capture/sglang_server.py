"""Talking to a running SGLang server: tokenize, generate with top-k, try again when it fails.

Reference: SGLang 0.5.23, `srt/entrypoints/http_server.py`, `srt/state_capturer/indexer_topk.py`.
"""

import http.client
import json
import math
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hisparse_sim.traces.importers.base64_stream import Extractor, Sink
from hisparse_sim.traces.errors import TraceError

_CHUNK_BYTES = 1 << 20
_LONGEST_WAIT_S = 60.0
_LONGEST_RETRY_AFTER_S = 600.0  # which a server asks for
_CONNECT_S = 30.0
_TEMPORARY = (408, 425, 429)  # and every 5xx

Found = TypeVar("Found")


class Temporary(Exception):
    """A failure that may pass: the message says what happened."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        """`wait_s`: how long the server asks to be left alone."""
        super().__init__(message)
        self.wait_s = wait_s


class Unreachable(Temporary):
    """Nobody answers at the address: nothing that a server said has been heard."""


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
                    connection.sock.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Server:
    """Where the server is, and how patient to be with it."""

    url: str
    api_key: str | None = None
    timeout_s: float = 600.0  # without a byte
    attempts: int = 5
    first_wait_s: float = 1.0  # doubles with every attempt
    tell: Callable[[str], None] | None = None  # of every attempt that failed and is made again
    reached: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)

    def check(self) -> None:
        """Raise ValueError if the URL is none, or a value cannot be."""
        parts = urlsplit(self.url)
        # Asking for the port raises ValueError if it is no number.
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(f"{self.url!r} is no URL of a server, as in http://localhost:30000")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(f"{self.url!r} holds more than a server and a path: give --api-key")
        if not 0 < self.timeout_s < math.inf or self.attempts < 1:
            raise ValueError("a time-out is above 0 s, and there is at least 1 attempt")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("the API key holds characters that no HTTP header can")


def tokenize(server: Server, text: str, stop: Stop) -> list[int]:
    """Return the ids of a text, by the server's own tokenizer."""

    def once() -> list[int]:
        with _post(server, "/v1/tokenize", {"prompt": text}, stop) as response:
            body = b"".join(_chunks(response, stop))
        try:
            tokens = json.loads(body)["tokens"]
        except (ValueError, KeyError, TypeError):
            raise Temporary("its answer to /v1/tokenize is not complete JSON") from None
        if not isinstance(tokens, list) or not all(type(each) is int for each in tokens):
            raise TraceError(f"{server.url} answered /v1/tokenize without token ids")
        return tokens

    return patiently(server, once, stop)


def generate(
    server: Server,
    body: dict[str, Any],
    open_sink: Callable[[int], Sink],
    stop: Stop,
) -> Any:
    """Send one request once; the top-k goes to the sink, the rest of the answer is returned.

    Raises Temporary if it is worth another try.
    """
    with _post(server, "/generate", {**body, "return_indexer_topk": True}, stop) as response:
        extractor = Extractor("indexer_topk", open_sink)
        try:
            for chunk in _chunks(response, stop):
                extractor.feed(chunk)
            return extractor.finish()
        except TraceError as error:
            raise Temporary(f"its answer was damaged on the way: {error}") from None


def patiently(server: Server, once: Callable[[], Found], stop: Stop) -> Found:
    """Call `once` until it succeeds, waiting longer after every temporary failure.

    Raises TraceError when all attempts are used up, or at once if nobody answers who never did;
    Stopped when `stop` is set.
    """
    for attempt in range(server.attempts):
        try:
            return once()
        except Temporary as error:
            failure = error
        if isinstance(failure, Unreachable) and not server.reached.is_set():
            # Most likely a server that was not started, or another address: waiting cures neither.
            raise TraceError(
                f"no server answers at {server.url} ({failure}): start it (--print-server-command "
                f"shows how; --estimate needs it too) and wait until it is ready, or name its "
                f"address with --url"
            )
        if attempt + 1 < server.attempts:
            # Requests that failed together should not come back together.
            wait_s = min(_LONGEST_WAIT_S, server.first_wait_s * 2**attempt)
            wait_s = max(wait_s * random.uniform(0.75, 1.25), failure.wait_s)
            if server.tell is not None:
                server.tell(
                    f"{server.url}: {failure}; attempt {attempt + 2} of {server.attempts} in "
                    f"{wait_s:.1f} s"
                )
            if stop.wait(wait_s):
                raise Stopped
    raise TraceError(f"{server.url} failed {server.attempts} times; the last time {failure}")


@contextmanager
def _post(
    server: Server, path: str, body: dict[str, Any], stop: Stop
) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(server.url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port)
    connection.timeout = min(_CONNECT_S, server.timeout_s)
    headers = {"Content-Type": "application/json"}
    if server.api_key is not None:
        headers["Authorization"] = f"Bearer {server.api_key}"
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
        connection.request("POST", parts.path.rstrip("/") + path, json.dumps(body), headers)
        response = connection.getresponse()
        _check_response(server, path, response)
        yield response
    except TimeoutError:
        raise Temporary(
            f"it sent nothing for {server.timeout_s:g} s (--timeout waits longer)"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise Temporary(f"the connection failed: {reason}") from None
    finally:
        stop.connections.discard(connection)
        connection.close()


def _check_response(server: Server, path: str, response: http.client.HTTPResponse) -> None:
    """Raise Temporary or TraceError if it is not the JSON asked for."""
    status = response.status
    if 300 <= status < 400:
        where = response.headers.get("Location", "nowhere")
        raise TraceError(
            f"{server.url} answered {path} with {status}, a redirection to {where[:200]}: give the "
            f"URL that it ends at"
        )
    if status != 200:
        said = " ".join(response.read(2000).decode(errors="replace").split())[:200]
        sentence = f"answered {path} with {status} {response.reason}: {said}"
        if status >= 500 or status in _TEMPORARY:
            raise Temporary(f"it {sentence}", _retry_after_s(response.headers.get("Retry-After")))
        raise TraceError(f"{server.url} {sentence}")
    kind = response.headers.get("Content-Type")
    coding = response.headers.get("Content-Encoding", "identity")
    if (kind and "json" not in kind.lower()) or coding.lower() != "identity":
        raise TraceError(
            f"{server.url} answered {path} with {kind or 'JSON'} ({coding}), expected plain JSON: "
            f"is it a SGLang server, and nothing between?"
        )


def _retry_after_s(text: str | None) -> float:
    """Return the seconds that a header asks for, by their number or a date; 0 if it is neither."""
    try:
        wait_s = float(text or 0)
    except ValueError:
        try:
            date = parsedate_to_datetime(text or "")
        except ValueError:
            return 0.0
        wait_s = (date.astimezone(UTC) - datetime.now(UTC)).total_seconds()
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
