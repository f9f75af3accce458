"""Messages to users: notes on stderr, and names as text that any terminal can show."""

import os
import re
from pathlib import Path

import click

from hisparse_sim.traces.errors import without_credentials

# What moves the cursor, changes colours, reverses text or breaks a line, and half characters.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def note(text: str, quiet: bool) -> None:
    """Write a note to stderr."""
    if not quiet:
        click.echo(escaped(text), err=True)


def escaped(text: str, lines: bool = False) -> str:
    """Return a text of unknown origin with its control characters written out, as in `\\x1b`, and
    without credentials; line feeds stay if it has `lines` of our own."""
    return _CONTROL.sub(
        lambda found: (
            found[0] if lines and found[0] == "\n" else found[0].encode("unicode_escape").decode()
        ),
        without_credentials(text),
    )


def counted(count: int, what: str) -> str:
    """Return "1 step" or "1,024 steps"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def wrote(path: Path | None, quiet: bool) -> None:
    """Note that a file was written; None stands for none."""
    if path is not None:
        note(f"wrote {path}", quiet)


def printable(name: str) -> str:
    """Return the name of a file, which may be any bytes, as text that can be written anywhere."""
    return escaped(os.fsencode(name).decode(errors="backslashreplace"))
