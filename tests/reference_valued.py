"""Policies that evict the lowest value, in plain Python: literal, and independent of the package.

Rules 1 to 5 of tests/reference.py hold, with one change: among the slots that a step does not use,
those with the lowest value are the victims. Of equal ones the first in the order are, and the i-th
miss takes the i-th victim in the order. The order afterwards is the engine's, unless a rule says
otherwise. An empty slot has a lower value than any position.
"""

from dataclasses import dataclass
from math import ceil, inf

from reference import Random, Slots, Step, Stream, without_newest


@dataclass(frozen=True)
class Told:
    """A stream with what the indexer told of every row."""

    stream: Stream
    scores: list[list[float]]  # of the positions of each row
    behind: list[list[int]]  # ranked behind each row, best first

    def ranks(self, row: int) -> dict[int, int]:
        """Return the rank of every position that is ranked in a row."""
        positions = self.stream.rows[row][1]
        places = sorted(range(len(positions)), key=lambda place: -self.scores[row][place])
        listed = [positions[place] for place in places] + self.behind[row]
        return {position: rank for rank, position in enumerate(listed)}

    def shares(self, row: int) -> dict[int, float]:
        """Return the scores of a row, from 0 for the lowest to 1 for the highest."""
        scores = self.scores[row]
        width = max(scores, default=0) - min(scores, default=0)
        return {
            position: (score - min(scores)) / (width or 1)
            for position, score in zip(self.stream.rows[row][1], scores, strict=True)
        }


def gains_of(
    told: Told, row: int, reach: float = 2.0, power: float = 1.0, levels: float = 0
) -> dict[int, float]:
    """Return the gain of every position that is ranked in a row."""
    length = len(told.stream.rows[row][1])
    gains = {}
    for position, rank in told.ranks(row).items():
        if rank < reach * length:
            gain: float = (1 - rank / (reach * length)) ** power
            gains[position] = ceil(gain * levels) / levels if levels else gain
    return gains


class Rule:
    """How values change. `now` counts rows from 1; a value of a position that left is forgotten."""

    def __init__(self, told: Told, buffer_size: int, **parameters: float) -> None:
        self.told = told
        self.size = buffer_size
        self.of: dict[int, float] = {}
        self.set(**parameters)

    def set(self) -> None: ...

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        """A step: `held` are all positions in slots, `hits` and `missed` those it accesses."""

    def value(self, position: int, slot: int) -> float:
        return self.of.get(position, 0.0)

    def end(self, now: int, missed: list[int], evicted: list[int], highest: float) -> None:
        """The step is over: `highest` is the highest value evicted, -inf if none was."""
        for position in evicted:
            self.of.pop(position, None)

    def order(
        self, kept: list[int], victims: list[int], hits: list[int], row: list[int], slots: Slots
    ) -> list[int]:
        return kept + victims + hits


def replay_valued(rule: Rule, start: str) -> list[Step]:
    told, size = rule.told, rule.size
    slots: Slots = [None] * size
    if start == "staged" or told.stream.prompt_len <= size:
        slots = list(range(size))
    order = list(range(size))
    steps = []
    for now, (seq_len, positions) in enumerate(told.stream.rows, start=1):
        if seq_len <= size:
            steps.append(Step([], [], len(positions), list(slots), None))
            continue
        row = without_newest(seq_len, positions)
        if seq_len - 1 in slots:  # it was the newest before, and is a resident like any other
            row = positions
        hits = [slot for slot in order if slots[slot] in row]
        evictable = [slot for slot in order if slots[slot] not in row]
        missed = [position for position in row if position not in slots]
        held = [position for position in slots if position is not None]
        rule.begin(now, held, [position for position in row if position in slots], missed)
        values = {
            slot: -inf if (position := slots[slot]) is None else rule.value(position, slot)
            for slot in evictable
        }
        lowest = sorted(evictable, key=values.__getitem__)[: len(missed)]  # stable
        victims = [slot for slot in evictable if slot in lowest]
        evicted = [position for slot in victims if (position := slots[slot]) is not None]
        for position, slot in zip(missed, victims, strict=True):
            slots[slot] = position
        highest = max((values[slot] for slot in victims), default=-inf)
        rule.end(now, missed, evicted, highest)
        kept = [slot for slot in evictable if slot not in victims]
        order = rule.order(kept, victims, hits, row, slots)
        steps.append(Step(missed, victims, len(positions) - len(missed), list(slots), None))
    return steps


