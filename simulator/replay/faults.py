"""What is wrong with a policy or a prefetcher of one's own, in one sentence.

Numba answers a mistake in a hook with pages about the types of the loop around it. The common
mistakes are told apart here, from the hook first and from Numba's text second.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from linecache import getline
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numba.core.errors import NumbaError

from hisparse_sim.policies.hook import is_hook
from hisparse_sim.policies.policy import PolicyError

_COLOURS = re.compile(r"\x1b\[\d*m")
_NO_FIELD = re.compile(r"Unknown attribute '(\w+)' of type (\w+)")
_NO_HOOK = re.compile(
    r"Untyped global name '(\w+)'.*Cannot determine Numba type of <class 'function'>"
)
_NO_NAME = re.compile(r"(?:NameError: name|Untyped global name) '(\w+)'.*is not defined")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_NOT_THEIRS = ("kernel.py", "per_token.py")


class Hook(NamedTuple):
    """A hook and what it is called with."""

    of: str  # whose it is: "policy 'mine'"
    name: str  # the field that holds it: "step"
    function: Callable[..., Any]
    arguments: str  # "(state, step, now)"
    sees: type[Any]  # the NamedTuple among its arguments: Step
    returns: str = ""  # what it must return, if anything


@cache
def check_hook(hook: Hook) -> None:
    """Raise PolicyError for a function that is no hook, or takes other arguments."""
    if not is_hook(hook.function):
        name = getattr(hook.function, "__name__", f"its {hook.name}")
        raise PolicyError(
            f"{hook.of}: {name} is not marked with @hook, which its {hook.name} must be"
        )
    takes = len(inspect.signature(hook.function).parameters)
    if takes != hook.arguments.count(",") + 1:
        raise PolicyError(
            f"{hook.of}: its {hook.name} takes {takes} arguments, expected {hook.arguments}"
        )


def state_of(of: str, make: Callable[[Any], Any], setup: Any) -> Any:
    """Return make(setup), a state. Raises PolicyError for one that compiled code cannot take."""
    with _said(of, "state(setup)", make):
        state = make(setup)
    _check_state(of, state)
    return state


def _check_state(of: str, state: Any) -> None:
    fields = getattr(state, "_fields", None)
    if not isinstance(state, tuple) or fields is None:
        raise PolicyError(
            f"{of}: state(setup) returned {type(state).__name__}, expected a NamedTuple of arrays"
        )
    for name, value in zip(fields, state, strict=True):
        if hasattr(value, "_fields"):
            _check_state(of, value)
            continue
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            found = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else repr(value)
            raise PolicyError(
                f"{of}: {name} of its state is {found}, expected an array of numbers (a single one"
                " is an array of length 1)"
            )


@contextmanager
def called(hook: Hook, state: Any, where: str) -> Iterator[None]:
    """Raise PolicyError for what goes wrong while a loop calls the hook: it cannot be compiled, or
    raises an exception. `where`: the request and layer that are replayed."""
    try:
        with _said(hook.of, f"its {hook.name}", hook.function, where):
            yield
    except NumbaError as error:
        _refuse(hook, state, error)


@contextmanager
def _said(of: str, what: str, function: Callable[..., Any], where: str = "") -> Iterator[None]:
    """Say in one sentence what somebody's function raises, and where; compiled code does not tell
    the line."""
    try:
        yield
    except (MemoryError, NumbaError):
        raise
    except Exception as error:
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        lines = [each.lineno for each in extract_tb(error.__traceback__) if each.filename == file]
        places = [f"{Path(file).name}, line {lines[-1]}"] if lines else []
        told = ", ".join([*places, *([where] if where else [])])
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise PolicyError(f"{of}: {what} raised {said}" + f" ({told})" * bool(told)) from error


def _refuse(hook: Hook, state: Any, error: NumbaError) -> NoReturn:
    """Raise PolicyError for what Numba found wrong, with the place in the file of the hook."""
    text = _COLOURS.sub("", str(error))
    if found := _NO_FIELD.search(text):
        name, kind = found.groups()
        seen = hook.sees.__name__
        known = {seen: hook.sees._fields, type(state).__name__: state._fields}.get(kind, ())
        near = get_close_matches(name, known, 1)
        what = {seen: f"a {seen.lower()}"}.get(kind, "its state" if known else kind)
        way_out = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
        said = f"{what} has no field {name}" + f"; {way_out}" * bool(known)
    elif found := _NO_HOOK.search(text):
        said = f"{found[1]} is called by a hook, and is not marked with @hook itself"
    elif found := _NO_NAME.search(text):
        said = f"{found[1]} is not defined"
    else:
        where, line = _place(text)
        said = f"Numba cannot compile `{line}`{where}"
        if not line:
            said = f"Numba cannot compile its {hook.name}"
            said += f"; does it always return {hook.returns}?" * bool(hook.returns)
        raise PolicyError(f"{hook.of}: {said}") from error
    where, _ = _place(text[found.end() :])
    raise PolicyError(f"{hook.of}: {said}{where}") from None


def _place(text: str) -> tuple[str, str]:
    """Return the first place of user code that Numba's text names, and what stands there."""
    for file, line in _PLACE.findall(text):
        if Path(file).name not in _NOT_THEIRS and "numba" not in Path(file).parts:
            return f" ({Path(file).name}, line {line})", getline(file, int(line)).strip()
    return "", ""
