"""Policies that learn from what they evicted, in plain Python: literal, and independent of the
package.

They hear of one token at a time, as tests/reference.py describes. Lists hold tokens, the oldest
first.
"""

from dataclasses import dataclass, field

from reference import Slots
from reference_queues import oldest


@dataclass
class Lirs:
    buffer_size: int
    queue_share: float = 0.01
    stack_share: float = 2.0
    stack: list[int] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)  # the high tokens that are resident
    low: set[int] = field(default_factory=set)
    evicted: list[int] = field(default_factory=list)  # in the stack, the first evicted first
    replacing: bool = False
    now: int = -1
    unchanged: list[int] = field(
        default_factory=list
    )  # steps that hit a high token not in the stack

    @property
    def most_low(self) -> int:
        return self.buffer_size - max(1, int(self.queue_share * self.buffer_size))

    def begin(self, step: int, demanded: set[int]) -> None:
        self.now = step

    def hit(self, slot: int, token: int) -> None:
        if token in self.low:
            self.stack.remove(token)
            self.stack.append(token)
            self._cut()
        elif token in self.stack:
            self.queue.remove(token)
            self.stack.remove(token)
            self._enter_low(token)
        else:
            self.unchanged.append(self.now)
            self.queue.remove(token)
            self.queue.append(token)
            self.stack.append(token)
        self._limit()

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        self.replacing = True
        found = oldest(self.queue, demanded)
        if found is None:
            found = next(other for other in self.stack if other in self.low)
            assert found not in demanded
            self.low.remove(found)
            self.stack.remove(found)
            self._cut()
        else:
            self.queue.remove(found)
            if found in self.stack:
                self.evicted.append(found)
        return slots.index(found)

    def insert(self, slot: int, token: int) -> None:
        if token in self.stack:
            self.stack.remove(token)
            self.evicted.remove(token)
            self._enter_low(token)
        elif not self.replacing and len(self.low) < self.most_low:
            self._enter_low(token)
        else:
            self.stack.append(token)
            self.queue.append(token)
        self._limit()
        self.replacing = False

    def _enter_low(self, token: int) -> None:
        self.stack.append(token)
        self.low.add(token)
        if len(self.low) > self.most_low:
            lowest = next(other for other in self.stack if other in self.low)
            self.low.remove(lowest)
            self.stack.remove(lowest)
            self.queue.append(lowest)
        self._cut()

    def _cut(self) -> None:
        while self.low and self.stack[0] not in self.low:
            token = self.stack.pop(0)
            if token in self.evicted:
                self.evicted.remove(token)

    def _limit(self) -> None:
        while len(self.stack) > int(self.stack_share * self.buffer_size) and self.evicted:
            self.stack.remove(self.evicted.pop(0))
