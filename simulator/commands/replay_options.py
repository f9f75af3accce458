"""Options that sweep and curve share, and how a sweep that takes long is run: with progress, kept
work beside the output, and an end by Ctrl-C."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.traces.commands.options import (
    combined,
    in_options,
    provenance_option,
    selection_options,
    several,
)
from hisparse_sim.traces.files import is_file
from hisparse_sim.traces.terminal import note

if TYPE_CHECKING:
    from hisparse_sim.simulator.replay.sweeping import Progress, Sweep

traces_argument = click.argument("traces", nargs=-1, metavar="[TRACE]...")
replay_options = combined(
    click.option(
        "--policy",
        "policies",
        multiple=True,
        callback=several(str),
        help="Policies, see `hisparse-sim policies`, or FILE.py:NAME of your own; repeat or "
        "separate by commas.",
    ),
    click.option(
        "--buffer",
        "--device-buffer-size",
        "buffers",
        multiple=True,
        callback=several(int, least=1),
        help="Hot buffer sizes in slots per request and layer.  [default: 1, 2, 3 times the top_k "
        "of the trace, the largest of several]",
    ),
    click.option(
        "--start",
        type=click.Choice(["staged", "direct"]),
        default="staged",
        show_default=True,
        help="staged: prefill on the same GPU; direct: KV arrived in host memory.",
    ),
    selection_options,
    provenance_option,
    click.option(
        "--seed",
        type=click.IntRange(0, 2**63 - 1),
        default=0,
        show_default=True,
        help="For the policy random.",
    ),
    click.option("--jobs", type=click.IntRange(1), help="Threads.  [default: all cores]"),
    click.option("--quiet", is_flag=True, help="No progress and no notes on stderr."),
)


def kept_beside(output: Path | None) -> Path | None:
    """Return the file that keeps the work of a sweep until `output` is written."""
    if output is None or not is_file(output):
        return None
    return output.with_name(f"{output.name}.partial")


@contextmanager
def long_work(keep: Path | None, quiet: bool) -> Iterator["Callable[[Progress], None] | None"]:
    """Say that kept work is used, and show progress: yields what a sweep reports it to."""
    from hisparse_sim.simulator.views.progress import progress

    if keep is not None and keep.exists():
        note(f"going on from what {keep} holds of this sweep", quiet)
    with progress(quiet) as report:
        yield report


def judge(swept: "Sweep", keep: Path | None, quiet: bool) -> None:
    """Print the notes of a sweep; fail if it was interrupted and there is nothing to show, or a
    file from which the same command continues."""
    for each in swept.notes:
        note(in_options(each, click.get_current_context().command), quiet)
    if swept.interrupted and (keep is not None or not swept.finished):
        way = f"; {keep} keeps the work, and the same command goes on from there" if keep else ""
        raise click.ClickException(_interrupted(swept) + way)


def end(swept: "Sweep", keep: Path | None) -> None:
    """Remove what the output has made superfluous; exit with 1 if Ctrl-C ended the sweep, whose
    finished rows are on stdout by then."""
    if keep is not None:
        keep.unlink(missing_ok=True)
    if swept.interrupted:
        raise click.ClickException(
            f"{_interrupted(swept)} and are all that is shown; with -o FILE an interrupted sweep can"
            " go on"
        )


def _interrupted(swept: "Sweep") -> str:
    return f"interrupted: {swept.finished} of {swept.parts} (request, layer) parts were finished"


def selection(swept: "Sweep", options: dict[str, Any]) -> dict[str, Any]:
    """Return which part of the traces the rows are about."""
    chosen = {name: options[name] for name in ("requests", "layers", "steps")}
    if swept.interrupted:
        chosen["interrupted"] = f"{swept.finished} of {swept.parts} parts"
    return chosen
