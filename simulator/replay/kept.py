"""What a sweep has finished, kept in a file, so that an interrupted one can go on.

Its first line says what it is. A line per (request, layer, policy, buffer) follows, appended when
it is done: a digest and JSON. A line that was cut short, or is of another trace, setting or version
of the program, counts for nothing.
"""

import hashlib
import json
import zlib
from base64 import b64decode, b64encode
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hisparse_sim.policies import POLICIES, Policy
from hisparse_sim.simulator.replay.kernel import STAMP
from hisparse_sim.simulator.replay.metrics import Misses
from hisparse_sim.traces import Part, Trace, TraceError

_HEAD = b"hisparse-sim: finished work of a sweep"


class Finished(NamedTuple):
    """One part under one policy and buffer size."""

    first_step: int
    last_seq_len: int
    accesses: int
    misses: Misses  # [rows of the part]


class Kept:
    """A file of finished work, for sweeps with one start, seed and selection of steps."""

    def __init__(
        self, path: str | PathLike[str], start: str, seed: int, steps: tuple[int, int] | None
    ) -> None:
        """Read what the file holds, if it is there. Raises TraceError if it cannot be read, or is
        none of ours."""
        self.path = Path(path)
        self._setting = [version("hisparse-sim"), STAMP, start, seed, steps and list(steps)]
        self._found: dict[str, dict[str, Any]] = {}
        try:
            lines = (self.path.read_bytes() if self.path.exists() else b"").split(b"\n")
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
        if not (_HEAD.startswith(lines[0]) if len(lines) == 1 else lines[0] == _HEAD):
            raise TraceError(
                f"{path} is in the way: it does not hold the work of a sweep; rename it"
            )
        for line in lines:
            digest, _, text = line.partition(b" ")
            if digest == _digest(text):
                entry = json.loads(text)
                self._found[json.dumps(entry["of"])] = entry

    def find(self, trace: Trace, part: Part, policy: Policy, buffer_size: int) -> Finished | None:
        """Return what is known of a part under a policy and buffer size."""
        entry = self._found.get(json.dumps(self._name(trace, part, policy, buffer_size)))
        if entry is None or POLICIES.get(policy.name) is not policy:
            return None
        misses = np.frombuffer(zlib.decompress(b64decode(entry["misses"])), "<i4")
        return Finished(
            entry["first_step"], entry["last_seq_len"], entry["accesses"], misses.astype(np.int32)
        )

    def add(
        self, trace: Trace, part: Part, policy: Policy, buffer_size: int, done: Finished
    ) -> None:
        """Append a result; one of a policy that is not the program's own is not kept.

        Raises TraceError if the file cannot be written.
        """
        if POLICIES.get(policy.name) is not policy:
            return
        packed = zlib.compress(np.ascontiguousarray(done.misses, "<i4").tobytes(), 1)
        entry = {
            "of": self._name(trace, part, policy, buffer_size),
            **done._asdict(),
            "misses": b64encode(packed).decode(),
        }
        text = json.dumps(entry).encode()
        try:
            with self.path.open("ab") as file:
                if file.tell() <= len(_HEAD):
                    file.truncate(0)
                    file.write(_HEAD)
                # A line feed first: what is there may have been cut short.
                file.write(b"\n" + _digest(text) + b" " + text)
        except OSError as error:
            raise TraceError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def _name(self, trace: Trace, part: Part, policy: Policy, buffer_size: int) -> list[Any]:
        return [
            *self._setting,
            trace.sha256,
            part.request,
            part.layer,
            policy.name,
            buffer_size,
        ]


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()
