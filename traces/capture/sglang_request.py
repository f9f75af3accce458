"""One request of a capture from SGLang: sent, its rows kept in a file, and checked."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as clipped
from typing import Any

import numpy as np

from hisparse_sim.traces.capture.sglang_server import (
    Server,
    Stop,
    Stopped,
    Temporary,
    generate,
    patiently,
)
from hisparse_sim.traces.capture.sglang_setup import Model
from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.captured import MOST_TOKENS, BadRows, demands
from hisparse_sim.traces.files import atomic_path
from hisparse_sim.traces.importers.prompt_rows import doubt_of_tokens
from hisparse_sim.traces.importers.row_doubts import doubt_of_layer
from hisparse_sim.traces.importers.sglang import misfit, refuse_speculative
from hisparse_sim.traces.importers.short_rows import ShortRows

_FLAG_HINT = "start the server with --enable-return-indexer-topk (--print-server-command shows how)"

# What an answer may hold beside its top-k: text, token ids, and what the server says of itself.
_REST_BYTES, _REST_BYTES_PER_TOKEN = 1 << 20, 256

_COUNT_BYTES = 8  # at the end of a file of rows: how many it holds


@dataclass(frozen=True)
class Prompt:
    """One request to send."""

    request: str
    input_ids: tuple[int, ...]


class LeftOut(TraceError):
    """A request that cannot be used; others may be good unless the fault is `common`."""

    def __init__(self, message: str, common: bool = False) -> None:
        super().__init__(message)
        self.common = common


class _Unusable(Exception):
    """The answer cannot be used, and another one could not either."""


class Request:
    """One request: the file of its rows, and whether it is complete."""

    def __init__(
        self, prompt: Prompt, model: Model, sampling: dict[str, Any], folder: Path
    ) -> None:
        self.prompt = prompt
        self.model = model
        self.max_new_tokens: int = sampling["max_new_tokens"]
        self.body = {"input_ids": list(prompt.input_ids), "sampling_params": sampling}
        key = json.dumps([prompt.request, self.body, model.name, model.num_layers, model.top_k])
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        self.path = folder / f"{name}.rows"
        self.short = ShortRows()  # once the rows are there, as is the doubt
        self.doubt: str | None = None

    def is_done(self) -> bool:
        # After a crash of the machine a file may be there whose end is not.
        try:
            with self.path.open("rb") as file:
                size = file.seek(-_COUNT_BYTES, os.SEEK_END)
                count = int.from_bytes(file.read(_COUNT_BYTES), "little")
        except OSError:
            return False
        return count > 0 and size == count * self.model.row_bytes

    def run(self, server: Server, stop: Stop) -> None:
        """Get the rows. Raises LeftOut if they cannot be used."""
        if stop.is_set():
            raise Stopped
        if self.is_done():
            self._look_again()
            return
        with atomic_path(self.path) as temporary:
            patiently(server, lambda: self._once(server, temporary, stop), stop)

    def _once(self, server: Server, path: Path, stop: Stop) -> None:
        prompt_bytes = len(self.prompt.input_ids) * self.model.row_bytes
        limit_bytes = prompt_bytes + self.max_new_tokens * self.model.row_bytes
        received = 0
        with path.open("wb") as file:

            def take(piece: bytes) -> None:
                nonlocal received
                begin = max(0, prompt_bytes - received)
                received += len(piece)
                if received > limit_bytes:
                    raise _Unusable(
                        f"request {self.prompt.request!r}: its top-k has more than {limit_bytes} "
                        f"bytes; check `num_layers` and `top_k` against the model's config"
                    )
                try:
                    file.write(piece[begin:])
                except OSError as error:
                    raise _Unusable(f"{path} cannot be written: {error.strerror}") from None

            def sink(number: int) -> Callable[[bytes], None]:
                if number:
                    raise _Unusable(f"{server.url} answered with two values of indexer_topk")
                return take

            rest_bytes = _REST_BYTES + _REST_BYTES_PER_TOKEN * self.max_new_tokens
            most_bytes = 4 * -(-limit_bytes // 3)
            try:
                answer = generate(server, self.body, sink, most_bytes, rest_bytes, stop)
            except _Unusable as error:
                raise TraceError(str(error)) from None
        count = self._check(answer, received, server)
        with path.open("ab") as file:
            file.write(count.to_bytes(_COUNT_BYTES, "little"))
        self._look_through(path, server.url)

    def _look_again(self) -> None:
        try:
            self._look_through(self.path, str(self.path))
        except TraceError as error:
            raise TraceError(
                f"{error}; the file is damaged: remove it, and the same command captures it again"
            ) from None

    def _look_through(self, path: Path, place: str) -> None:
        """Check all rows and count the short ones: now, not after hours.

        Raises LeftOut if some are unusable, TraceError if they are those of other tokens.
        """
        short, empty = ShortRows(), 0
        rows = self._array(path)[:, 0]
        seq_len = np.arange(len(rows)) + len(self.prompt.input_ids) + 1
        self.doubt = doubt_of_tokens(rows, seq_len, f"{place}: request {self.prompt.request!r}")
        try:
            for part in self.demands(path, place):
                counts = np.diff(part.offsets)
                if self.doubt is None:
                    # Their layers are read one by one: a file may be larger than the memory.
                    doubt = doubt_of_layer(self._array(path)[:, part.layer], seq_len - 1)
                    if doubt is not None:
                        self.doubt = (
                            f"{place}: request {part.request!r}, layer {part.layer} {doubt}"
                        )
                where = f"request {part.request!r}, layer {part.layer}"
                short.add(counts, part.seq_len, self.model.top_k, where)
                empty += int((counts == 0).sum())
        except BadRows as error:
            raise LeftOut(str(error), error.fault.common) from None
        if 2 * empty > short.of:
            what = f"{empty:,} of {short.of:,} rows without a position"
            raise LeftOut(f"{place}: request {self.prompt.request!r} has {what}", common=True)
        self.short = short

    def _array(self, path: Path) -> Any:
        count = (path.stat().st_size - _COUNT_BYTES) // self.model.row_bytes
        return np.memmap(path, "<i4", "r", shape=(count, self.model.num_layers, self.model.top_k))

    def demands(self, path: Path, place: str) -> Iterator[Demand]:
        """Yield the demands of the rows in a file."""
        length = len(self.prompt.input_ids)
        return demands(
            self._array(path),
            place=place,
            request=self.prompt.request,
            first_position=length,
            prompt_len=length,
            layer_types=self.model.layer_types,
        )

    def _check(self, answer: Any, received: int, server: Server) -> int:
        """Return how many decode rows the answer counts, which are those that were received."""
        place = f"{server.url}: request {self.prompt.request!r}"
        about = answer.get("meta_info") if isinstance(answer, dict) else None
        ended = about.get("finish_reason") if isinstance(about, dict) else None
        if isinstance(ended, dict) and ended.get("type") == "abort":
            raise Temporary(f"it aborted the request: {str(ended.get('message'))[:200]!r}")
        if not isinstance(about, dict) or about.get("indexer_topk") != {"base64": 0}:
            raise TraceError(f"{server.url} answered without meta_info.indexer_topk: {_FLAG_HINT}")
        refuse_speculative(about, place)
        prompt_len, output = about.get("prompt_tokens"), about.get("completion_tokens")
        sent = len(self.prompt.input_ids)
        if type(output) is not int or not 0 <= output <= MOST_TOKENS or prompt_len != sent:
            raise TraceError(
                f"{server.url} counts {clipped(prompt_len)} prompt and {clipped(output)} output "
                f"tokens for {sent} that were sent"
            )
        if output < 2:
            raise LeftOut(
                f"{place} ended after {output} tokens, so there is no decode step; leave out "
                f"--stop-at-eos"
            )
        rows = sent + output - 1
        if received != rows * self.model.row_bytes:
            layers, top_k = self.model.num_layers, self.model.top_k
            cached = about.get("cached_tokens")
            why = misfit(
                received, rows, layers, top_k, cached, "start it with --disable-radix-cache"
            )
            raise TraceError(f"{place}: {why}")
        return int(output) - 1
