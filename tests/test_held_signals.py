"""Signals that come while Numba compiles: none is lost, and none leaves Numba broken."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
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


def compiling(pressed: list[int]) -> int:
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
        found: int = machine_code.compiled(double, keep=False)(4)
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
