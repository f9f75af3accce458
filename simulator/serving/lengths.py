"""Requests that the engine refuses for their length, and outputs that it cuts.

The rule of SGLang 0.5.12 to 0.5.23, with and without HiSparse. With C tokens of context, P tokens
in the device pool (never P * R), a prompt of n tokens and o tokens asked for:

- refused if n >= C or n + o > C (managers/tokenizer_manager.py);
- refused if n >= min(C, P) - 6 (managers/tp_worker.py, managers/utils.py);
- else the output ends after min(o, min(C, P) - 2 - n, P - pages(n) - 64 - 1) tokens, without a
  warning (managers/scheduler.py, init_req_max_new_tokens).

Paths are below sglang/srt of the 0.5.23 wheel.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE_TOKENS = 64  # the page of the engine; also the reserved page after every hot buffer

WHOLE, CUT, REFUSED = "whole", "cut", "refused"
PROMPT_MARGIN = 7  # tokens by which the longest prompt stays below pool and context


def pages(tokens: int) -> int:
    """`tokens` rounded up to whole pages, in tokens."""
    return -(-tokens // PAGE_TOKENS) * PAGE_TOKENS


def in_tokens(count: int) -> str:
    """A number of tokens in words."""
    return f"{count:,} token{'s' * (count != 1)}"


@dataclass(frozen=True)
class Length:
    """The outcome for one request: at most `output` tokens are generated."""

    outcome: str  # whole, cut or refused
    output: int  # 0 also if the prompt is accepted but leaves no room for an output
    reason: str = ""  # why cut or refused, one sentence with the figures


def check_length(prompt: int, output: int, pool_tokens: int, context: int) -> Length:
    """Return the outcome for `prompt` tokens and `output` requested, on an empty rank.

    `pool_tokens` is the device pool P of one rank, `context` the model's longest sequence.
    """
    longest = min(context, pool_tokens) - PROMPT_MARGIN
    if prompt > longest:
        bound = (
            f"the context of {context:,}"
            if context <= pool_tokens
            else f"the device pool of {pool_tokens:,}"
        )
        return Length(
            REFUSED,
            0,
            f"the prompt of {in_tokens(prompt)} is longer than {max(longest, 0):,}, the longest"
            f" that {bound} allows",
        )
    if prompt + output > context:
        return Length(
            REFUSED,
            0,
            f"prompt and output, {in_tokens(prompt + output)}, exceed the context of {context:,}",
        )
    memory = pool_tokens - pages(prompt) - PAGE_TOKENS - 1
    room = max(min(min(context, pool_tokens) - 2 - prompt, memory), 0)
    if output <= room:
        return Length(WHOLE, output)
    bound = "the device pool" if memory <= room else "the context"
    size = pool_tokens if memory <= room else context
    return Length(
        CUT,
        room,
        f"{bound} of {size:,} tokens has room for {room:,} of the {output:,} output tokens beside a"
        f" prompt of {prompt:,}",
    )
