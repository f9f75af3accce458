"""Options that the commands of all packages share, and the traces and files that they name.

Data goes to stdout, notes and progress to stderr. Nothing here loads a heavy library.
"""

import glob
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hisparse_sim.traces.commands.values import (
    AnyOutput,
    Output,
    forced,
    refuse_suffix,
    several,
    step_range,
)
from hisparse_sim.traces.file.metadata import PROVENANCES
from hisparse_sim.traces.files import (
    TRACE_SUFFIXES,
    holds_trace,
    refuse_input,
    refuse_unwritable,
)
from hisparse_sim.traces.folders import found_by, is_folder, traces_below
from hisparse_sim.traces.remote import Url, is_url, place_of

if TYPE_CHECKING:
    from hisparse_sim.traces.file.reader import Trace

Command = TypeVar("Command", bound=Callable[..., Any])

SAMPLE = "sample"  # the name of the bundled trace, in place of a trace file
FILE_FORMATS = ("csv", "json", "jsonl", "parquet")
TABLE_SUFFIXES = ("", ".txt")


def in_options(text: str, command: click.Command) -> str:
    """Return a sentence of the library with its arguments (`buffers`) as options of the command
    (--buffer)."""
    option_of = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            for spelt in parameter.opts:
                option_of[spelt.lstrip("-").replace("-", "_")] = parameter.opts[0]
    for parameter in command.params:  # the name of an argument before the spelling of an option
        if isinstance(parameter, click.Option) and parameter.name is not None:
            option_of[parameter.name] = parameter.opts[0]
    return re.sub(r"`(\w+)`", lambda found: option_of.get(found[1], found[0]), text)


def chosen_requests(
    given: Sequence[str] | None, traces: Iterable["Trace"]
) -> tuple[str, ...] | None:
    """Return the request ids that values of --request name: a whole value that is an id of a
    trace, else each of its parts between commas."""
    if given is None:
        return None
    known = {request for trace in traces for request in trace.requests}
    chosen: list[str] = []
    for text in given:
        pieces = [text] if text in known else text.split(",")
        chosen += [piece if piece in known else piece.strip() for piece in pieces]
    return tuple(dict.fromkeys(chosen))


