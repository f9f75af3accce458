"""What a replay step means, in plain Python: slow, literal, and independent of the package.

Nothing here imports `hisparse_sim`. The rules are written as sentences that can be checked against
the engine's kernel (SGLang 0.5.23, `kernels/jit/csrc/kvcacheio/hisparse.cuh`) and against the
textbook form of each policy, one token at a time, so that the fast code has something to be
compared with that cannot share its mistakes.

One replay covers one (request, layer). It has `buffer_size` slots; `slots[s]` is the position
that slot s holds, or None while it is empty. All positions of a step are demanded at once: a slot
that holds one of them is never a victim in that step.
"""

import hashlib
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from math import inf
from typing import Protocol

Slots = list[int | None]


@dataclass(frozen=True)
class Stream:
    """The demand of one (request, layer)."""

    request: str
    layer: int
    prompt_len: int
    rows: list[tuple[int, list[int]]]  # (seq_len, positions) of each step, in order


@dataclass(frozen=True)
class Step:
    """What one step did, and the state that it left behind."""

    misses: list[int]  # missed positions, in the order of the row
    victims: list[int]  # the slot that each of them was given, in the same order
    hits: int  # demanded positions that were resident, the newest token included
    slots: Slots  # position held by each slot after the step
    order: list[int] | None  # lru only: the slots, next victim first


def replay(
    stream: Stream, policy: "str | TokenPolicy", buffer_size: int, start: str, seed: int = 0
) -> list[Step]:
    """Replay one (request, layer) and return a record of every step."""
    slots: Slots = [None] * buffer_size
    # A prompt that fits is preloaded whatever the start; `staged` preloads any prompt.
    if start == "staged" or stream.prompt_len <= buffer_size:
        slots = list(range(buffer_size))

    if policy == "lru":
        return _replay_lru(stream, slots)
    if isinstance(policy, str):
        policy = _create(policy, stream, buffer_size, seed)
    return _replay_by_token(stream, slots, policy)


def without_newest(seq_len: int, positions: list[int]) -> list[int]:
    """Rule 2: the newest token is served from the reserved page and is nobody's business here."""
    return [position for position in positions if position != seq_len - 1]


def _short_step(positions: list[int], slots: Slots, order: list[int] | None) -> Step:
    """Rule 1: a request that fits is resident, position p in slot p, and nothing changes."""
    return Step([], [], len(positions), list(slots), None if order is None else list(order))


# --- lru: the engine's rule, which re-sorts the slots once a step ------------------------------


def _replay_lru(stream: Stream, slots: Slots) -> list[Step]:
    order = list(range(len(slots)))
    steps = []
    for seq_len, positions in stream.rows:
        if seq_len <= len(slots):
            steps.append(_short_step(positions, slots, order))
            continue
        row = without_newest(seq_len, positions)
        # Rule 3: both halves keep the present order.
        demanded = set(row)
        hits = [slot for slot in order if slots[slot] in demanded]
        evictables = [slot for slot in order if slots[slot] not in demanded]
        # Rule 4: the i-th miss takes the i-th evictable slot.
        misses = [position for position in row if position not in slots]
        victims = evictables[: len(misses)]
        for position, slot in zip(misses, victims, strict=True):
            slots[slot] = position
        # Rule 5: slots left alone, then the fetched, then the re-used.
        order = evictables[len(misses) :] + victims + hits
        steps.append(Step(misses, victims, len(positions) - len(misses), list(slots), list(order)))
    return steps


# --- the other policies, token by token --------------------------------------------------------


class TokenPolicy(Protocol):
    """A policy that hears of one token at a time."""

    def begin(self, step: int, demanded: set[int]) -> None:
        """A step starts; `demanded` are its positions without the newest token."""

    def hit(self, slot: int, token: int) -> None:
        """A demanded token was found in a slot."""

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        """Return the slot to clear for a missed token; every slot is full."""
        ...

    def insert(self, slot: int, token: int) -> None:
        """A missed token was put into a slot."""


