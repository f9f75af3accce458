"""Ways to spoil a file: some know nothing of it, others know its structure.

A mutator takes the bytes of a sound file and a source of chance. What it returns may be sound, too.
It may raise anything if another mutator left nothing of the structure that it looks for.
"""

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutator = Callable[[bytes, Random], bytes]

NUMBERS = [0, -1, 1, -2, 2, 7, 63, 64, 127, 128, 255, 256, 32767, 32768, 65535, 2**31 - 1, 2**31,
           -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64,
           10**30]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, "", "a", "\x00", "\ud800", "NaN", "null", "=1+1", "é" * 40, "x" * 70_000,
    0.0, -0.0, 0.5, 1e308, -1e-308, float("nan"), float("inf"), -float("inf"), [], {}, [[]],
    [None], {"": 0}, {"a": {"a": {"a": []}}}, *NUMBERS,
]  # fmt: skip


def at(data: bytes, source: Random) -> int:
    """Return a place in the data."""
    return source.randrange(max(1, len(data)))


def flip_bits(data: bytes, source: Random) -> bytes:
    """One to four bits, anywhere."""
    spoilt = bytearray(data)
    for _ in range(source.choice([1, 1, 1, 2, 4])):
        if spoilt:
            spoilt[at(data, source)] ^= 1 << source.randrange(8)
    return bytes(spoilt)


def set_bytes(data: bytes, source: Random) -> bytes:
    """One to eight bytes in a row become another value, or any."""
    start, count = at(data, source), source.randrange(1, 9)
    value = source.choice([b"\x00", b"\xff", b"\x7f", b"\x80", None])
    return (
        data[:start] + (value * count if value else source.randbytes(count)) + data[start + count :]
    )


def cut_off(data: bytes, source: Random) -> bytes:
    """The end is missing, or the beginning."""
    place = at(data, source)
    return data[:place] if source.random() < 0.8 else data[place:]


def leave_out(data: bytes, source: Random) -> bytes:
    """A piece is missing."""
    start = at(data, source)
    return data[:start] + data[start + source.choice([1, 2, 4, 8, 64, 512]) :]


def repeat(data: bytes, source: Random) -> bytes:
    """A piece comes twice, next to itself or elsewhere."""
    start, count = at(data, source), source.choice([1, 2, 4, 8, 64, 512])
    place = source.choice([start, at(data, source)])
    return data[:place] + data[start : start + count] + data[place:]


def exchange(data: bytes, source: Random) -> bytes:
    """Two pieces of one size in each other's place."""
    count = source.choice([1, 4, 8, 64, 256])
    first, second = sorted((at(data, source), at(data, source)))
    if first + count > second or second + count > len(data):
        return flip_bits(data, source)
    return (
        data[:first] + data[second : second + count] + data[first + count : second]
        + data[first : first + count] + data[second + count :]
    )  # fmt: skip


def nothing(data: bytes, source: Random) -> bytes:
    """An empty file, or some bytes that are none of it."""
    return source.choice([b"", b"\x00", b"PAR1", b"{}", b"[]", source.randbytes(200)])


ANY: list[Mutator] = [flip_bits, set_bytes, cut_off, leave_out, repeat, exchange]


_PARSING: set[Mutator] = set()


def parsing(mutator: Mutator) -> Mutator:
    """Mark a mutator that reads the file by pyarrow, which spoilt ones can end the process of."""
    _PARSING.add(mutator)
    return mutator


def several(mutators: Sequence[Mutator]) -> Mutator:
    """Return a mutator that applies one to three of these."""

    def apply(data: bytes, source: Random) -> bytes:
        chosen = source.choices(mutators, k=source.choice([1, 1, 1, 2, 3]))
        first = [each for each in chosen if each in _PARSING][:1]
        for mutator in first + [each for each in chosen if each not in _PARSING]:
            try:
                data = mutator(data, source)
            except Exception:  # the one before left nothing of the structure that it looks for
                data = flip_bits(data, source)
        return data if source.random() < 0.995 else nothing(data, source)

    return apply


# --- text ----------------------------------------------------------------------------------------


def change_number(data: bytes, source: Random) -> bytes:
    """A number of a text becomes another one."""
    found = [*re.finditer(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", data[:100_000])]
    place = source.choice(found)
    number = source.choice(
        [*map(str, NUMBERS), "1e400", "-1e400", "nan", "inf", "1.5", "0x7f", "00"]
    )
    return data[: place.start()] + number.encode() + data[place.end() :]


def change_token(data: bytes, source: Random) -> bytes:
    """A mark of the language is put in, left out or taken for another."""
    marks = b'{}[]",:\\=#\n\r\t -.e\x00\xff\'"'
    found = [number for number, byte in enumerate(data[:100_000]) if byte in marks]
    if not found:
        return set_bytes(data, source)
    place = source.choice(found)
    mark = bytes([source.choice(marks)])
    return (
        data[:place]
        + source.choice([mark, b"", mark + data[place : place + 1]])
        + data[place + 1 :]
    )


def nest(data: bytes, source: Random) -> bytes:
    """Something of ten thousand levels."""
    place = at(data, source)
    depth = source.choice([30, 500, 10_000])
    return (
        data[:place] + source.choice([b"[" * depth, b'{"a":' * depth, b"a." * depth]) + data[place:]
    )


def change_line(data: bytes, source: Random) -> bytes:
    """A line is missing, comes twice, or elsewhere."""
    lines = data.split(b"\n")
    line = lines.pop(source.randrange(len(lines)))
    for _ in range(source.choice([0, 1, 2])):
        lines.insert(source.randrange(len(lines) + 1), line)
    return b"\n".join(lines)


TEXT: list[Mutator] = [change_number, change_number, change_token, change_line, nest, *ANY]


# --- JSON ----------------------------------------------------------------------------------------


def change_tree(tree: Any, source: Random) -> Any:
    """Change one value somewhere in a JSON document, in place where it can be."""
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        keys = [*node] if isinstance(node, dict) else range(min(len(node), 40))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                collect(node[key])

    if not isinstance(tree, dict | list) or not tree:
        return source.choice(VALUES)
    collect(tree)
    node, key = source.choice(places)
    other, other_key = source.choice(places)
    what = source.randrange(6)
    if what == 0:
        del node[key]
    elif what == 1:
        value = json.loads(json.dumps(other[other_key]))  # a copy: no circles
        node[key] = value
    elif what == 2 and isinstance(node, list):
        node.insert(source.randrange(len(node) + 1), json.loads(json.dumps(node[key])))
    elif what == 3 and type(node[key]) is int:
        node[key] += source.choice([-1, 1, -7, 64])
    else:
        node[key] = source.choice(VALUES)
    return tree


def change_json(data: bytes, source: Random) -> bytes:
    """A value of a JSON document, or of one of its lines."""
    lines = data.split(b"\n") if b"\n{" in data else [data]
    number = source.randrange(len(lines))
    tree = json.loads(lines[number])
    for _ in range(source.choice([1, 1, 2])):
        tree = change_tree(tree, source)
    lines[number] = json.dumps(tree, ensure_ascii=source.random() < 0.9).encode(
        errors="surrogatepass"
    )
    return b"\n".join(lines)


def double_key(data: bytes, source: Random) -> bytes:
    """A key has two values."""
    found = [*re.finditer(rb'"\w+": ?', data[:100_000])]
    place = source.choice(found)
    value = source.choice([b"0", b'"AAAA"', b"null", b"7"])
    return data[: place.start()] + place.group() + value + b", " + data[place.start() :]


JSON: list[Mutator] = [change_json, change_json, change_json, double_key, *TEXT]
