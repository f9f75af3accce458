"""Policies made of queues, in plain Python: literal, and independent of the package.

They hear of one token at a time, as tests/reference.py describes. Lists hold tokens, the oldest
first; `demanded` tokens are passed, and stay where they are.
"""

from dataclasses import dataclass, field

from reference import Random, Slots


def oldest(queue: list[int], demanded: set[int]) -> int | None:
    return next((token for token in queue if token not in demanded), None)


class Sieve:
    """Algorithm 1 of the paper. The hand is a token, None for the oldest."""

    def __init__(self, buffer_size: int) -> None:
        self.queue: list[int] = []
        self.visited: set[int] = set()
        self.hand: int | None = None

    def begin(self, step: int, demanded: set[int]) -> None: ...

    def hit(self, slot: int, token: int) -> None:
        self.visited.add(token)

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        while True:
            seen = self.queue[0] if self.hand is None else self.hand
            after = self.queue.index(seen) + 1
            self.hand = self.queue[after] if after < len(self.queue) else None
            if seen in demanded:
                continue
            if seen not in self.visited:
                self.queue.remove(seen)
                return int(slots.index(seen))
            self.visited.remove(seen)

    def insert(self, slot: int, token: int) -> None:
        self.queue.append(token)


@dataclass
class Slru:
    buffer_size: int
    share: float = 0.8
    probation: list[int] = field(default_factory=list)
    protected: list[int] = field(default_factory=list)

    def begin(self, step: int, demanded: set[int]) -> None: ...

    def hit(self, slot: int, token: int) -> None:
        (self.protected if token in self.protected else self.probation).remove(token)
        self.protected.append(token)
        if len(self.protected) > int(self.share * self.buffer_size):
            self.probation.append(self.protected.pop(0))

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        for queue in (self.probation, self.protected):
            found = oldest(queue, demanded)
            if found is not None:
                queue.remove(found)
                return int(slots.index(found))
        raise AssertionError("no slot is free")

    def insert(self, slot: int, token: int) -> None:
        self.probation.append(token)


@dataclass
class TwoQ:
    buffer_size: int
    a1in_share: float = 0.25
    a1out_share: float = 0.5
    a1in: list[int] = field(default_factory=list)
    returns: bool = False
    am: list[int] = field(default_factory=list)
    a1out: list[int] = field(default_factory=list)

    def begin(self, step: int, demanded: set[int]) -> None: ...

    def hit(self, slot: int, token: int) -> None:
        if token in self.am:
            self.am.remove(token)
            self.am.append(token)

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        self.returns = token in self.a1out
        if self.returns:
            self.a1out.remove(token)
        queues = [self.am, self.a1in]
        if len(self.a1in) > int(self.a1in_share * self.buffer_size):
            queues.reverse()
        for queue in queues:
            found = oldest(queue, demanded)
            if found is not None:
                queue.remove(found)
                if queue is self.a1in:
                    self.a1out.append(found)
                    if len(self.a1out) > int(self.a1out_share * self.buffer_size):
                        self.a1out.pop(0)
                return int(slots.index(found))
        raise AssertionError("no slot is free")

    def insert(self, slot: int, token: int) -> None:
        (self.am if self.returns else self.a1in).append(token)
        self.returns = False


@dataclass
class S3Fifo:
    buffer_size: int
    small_share: float = 0.1
    ghost_share: float = 0.9
    small: list[int] = field(default_factory=list)
    main: list[int] = field(default_factory=list)
    ghost: list[int] = field(default_factory=list)
    count: dict[int, int] = field(default_factory=dict)
    to: list[int] | None = None  # the queue that a missed token enters

    @property
    def most(self) -> int:
        return max(1, int(self.small_share * self.buffer_size))

    def begin(self, step: int, demanded: set[int]) -> None: ...

    def hit(self, slot: int, token: int) -> None:
        self.count[token] = min(self.count[token] + 1, 3)

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        self.to = self.small
        if token in self.ghost:
            self.ghost.remove(token)
            self.to = self.main
        ways = [self._from_main, self._from_small]
        if len(self.small) >= self.most:
            ways.reverse()
        for way in (*ways, *ways):  # what the small queue moves on may leave the main one
            found = way(demanded)
            if found is not None:
                return int(slots.index(found))
        raise AssertionError("no slot is free")

    def _from_small(self, demanded: set[int]) -> int | None:
        while (found := oldest(self.small, demanded)) is not None:
            self.small.remove(found)
            if self.count[found] < 2:
                self.ghost.append(found)
                if len(self.ghost) > int(self.ghost_share * self.buffer_size):
                    self.ghost.pop(0)
                return found
            self.main.append(found)
            self.count[found] = 0
        return None

    def _from_main(self, demanded: set[int]) -> int | None:
        while (found := oldest(self.main, demanded)) is not None:
            self.main.remove(found)
            if self.count[found] == 0:
                return found
            self.count[found] -= 1
            self.main.append(found)
        return None

    def insert(self, slot: int, token: int) -> None:
        self.count[token] = 0
        if self.to is None:  # it got an empty slot
            self.to = self.small if len(self.small) < self.most else self.main
        self.to.append(token)
        self.to = None