def _replay_by_token(stream: Stream, slots: Slots, policy: TokenPolicy) -> list[Step]:
    # Every policy starts as if the slots had been filled in slot order and never hit since.
    for slot, token in enumerate(slots):
        if token is not None:
            policy.insert(slot, token)
    steps = []
    for now, (seq_len, positions) in enumerate(stream.rows):
        if seq_len <= len(slots):
            steps.append(_short_step(positions, slots, None))
            continue
        row = without_newest(seq_len, positions)
        demanded = set(row)
        policy.begin(now, demanded)
        misses = []
        for token in row:  # all hits first: they stand whatever the misses will evict
            if token in slots:
                policy.hit(slots.index(token), token)
            else:
                misses.append(token)
        victims = []
        for token in misses:
            # Empty slots are used first, in slot order.
            slot = slots.index(None) if None in slots else policy.victim(token, slots, demanded)
            slots[slot] = token
            policy.insert(slot, token)
            victims.append(slot)
        steps.append(Step(misses, victims, len(positions) - len(misses), list(slots), None))
    return steps


def _create(policy: str, stream: Stream, buffer_size: int, seed: int) -> TokenPolicy:
    if policy == "random":
        return Random(f"{seed}/{stream.request}/{stream.layer}/{buffer_size}")
    if policy == "belady":
        return Belady(stream)
    if policy == "arc":
        return Arc(buffer_size)
    if policy == "clock":
        return Clock()
    if policy == "lfu":
        return Lfu()
    if policy == "fifo":
        return Fifo()
    raise ValueError(f"no reference for policy {policy!r}")


class Fifo:
    """Evict what was fetched first. Demanded slots that the search meets keep their place."""

    def __init__(self) -> None:
        self.queue: list[int] = []  # slots, first fetched first

    def begin(self, step: int, demanded: set[int]) -> None: ...

    def hit(self, slot: int, token: int) -> None: ...

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        slot = next(slot for slot in self.queue if slots[slot] not in demanded)
        self.queue.remove(slot)
        return slot

    def insert(self, slot: int, token: int) -> None:
        self.queue.append(slot)


class Random:
    """Evict any slot that is not demanded, each with the same chance."""

    def __init__(self, key: str) -> None:
        digest = hashlib.sha256(key.encode()).digest()
        self.state = int.from_bytes(digest[:8], "little")
        self.candidates: list[int] | None = None

    def begin(self, step: int, demanded: set[int]) -> None:
        self.candidates = None

    def hit(self, slot: int, token: int) -> None: ...

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        if self.candidates is None:  # the first draw of this step
            self.candidates = [slot for slot in range(len(slots)) if slots[slot] not in demanded]
        drawn = self._draw() % len(self.candidates)
        slot = self.candidates[drawn]
        # The last candidate takes the place of the one that left.
        self.candidates[drawn] = self.candidates[-1]
        self.candidates.pop()
        return slot

    def insert(self, slot: int, token: int) -> None: ...

    def _draw(self) -> int:
        """splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators)."""
        mask = 2**64 - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        return mixed ^ (mixed >> 31)


class Clock:
    """One bit a slot. The hand clears bits until it finds one clear; demanded slots it passes."""

    def __init__(self) -> None:
        self.bit: dict[int, bool] = {}
        self.hand = 0

    def begin(self, step: int, demanded: set[int]) -> None: ...

    def hit(self, slot: int, token: int) -> None:
        self.bit[slot] = True

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        while True:
            slot = self.hand
            self.hand = (self.hand + 1) % len(slots)
            if slots[slot] in demanded:
                continue  # with its bit as it is
            if not self.bit[slot]:
                return slot
            self.bit[slot] = False

    def insert(self, slot: int, token: int) -> None:
        self.bit[slot] = False


class Lfu:
    """Evict what was used least often since it was fetched; among those, least recently."""

    def __init__(self) -> None:
        self.time = 0
        self.count: dict[int, int] = {}  # of each slot
        self.last: dict[int, int] = {}

    def begin(self, step: int, demanded: set[int]) -> None: ...

    def hit(self, slot: int, token: int) -> None:
        self.count[slot] += 1
        self._use(slot)

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        evictable = [slot for slot in range(len(slots)) if slots[slot] not in demanded]
        return min(evictable, key=lambda slot: (self.count[slot], self.last[slot]))

    def insert(self, slot: int, token: int) -> None:
        self.count[slot] = 1
        self._use(slot)

    def _use(self, slot: int) -> None:
        self.time += 1
        self.last[slot] = self.time


