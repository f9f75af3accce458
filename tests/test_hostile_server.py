"""A server that may send what it likes: each call ends in one sentence, in time and in memory."""

import json
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fake_sglang import MODEL, PROMPTS

from hisparse_sim.traces import TraceError
from hisparse_sim.traces.bounded_http import LONGEST_TIMEOUT_S, Server, _retry_after_s, get
from hisparse_sim.traces.capture.sglang import capture, prepare

Behave = Callable[[socket.socket, float], None]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@contextmanager
def serving(behave: Behave) -> Iterator[str]:
    """Answer every connection by `behave(connection, end)` until the test is over."""
    listener = socket.create_server(("127.0.0.1", 0))
    end = time.monotonic() + 20

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(20)
            received = b""
            while b"\r\n\r\n" not in received:
                received += connection.recv(65_536)
            behave(connection, end)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):  # else what was sent last may be lost
                pass

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def endlessly(piece: bytes, head: bytes = b"", pause_s: float = 0.0) -> Behave:
    def behave(connection: socket.socket, end: float) -> None:
        connection.sendall(head)
        while time.monotonic() < end:
            connection.sendall(piece)
            time.sleep(pause_s)

    return behave


def once(answer: bytes) -> Behave:
    return lambda connection, end: connection.sendall(answer)


def body(text: bytes, head: bytes = OK) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(text) + text


SLOW = {
    "silence": (lambda connection, end: time.sleep(10), "it sent nothing for 0.4 s"),
    "slow status": (endlessly(b"H", pause_s=0.1), "did not end in"),
    "slow headers": (endlessly(b"a", OK + b"X: ", 0.1), "did not end in"),
    "slow body": (endlessly(b"1", OK + b"Content-Length: 99999\r\n\r\n", 0.1), "did not end in"),
    "slow chunks": (
        endlessly(b"1\r\n \r\n", CHUNKED, 0.1),
        "did not end in",
    ),
    "slow trailers": (
        endlessly(b"A: b\r\n", CHUNKED + b"2\r\n{}\r\n0\r\n", 0.1),
        "did not end in",
    ),
    "slow error": (
        endlessly(b"x", b"HTTP/1.1 500 no\r\nContent-Length: 99999\r\n\r\n", 0.1),
        "did not end in",
    ),
    "slow 100 Continue": (endlessly(b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.1), "did not end"),
}
ENDLESS = {
    "100 Continue": (endlessly(b"HTTP/1.1 100 Continue\r\n\r\n" * 100), "bytes of headers|interim"),
    "status": (endlessly(b"H" * 1000), "status line|LineTooLong|got more than"),
    "headers": (endlessly(b"A: b\r\n" * 100, OK), "more than 100 headers"),
    "header": (endlessly(b"a" * 1000, OK + b"X: "), "got more than 65536"),
    "chunk size": (
        endlessly(b"1" * 1000, CHUNKED),
        "the connection failed",
    ),
}
TOKENIZE = {
    "endless body": (endlessly(b" " * 65_536, OK + b"\r\n"), "with more than 65,548 bytes"),
    "endless chunks": (
        endlessly(b"4000\r\n" + b" " * 0x4000 + b"\r\n", CHUNKED),
        "with more than 65,548 bytes",
    ),
    "large body": (once(body(b" " * 200_000)), "with more than 65,548 bytes"),
    "deep": (once(body(b"[" * 30_000 + b"]" * 30_000)), "nests deeper than 64 levels"),
    "no UTF-8": (once(body(b"\xff\xfe{")), "is not valid JSON"),
    "list": (once(body(b"[]")), "without token ids"),
    "no tokens": (once(body(b'{"tokens": null}')), "without token ids"),
    "nested": (once(body(b'{"tokens": [[1]]}')), "without token ids"),
    "float": (once(body(b'{"tokens": [1.5]}')), "without token ids"),
    "true": (once(body(b'{"tokens": [true]}')), "without token ids"),
    "negative": (once(body(b'{"tokens": [-1]}')), "without token ids"),
    "large id": (once(body(b'{"tokens": [4294967296]}')), "without token ids"),
    "digits": (once(body(b'{"tokens": [' + b"9" * 9000 + b"]}")), "more than 64 bits"),
    "NaN": (once(body(b'{"tokens": [NaN]}')), "not a finite number"),
}
SAID = {
    "control": (once(b"HTTP/1.1 400 \x1b[2J\r\nContent-Length: 8\r\n\r\n\x1b[31m\nab"), "400"),
    "redirect": (
        once(b"HTTP/1.1 302 x\r\nLocation: \x1b]0;y\x07" + b"z" * 9000 + b"\r\n\r\n"),
        "302",
    ),
    "type": (once(b"HTTP/1.1 200 OK\r\nContent-Type: \x1b[1m\r\n\r\n"), "expected plain JSON"),
}


def call(url: str, timeout_s: float = 0.4) -> str:
    server = Server(url, attempts=1, timeout_s=timeout_s)
    begin = time.monotonic()
    with pytest.raises(TraceError) as caught:
        prepare(server, [("a", "x")])
    assert time.monotonic() - begin < 8
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700
    return message


