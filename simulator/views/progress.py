"""Progress of a sweep on stderr: a bar with rate and remaining time."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hisparse_sim.simulator.replay.kernel import on_compile
from hisparse_sim.simulator.replay.sweeping import Progress
from hisparse_sim.traces.terminal import note


@contextmanager
def compiling(quiet: bool) -> Iterator[None]:
    """Say on stderr that loops are compiled, which takes some seconds, once."""
    with on_compile(lambda: note("compiling the loops (first run only)", quiet)):
        yield


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Show a bar with rate and remaining time on stderr, if that is a terminal."""
    with on_compile(lambda: note("compiling the replay loops (first run only)", quiet)):
        if quiet or not sys.stderr.isatty():
            yield None
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as ProgressBar

        bar = ProgressBar(
            TextColumn("replaying"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with bar:
            task = bar.add_task("", total=None, rate="")

            def report(now: Progress) -> None:
                elapsed = bar.tasks[0].elapsed or 0
                rate = f"{now.accesses / elapsed / 1e6:.0f} M accesses/s" if elapsed else ""
                bar.update(task, completed=now.steps, total=now.total_steps, rate=rate)

            yield report
