"""Policies that learn from what they evicted, in plain Python: literal, and independent of the
package.

They hear of one token at a time, as tests/reference.py describes. Lists hold tokens, the oldest
first.
"""

from dataclasses import dataclass, field
from math import exp

from reference import Random, Slots
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


@dataclass
class ClockPro:
    """The circle begins at the hot hand; what enters it stands at its end, behind that hand."""

    buffer_size: int
    cold_share: float = 0.05
    ghost_share: float = 1.0
    circle: list[int] = field(default_factory=list)
    hot: set[int] = field(default_factory=set)
    cold: set[int] = field(default_factory=set)  # resident
    tested: set[int] = field(default_factory=set)  # of the cold ones, and all that were evicted
    marked: set[int] = field(default_factory=set)
    cold_hand: int | None = None
    test_hand: int | None = None
    replacing: bool = False
    demanded: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.room = self.least

    @property
    def least(self) -> int:
        return max(1, int(self.cold_share * self.buffer_size))

    def begin(self, step: int, demanded: set[int]) -> None:
        self.demanded = demanded

    def hit(self, slot: int, token: int) -> None:
        self.marked.add(token)

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        self.replacing = True
        while True:
            if self.cold <= demanded:
                self._run_hot()
            if self.cold_hand is None:
                self.cold_hand = next(other for other in self.circle if other in self.cold)
            seen = self.cold_hand
            if seen in demanded:
                self.cold_hand = self._after(seen, self.cold)
                continue
            self.cold_hand = self._after(seen, self.cold - {seen})
            if seen not in self.marked:
                self.cold.remove(seen)
                if seen not in self.tested:
                    self._leave(seen)
                return slots.index(seen)
            self.marked.remove(seen)
            self._leave(seen)
            if seen in self.tested:
                self.cold.remove(seen)
                self._enter_hot(seen)
            else:
                self.tested.add(seen)
                self.circle.append(seen)

    def insert(self, slot: int, token: int) -> None:
        if token in self.tested:
            self._leave(token)
            self._enter_hot(token)
        elif not self.replacing and len(self.hot) < self.buffer_size - self.least:
            self.hot.add(token)
            self.circle.append(token)
        else:
            self.cold.add(token)
            self.tested.add(token)
            self.circle.append(token)
        while len(self.tested - self.cold) > int(self.ghost_share * self.buffer_size):
            if self.test_hand is None:
                self.test_hand = self.circle[0]
            seen = self.test_hand
            self.test_hand = self._after(seen, set(self.circle))
            self._end_test(seen)
        self.replacing = False

    def _after(self, token: int, among: set[int]) -> int | None:
        """Return the next of some tokens in the circle, which may be this one."""
        place = self.circle.index(token) + 1
        others = self.circle[place:] + self.circle[:place]
        return next((other for other in others if other in among), None)

    def _leave(self, token: int) -> None:
        if self.test_hand == token:
            self.test_hand = self._after(token, set(self.circle) - {token})
        self.circle.remove(token)

    def _end_test(self, token: int) -> None:
        if token not in self.tested:
            return
        self.tested.remove(token)
        if token not in self.cold:
            self._leave(token)
        if token not in self.marked:
            self.room = max(self.least, self.room - 1)

    def _enter_hot(self, token: int) -> None:
        """It was used while it was on test."""
        self.tested.remove(token)
        self.hot.add(token)
        self.circle.append(token)
        self.room = min(self.buffer_size, self.room + 1)
        while len(self.hot) > self.buffer_size - self.room and not self.hot <= self.demanded:
            self._run_hot()

    def _run_hot(self) -> None:
        cooled = None
        while cooled is None or (self.hot and self.circle[0] not in self.hot):
            seen = self.circle[0]
            self._end_test(seen)
            if seen in self.hot and seen not in self.demanded:
                if seen not in self.marked:
                    cooled = seen
                self.marked.discard(seen)
            if self.circle and self.circle[0] == seen:  # the hand passes it
                self.circle.append(self.circle.pop(0))
            if cooled == seen:
                self.hot.remove(seen)
                self.cold.add(seen)


class Lecar(Random):
    """Algorithm 1 of the paper; draws from the same stream as random."""

    def __init__(
        self,
        key: str,
        buffer_size: int,
        rate: float = 0.45,
        discount: float = 0.005,
        lru: float = 0.5,
        ghost_share: float = 0.5,
    ) -> None:
        super().__init__(key)
        self.rate, self.discount = rate, discount ** (1 / buffer_size)
        self.weights = {"lru": lru, "lfu": 1 - lru}
        self.most = int(ghost_share * buffer_size)
        self.accesses = 0
        self.count: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.ghosts: dict[str, dict[int, int]] = {"lru": {}, "lfu": {}}  # token -> access

    def hit(self, slot: int, token: int) -> None:
        self.accesses += 1
        self.count[token] += 1
        self.last[token] = self.accesses

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        for by, other in (("lru", "lfu"), ("lfu", "lru")):
            if token in self.ghosts[by]:
                age = self.accesses - self.ghosts[by].pop(token)
                self.weights[other] *= exp(self.rate * self.discount**age)
                whole = sum(self.weights.values())
                self.weights = {each: weight / whole for each, weight in self.weights.items()}
                break
        held = [each for each in slots if each is not None and each not in demanded]
        chosen = {
            "lru": min(held, key=lambda each: self.last[each]),
            "lfu": min(held, key=lambda each: (self.count[each], self.last[each])),
        }
        if chosen["lru"] == chosen["lfu"]:
            return slots.index(chosen["lru"])
        by = "lru" if (self._draw() >> 11) / 2**53 < self.weights["lru"] else "lfu"
        self.ghosts[by][chosen[by]] = self.accesses
        if len(self.ghosts[by]) > self.most:
            del self.ghosts[by][next(iter(self.ghosts[by]))]
        return slots.index(chosen[by])

    def insert(self, slot: int, token: int) -> None:
        self.accesses += 1
        self.count[token] = 1
        self.last[token] = self.accesses
