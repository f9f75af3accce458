"""Run the fuzz targets: every input is refused in one sentence, or read as the oracle reads it.

Inputs are numbered; each is made from the seed, the target's name and its number alone. A child
process reads them, so that one that ends it, or does not end, is found, too: it is named, and the
next is tried in another child.
"""

import argparse
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from fuzz.mutate import several
from fuzz.targets import TARGETS, Target

MOST_SECONDS = 3.0  # of the processor, for one small input
MOST_BYTES = 256 << 20  # by which the peak of the memory may rise
PATIENCE_SECONDS = 120  # without a word from the child


@dataclass
class Outcome:
    """What became of the inputs of one target."""

    refused: int = 0
    read: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)  # number of the input, what


def make(target: Target, seeds: list[bytes], seed: int, number: int) -> tuple[bytes, bytes]:
    """Return input `number` and what it was made from; the first are the seeds themselves."""
    if number < len(seeds):
        return seeds[number], seeds[number]
    source = Random(f"{seed}/{target.name}/{number}")
    chosen = source.choice(seeds)
    return several(target.mutators)(chosen, source), chosen


def judge(target: Target, path: Path, data: bytes, seed: bytes) -> tuple[str, str]:
    """Return what became of one input, and why, where it is a failure."""
    path.write_bytes(data)
    started = time.process_time()
    forget_peak()
    before = peak_bytes()
    try:
        found = target.read(path)
    except ValueError as error:  # TraceError, and errors of usage
        said = str(error)
        what = "refused"
        if "\n" in said or not said.strip() or len(said) > 2000 or not said.isprintable():
            return "failure", f"refused by no sentence: {said[:300]!r}"
    except Exception as error:
        place = "".join(traceback.format_exception(error)[-3:])
        return "failure", f"{type(error).__name__}: {error}\n{place}"
    else:
        what = "read"
        try:
            expected = target.expected(path, data, seed)
        except Exception as error:
            return "failure", f"was read, and the oracle says {type(error).__name__}: {error}"
        if found != expected:
            return "failure", f"read as {str(found)[:500]}\nand not   {str(expected)[:500]}"
    if data == seed and what == "refused":
        return "failure", f"a sound file was refused: {said}"
    seconds = time.process_time() - started
    if seconds > MOST_SECONDS:
        return "failure", f"took {seconds:.1f} s of the processor"
    grown = peak_bytes() - before
    if grown > MOST_BYTES:
        return "failure", f"took {grown >> 20} MB"
    return what, ""


def forget_peak() -> None:
    """Begin anew to keep the peak of the memory (Linux: man 5 proc, clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the most memory that was held since then."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def run_child(target: Target, seed: int, numbers: range, folder: Path, out: int) -> None:
    """Judge inputs and write a line on each to `out`."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("error")
    seeds = target.seeds()
    path = folder / f"input{target.suffix}"
    target.read(_sound(path, seeds[0]))  # what is compiled and imported once is no input's fault
    for number in numbers:
        what, why = judge(target, path, *make(target, seeds, seed, number))
        line = f"{number}\t{what}\t{why.encode('unicode_escape').decode()}\n"
        os.write(out, line.encode())


def _sound(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def run(target: Target, seed: int, numbers: range) -> Outcome:
    """Judge inputs in children, one after the other."""
    outcome = Outcome()
    at = numbers.start
    while at < numbers.stop:
        with TemporaryDirectory(prefix="hisparse-fuzz-") as folder:
            at = _one_child(target, seed, range(at, numbers.stop), Path(folder), outcome)
    return outcome


def _one_child(target: Target, seed: int, numbers: range, folder: Path, outcome: Outcome) -> int:
    """Return the number of the input to go on with."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            run_child(target, seed, numbers, folder, writer)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    at, rest = numbers.start, b""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], PATIENCE_SECONDS)[0]:
                os.kill(child, signal.SIGKILL)
                break
            piece = pipe.read(1 << 16)
            if not piece:
                break
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                number, what, why = line.decode().split("\t", 2)
                at = int(number) + 1
                if what == "failure":
                    outcome.failures.append((int(number), why.encode().decode("unicode_escape")))
                else:
                    setattr(outcome, what, getattr(outcome, what) + 1)
    _, status = os.waitpid(child, 0)
    if at < numbers.stop:
        ended = os.waitstatus_to_exitcode(status)
        outcome.failures.append((at, f"the process ended with {ended}, or had to be ended"))
        at += 1
    return at


def main() -> None:
    """Read the arguments, run, and tell; exit with 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="default: all")
    parser.add_argument("--only", type=int, help="number of one input, which is kept in a file")
    given: Any = parser.parse_args()
    failed: Counter[str] = Counter()
    print(f"{'target':28} {'inputs':>7} {'refused':>8} {'read':>6} {'failures':>9} {'seconds':>8}")
    for name in given.target or TARGETS:
        target = TARGETS[name]
        if given.only is not None:
            keep(target, given.seed, given.only)
        started = time.monotonic()
        numbers = range(given.count) if given.only is None else range(given.only, given.only + 1)
        outcome = run(target, given.seed, numbers)
        failed[name] = len(outcome.failures)
        print(
            f"{name:28} {len(numbers):7,} {outcome.refused:8,} {outcome.read:6,} "
            f"{len(outcome.failures):9,} {time.monotonic() - started:8.1f}",
            flush=True,
        )
        for number, why in outcome.failures[:20]:
            print(f"  --target '{name}' --seed {given.seed} --only {number}: {why}")
    sys.exit(1 if failed.total() else 0)


def keep(target: Target, seed: int, number: int) -> None:
    """Write an input to the working folder."""
    path = Path(f"fuzz-{number}{target.suffix}")
    path.write_bytes(make(target, target.seeds(), seed, number)[0])
    print(f"wrote {path}")
