"""What is wrong with a policy that cannot be compiled, in one sentence.

Numba answers a mistake in a hook with pages about the types of the loop around it. The common
mistakes are told apart here, from the policy first and from Numba's text second.
"""

import inspect
import re
from difflib import get_close_matches
from functools import cache
from linecache import getline
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numba.core.errors import NumbaError

from hisparse_sim.policies.hook import is_hook
from hisparse_sim.policies.policy import Policy, PolicyError, Step

_COLOURS = re.compile(r"\x1b\[\d*m")
_NO_FIELD = re.compile(r"Unknown attribute '(\w+)' of type (\w+)")
_NO_HOOK = re.compile(
    r"Untyped global name '(\w+)'.*Cannot determine Numba type of <class 'function'>"
)
_NO_NAME = re.compile(r"(?:NameError: name|Untyped global name) '(\w+)'.*is not defined")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_NOT_THEIRS = ("kernel.py", "per_token.py")


@cache
def check_step(policy: Policy) -> None:
    """Raise PolicyError for a step that is no hook, or takes other arguments."""
    of = f"policy {policy.name!r}"
    if not is_hook(policy.step):
        name = getattr(policy.step, "__name__", "its step")
        raise PolicyError(f"{of}: {name} is not marked with @hook, which its step must be")
    wanted = len(inspect.signature(policy.step).parameters)
    if wanted != 3:
        raise PolicyError(f"{of}: its step takes {wanted} arguments, expected (state, step, now)")


def check_state(policy: Policy, state: Any) -> None:
    """Raise PolicyError for a state that compiled code cannot take."""
    of = f"policy {policy.name!r}"
    fields = getattr(state, "_fields", None)
    if not isinstance(state, tuple) or fields is None:
        raise PolicyError(
            f"{of}: state(setup) returned {type(state).__name__}, expected a NamedTuple of arrays"
        )
    for name, value in zip(fields, state, strict=True):
        if hasattr(value, "_fields"):
            check_state(policy, value)
            continue
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            found = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else repr(value)
            raise PolicyError(
                f"{of}: {name} of its state is {found}, expected an array of numbers (a single one"
                " is an array of length 1)"
            )


def refuse(policy: Policy, state: Any, error: NumbaError) -> NoReturn:
    """Raise PolicyError for what Numba found wrong, with the place in the policy's file."""
    text = _COLOURS.sub("", str(error))
    of = f"policy {policy.name!r}"
    if found := _NO_FIELD.search(text):
        name, kind = found.groups()
        known = {"Step": Step._fields, type(state).__name__: state._fields}.get(kind, ())
        near = get_close_matches(name, known, 1)
        what = {"Step": "a step"}.get(kind, "its state" if known else kind)
        way_out = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
        said = f"{what} has no field {name}" + f"; {way_out}" * bool(known)
    elif found := _NO_HOOK.search(text):
        said = f"{found[1]} is called by a hook, and is not marked with @hook itself"
    elif found := _NO_NAME.search(text):
        said = f"{found[1]} is not defined"
    else:
        where, line = _place(text)
        raise PolicyError(f"{of}: Numba cannot compile `{line}`{where}") from error
    where, _ = _place(text[found.end() :])
    raise PolicyError(f"{of}: {said}{where}") from None


def _place(text: str) -> tuple[str, str]:
    """Return the first place of user code that Numba's text names, and what stands there."""
    for file, line in _PLACE.findall(text):
        if Path(file).name not in _NOT_THEIRS and "numba" not in Path(file).parts:
            return f" ({Path(file).name}, line {line})", getline(file, int(line)).strip()
    return "", "its step"
