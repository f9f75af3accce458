"""Requests to a running SGLang server: tokenize, generate with top-k, retry on failure.

Reference: SGLang 0.5.23, `srt/entrypoints/http_server.py`, `srt/state_capturer/indexer_topk.py`.
"""

import random
from collections.abc import Callable
from typing import Any, TypeVar

from hisparse_sim.traces.bounded_http import (
    Server,
    Stop,
    Stopped,
    Temporary,
    Unreachable,
    post,
)
from hisparse_sim.traces.documents import parse_json
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.importers.base64_stream import Extractor, Sink

__all__ = ["Server", "Stop", "Stopped", "Temporary", "generate", "patiently", "tokenize"]

_LONGEST_WAIT_S = 60.0

Found = TypeVar("Found")


def tokenize(server: Server, text: str, stop: Stop) -> list[int]:
    """Return the ids of a text, by the server's own tokenizer."""

    # A token takes a byte of the text at least, and as an id 12 in JSON.
    most_bytes = 65_536 + 12 * len(text.encode(errors="replace"))

    def once() -> list[int]:
        body = b""
        with post(server, "/v1/tokenize", {"prompt": text}, most_bytes, stop) as chunks:
            for chunk in chunks:
                body += chunk
                if len(body) > most_bytes:
                    raise TraceError(
                        f"{server.url} answered /v1/tokenize with more than {most_bytes:,} bytes "
                        f"for a text of {len(text):,} characters: is it an SGLang server?"
                    )
        try:
            found = parse_json(body.decode(errors="replace"), "its answer to /v1/tokenize")
        except TraceError as error:
            raise Temporary(str(error)) from None
        tokens = found.get("tokens") if isinstance(found, dict) else None
        if not isinstance(tokens, list) or not all(_is_token(each) for each in tokens):
            raise TraceError(f"{server.url} answered /v1/tokenize without token ids")
        return tokens

    return patiently(server, once, stop)


def _is_token(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def generate(
    server: Server,
    body: dict[str, Any],
    open_sink: Callable[[int], Sink],
    most_bytes: int,
    most_rest_bytes: int,
    stop: Stop,
) -> Any:
    """Send one request once; the top-k goes to the sink, the rest of the answer is returned.

    `most_bytes`: of the top-k in base64, which the sink bounds; `most_rest_bytes`: of all else.
    Raises Temporary if it is worth another try.
    """
    body = {**body, "return_indexer_topk": True}
    with post(server, "/generate", body, most_bytes + most_rest_bytes, stop) as chunks:
        extractor = Extractor("indexer_topk", open_sink, most_rest_bytes)
        try:
            for chunk in chunks:
                extractor.feed(chunk)
            return extractor.finish()
        except TraceError as error:
            raise Temporary(f"its answer was damaged on the way: {error}") from None


def patiently(server: Server, once: Callable[[], Found], stop: Stop) -> Found:
    """Call `once` until it succeeds, waiting longer after every temporary failure.

    Raises TraceError when all attempts have failed, or at once if no server has ever answered;
    Stopped when `stop` is set.
    """
    for attempt in range(server.attempts):
        try:
            return once()
        except Temporary as error:
            failure = error
        if isinstance(failure, Unreachable) and not server.reached.is_set():
            # Most likely the server is not running, or the address is wrong: waiting does not help.
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
    died = (
        " (has it died? SGLang 0.5.17 does, with --enable-hisparse and "
        "--enable-return-indexer-topk, once requests in flight reach past --max-total-tokens)"
        if isinstance(failure, Unreachable)
        else ""
    )
    raise TraceError(f"{server.url} failed {server.attempts} times; the last time {failure}{died}")