class Arc:
    """Adaptive replacement (Megiddo & Modha, FAST 2003, figure 4), with p a real number.

    Deviation: a demanded token is passed over, and when the list that REPLACE names holds nothing
    else, the other list gives the victim. A victim joins the ghosts of the list it came from.
    """

    def __init__(self, buffer_size: int) -> None:
        self.c = buffer_size
        self.p = 0.0
        self.t1: OrderedDict[int, None] = OrderedDict()  # tokens, least recently used first
        self.t2: OrderedDict[int, None] = OrderedDict()
        self.b1: OrderedDict[int, None] = OrderedDict()
        self.b2: OrderedDict[int, None] = OrderedDict()

    def begin(self, step: int, demanded: set[int]) -> None: ...

    def hit(self, slot: int, token: int) -> None:
        # Case I: to the most recently used end of T2.
        self.t1.pop(token, None)
        self.t2.pop(token, None)
        self.t2[token] = None

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        t1, t2, b1, b2 = self.t1, self.t2, self.b1, self.b2
        if token in b1:  # Case II
            self.p = min(float(self.c), self.p + max(len(b2) / len(b1), 1.0))
            evicted = self._replace(token, demanded)
        elif token in b2:  # Case III
            self.p = max(0.0, self.p - max(len(b1) / len(b2), 1.0))
            evicted = self._replace(token, demanded)
        elif len(t1) + len(b1) == self.c:  # Case IV A
            if len(t1) < self.c:
                b1.popitem(last=False)
                evicted = self._replace(token, demanded)
            else:  # B1 is empty: the least recently used of T1 goes without a ghost
                evicted = next(other for other in t1 if other not in demanded)
                del t1[evicted]
        else:  # Case IV B; the cache is full, so |L1| + |L2| >= c
            if len(t1) + len(t2) + len(b1) + len(b2) == 2 * self.c:
                b2.popitem(last=False)
            evicted = self._replace(token, demanded)
        return slots.index(evicted)

    def _replace(self, token: int, demanded: set[int]) -> int:
        t1, t2 = self.t1, self.t2
        if t1 and (len(t1) > self.p or (token in self.b2 and len(t1) == self.p)):
            lists = [(t1, self.b1), (t2, self.b2)]
        else:
            lists = [(t2, self.b2), (t1, self.b1)]
        for resident, ghosts in lists:
            for evicted in resident:
                if evicted not in demanded:
                    del resident[evicted]
                    ghosts[evicted] = None
                    return evicted
        raise AssertionError("a missed token always leaves one slot that is not demanded")

    def insert(self, slot: int, token: int) -> None:
        if token in self.b1 or token in self.b2:
            self.b1.pop(token, None)
            self.b2.pop(token, None)
            self.t2[token] = None
        else:
            self.t1[token] = None


class Belady:
    """Evict what is demanded again farthest in the future; ties: the lowest slot."""

    def __init__(self, stream: Stream) -> None:
        self.now = -1
        self.steps: dict[int, list[int]] = {}  # position -> the steps that demand it, ascending
        for step, (seq_len, positions) in enumerate(stream.rows):
            # As newest token a position is served from the reserved page: no demand on a slot.
            for token in without_newest(seq_len, positions):
                self.steps.setdefault(token, []).append(step)

    def begin(self, step: int, demanded: set[int]) -> None:
        self.now = step

    def hit(self, slot: int, token: int) -> None: ...

    def victim(self, token: int, slots: Slots, demanded: set[int]) -> int:
        evictable = [slot for slot in range(len(slots)) if slots[slot] not in demanded]
        return max(evictable, key=lambda slot: (self._next(slots[slot]), -slot))

    def insert(self, slot: int, token: int) -> None: ...

    def _next(self, token: int | None) -> float:
        assert token is not None
        steps = self.steps.get(token, [])
        later = bisect_right(steps, self.now)
        return steps[later] if later < len(steps) else inf
