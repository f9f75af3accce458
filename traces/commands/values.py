"""Values of options, parsed alike by all commands: numbers and ranges of them, names, files.

Nothing here loads a heavy library.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from pathlib import Path
from reprlib import repr as clipped
from typing import TYPE_CHECKING, Any, cast

import click

from hisparse_sim.traces.documents import LEAST_AMOUNT, MOST_AMOUNT, MOST_COUNT
from hisparse_sim.traces.publish import Target
from hisparse_sim.traces.remote import Url, place_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_UNITS = {"k": 1024, "m": 1024**2}
_SPAN = re.compile(r"(\w+)-(\w+)")  # 0-5
_GRID = re.compile(r"(\w+):(\w+):(\w+)")  # 2048:8192:1024
_MOST_VALUES = 100_000


def whole(text: str) -> int:
    """Return the number in a text such as 4096, 4_096, 64k (65,536) or 1m (1,048,576).

    Raises ValueError if it is none.
    """
    digits = text.strip().lower()
    unit = _UNITS.get(digits[-1:], 1)
    try:
        number = int(digits if unit == 1 else digits[:-1]) * unit
    except ValueError:
        raise ValueError(f"{clipped(text)} is not a whole number such as 4096 or 64k") from None
    if abs(number) >= 2**63:
        raise ValueError(f"{clipped(text)} is a number of more than 64 bits")
    return number


def wholes(text: str) -> Sequence[int]:
    """Return the numbers of one piece of a list: one number, FIRST-LAST or FIRST:LAST:STEP.

    Both ends count: 0-5 are six numbers, and 2048:8192:1024 are seven. Raises ValueError.
    """
    if span := _SPAN.fullmatch(text.strip()) or _GRID.fullmatch(text.strip()):
        first, last, step = (*map(whole, span.groups()), 1)[:3]
        if step < 1 or last < first:
            raise ValueError(f"{clipped(text)} is an empty range")
        values = range(first, last + 1, step)
        if len(values) > _MOST_VALUES:
            raise ValueError(f"{clipped(text)} are {len(values):,} numbers")
        return values
    return [whole(text)]


class Number(click.IntRange):
    """A whole number within bounds, as `whole` reads it; at most MOST_COUNT unless stated."""

    name = "number"
    most = MOST_COUNT

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            try:
                value = whole(value)
            except ValueError as error:
                self.fail(str(error), param, ctx)
        if self.max is None and value > self.most:
            self.fail(f"{value} is above {self.most}", param, ctx)
        return super().convert(value, param, ctx)


class Seed(Number):
    """A number that seeds a generator: up to 64 bits with the sign."""

    most = 2**63 - 1


class Real(click.FloatRange):
    """A finite number within bounds; if not 0, it is at least 1e-9 and at most 1e18."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if isnan(number):  # it is below no bound and above none
            self.fail(f"{number} is not in the range {self._describe_range()}", param, ctx)
        if number != 0 and not LEAST_AMOUNT <= abs(number) <= MOST_AMOUNT:
            self.fail(f"{number} is not between {LEAST_AMOUNT:g} and {MOST_AMOUNT:g}", param, ctx)
        return number


# A comma between values; one before FIELD= belongs to what stands before it.
_COMMA = re.compile(r",(?!\s*\w+\s*=)")


def several(
    kind: Callable[[str], Any], distinct: bool = True, least: float | None = None
) -> Callable[..., tuple[Any, ...] | None]:
    """Return a callback for options that are repeated or hold values separated by commas.

    `kind` makes a value of a piece of text, or raises ValueError; with int a piece may also be a
    range, see `wholes`. Each value counts once, unless not `distinct`, and is at least `least`.
    """

    def parse(
        ctx: click.Context, parameter: click.Parameter, given: Sequence[str]
    ) -> tuple[Any, ...] | None:
        if not given:
            return None
        values: list[Any] = []
        for text in (piece for each in given for piece in _COMMA.split(each)):
            try:
                values += wholes(text) if kind is int else [kind(text.strip())]
            except ValueError as error:
                raise click.BadParameter(str(error)) from None
        for value in values:
            if least is not None and not value >= least:
                raise click.BadParameter(f"{value} is not at least {least}")
            if kind is int and value > MOST_COUNT:
                raise click.BadParameter(f"{value} is above {MOST_COUNT}")
        return tuple(dict.fromkeys(values) if distinct else values)

    return parse


