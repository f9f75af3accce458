"""Signals that come while Numba compiles: none is lost, and none leaves Numba broken."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numba
import pytest
from make_traces import drift, write
from numba.core import event

from hisparse_sim.traces import machine_code
from hisparse_sim.traces.held_signals import held_signals

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")

# Presses Ctrl-C where an object dies to which a weak reference leads, in a pass of the compiler;
# what a handler raises there is lost.
SWEEPS = """
import json, signal, sys, weakref
from click.testing import CliRunner
from numba.core import event
from hisparse_sim.cli import cli

class Thing: pass

class Presses(event.Listener):
    left = 0
    def on_start(self, _):
        self.left -= 1
        if self.left == 0:
            thing = Thing()
            seen = weakref.ref(thing, lambda _: signal.raise_signal(number))
            del thing
    def on_end(self, _): pass

number = getattr(signal, sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)
presses = Presses()
event.register("numba:run_pass", presses)
for presses.left in map(int, sys.argv[2].split(",")):
    done = CliRunner().invoke(cli, sys.argv[3:])
    print(json.dumps([presses.left <= 0, done.exit_code, done.stderr]))  # whether it came to that
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_no_signal_is_lost_in_a_sweep_that_compiles(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "t.parquet", [drift(steps=30)])
    moments = [1, 2, 3, 5, 10, 20, 40, 80, 160, 240]
    command = [sys.executable, "-c", SWEEPS, name, ",".join(map(str, moments)), "sweep", str(path)]
    command += ["--policy", "fifo,clock", "--buffer", "16", "--quiet"]
    command += ["-o", str(tmp_path / "rows.csv")]
    cold = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=cold)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    status = 128 + getattr(signal, name)
    said = "Error: interrupted\n" if name == "SIGINT" else ""
    for moment, answer in zip(moments, answers, strict=True):
        assert answer == [True, status, said], f"in pass {moment}"
    assert "Exception ignored" not in done.stderr
    assert not list(tmp_path.glob("rows*"))


def compiling(pressed: list[int], keep: bool = False) -> int:
    """Compile a loop, and press Ctrl-C in the first pass."""

    class Presses(event.Listener):
        def on_start(self, _: Any) -> None:
            if not pressed:
                pressed.append(1)
                signal.raise_signal(signal.SIGINT)

        def on_end(self, _: Any) -> None:
            pass

    def double(number: int) -> int:
        return 2 * number

    with event.install_listener("numba:run_pass", Presses()):
        found: int = machine_code.compiled(double, keep)(4)
    return found


def test_the_handler_of_the_caller_answers_and_stays() -> None:
    answered = []
    handler = lambda number, _: answered.append(number)  # noqa: E731
    before = signal.signal(signal.SIGINT, handler)
    try:
        assert compiling([]) == 8
        assert signal.getsignal(signal.SIGINT) is handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert compiling([]) == 8
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert answered == [signal.SIGINT]


def test_a_signal_after_the_last_pass_is_answered_at_the_end() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = []
    try:
        with pytest.raises(KeyboardInterrupt), held_signals():  # noqa: PT012
            signal.raise_signal(signal.SIGINT)
            ended.append(True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended


def test_other_threads_compile_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[int] = []

    def work() -> None:
        with held_signals():
            found.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


@pytest.fixture
def answered() -> Iterator[list[tuple[int, bool, str]]]:
    """Signals that handlers of the caller's answer: number, whether they are told the place, and
    the thread."""
    found: list[tuple[int, bool, str]] = []

    def answer(number: int, frame: FrameType | None) -> None:
        found.append((number, frame is not None, threading.current_thread().name))

    taken = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.signal(number, answer) for number in taken}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def a_pass() -> None:
    with event.trigger_event("numba:run_pass"):
        pass


@pytest.mark.parametrize("ended", [a_pass, lambda: None], ids=["in a pass", "at the end"])
def test_every_signal_is_answered_in_its_order(
    answered: list[tuple[int, bool, str]], ended: Callable[[], None]
) -> None:
    came = [signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGINT]
    with held_signals():
        for number in came:
            signal.raise_signal(number)
        assert not answered
        ended()
    assert answered == [(number, True, "MainThread") for number in came]


def test_a_pass_of_another_thread_answers_none(answered: list[tuple[int, bool, str]]) -> None:
    with held_signals():
        signal.raise_signal(signal.SIGINT)
        thread = threading.Thread(target=a_pass)
        thread.start()
        thread.join()
    assert answered == [(signal.SIGINT, True, "MainThread")]


@pytest.mark.usefixtures("answered")
def test_the_handler_that_a_handler_sets_stays() -> None:
    seconds = []

    def second(number: int, _: Any) -> None:
        seconds.append(number)

    signal.signal(signal.SIGINT, lambda number, _: signal.signal(number, second))
    with held_signals():
        signal.raise_signal(signal.SIGINT)
        a_pass()
    assert signal.getsignal(signal.SIGINT) is second
    signal.raise_signal(signal.SIGINT)
    assert seconds == [signal.SIGINT]


@pytest.mark.usefixtures("answered")
def test_a_handler_that_compiles_does_not_wait_for_itself() -> None:
    thread = threading.Thread(target=lambda: found.append(machine_code._COMPILER.acquire(False)))
    found: list[Any] = []

    def triple(number: int) -> int:
        return 3 * number

    def handler(number: int, _: Any) -> None:
        thread.start()
        thread.join()  # the lock is taken
        if machine_code._COMPILER.acquire(blocking=False):  # but not from this thread
            machine_code._COMPILER.release()
            found.append(machine_code.compiled(triple, keep=False)(4))

    signal.signal(signal.SIGINT, handler)
    assert compiling([]) == 8
    assert found == [False, 12]


@pytest.mark.usefixtures("answered")
def test_what_a_handler_raises_is_no_error_of_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    def late(number: int, _: Any) -> None:
        raise TimeoutError("that was long")

    signal.signal(signal.SIGINT, late)
    with pytest.raises(TimeoutError, match="that was long"):
        compiling([], keep=True)
    assert signal.getsignal(signal.SIGINT) is late


def test_without_handlers_the_compiler_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(number: int, handler: Any) -> None:
        raise ValueError("signal only works in main thread of the main interpreter")

    monkeypatch.setattr(signal, "signal", refused)
    assert compiling([1]) == 8
