"""Speculative decoding in a capture: where the drafts come from, and which of them are accepted.

Drafts are looked up: what followed the last few tokens where they stood before (prompt lookup
decoding, Saxena 2023; n-gram drafts of serving engines). They need no second model, and are
wrong often enough that a trace has the queries of rejected drafts, too.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hisparse_sim.traces.capture.forward import Draw, Forward
from hisparse_sim.traces.demand import Demand

LONGEST_ENDING = 3
MEANS = f"by prompt lookup of the last {LONGEST_ENDING} tokens or fewer"


class Lookup:
    """The tokens so far, and where each ending of up to three of them was last continued."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # the place of what followed an ending
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """The next token is known."""
        for size in range(1, min(LONGEST_ENDING, len(self.tokens)) + 1):
            self._after[tuple(self.tokens[-size:])] = len(self.tokens)
        self.tokens.append(token)

    def drafts(self, count: int) -> list[int]:
        """Return the tokens that may follow; the last one again where it was never followed."""
        endings = (tuple(self.tokens[-size:]) for size in range(LONGEST_ENDING, 0, -1))
        found = (self._after[ending] for ending in endings if ending in self._after)
        first = next(found, len(self.tokens) - 1)
        drafted = list(self.tokens[first : first + count])
        while len(drafted) < count:  # the lookup reached its own drafts
            at = first + len(drafted) - len(self.tokens)
            drafted.append(drafted[at])
        return drafted


def accepted(drafts: Sequence[int], following: Sequence[int]) -> int:
    """Return how many tokens a step accepts: its first, and the drafts before the first wrong one.

    `following`: what really comes after each row.
    """
    count = 1
    for draft, token in zip(drafts, following, strict=False):
        if draft != token:
            break
        count += 1
    return count


def verify(
    forward: Forward,
    decode: Callable[[int, Sequence[int]], Any],
    draw: Draw | None,
    logits: Any,
    ids: Sequence[int],
    prompt_len: int,
    steps: int,
    draft_tokens: int,
) -> None:
    """Decode by steps that verify drafts, behind a prefill that gave `logits`.

    What follows a token is said by the text `ids`, or drawn. `decode(start, tokens)` runs a step
    behind `start` tokens and returns its logits, [draft_tokens, vocabulary].
    """
    lookup = Lookup(ids[:prompt_len])
    forward.may_take_back()
    token = ids[prompt_len] if draw is None else draw(logits)
    for _ in range(steps):
        if draw is not None and token in draw.ends:
            break
        start = len(lookup.tokens)
        lookup.add(token)
        drafts = lookup.drafts(draft_tokens - 1)
        logits = decode(start, [token, *drafts])
        following = ids[start + 1 :] if draw is None else [draw(row) for row in logits]
        count = accepted(drafts, following)
        for draft in drafts[: count - 1]:
            lookup.add(draft)
        forward.take_back(draft_tokens - count)
        if count > len(following):
            break  # the end of the text, which the last step alone can reach
        token = following[count - 1]


def verified(demand: Demand, begun: Sequence[int], draft_tokens: int) -> Demand:
    """Return the rows as those of steps that began with so many tokens, `draft_tokens` each."""
    query = np.tile(np.arange(draft_tokens, dtype=np.int32), len(begun))
    return replace(
        demand,
        step=np.repeat(np.arange(len(begun), dtype=np.int32), draft_tokens),
        seq_len=np.repeat(np.array(begun, np.int32), draft_tokens) + query + 1,
        query=query,
    )