def step_range(
    ctx: click.Context, parameter: click.Parameter, given: str | None
) -> tuple[int, int] | None:
    """Parse FIRST:STOP, either of which may be left out."""
    if given is None:
        return None
    first, colon, stop = given.partition(":")
    try:
        steps = whole(first or "0"), whole(stop or str(2**31))
    except ValueError:
        steps = (0, 0)
    if not colon or steps[0] >= steps[1]:
        raise click.BadParameter(f"{clipped(given)} is not FIRST:STOP, as in 0:500 or 100:")
    return steps


class Name(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A name that the shell completes from the known ones; the library checks it.

    `known` is called at completion only. With `listed`, names may be separated by commas.
    """

    name = "text"

    def __init__(self, known: Callable[[], Iterable[str]], listed: bool = False):
        self.known = known
        self.listed = listed

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list["CompletionItem"]:
        from click.shell_completion import CompletionItem

        done, comma, begun = incomplete.rpartition(",") if self.listed else ("", "", incomplete)
        return [
            CompletionItem(done + comma + name) for name in self.known() if name.startswith(begun)
        ]


_FORCE = "hisparse_sim.force"  # in the memory of a command: whether --force was given


def forced(ctx: click.Context, parameter: click.Parameter, given: bool) -> bool:
    """Remember --force, an eager option, for the files and URLs that other options name."""
    ctx.meta[_FORCE] = given
    return given


def _target(value: str | os.PathLike[str], ctx: click.Context | None) -> Path:
    """Return the file or URL that is written. Raises BadParameter if nobody could read it."""
    path = place_of(value)
    if not isinstance(path, Url):
        return path
    if path.scheme == "memory":
        raise click.BadParameter(f"{path} ends with this command: name a file or another store")
    return cast(Path, Target(str(path), force=ctx is not None and ctx.meta.get(_FORCE, False)))


class AnyOutput(click.Path):
    """A file to write, or a URL."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = _target(value, ctx)
        return path if isinstance(path, Url) else super().convert(path, param, ctx)


class Output(click.Path):
    """A file or URL to write, with one of `suffixes`, or a device."""

    def __init__(self, *suffixes: str):
        super().__init__(dir_okay=False, path_type=Path)
        self.suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = _target(value, ctx)
        if not isinstance(path, Url):
            path = Path(os.fsdecode(super().convert(path, param, ctx)))
        refuse_suffix(path, self.suffixes)
        return path


def refuse_suffix(path: Path, suffixes: Sequence[str]) -> None:
    """Raise BadParameter for a file with another suffix; a device may be called anything."""
    from hisparse_sim.traces.files import is_file

    if is_file(path) and path.suffix.lower() not in suffixes:
        ends = f"ends in {path.suffix}" if path.suffix else "has no suffix"
        choice = ", ".join(suffix for suffix in suffixes if suffix)
        raise click.BadParameter(f"{path} {ends}; choose {'one of ' * (',' in choice)}{choice}")


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


class RenamedChoice(click.Choice):  # type: ignore[type-arg]
    """Choices of which some had other names, which still work: `former` maps these to them."""

    def __init__(self, choices: Sequence[str], former: Mapping[str, str]):
        super().__init__(choices)
        self.former = former

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        chosen: str = super().convert(self.former.get(value, value), param, ctx)
        return chosen


def given(*names: str) -> list[str]:
    """Return those of the options `names` (as on the command line) that the command was given."""
    ctx = click.get_current_context()
    parameter = {option: each.name for each in ctx.command.params for option in each.opts}
    default = click.core.ParameterSource.DEFAULT
    return [name for name in names if ctx.get_parameter_source(parameter[name] or "") != default]


def refuse_without(owner: str, present: bool, *names: str) -> None:
    """Raise UsageError if one of the options `names` is given although `owner`, to which it
    belongs, is not `present`: it would be ignored without a word."""
    if not present and (alone := given(*names)):
        raise click.UsageError(f"{' and '.join(alone)} belong{'s' * (len(alone) == 1)} to {owner}")