class Lru(Rule):
    """No values at all."""


class LruMissesLast(Rule):
    def order(
        self, kept: list[int], victims: list[int], hits: list[int], row: list[int], slots: Slots
    ) -> list[int]:
        return kept + hits + victims


class TextbookLru(Rule):
    def order(
        self, kept: list[int], victims: list[int], hits: list[int], row: list[int], slots: Slots
    ) -> list[int]:
        return kept + [slots.index(position) for position in row if position in slots]


class Decayed(Rule):
    """v <- decay v + what the step gives, for the positions that are held or, if all are
    remembered, for all that it gives something to."""

    def set(self, decay: float = 0.5, remember: bool = False, **others: float) -> None:
        self.decay, self.remember, self.others = decay, remember, others

    def given(self, row: int) -> dict[int, float]:
        raise NotImplementedError

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        self.of = {position: value * self.decay for position, value in self.of.items()}
        for position, value in self.given(now - 1).items():
            if position in held or position in missed or self.remember:
                self.of[position] = self.of.get(position, 0.0) + value

    def end(self, now: int, missed: list[int], evicted: list[int], highest: float) -> None:
        if not self.remember:
            super().end(now, missed, evicted, highest)


class DecayedRank(Decayed):
    def given(self, row: int) -> dict[int, float]:
        return gains_of(self.told, row, **self.others)


class DecayedFrequency(Decayed):
    def given(self, row: int) -> dict[int, float]:
        return dict.fromkeys(self.told.stream.rows[row][1], 1.0)


class DecayedScore(Decayed):
    def given(self, row: int) -> dict[int, float]:
        return self.told.shares(row)


class NextRank(Rule):
    def set(self, reach: float = 2.0) -> None:
        self.reach = reach

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        count = ceil((self.reach - 1) * len(self.told.stream.rows[now - 1][1]))
        self.of = dict.fromkeys(self.told.behind[now - 1][:count], 1.0)


class LowestScore(Rule):
    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        positions, scores = self.told.stream.rows[now - 1][1], self.told.scores[now - 1]
        for position, score in zip(positions, scores, strict=True):
            if position in hits or position in missed:
                self.of[position] = score - min(scores)


class GreedyDualScore(Rule):
    def set(self) -> None:
        self.reached = 0.0

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        self.shares = self.told.shares(now - 1)
        for position in hits:
            self.of[position] = self.reached + self.shares[position]

    def end(self, now: int, missed: list[int], evicted: list[int], highest: float) -> None:
        super().end(now, missed, evicted, highest)
        self.reached = max(self.reached, highest)
        for position in missed:
            self.of[position] = self.reached + self.shares[position]


class Holt(Rule):
    def set(self, level: float = 0.2, trend: float = 0.05, reach: float = 2.0) -> None:
        self.weights, self.reach = (level, trend), reach
        self.known: dict[int, tuple[float, float]] = {}  # position -> level, trend

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        self.gains = gains_of(self.told, now - 1, self.reach)
        alpha, beta = self.weights
        for position in held:
            level, trend = self.known.get(position, (0.0, 0.0))
            seen = self.gains.get(position, 0.0)
            found = alpha * seen + (1.0 - alpha) * (level + trend)
            self.known[position] = found, beta * (found - level) + (1.0 - beta) * trend

    def value(self, position: int, slot: int) -> float:
        return sum(self.known[position])

    def end(self, now: int, missed: list[int], evicted: list[int], highest: float) -> None:
        for position in missed:
            self.known[position] = self.gains.get(position, 0.0), 0.0


