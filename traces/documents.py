"""TOML and JSON from users (profiles, step times, the config of a model), read within bounds.

Such documents are small and flat. Anything else (a device, a pipe, gigabytes, ten thousand levels,
NaN) ends in one sentence before it costs memory or reaches a formula.
"""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable
from functools import partial
from reprlib import repr as clipped
from typing import Any

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.files import opened

MOST_BYTES = 1 << 20
MOST_TOML_BYTES = 128 << 10  # Python code parses it: half a second, 70 MB at most
MOST_DOTS = 100  # in a line; the memory that a dotted key takes grows with their square
MOST_LEVELS = 64
# Range of an amount of any kind: products and quotients of a few stay finite.
LEAST_AMOUNT, MOST_AMOUNT = 1e-9, 1e18  # above 0
MOST_COUNT = 2**31 - 1  # of tokens, steps, requests
_MOST_INTEGER = 2**63  # TOML's own bound
_TOO_LARGE = " holds a number of more than 64 bits"


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file. Raises TraceError if it is none, or goes beyond the bounds."""
    return parse_toml(_text(path, MOST_TOML_BYTES), str(path))


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file. Raises TraceError if it is none, or goes beyond the bounds."""
    return parse_json(_text(path, MOST_BYTES), str(path))


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """Parse TOML; every number in it is finite and has 64 bits at most.

    Raises TraceError, beginning with `place`.
    """
    for number, line in enumerate(text.split("\n"), 1):  # a key is on one line
        if line.count(".") > MOST_DOTS:
            raise TraceError(f"{place}, line {number} has more than {MOST_DOTS} dots")
    found: dict[str, Any] = _parsed(tomllib.loads, text, place, "TOML")
    return found


def parse_json(text: str, place: str) -> Any:
    """Parse JSON; every number in it is finite and has 64 bits at most.

    Raises TraceError, beginning with `place`.
    """
    return _parsed(partial(json.loads, object_pairs_hook=unique), text, place, "JSON")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, as `object_pairs_hook`. Raises TraceError if a key is there twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise TraceError(f"an object in it has the key {key[:40]!r} twice")
        found[key] = value
    return found


def _text(path: str | os.PathLike[str], most_bytes: int) -> str:
    with opened(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise TraceError(f"{path} has more than {most_bytes >> 10} KiB, too much for its kind")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not UTF-8 text (byte {error.start})") from None


def _parsed(parse: Callable[[str], Any], text: str, place: str, language: str) -> Any:
    try:
        found = parse(text)
        fault = _fault(found, MOST_LEVELS)
    except TraceError as error:
        raise TraceError(f"{place}: {error}") from None
    except RecursionError:
        raise TraceError(f"{place} nests deeper than {MOST_LEVELS} levels") from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise TraceError(f"{place} is not valid {language}: {str(error)[:200]}") from None
    except ValueError:  # Python turns no text of thousands of digits into a number
        fault = _TOO_LARGE
    if fault is not None:
        raise TraceError(f"{place}{fault}" if fault[0] == " " else f"{place}: {fault.lstrip('.')}")
    return found


def _fault(value: Any, levels: int) -> str | None:
    """Return what a document may not hold and where, None if nothing is wrong."""
    if isinstance(value, float) and not math.isfinite(value):
        return f" holds {value}, which is not a finite number"
    if isinstance(value, int) and abs(value) > _MOST_INTEGER:
        return _TOO_LARGE
    if not isinstance(value, dict | list):
        return None
    if levels == 0:
        raise RecursionError
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in pairs:
        fault = _fault(each, levels - 1)
        if fault is not None:
            plain = isinstance(key, str) and re.fullmatch(r"[\w-]{1,40}", key)
            return (f".{key}" if plain else f"[{clipped(key)}]") + fault
    return None
