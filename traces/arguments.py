"""Whole numbers, ranges of steps and switches that functions take, checked alike.

Python and NumPy integers count; True, 2.5, nan and "2" are refused, not rounded.
"""

from collections.abc import Iterable, Sequence
from operator import index
from reprlib import repr as clipped
from typing import SupportsIndex


def whole_number(
    name: str, value: SupportsIndex, least: int | None = None, most: int | None = None
) -> int:
    """Return the argument `name` as a Python integer. Raises ValueError if it is none, or lies
    outside `least` to `most`."""
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, not {clipped(value)}")
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = [] if least is None else [f"at least {least}"]
        bounds += [] if most is None else [f"at most {most}"]
        raise ValueError(f"{name} must be {' and '.join(bounds)}, not {clipped(number)}")
    return number


def whole_numbers(
    name: str, given: SupportsIndex | Iterable[SupportsIndex], least: int | None = None
) -> tuple[int, ...]:
    """Return one or several numbers, as `whole_number` takes them."""
    values = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    return tuple(whole_number(name, value, least) for value in values)


def step_range(steps: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the range (first, stop) of steps. Raises ValueError if it is no pair of numbers."""
    if steps is None:
        return None
    if not isinstance(steps, Sequence) or len(steps) != 2:
        raise ValueError(f"steps must be (first, stop), as in (0, 500), not {clipped(steps)}")
    return whole_number("steps", steps[0]), whole_number("steps", steps[1])


def switch(name: str, value: object) -> None:
    """Raise ValueError if the argument `name` is neither True nor False: "no" would be true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {clipped(value)}")
