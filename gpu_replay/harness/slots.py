"""The engine's LRU, one step at a time: what the slots of one (request, layer) must hold.

The state of the GPU is compared with this after every step. It is a NumPy version of the rules that
the compiled loop of the simulator implements in another way; the two are compared as well.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Outcome:
    """The decisions of one step."""

    slots: Ints  # [positions of the row] slot of each; `buffer` for the newest token
    missed: Ints  # [misses] positions, in the order of the row
    victims: Ints  # [misses] the slot that each of them took


class SlotState:
    """Slots and their order for one (request, layer), under the rules of the engine's LRU.

    Attributes
    ----------
    token
        int32 [buffer]; position held by every slot, -1 is empty.
    order
        int32 [buffer]; slots, next victim first.
    """

    def __init__(self, buffer: int, start: str, prompt_len: int, context: int) -> None:
        """A request of `prompt_len` tokens that will grow to at most `context`.

        `start` is `staged` (the first `buffer` tokens are in place) or `direct` (nothing is, unless
        the prompt fits the buffer).
        """
        if start not in ("staged", "direct"):
            raise ValueError(f"unknown start {start!r}; known: staged, direct")
        self.buffer = buffer
        self.order: Ints = np.arange(buffer, dtype=np.int32)
        filled = start == "staged" or prompt_len <= buffer
        self.token: Ints = self.order.copy() if filled else np.full(buffer, -1, np.int32)
        # Slot of every position, -1 if it has none; room for staged tokens not yet reached.
        self._slot_of: Ints = np.full(max(context, buffer), -1, np.int32)
        if filled:
            self._slot_of[:buffer] = self.order
        self._demanded = np.zeros(max(context, buffer) + 1, np.bool_)  # last: for empty slots

    def step(self, seq_len: int, row: Ints) -> Outcome:
        """Access the positions of `row` at once, in a request of `seq_len` tokens."""
        nothing = np.empty(0, np.int32)
        if seq_len <= self.buffer:  # rule 1
            return Outcome(row.copy(), nothing, nothing)
        demanded = row[row != seq_len - 1]  # rule 2
        self._demanded[demanded] = True
        is_hit = self._demanded[self.token[self.order]]  # rule 3; token -1 reads the last entry
        self._demanded[demanded] = False
        hits, evictables = self.order[is_hit], self.order[~is_hit]
        missed = demanded[self._slot_of[demanded] < 0]  # rule 4
        victims = evictables[: len(missed)]
        evicted = self.token[victims]
        self._slot_of[evicted[evicted >= 0]] = -1
        self._slot_of[missed] = victims
        self.token[victims] = missed
        self.order = np.concatenate([evictables[len(missed) :], victims, hits])  # rule 5
        slots = self._slot_of[row]
        slots[row == seq_len - 1] = self.buffer
        return Outcome(slots, missed, victims)