@dataclass
class Mq:
    buffer_size: int
    queues: int = 8
    life_share: float = 1.0
    ghost_share: float = 4.0

    def __post_init__(self) -> None:
        self.lists: list[list[int]] = [[] for _ in range(self.queues)]
        self.ghost: list[int] = []
        self.uses: dict[int, int] = {}
        self.expiry: dict[int, int] = {}
        self.life = int(self.life_share * self.buffer_size)
        self.clock = 0
        self.demanded: set[int] = set()

    def begin(self, step: int, demanded: set[int]) -> None:
        self.demanded = demanded

    def _enter(self, token: int, stay: set[int]) -> None:
        self.uses[token] = self.uses.get(token, 0) + 1
        queue = min(self.uses[token].bit_length() - 1, self.queues - 1)
        self.lists[queue].append(token)
        self.expiry[token] = self.clock + self.life
        self.clock += 1
        for below, queue_above in enumerate(self.lists[1:]):
            if queue_above and self.expiry[queue_above[0]] < self.clock:
                if queue_above[0] in stay:
                    continue
                sinking = queue_above.pop(0)
                self.lists[below].append(sinking)
                self.expiry[sinking] = self.clock + self.life

    def hit(self, slot: int, token: int) -> None:
        next(queue for queue in self.lists if token in queue).remove(token)
        self._enter(token, set())

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        if token in self.ghost:
            self.ghost.remove(token)
        for queue in self.lists:
            found = oldest(queue, demanded)
            if found is not None:
                queue.remove(found)
                self.ghost.append(found)
                if len(self.ghost) > int(self.ghost_share * self.buffer_size):
                    del self.uses[self.ghost.pop(0)]
                return int(slots.index(found))
        raise AssertionError("no slot is free")

    def insert(self, slot: int, token: int) -> None:
        self._enter(token, self.demanded)


@dataclass
class WTinyLfu:
    buffer_size: int
    window_share: float = 0.01
    protected_share: float = 0.8
    sample: float = 10
    window: list[int] = field(default_factory=list)
    probation: list[int] = field(default_factory=list)
    protected: list[int] = field(default_factory=list)
    uses: dict[int, int] = field(default_factory=dict)
    counted: int = 0

    @property
    def most(self) -> int:
        return max(1, int(self.window_share * self.buffer_size))

    def begin(self, step: int, demanded: set[int]) -> None: ...

    def _count(self, token: int) -> None:
        self.uses[token] = min(self.uses.get(token, 0) + 1, 15)
        self.counted += 1
        if self.counted > int(self.sample * self.buffer_size):
            self.uses = {each: uses // 2 for each, uses in self.uses.items()}
            self.counted //= 2

    def hit(self, slot: int, token: int) -> None:
        self._count(token)
        if token in self.window:
            self.window.remove(token)
            self.window.append(token)
            return
        (self.protected if token in self.protected else self.probation).remove(token)
        self.protected.append(token)
        if len(self.protected) > int(self.protected_share * (self.buffer_size - self.most)):
            self.probation.append(self.protected.pop(0))

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        candidate = oldest(self.window, demanded)
        other = oldest(self.probation, demanded)
        main = self.probation
        if other is None:
            other, main = oldest(self.protected, demanded), self.protected
        if other is None or (
            candidate is not None and self.uses.get(candidate, 0) <= self.uses.get(other, 0)
        ):
            assert candidate is not None
            self.window.remove(candidate)
            return int(slots.index(candidate))
        main.remove(other)
        if candidate is None:  # all of the window is demanded
            candidate = self.window[0]
        self.window.remove(candidate)
        self.probation.append(candidate)
        return int(slots.index(other))

    def insert(self, slot: int, token: int) -> None:
        if len(self.window) >= self.most:
            self.probation.append(self.window.pop(0))
        self.window.append(token)
        self._count(token)


class SampledLru(Random):
    """Draws from the same stream as random, several times for a victim."""

    def __init__(self, key: str, candidates: int = 5) -> None:
        super().__init__(key)
        self.count = candidates
        self.now = 0
        self.last: dict[int, int] = {}  # slot -> step

    def begin(self, step: int, demanded: set[int]) -> None:
        super().begin(step, demanded)
        self.now = step + 1

    def hit(self, slot: int, token: int) -> None:
        self.last[slot] = self.now

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        if self.candidates is None:
            self.candidates = [slot for slot in range(len(slots)) if slots[slot] not in demanded]
        drawn = [self._draw() % len(self.candidates) for _ in range(self.count)]
        chosen = min(drawn, key=lambda place: self.last[self.candidates[place]])
        slot = self.candidates[chosen]
        self.candidates[chosen] = self.candidates[-1]
        self.candidates.pop()
        return slot

    def insert(self, slot: int, token: int) -> None:
        self.last[slot] = self.now


class SetAssociativeLru:
    def __init__(self, buffer_size: int, ways: int = 16) -> None:
        self.sets = max(1, buffer_size // ways)
        self.now = 0
        self.last: dict[int, int] = {}  # slot -> step; an empty slot has none

    def begin(self, step: int, demanded: set[int]) -> None:
        self.now = step + 1

    def hit(self, slot: int, token: int) -> None:
        self.last[slot] = self.now

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        for away in range(self.sets):
            own = range((token + away) % self.sets, len(slots), self.sets)
            free = [slot for slot in own if slots[slot] not in demanded]
            if free:
                return min(free, key=lambda slot: self.last.get(slot, -1))
        raise AssertionError("no slot is free")

    def insert(self, slot: int, token: int) -> None:
        self.last[slot] = self.now
