"""Extracts huge base64 values from a JSON text as a stream, in bounded memory.

Engines return what an indexer selected as one base64 string inside a JSON answer, gigabytes long.
The reader here never holds more of it than a chunk: decoded bytes go to a sink, and what remains
of the JSON, with a number in place of each value, is small and parsed as usual.
"""

import binascii
import json
import re
from collections.abc import Callable
from typing import Any

from hisparse_sim.traces.documents import unique
from hisparse_sim.traces.errors import TraceError

# What an answer may hold besides the base64 values: text, token ids, log-probabilities.
LARGEST_REST_BYTES = 256 << 20

_IN_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_VALUE_START = re.compile(rb'\s*:\s*"')
_UNDECIDED = re.compile(rb"\s*(?::\s*)?\Z")

Sink = Callable[[bytes], None]


class Base64Decoder:
    """Decodes base64 that comes in pieces of any length.

    Raises TraceError if it holds other characters, is cut off, or continues after its padding.
    """

    def __init__(self) -> None:
        self._waiting = b""  # digits that wait for their fourth
        self._padded = False

    def feed(self, piece: bytes) -> bytes:
        """Return what the piece completes."""
        digits = self._waiting + piece.replace(b"\\/", b"/")  # an escape that JSON allows
        whole = len(digits) & ~3
        ready, self._waiting = digits[:whole], digits[whole:]
        if not ready:
            return b""
        if self._padded:
            raise TraceError("its base64 continues after the padding")
        self._padded = ready.endswith(b"=")
        try:
            return binascii.a2b_base64(ready, strict_mode=True)
        except binascii.Error as error:
            raise TraceError(f"its base64 is damaged ({str(error).lower()})") from None

    def finish(self) -> None:
        """Check that nothing is missing."""
        if self._waiting:
            raise TraceError("its base64 is cut off")


class Extractor:
    """Splits one JSON text into base64 values of `key` and the rest.

    Feed it chunks, then call `finish`. Every value goes, decoded, to `open_sink(number)`, numbers
    counting from 0, and stands as `{"base64": number}` in the JSON that `finish` returns. A value
    that is no string stays what it is.
    """

    def __init__(
        self,
        key: str,
        open_sink: Callable[[int], Sink],
        most_rest_bytes: int = LARGEST_REST_BYTES,
    ) -> None:
        self._key = key.encode() + b'"'
        self._open_sink = open_sink
        self._most_rest_bytes = most_rest_bytes
        self._buffer = b""
        self._at = 0  # bytes of the buffer that are consumed
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._values = 0
        self._sink: Sink | None = None  # of the value that is being read
        self._decoder = Base64Decoder()
        self._scanned = 0  # up to where the buffer is known to lie inside one string

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the text. Raises TraceError if a value is not base64."""
        self._buffer = self._buffer[self._at :] + chunk
        self._scanned = max(0, self._scanned - self._at)
        self._at = 0
        while self._inside() if self._sink is not None else self._outside():
            pass

    def finish(self) -> Any:
        """Return the JSON without its values. Raises TraceError if it is cut off or no JSON."""
        if self._sink is not None:
            raise TraceError("the JSON is cut off inside a base64 value")
        self._keep(len(self._buffer))
        try:
            return json.loads(b"".join(self._rest), object_pairs_hook=unique)
        except TraceError:
            raise
        except (ValueError, RecursionError) as error:
            raise TraceError(f"it is not complete JSON ({error})") from None

    def _inside(self) -> bool:
        """Consume a base64 value as far as it is there; False when more bytes are needed."""
        assert self._sink is not None
        buffer, at = self._buffer, self._at
        end = buffer.find(b'"', at)
        stop = len(buffer) if end < 0 else end
        if end < 0 and buffer.endswith(b"\\") and stop > at:
            stop -= 1  # its escaped character is still to come
        self._sink(self._decoder.feed(buffer[at:stop]))
        self._at = stop
        if end < 0:
            return False
        self._decoder.finish()
        self._sink = None
        self._at += 1
        return True

    def _outside(self) -> bool:
        """Consume JSON up to the end of a string; False when more bytes are needed."""
        buffer = self._buffer
        start = buffer.find(b'"', self._at)
        if start < 0:
            self._keep(len(buffer))
            return False
        inside = _IN_STRING.match(buffer, max(start + 1, self._scanned))
        end = inside.end() if inside else len(buffer)
        if end >= len(buffer) or buffer[end : end + 1] == b"\\":  # an escape is cut in two
            self._scanned = end
            if end - self._at > self._most_rest_bytes:
                self._keep(end)
            return False
        end += 1
        if end - start - 1 == len(self._key) and buffer.startswith(self._key, start + 1):
            value_start = _VALUE_START.match(buffer, end)
            if value_start is not None:
                self._keep(value_start.end() - 1, b'{"base64":%d}' % self._values)
                self._at += 1
                self._sink = self._open_sink(self._values)
                self._decoder = Base64Decoder()
                self._values += 1
                return True
            if _UNDECIDED.match(buffer, end):
                self._scanned = end - 1
                return False
        self._keep(end)
        return True

    def _keep(self, stop: int, more: bytes = b"") -> None:
        """Consume the buffer up to `stop` into the rest, and put `more` behind it."""
        piece = self._buffer[self._at : stop] + more
        self._at = self._scanned = stop
        self._rest_bytes += len(piece)
        if self._rest_bytes > self._most_rest_bytes:
            raise TraceError(
                f"it holds more than {self._most_rest_bytes >> 20} MB besides its base64 values"
            )
        self._rest.append(piece)
