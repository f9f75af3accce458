"""What ends a command that does not end by itself: the second signal."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

COMMANDS = """
import signal, sys, time, click, numpy as np
from numba import njit
from hisparse_sim.traces.commands import signals
from hisparse_sim.traces.commands.group import Group

signals.PATIENCE_S = 0.3
signal.signal(signal.SIGINT, signal.default_int_handler)

@click.group(cls=Group)
def cli(): pass

@cli.command()
def endless():
    @njit("void(i8[:])", nogil=True)
    def forever(numbers):
        while numbers[0] == 0:
            numbers[1] += 1
    print("ready", flush=True)
    forever(np.zeros(2, np.int64))

@cli.command()
def patient():
    came = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: came.append(number))
    print("ready", flush=True)
    while len(came) < 2:
        time.sleep(0.01)
    time.sleep(1)

@cli.command()
def tidy():
    print("ready", flush=True)
    try:
        while True:
            time.sleep(0.01)
    finally:
        print("tidied", flush=True)

cli(sys.argv[1:])
"""


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A command that has begun its work."""
    words = [sys.executable, "-c", COMMANDS, request.param]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        yield process
        process.kill()


def asked(process: subprocess.Popen[str], number: int, times: int) -> tuple[int, str, str]:
    """Send the signals; return the exit code, what was printed, and what was said."""
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.05)  # two that wait are one
    printed, said = process.communicate(timeout=30)
    return process.returncode, printed, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("started", ["endless"], indirect=True)
def test_the_second_signal_ends_what_never_ends(
    started: subprocess.Popen[str], number: int
) -> None:
    code, _, said = asked(started, number, 2)
    assert (code, said) == (128 + number, "Error: interrupted while it computed\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("started", ["patient"], indirect=True)
def test_a_command_with_handlers_of_its_own_takes_its_time(
    started: subprocess.Popen[str], number: int
) -> None:
    assert asked(started, number, 2) == (0, "", "")


@pytest.mark.parametrize("started", ["tidy"], indirect=True)
def test_the_first_signal_is_enough_for_what_can_end(started: subprocess.Popen[str]) -> None:
    assert asked(started, signal.SIGINT, 1) == (130, "tidied\n", "Error: interrupted\n")