@pytest.mark.parametrize(
    ("behave", "said"),
    [pytest.param(*each, id=name) for name, each in (SLOW | ENDLESS | TOKENIZE | SAID).items()],
)
def test_tokenize(behave: Behave, said: str) -> None:
    timeout_s = 0.4 if "not" in said else 5.0
    with serving(behave) as url:
        assert re.search(said, call(url, timeout_s))


@pytest.mark.parametrize("name", ["slow body", "slow headers", "slow 100 Continue"])
def test_generate_has_a_deadline(tmp_path: Path, name: str) -> None:
    with serving(SLOW[name][0]) as url:
        begin = time.monotonic()
        with pytest.raises(TraceError, match=r"its answer to /generate did not end in"):
            capture(
                PROMPTS[:1], tmp_path / "t.parquet", Server(url, attempts=1, timeout_s=0.4), MODEL,
                max_new_tokens=6,
            )  # fmt: skip
        assert time.monotonic() - begin < 15
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"a":' + b'"x",' * 600_000, "besides its base64 values"),
        (b" " * 3_000_000, "besides its base64 values"),
        (b'{"a": "' + b"x" * 3_000_000, "besides its base64 values"),
        (b"[" * 500_000, "not complete JSON"),
        (b'{"meta_info": {"indexer_topk": "' + b"AAAA" * 900_000, "its top-k has more than"),
        (
            b'{"indexer_topk": "AAAA", "meta_info": {"indexer_topk": "AAAA"}}',
            "two values of indexer_topk",
        ),
        (b'{"indexer_topk": "AAAA", "meta_info": {}}', "without meta_info.indexer_topk"),
    ],
)
def test_generate_takes_no_more_than_it_can_need(tmp_path: Path, text: bytes, said: str) -> None:
    with serving(once(body(text))) as url:
        server = Server(url, attempts=1, timeout_s=5)
        tracemalloc.start()
        with pytest.raises(TraceError, match=said) as caught:
            capture(PROMPTS[:1], tmp_path / "t.parquet", server, MODEL, max_new_tokens=6)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 60 << 20
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


def test_an_answer_may_take_long_if_it_goes_on(tmp_path: Path) -> None:
    """The time-out is for silence; the deadline grows with what an answer may have."""
    tokens = json.dumps({"tokens": [7] * 200}).encode()

    def behave(connection: socket.socket, end: float) -> None:
        connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(tokens))
        for at in range(0, len(tokens), 100):
            time.sleep(0.15)
            connection.sendall(tokens[at : at + 100])

    with serving(behave) as url:
        server = Server(url, attempts=1, timeout_s=0.6)
        (prompt,) = prepare(server, [("a", "x" * 100_000)])
    assert prompt.input_ids == (7,) * 200


GOT = {
    "slow headers": (SLOW["slow headers"][0], r"did not end in 0\.4 s"),
    "slow body": (SLOW["slow body"][0], r"did not end in 0\.4 s"),
    "no HTTP": (once(b"HELLO\r\n\r\n"), "HELLO"),
    "cut": (once(OK + b"Content-Length: 99\r\n\r\nhits 12"), "was cut after 7 of 99 bytes"),
    "cut chunks": (once(CHUNKED + b"64\r\nabc"), "IncompleteRead"),
    "redirect": (SAID["redirect"][0], "give the URL that it ends at"),
    "error": (once(b"HTTP/1.1 503 busy\r\nContent-Length: 0\r\n\r\n"), "503 busy"),
}


@pytest.mark.parametrize(
    ("behave", "said"), [pytest.param(*each, id=name) for name, each in GOT.items()]
)
def test_what_is_at_an_address_comes_whole_or_not_at_all(behave: Behave, said: str) -> None:
    with serving(behave) as url, pytest.raises(TraceError, match=said) as caught:
        get(f"{url}/metrics?a=b", 0.4 if "0" in said else 5.0, 1000)
    assert str(caught.value).isprintable()
    assert str(caught.value).startswith(url)


def test_no_more_is_read_than_may_be() -> None:
    with serving(endlessly(b" " * 65_536, OK + b"\r\n")) as url:
        assert 1000 < len(get(url, 5.0, 1000)) < 1 << 22


@pytest.mark.parametrize("url", ["http://h:abc/", "http://", "http://[::1/", "ftp://h/x"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a server"):
        get(url, 1.0, 1000)


def test_an_address_with_a_password_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="holds a user name") as caught:
        get("http://me:secret@localhost/metrics", 1.0, 1000)
    assert "secret" not in str(caught.value)


def test_times_that_cannot_be() -> None:
    for timeout_s in (0.0, -1.0, float("nan"), float("inf"), 1e30, LONGEST_TIMEOUT_S + 1):
        with pytest.raises(ValueError, match="a time-out is above 0 s and at most 604800 s"):
            Server("http://x", timeout_s=timeout_s).check()
    Server("http://x", timeout_s=LONGEST_TIMEOUT_S).check()
    for text, wait_s in (
        ("5", 5.0), ("-5", 0.0), ("nan", 0.0), ("1e400", 600.0), ("9" * 5000, 600.0), ("x", 0.0),
        (None, 0.0), ("Mon, 01 Jan 0001 00:00:00 +2300", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 -2300", 0.0), ("Mon, 01 Jan 2024 00:00:00 +999999", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 600.0),
    ):  # fmt: skip
        assert _retry_after_s(text) == wait_s, text