class Blend(Rule):
    """Rank, frequency and recency, each as a rule of its own."""

    def set(
        self,
        rank: float = 1.0,
        frequency: float = 0.25,
        recency: float = 0.25,
        rank_decay: float = 0.8,
        frequency_decay: float = 0.97,
        reach: float = 2.0,
    ) -> None:
        self.ranks = DecayedRank(self.told, self.size, decay=rank_decay, reach=reach)
        self.counts = DecayedFrequency(self.told, self.size, decay=frequency_decay)
        self.weights = rank * (1 - rank_decay), frequency * (1 - frequency_decay), recency
        self.last: dict[int, int] = {}

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        self.now = now
        self.ranks.begin(now, held, hits, missed)
        self.counts.begin(now, held, hits, missed)
        self.last |= dict.fromkeys(hits, now)

    def value(self, position: int, slot: int) -> float:
        rank, frequency, recency = self.weights
        age = self.now - self.last.get(position, 0)
        ranked, counted = self.ranks.value(position, slot), self.counts.value(position, slot)
        return rank * ranked + frequency * counted + recency / (1.0 + age)

    def end(self, now: int, missed: list[int], evicted: list[int], highest: float) -> None:
        self.ranks.end(now, missed, evicted, highest)
        self.counts.end(now, missed, evicted, highest)
        self.last |= dict.fromkeys(missed, now)


class SinkRecent(Rule):
    def set(self, sinks: int = 4, recent: int = 64) -> None:
        self.sinks, self.recent = sinks, recent

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        newest = self.told.stream.rows[now - 1][0] - 1
        pinned = {*range(self.sinks), *range(newest - self.recent + 1, newest + 1)}
        self.of = dict.fromkeys(pinned, 1.0)


class Uses(Rule):
    """Knows when the positions in the buffer were used since they were fetched."""

    def set(self) -> None:
        self.uses: dict[int, list[int]] = {}

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        self.now = now
        for position in hits:
            self.uses.setdefault(position, [0]).append(now)

    def end(self, now: int, missed: list[int], evicted: list[int], highest: float) -> None:
        for position in evicted:
            self.uses.pop(position, None)
        self.uses |= {position: [now] for position in missed}


class LruLfu(Uses):
    def value(self, position: int, slot: int) -> float:
        uses = self.uses.get(position, [0])
        return uses[-1] * 1000 + len(uses)


class Hyperbolic(Uses):
    def value(self, position: int, slot: int) -> float:
        uses = self.uses.get(position, [0])
        return len(uses) / (self.now - uses[0])


class Lfuda(Uses):
    def set(self) -> None:
        super().set()
        self.reached = 0.0

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        super().begin(now, held, hits, missed)
        for position in hits:
            self.of[position] = len(self.uses[position]) + self.reached

    def value(self, position: int, slot: int) -> float:
        return self.of.get(position, 1.0)

    def end(self, now: int, missed: list[int], evicted: list[int], highest: float) -> None:
        super().end(now, missed, evicted, highest)
        self.reached = max(self.reached, highest)
        for position in evicted:
            self.of.pop(position, None)
        self.of |= dict.fromkeys(missed, 1 + self.reached)


class LruK(Rule):
    """Uses are never forgotten, or at eviction."""

    def set(self, k: int = 2, remember: bool = True) -> None:
        self.k, self.remember = k, remember
        self.uses: dict[int, list[int]] = {}

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        for position in hits + missed:
            self.uses.setdefault(position, []).append(now)

    def value(self, position: int, slot: int) -> float:
        uses = self.uses.get(position, [])
        return uses[-self.k] if len(uses) >= self.k else 0

    def end(self, now: int, missed: list[int], evicted: list[int], highest: float) -> None:
        for position in () if self.remember else evicted:
            self.uses.pop(position, None)


