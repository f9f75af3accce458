"""The unit of positions of a trace: a token, or several neighbouring tokens.

With blocks and groups, everything in positions is in them: `positions`,
`seq_len`, `prompt_len` and `top_k` of the file, and slots and misses of a replay.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from hisparse_sim.traces.errors import TraceError

TOKEN = "token"
COMPRESSED = "c4"  # groups of four tokens, compressed to one entry once they are complete
WANTED = "token, block4 (or another number of tokens) or c4"
_BLOCK = re.compile(r"block([2-9]|[1-9][0-9]{1,5})")


def block_unit(tokens: int) -> str:
    """Return the unit of positions that hold so many tokens each."""
    return TOKEN if tokens == 1 else f"block{tokens}"


def tokens_of(unit: str) -> int:
    """Return how many tokens a position of this unit holds."""
    block = _BLOCK.fullmatch(unit)
    return int(block[1]) if block else 4 if unit == COMPRESSED else 1


def positions_of(tokens: Any, unit: str) -> Any:
    """Return how many positions so many tokens have; a number, or an array of numbers.

    The last block may be partly filled. A group has no entry before it is complete.
    """
    size = tokens_of(unit)
    return tokens // size if unit == COMPRESSED else -(-tokens // size)


def first_growth(unit: str) -> int:
    """Return by how much the first step of decode is longer than the prompt at least: the newest
    token may not complete a group."""
    return 0 if unit == COMPRESSED else 1


def is_unit(value: Any) -> bool:
    """Return whether metadata may name this unit."""
    return isinstance(value, str) and (
        value in (TOKEN, COMPRESSED) or bool(_BLOCK.fullmatch(value))
    )


def plural(unit: str) -> str:
    """Return what positions of this unit are, in words."""
    if unit == COMPRESSED:
        return "compressed groups of 4 tokens"
    return "tokens" if unit == TOKEN else f"blocks of {tokens_of(unit)} tokens"


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

    Bytes, memory and time of blocks are those of a model that selects such blocks.
    """
    for trace in traces:
        if in_blocks(trace):
            raise TraceError(
                f"{trace.path} counts {plural(trace.metadata.unit)}, and {what} single tokens:"
                " sweep and curve report its misses, and for a `model` that selects such blocks"
                " their cost"
            )
