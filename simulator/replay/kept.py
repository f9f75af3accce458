"""The finished work of a sweep, kept in a file, so that an interrupted sweep can resume.

Its first line says what it is. A line per (request, layer, policy, buffer) follows, appended when
it is done: a digest and JSON. A line that was cut short, or belongs to another trace, setting or
version of the program, is ignored. A lock beside the file lets one sweep use it at a time."""

import hashlib
import json
import zlib
from base64 import b64decode, b64encode
from functools import cache
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from hisparse_sim.policies import POLICIES, Policy
from hisparse_sim.policies.registry import is_registered
from hisparse_sim.simulator.replay.kernel import STAMP
from hisparse_sim.simulator.replay.metrics import Misses
from hisparse_sim.simulator.replay.modes import EPOCH_CLOCK
from hisparse_sim.traces import Part, Trace, TraceError, atomic_path
from hisparse_sim.traces.files import opened
from hisparse_sim.traces.locks import locked

_HEAD = b"hisparse-sim: finished work of a sweep"


class Finished(NamedTuple):
    """One part under one policy and buffer size."""

    first_step: int
    last_seq_len: int
    accesses: int
    misses: Misses  # [steps of the part]
    rows: int  # all of the part, or as many as steps of it were replayed
    counts: dict[str, int]  # further counts of a mode of replay, by the name of their column


class Setting(NamedTuple):
    """What all work of one sweep has in common."""

    start: str
    seed: int
    steps: tuple[int, int] | None
    rules: str | None = ""  # of a mode of replay, with what they were compiled from; None: not kept


class Kept:
    """A file of finished work, held until it is closed: others that open it are refused."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Read what the file holds, if it is there.

        Raises TraceError if another sweep holds it, if it cannot be read, or is another kind of
        file.
        """
        self.path = Path(path)
        self._release = locked(self.path, "a sweep")
        self._own: set[str] = set()  # names of what this sweep asks for or adds
        try:
            self._found = self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Kept":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the file, which stays."""
        self._release()
        self._release = _nothing

    @property
    def holds_work(self) -> bool:
        """Whether there is finished work to resume from."""
        return bool(self._found)

    def find(
        self, setting: Setting, trace: Trace, part: Part, policy: Policy, buffer_size: int
    ) -> Finished | None:
        """Return what is known of a part under a policy and buffer size."""
        name = _name(setting, trace, part, policy, buffer_size)
        self._own.add(name)
        if name not in self._found or not _is_kept(setting, policy):
            return None
        entry = json.loads(self._found[name])
        misses = np.frombuffer(zlib.decompress(b64decode(entry["misses"])), "<i4")
        del entry["of"]
        return Finished(**entry | {"misses": misses.astype(np.int32)})

    def add(
        self,
        setting: Setting,
        trace: Trace,
        part: Part,
        policy: Policy,
        buffer_size: int,
        done: Finished,
    ) -> None:
        """Append a result; those of policies and prefetchers of one's own are not kept.

        Raises TraceError if the file cannot be written.
        """
        if not _is_kept(setting, policy):
            return
        name = _name(setting, trace, part, policy, buffer_size)
        packed = zlib.compress(np.ascontiguousarray(done.misses, "<i4").tobytes(), 1)
        entry = {
            "of": json.loads(name),
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

    def remove(self) -> bool:
        """Remove what this sweep asked for, now that its result is written, and the file if it
        holds nothing else; return whether work of another sweep remains."""
        others = [
            text
            for name, text in self._found.items()
            if name not in self._own and json.loads(name)[:2] == program()
        ]
        if not others:
            self.path.unlink(missing_ok=True)
            return False
        with atomic_path(self.path) as path:
            path.write_bytes(b"\n".join([_HEAD, *(_digest(text) + b" " + text for text in others)]))
        return True

    def _read(self) -> dict[str, bytes]:
        content = b""
        if self.path.exists():
            with opened(self.path) as file:
                content = file.read()
        lines = content.split(b"\n")
        if not (_HEAD.startswith(lines[0]) if len(lines) == 1 else lines[0] == _HEAD):
            raise TraceError(
                f"{self.path} already exists and does not hold the work of a sweep; rename it"
            )
        found = {}
        for line in lines:
            digest, _, text = line.partition(b" ")
            if digest == _digest(text):
                found[json.dumps(json.loads(text)["of"])] = text
        return found


def _is_kept(setting: Setting, policy: Policy) -> bool:
    """Return whether all that was run is the package's: a name does not tell other code."""
    ours = policy == EPOCH_CLOCK or is_registered(policy, POLICIES)
    return ours and setting.rules is not None


def program() -> list[Any]:
    """Return what tells whether two processes run the same program."""
    return [_version(), STAMP]


@cache
def _version() -> str:
    return version("hisparse-sim")


def _name(setting: Setting, trace: Trace, part: Part, policy: Policy, buffer_size: int) -> str:
    steps = setting.steps and list(setting.steps)
    return json.dumps(
        [
            *program(),
            setting.start,
            setting.seed,
            steps,
            trace.sha256,
            part.request,
            part.layer,
            policy.name,
            buffer_size,
            *([setting.rules] if setting.rules else []),
        ]
    )


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()


def _nothing() -> None:
    pass