class BucketedLru(Rule):
    """Stamps belong to slots, and ties go to the lowest slot."""

    def set(self, width: int = 1, buckets: int = 16) -> None:
        self.width, self.buckets = width, buckets
        self.last: dict[int, int] = {}  # position -> bucket of its last use

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        self.bucket = now // self.width
        self.last |= dict.fromkeys(hits, self.bucket)

    def value(self, position: int, slot: int) -> float:
        age = self.bucket - self.last.get(position, -self.buckets)
        return -min(age, self.buckets - 1)

    def end(self, now: int, missed: list[int], evicted: list[int], highest: float) -> None:
        for position in evicted:
            self.last.pop(position, None)
        self.last |= dict.fromkeys(missed, self.bucket)

    def order(
        self, kept: list[int], victims: list[int], hits: list[int], row: list[int], slots: Slots
    ) -> list[int]:
        return sorted(kept + victims + hits)


class Lhd(Rule):
    """Counts of events by class and age; explorers are drawn from the stream of random."""

    def set(
        self,
        ages: int = 256,
        reach: float = 100.0,
        period: float = 16.0,
        decay: float = 0.9,
        explore: float = 0.01,
    ) -> None:
        stream = self.told.stream
        rows = [row for seq_len, row in stream.rows if seq_len > self.size]
        buffers = self.size / max(1, len(rows[0])) if rows else 0  # steps that access so many
        self.ages, self.decay = ages, decay
        self.period = max(1, int(period * buffers))
        self.unit = next(2**n for n in range(99) if 2**n * ages >= reach * buffers)
        self.random = Random(f"0/{stream.request}/{stream.layer}/{self.size}")
        self.room = int(explore * self.size)
        self.explorers: set[int] = set()
        self.last: dict[int, int] = {}
        self.two: dict[int, list[int]] = {}  # position -> its ages at the last two uses
        self.events: dict[tuple[str, int, int], float] = {}
        self.density = {
            (kind, age): (kind + 1) / (age + 1) / 16 for kind in range(16) for age in range(ages)
        }

    def kind(self, position: int) -> int:
        both = sum(self.two.get(position, [self.ages, 0]))
        return next((power for power in range(15) if both * 2**power >= self.ages), 15)

    def age(self, position: int) -> int:
        return min((self.now - self.last.get(position, 0)) // self.unit, self.ages - 1)

    def count(self, event: str, position: int) -> None:
        key = event, self.kind(position), self.age(position)
        self.events[key] = self.events.get(key, 0.0) + 1
        self.explorers.discard(position)

    def use(self, position: int) -> None:
        self.last[position] = self.now
        if self.random._draw() % 32 == 0 and len(self.explorers) < self.room:
            self.explorers.add(position)

    def begin(self, now: int, held: list[int], hits: list[int], missed: list[int]) -> None:
        self.now = now
        for position in hits:
            self.count("hit", position)
            self.two[position] = [self.two.get(position, [0, 0])[1], self.age(position)]
            self.use(position)

    def value(self, position: int, slot: int) -> float:
        age = self.age(position)
        if age == self.ages - 1:
            return -2.0 + (position in self.explorers)
        return self.density[self.kind(position), age] + (position in self.explorers)

    def end(self, now: int, missed: list[int], evicted: list[int], highest: float) -> None:
        for position in evicted:
            self.count("eviction", position)
        for position in missed:
            self.two.pop(position, None)
            self.use(position)
        if now % self.period == 0:
            for kind in range(16):
                for age in range(self.ages):
                    self.density[kind, age] = self.expected(kind, age)
            self.events = {key: count * self.decay for key, count in self.events.items()}

    def expected(self, kind: int, age: int) -> float:
        """Return the hits at an age or later over the time that all live from it on."""
        later = {
            (event, at): count
            for (event, of, at), count in self.events.items()
            if of == kind and at >= age
        }
        hits = sum(count for (event, _), count in later.items() if event == "hit")
        time = sum(count * (at - age + 1) for (_, at), count in later.items())
        return hits / time if time else 0.0
