"""The unit of positions of a trace: a token, or a block of neighbouring tokens.

With block selection, everything in positions is in blocks: `positions`,
`seq_len`, `prompt_len` and `top_k` of the file, and slots and misses of a replay.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from hisparse_sim.traces.errors import TraceError

TOKEN = "token"
COMPRESSED = "c4"  # groups of four tokens, compressed to one entry: known, not replayed
WANTED = "token, block4 (or another number of tokens) or c4"
_BLOCK = re.compile(r"block([2-9]|[1-9][0-9]{1,5})")


def block_unit(tokens: int) -> str:
    """Return the unit of positions that hold so many tokens each."""
    return TOKEN if tokens == 1 else f"block{tokens}"


def tokens_of(unit: str) -> int:
    """Return how many tokens a position of this unit holds."""
    block = _BLOCK.fullmatch(unit)
    return int(block[1]) if block else 1


def is_unit(value: Any) -> bool:
    """Return whether metadata may name this unit."""
    return isinstance(value, str) and (value == COMPRESSED or can_be_replayed(value))


def can_be_replayed(unit: str) -> bool:
    """Return whether the rules of a replay hold for positions of this unit."""
    return unit == TOKEN or _BLOCK.fullmatch(unit) is not None


def plural(unit: str) -> str:
    """Return what positions of this unit are, in words."""
    block = _BLOCK.fullmatch(unit)
    return f"blocks of {block[1]} tokens" if block else f"{unit}s"


class _Described(Protocol):
    @property
    def unit(self) -> str: ...


class _Trace(Protocol):
    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> _Described: ...


def in_blocks(trace: _Trace) -> bool:
    """Return whether positions of a trace are blocks of tokens."""
    return trace.metadata.unit != TOKEN


def refuse_blocks(traces: Iterable[_Trace], what: str) -> None:
    """Raise TraceError for a trace whose positions are not tokens; `what` ("plans need") requires
    tokens.

    Bytes, memory and time are only known for models that select tokens.
    """
    for trace in traces:
        if in_blocks(trace):
            raise TraceError(
                f"{trace.path} counts {plural(trace.metadata.unit)}, and {what} single tokens:"
                " sweep and curve report its misses, but compute no cost"
            )
