"""What the command lines of all rooms share: options that parse alike, files, notes.

Data goes to stdout, notes and progress to stderr. Nothing here loads a heavy library.
"""

import glob
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hisparse_sim.traces.files import holds_trace, refuse_input
from hisparse_sim.traces.file.metadata import PROVENANCES

if TYPE_CHECKING:
    from hisparse_sim.traces.file.reader import Trace

Command = TypeVar("Command", bound=Callable[..., Any])

SAMPLE = "sample"  # names the bundled trace wherever a trace file is asked for
FILE_FORMATS = ("csv", "json", "jsonl", "parquet")


class Group(click.Group):
    """A group that explains errors in one sentence and loads commands of other rooms when
    needed."""

    def __init__(
        self, *args: Any, elsewhere: dict[str, tuple[str, str]] | None = None, **kwargs: Any
    ):
        """`elsewhere`: name of a command -> (module:attribute, its line in the help)."""
        super().__init__(*args, **kwargs)
        self.elsewhere = elsewhere or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.elsewhere})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.elsewhere:
            return super().get_command(ctx, name)
        module, attribute = self.elsewhere[name][0].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = []
        for name in self.list_commands(ctx):
            if name in self.elsewhere:
                lines.append((name, self.elsewhere[name][1]))
            elif command := super().get_command(ctx, name):
                lines.append((name, command.get_short_help_str(limit=60)))
        with formatter.section("Commands"):
            formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> Any:
        from hisparse_sim.traces.errors import TraceError

        if sys.stdout is None:  # closed by the caller, who wants no data
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # ids in a terminal without UTF-8
        try:
            with _signals_end():
                return super().invoke(ctx)
        except TraceError as error:
            raise click.ClickException(self._said(ctx, error)) from error
        except ValueError as error:
            if isinstance(error, UnicodeError):
                raise click.ClickException(f"some text is not UTF-8 ({error})") from error
            raise click.UsageError(self._said(ctx, error)) from error
        except MemoryError as error:
            raise click.ClickException(
                f"this needs more memory than there is ({error or 'none is left'}): ask for less"
            ) from error
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise click.ClickException(
                f"{error.filename or ''} {error.strerror or error}".strip()
            ) from error


    def _said(self, ctx: click.Context, error: Exception) -> str:
        """Return what an error of the library says, in the options of the command that ran."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        return str(error) if command is None else in_options(str(error), command)


def in_options(text: str, command: click.Command) -> str:
    """Return a sentence of the library with the arguments that it names (`buffers`) as the options
    of the command (--buffer)."""
    option_of = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            for spelt in parameter.opts:
                option_of[spelt.lstrip("-").replace("-", "_")] = parameter.opts[0]
    for parameter in command.params:  # the name of an argument before the spelling of an option
        if isinstance(parameter, click.Option) and parameter.name is not None:
            option_of[parameter.name] = parameter.opts[0]
    return re.sub(r"`(\w+)`", lambda found: option_of.get(found[1], found[0]), text)


@contextmanager
def _signals_end() -> Iterator[None]:
    """Let signals that ask a program to end clean up as Ctrl-C does; exit with 128 + their number,
    as a shell says it."""

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    taken = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):  # not the latter on Windows
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                taken[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def several(
    kind: type[Any], distinct: bool = True, least: float | None = None
) -> Callable[..., tuple[Any, ...] | None]:
    """Return a callback for options that are repeated or hold values separated by commas; each
    value counts once, unless not `distinct`, and is at least `least`."""

    def parse(
        ctx: click.Context, parameter: click.Parameter, given: Sequence[str]
    ) -> tuple[Any, ...] | None:
        if not given:
            return None
        values = []
        for text in ",".join(given).split(","):
            try:
                values.append(kind(text.strip()))
            except ValueError:
                raise click.BadParameter(f"{text!r} is not {_NAME_OF[kind]}") from None
            if least is not None and not values[-1] >= least:
                raise click.BadParameter(f"{values[-1]} is not at least {least}")
        return tuple(dict.fromkeys(values) if distinct else values)

    return parse


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


_NAME_OF = {int: "a whole number", str: "a name", float: "a number"}


def step_range(
    ctx: click.Context, parameter: click.Parameter, given: str | None
) -> tuple[int, int] | None:
    """Parse FIRST:STOP, either of which may be left out."""
    if given is None:
        return None
    first, colon, stop = given.partition(":")
    try:
        steps = int(first or 0), int(stop or 2**31)
    except ValueError:
        steps = (0, 0)
    if not colon or steps[0] >= steps[1]:
        raise click.BadParameter(f"{given!r} is not FIRST:STOP, as in 0:500 or 100:")
    return steps


class Renamed(click.Option):
    """An option whose former spellings still work; help and messages show the present ones."""

    def __init__(self, *args: Any, former: Sequence[str], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.former = list(former)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown = self.opts
        self.opts = shown + self.former
        super().add_to_parser(parser, ctx)
        self.opts = shown


class RenamedChoice(click.Choice[str]):
    """Choices of which some had other names, which still work: `former` maps these to them."""

    def __init__(self, choices: Sequence[str], former: Mapping[str, str]):
        super().__init__(choices)
        self.former = former

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        return super().convert(self.former.get(value, value), param, ctx)


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
    help="Where the positions come from, for a trace that does not say.",
)
selection_options = combined(
    click.option(
        "--request",
        "requests",
        multiple=True,
        callback=lambda ctx, parameter, given: given or None,  # see `chosen_requests`
        help="Only these; repeat, or separate by commas where an id has none.",
    ),
    click.option("--layer", "layers", multiple=True, callback=several(int), help="Only these."),
    click.option(
        "--steps", callback=step_range, metavar="FIRST:STOP", help="Only steps FIRST..STOP-1."
    ),
)
trace_output_option = click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The trace file to write.",
)
config_option = click.option(
    "--config",
    type=click.Path(exists=True, path_type=Path),
    help="config.json of the model, or its folder: for --layers, --top-k, and for which layers "
    "share their positions.",
)
quiet_option = click.option("--quiet", is_flag=True, help="No progress and no notes on stderr.")
force_option = click.option("--force", is_flag=True, help="Replace a trace file that is there.")
output_options = combined(
    click.option(
        "--format",
        "form",
        type=click.Choice(["table", *FILE_FORMATS]),
        help="[default: the suffix of -o, else table]",
    ),
    click.option(
        "-o", "--output", type=click.Path(path_type=Path), help="Write to this file, not to stdout."
    ),
)


def expand(patterns: Sequence[str]) -> list[str]:
    """Return the files that paths and globs name, each once however it is written; `sample` is the
    bundled trace."""
    from hisparse_sim.traces import sample_path

    paths = []
    for pattern in patterns:
        if pattern == SAMPLE and not Path(pattern).exists():
            pattern = str(sample_path())
        magic = glob.has_magic(pattern) and not Path(pattern).exists()
        found = sorted(glob.glob(pattern)) if magic else [pattern]
        if not found:
            raise click.UsageError(f"no file matches {pattern}")
        paths.extend(found)
    return list({os.path.abspath(path): path for path in reversed(paths)}.values())[::-1]


def open_traces(patterns: Sequence[str], provenance: str | None) -> list["Trace"]:
    """Open the files that paths and globs name; the bundled sample if there are none."""
    from hisparse_sim.traces import open_trace

    return [open_trace(path, provenance) for path in expand(patterns or [SAMPLE])]


def refuse_replacing(
    output: Path, force: bool, inputs: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Raise UsageError if a trace would be replaced without --force, TraceError if `output` is one
    of the files that are read.

    Every command that writes a trace asks before it does anything. A file that is no trace (an
    empty temporary one, say) may be replaced.
    """
    refuse_input(output, inputs)
    if not force and holds_trace(output):
        raise click.UsageError(
            f"{output} is a trace already: name another file, or replace it with --force"
        )


def output_form(form: str | None, output: Path | None) -> str:
    """Return the format asked for, else that of the file's suffix, else table.

    Refuses at once what could not be written after the work.
    """
    from hisparse_sim.traces.files import refuse_unwritable

    if output is not None:
        refuse_unwritable(output)
    elif form == "parquet":
        raise click.UsageError("parquet is binary: name a file with -o")
    suffix = output.suffix.lower().lstrip(".") if output else ""
    return form or (suffix if suffix in FILE_FORMATS else "table")


def counter(what: str, quiet: bool) -> Callable[[int, int], None] | None:
    """Return a counter line on stderr, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        click.echo(f"\r{done}/{total} {what}", err=True, nl=done == total)

    return show
