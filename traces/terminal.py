"""What is said to a person: notes on stderr, names as text that any terminal can show."""

import os
from pathlib import Path

import click


def note(text: str, quiet: bool) -> None:
    """Say something beside the data, on stderr."""
    if not quiet:
        click.echo(text, err=True)


def wrote(path: Path | None, quiet: bool) -> None:
    """Say that a file was written; None is none."""
    if path is not None:
        note(f"wrote {path}", quiet)


def printable(name: str) -> str:
    """Return the name of a file, which may be any bytes, as text that can be written anywhere."""
    return os.fsencode(name).decode(errors="backslashreplace")
