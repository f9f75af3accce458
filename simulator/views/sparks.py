"""Small plots in a line of text, for terminals that show block characters."""

import math
import os
import sys
from collections.abc import Sequence

_RISING = "▁▂▃▄▅▆▇█"
_GROWING = "▏▎▍▌▋▊▉█"


def drawable() -> bool:
    """Whether stdout is a terminal that shows block characters."""
    encoding = (getattr(sys.stdout, "encoding", "") or "").lower()
    dumb = os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
    return sys.stdout.isatty() and encoding.startswith("utf") and not dumb


def sparkline(values: Sequence[float], longest: int = 60) -> str:
    """Return one character per value, from 0 to the largest; more than `longest` values are
    averaged.

    Missing values leave a blank.
    """
    shares = -(-len(values) // longest) or 1
    means = [_mean(values[i : i + shares]) for i in range(0, len(values), shares)]
    top = max((value for value in means if math.isfinite(value)), default=0.0)
    return "".join(
        _RISING[min(int(value / top * len(_RISING)), len(_RISING) - 1) if top > 0 else 0]
        if math.isfinite(value)
        else " "
        for value in means
    )


def bar(value: float, most: float, width: int = 8) -> str:
    """Return a bar, `width` characters long at `most`, in steps of an eighth; "" for a missing
    value."""
    if not math.isfinite(value) or value <= 0 or most <= 0:
        return ""
    eighths = max(round(value / most * width * 8), 1)
    rest = eighths % 8
    return _GROWING[-1] * (eighths // 8) + (_GROWING[rest - 1] if rest else "")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