def combined(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return one decorator for several options, in the order in which help shows them."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


provenance_option = click.option(
    "--provenance",
    type=click.Choice(PROVENANCES),
    help="Origin of the positions, for a trace that does not state it.",
)
layer_option = click.option(
    "--layer",
    "layers",
    multiple=True,
    callback=several(int),
    help="Only these layers, such as 4,9 or 0-5.",
)
_STAGED_OR_DIRECT = (
    "staged: prefill on the same GPU; direct: prefill ran elsewhere, so the buffer starts "
    "empty, as vLLM's rules always have it."
)


def _start_option(starts: Sequence[str], help: str) -> Callable[[Any], Any]:
    return click.option(
        "--start", type=click.Choice(starts), default="staged", show_default=True, help=help
    )


start_option = _start_option(["staged", "direct"], _STAGED_OR_DIRECT)
any_start_option = _start_option(
    ["staged", "direct", "warm"],
    f"{_STAGED_OR_DIRECT} warm: staged, and the last row of the prompt was fetched, for which the "
    "first step stands, uncounted.",
)
selection_options = combined(
    click.option(
        "--request",
        "requests",
        multiple=True,
        callback=lambda ctx, parameter, given: given or None,  # see `chosen_requests`
        help="Only these requests; repeat, or separate by commas if ids have none.",
    ),
    layer_option,
    click.option(
        "--steps",
        callback=step_range,
        metavar="FIRST:STOP",
        help="Only the steps FIRST to STOP - 1.",
    ),
)
trace_output_option = click.option(
    "-o",
    "--output",
    type=Output(*TRACE_SUFFIXES),
    required=True,
    help="The trace file to write.",
)
config_option = click.option(
    "--config",
    type=click.Path(exists=True, path_type=Path),
    help="config.json of the model, or its folder: gives --layers, --top-k and the layers that "
    "share positions.",
)
quiet_option = click.option("--quiet", is_flag=True, help="No progress and no notes on stderr.")
force_option = click.option(
    "--force",
    is_flag=True,
    is_eager=True,
    callback=forced,
    help="Overwrite an existing trace file.",
)


def output_option(
    kind: AnyOutput | Output, help: str, **settings: Any
) -> Callable[[Command], Command]:
    """Return -o, with the --force of a command that replaces existing files without it."""
    return combined(
        click.option("-o", "--output", type=kind, help=help, **settings),
        click.option(
            "--force",
            is_flag=True,
            is_eager=True,
            callback=forced,
            expose_value=False,
            help="With a URL to write: replace what another run wrote there in the meantime.",
        ),
    )


output_options = combined(
    click.option(
        "--format",
        "form",
        type=click.Choice(["table", *FILE_FORMATS]),
        help="[default: by the suffix of -o, else table]",
    ),
    output_option(AnyOutput(), "Write to this file or URL, not to stdout."),
)


def expand(patterns: Sequence[str]) -> list[str]:
    """Return the files that paths, URLs, globs and folders name, each once however it is written;
    `sample` is the bundled trace."""
    from hisparse_sim.traces import sample_path

    paths = []
    for pattern in patterns:
        if pattern == SAMPLE and not Path(pattern).exists():
            pattern = str(sample_path())
        if is_url(pattern):
            pattern = str(place_of(pattern))  # file:// is a path
        found = _matching(pattern)
        if not found and os.path.isdir(pattern):
            raise click.ClickException(f"{pattern} is a folder without traces")
        if not found:
            raise click.UsageError(f"no file matches {pattern}")
        paths.extend(found)
    whole = {path if is_url(path) else os.path.abspath(path): path for path in reversed(paths)}
    return list(whole.values())[::-1]


def _matching(pattern: str) -> list[str]:
    """Return the traces that one pattern names: a folder, all below it."""
    if is_url(pattern):
        if is_folder(place_of(pattern)):
            return traces_below(place_of(pattern))
        return found_by(pattern) if glob.has_magic(pattern.partition("?")[0]) else [pattern]
    if os.path.isdir(pattern):
        return traces_below(Path(pattern))
    magic = glob.has_magic(pattern) and not Path(pattern).exists()
    return sorted(glob.glob(pattern, recursive=True)) if magic else [pattern]


def open_traces(patterns: Sequence[str], provenance: str | None) -> list["Trace"]:
    """Open the files that paths and globs name; the bundled sample if there are none."""
    from hisparse_sim.traces import open_trace

    return [open_trace(path, provenance) for path in expand(patterns or [SAMPLE])]


def refuse_replacing(
    output: Path, force: bool, inputs: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Raise UsageError if a trace would be replaced without --force, TraceError if `output` is one
    of the files that are read.

    Every command that writes a trace calls this first. A file that is not a trace (an empty
    temporary one, say) may be replaced.
    """
    if isinstance(output, Url):
        refuse_unwritable(output)
    refuse_input(output, inputs)
    if not force and holds_trace(output):
        raise click.UsageError(
            f"{output} is an existing trace: name another file, or overwrite it with --force"
        )


def output_form(
    form: str | None, output: Path | None, others: Sequence[str] = TABLE_SUFFIXES
) -> str:
    """Return the format asked for, else that of the file's suffix; table for one of `others`.

    Refuses a file that could not be written, and an unknown suffix, before any work is done.
    """
    if output is not None:
        refuse_unwritable(output)
    elif form == "parquet":
        raise click.UsageError("parquet is binary: name a file with -o")
    if form is not None or output is None:
        return form or "table"
    known = tuple(f".{name}" for name in FILE_FORMATS)
    refuse_suffix(output, (*others, *known))
    return output.suffix[1:].lower() if output.suffix.lower() in known else "table"


def announcer(quiet: bool) -> Callable[[str], None] | None:
    """Return a function that says on stderr what is being done, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        return None
    return lambda what: click.echo(f"  {what}", err=True)


def counter(what: str, quiet: bool) -> Callable[[int, int], None] | None:
    """Return a counter line on stderr, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        click.echo(f"\r{done}/{total} {what}", err=True, nl=done == total)

    return show
