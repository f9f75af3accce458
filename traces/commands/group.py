"""Groups of commands: loaded from their folders when called; errors are one sentence.

Exit codes: 0 done, 1 failed, 2 wrong usage, 128 + the number of the signal that ended the command.
"""

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from hisparse_sim.traces.commands.options import in_options
from hisparse_sim.traces.commands.signals import signals_end
from hisparse_sim.traces.terminal import escaped


class Interrupted(click.ClickException):
    """Ctrl-C ended the work; the message says what remains of it."""

    exit_code = 130


class Group(click.Group):
    """A group that reports errors in one sentence and loads commands from other folders when
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known, name = self.list_commands(ctx), args[0]
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(name, known, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            ctx.fail(f"no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

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
            sys.stdout.reconfigure(errors="backslashreplace")  # for ids on a terminal without UTF-8
        try:
            with signals_end():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted(escaped(str(error)) or "interrupted") from None
        except click.ClickException as error:
            own = isinstance(error, click.BadParameter)  # click's own, of lines
            error.message = escaped(error.message, lines=own)  # type: ignore[misc]
            raise
        except TraceError as error:
            raise click.ClickException(self.said(ctx, error)) from error
        except ValueError as error:
            if isinstance(error, UnicodeError):
                raise click.ClickException(f"some text is not UTF-8 ({error})") from error
            raise click.UsageError(self.said(ctx, error)) from error
        except MemoryError as error:
            asked = str(error).partition(" with shape")[0] or "none is left"  # NumPy names fields
            raise click.ClickException(
                f"this needs more memory than there is ({asked}): ask for less"
            ) from error
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise click.ClickException(
                escaped(f"{error.filename or ''} {error.strerror or error}".strip())
            ) from error

    def said(self, ctx: click.Context, error: Exception) -> str:
        """Return what an error of the library says, in the options of the command that ran."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        return escaped(str(error) if command is None else in_options(str(error), command))
