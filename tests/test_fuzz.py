"""2,000 damaged and hostile files for the readers of the package, and what the fuzzer notices.

More by hand: python tests/fuzz --count 10000 --seed 2.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz import runner
from fuzz.mutate import flip_bits
from fuzz.target import Target
from fuzz.targets import TARGETS

FOLDER = Path(__file__).parent / "fuzz"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the peak of the memory is Linux's")


@pytest.mark.parametrize("needs", ["no extra", "torch"])
def test_two_thousand_inputs(needs: str) -> None:
    """In all; those of tensors apart, since they need an extra."""
    if needs == "torch":
        pytest.importorskip("torch", reason="needs the extra [hf]")
    targets = [name for name in TARGETS if (name == "array .pt") == (needs == "torch")]
    count = -(-2000 // len(TARGETS))
    command = [sys.executable, str(FOLDER), "--count", str(count), "--seed", "1"]
    command += [f"--target={name}" for name in targets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line[28:].split() for line in done.stdout.splitlines()[1:]]
    assert len(lines) == len(targets)
    for inputs, refused, read, failures, _ in lines:
        assert int(inputs) == int(refused) + int(read) == count
        assert int(failures) == 0
        assert int(refused) >= count / 3  # it is spoilt indeed
        assert int(read) >= 1


def target(read: Callable[[Path], Any], expected: Any = 1) -> Target:
    return Target("made up", ".txt", lambda: [b"seed"], [flip_bits], read, lambda *_: expected)


def slow(path: Path) -> int:
    if path.read_bytes() != b"seed":
        until = time.process_time() + 1.2
        while time.process_time() < until:
            pass
    return 1


def hungry(path: Path) -> int:
    return 1 if bytearray(40 << 20) else 0


def of_two_lines(path: Path) -> int:
    raise ValueError("one\ntwo")


def crash(path: Path) -> int:
    raise IndexError("list index out of range")


def refuse(path: Path) -> int:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("read", "data", "what", "why"),
    [
        (lambda path: 1, b"x", "read", ""),
        (refuse, b"x", "refused", ""),
        (refuse, b"seed", "failure", "a sound file was refused: no"),
        (lambda path: 2, b"x", "failure", "read as 2\nand not   1"),
        (crash, b"x", "failure", "IndexError: list index out of range"),
        (of_two_lines, b"x", "failure", r"refused by no sentence: 'one\ntwo'"),
        (slow, b"x", "failure", "s of the processor"),
        (hungry, b"x", "failure", "took "),
    ],
)
def test_what_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any, data: bytes, what: str, why: str
) -> None:
    monkeypatch.setattr(runner, "MOST_SECONDS", 1.0)
    monkeypatch.setattr(runner, "MOST_BYTES", 30 << 20)
    found, reason = runner.judge(target(read), tmp_path / "input.txt", data, b"seed")
    assert found == what
    assert why in reason


def test_an_input_that_ends_the_process_or_never_ends() -> None:
    """Both are named, and the inputs behind them are judged."""
    script = (
        "import os, time\n"
        "from fuzz import runner\n"
        "from test_fuzz import target\n"
        "runner.PATIENCE_SECONDS = 1\n"
        "calls = []\n"
        "def read(path):\n"
        "    calls.append(1)\n"
        "    if os.environ['ENDS'] == 'abort' and path.read_bytes() != b'seed': os.abort()\n"
        "    if os.environ['ENDS'] == 'wait' and path.read_bytes() != b'seed': time.sleep(60)\n"
        "    return 1\n"
        "found = runner.run(target(read), 1, range(3))\n"
        "print(found.read, [(number, why[:27]) for number, why in found.failures])\n"
    )
    for ends in ("abort", "wait"):
        environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "ENDS": ends}
        done = subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, text=True,
            env=environment,
        )  # fmt: skip
        assert done.stdout.startswith("1 [(1, 'the process ended with"), done.stderr
        assert "(2, 'the process ended with" in done.stdout


def test_inputs_are_the_same_every_time() -> None:
    sound = TARGETS["trace"].seeds()
    first = [runner.make(TARGETS["trace"], sound, 3, number)[0] for number in range(40)]
    again = [runner.make(TARGETS["trace"], sound, 3, number)[0] for number in range(40)]
    assert first == again
    assert first[: len(sound)] == sound
    assert len(set(first)) > 35
