"""Replay with drafts in plain Python, from the written rules alone; nothing imports the package.

SGLang's are the rules of docs/semantics-modes.md, "Speculative decoding", one function per rule or
two, on lists. vLLM's are those of "vLLM".
"""

from dataclasses import dataclass, field

K = 2654435761
RESERVED_PAGE = 64


@dataclass
class Request:
    """What is known of a request before its first step."""

    prompt_len: int
    buffer_size: int  # B
    scratch: int  # c
    start: str


@dataclass
class Step:
    """One verify step: S committed tokens, and what each query selects."""

    committed: int
    rows: list[list[int]]


@dataclass
class Done:
    misses: list[int]  # missed positions by their ordinal
    victims: list[int | None]  # of each; None: not kept
    hits: set[int]  # slots
    case: str  # "A" or "B"
    unloaded: list[int]
    tokens: list[int | None]
    ref: list[int]
    cursor: int
    epoch: int
    reserved: int  # listed positions in the reserved page
    probing: list[int]  # ordinals that had to probe: in a kernel, by a race


@dataclass
class Sglang:
    request: Request
    token: list[int | None] = field(init=False)
    ref: list[int] = field(init=False)
    epoch: int = 0
    cursor: int = 0
    newest: int | None = None  # in the first slot of the reserved page

    def __post_init__(self) -> None:
        B = self.request.buffer_size
        # Rules 1 and 2.
        empty = self.request.start == "direct" and self.request.prompt_len > B
        self.token = [None] * B if empty else list(range(B))
        self.ref = [0] * B

    def step(
        self, step: Step, next_committed: int | None, ordinals: list[int] | None = None
    ) -> Done:
        """`ordinals`: the missed positions in the order of a kernel, where that is known."""
        B, c = self.request.buffer_size, self.request.scratch
        # Rule 4.
        bits = 0
        while 2**bits < B:
            bits += 1
        width = 2 ** min(23, 32 - bits)
        e = (self.epoch + 1) % width or 1
        # Rules 3 and 5.
        verify = {step.committed + r for r in range(len(step.rows))}
        slot_of = {position: slot for slot, position in enumerate(self.token)}
        hits: set[int] = set()
        missed: dict[int, None] = {}  # rule 6: ordinals by first listing
        reserved = 0
        for r, row in enumerate(step.rows):
            length = step.committed + r + 1
            for position in row:
                near = position >= length - RESERVED_PAGE
                if near and (position in verify or position == self.newest):
                    reserved += 1
                elif position in slot_of:
                    hits.add(slot_of[position])
                    self.ref[slot_of[position]] = e
                else:
                    missed.setdefault(position)
        misses = list(missed)
        if ordinals is not None:
            assert sorted(ordinals) == sorted(misses)
            misses = ordinals
        m, h = len(misses), len(hits)
        victims: list[int | None] = [None] * m
        wanting = list(range(m))
        probing: list[int] = []
        case = "A" if m + h <= B else "B"
        if case == "B":
            wanting = self._admitted(step.rows[-1], misses, h, e)
        for group in range(0, m, 512):
            own = [i for i in wanting if group <= i < group + 512]
            for i in own:
                if case == "A":
                    victims[i] = self._sample(i, m, e, width)
                else:
                    number, stride = (i, m) if i < c else (i - c, m - c)
                    victims[i] = self._hash(number, stride, e)
                self._claim(victims[i], e)
            for i in own:
                if victims[i] is None:
                    probing.append(i)
                    victims[i] = self._probe(i, e)
                    self._claim(victims[i], e)
            for i in own:  # rule 14
                if victims[i] is not None:
                    self.token[victims[i]] = misses[i]  # type: ignore[index]
        unloaded = [i for i in wanting if victims[i] is None and i >= c]  # rule 15
        if m:
            self.cursor = (self.cursor + min(m, B)) % B  # rule 16
        self.epoch = e
        if next_committed is not None and next_committed - 1 >= B:
            self.newest = next_committed - 1  # rule 17
        return Done(
            misses,
            victims,
            hits,
            case,
            unloaded,
            list(self.token),
            list(self.ref),
            self.cursor,
            self.epoch,
            reserved,
            probing,
        )

    def _admitted(self, last: list[int], misses: list[int], h: int, e: int) -> list[int]:
        """Rules 10 and 11: the ordinals of admitted and of overflowing misses."""
        B, c, m = self.request.buffer_size, self.request.scratch, len(misses)
        if m <= c:
            self.ref = [0] * B
        budget = B if m <= c else max(0, B - h - (m - c))
        slot_of = {position: slot for slot, position in enumerate(self.token)}
        ordinal_of = {position: ordinal for ordinal, position in enumerate(misses)}
        admitted = []
        for position in last:
            if position in slot_of:
                self.ref[slot_of[position]] = e
            elif ordinal_of.get(position, c) < c and len(admitted) < budget:
                admitted.append(ordinal_of[position])
        return sorted(admitted) + list(range(c, m))

    def _claim(self, slot: int | None, e: int) -> None:
        if slot is not None:
            self.ref[slot] = e

    def _sample(self, i: int, m: int, e: int, width: int) -> int | None:
        """Rule 8."""
        B = self.request.buffer_size
        p = (B - 1 - i) // m + 1
        q = min(p, 6)
        best, age = None, -1
        for s in range(q):
            slot = (self.cursor + i + (s * p // q) * m) % B
            if self.ref[slot] != e and (e - self.ref[slot]) % width > age:
                best, age = slot, (e - self.ref[slot]) % width
        return best

    def _hash(self, number: int, stride: int, e: int) -> int | None:
        """Rule 12."""
        B = self.request.buffer_size
        for x in range(number, B, stride):
            slot = (x * K + e) % 2**32 % B
            if self.ref[slot] != e:
                return slot
        return None

    def _probe(self, i: int, e: int) -> int | None:
        """Rule 9."""
        B = self.request.buffer_size
        u = (self.cursor + i * K) % 2**32 % B
        for a in range(B):
            slot = (u + a * K) % 2**32 % B
            if self.ref[slot] != e:
                return slot
        return None


def replay_sglang(request: Request, steps: list[Step]) -> list[Done]:
    cache = Sglang(request)
    following = [step.committed for step in steps[1:]]
    return [cache.step(step, after) for step, after in zip(steps, [*following, None], strict=True)]


# --- vLLM --------------------------------------------------------------------------------------


@dataclass
class VllmDone:
    misses: list[int]
    victims: list[int]
    resident: int  # listed positions of resident pages
    order: list[int]


def replay_vllm(
    steps: list[Step], buffer_size: int, draft_tokens: int, resident_pages: int = 0
) -> list[VllmDone]:
    """A queue of released pages, of which the oldest are lost, and the LRU order."""
    token: list[int | None] = [None] * buffer_size
    order = list(range(buffer_size))
    queue: list[int] | None = None  # released pages that are still resident
    released = 0
    found = []
    for step in steps:
        # Tokens that are verified, and as many drafts as will be verified next.
        pages = -(-(step.committed + draft_tokens + draft_tokens - 1) // 64)
        releasable = max(0, pages - 2)
        if queue is None:
            queue = list(reversed(range(releasable)))
        else:
            queue += range(released, releasable)
        released = releasable
        while len(queue) > resident_pages:
            queue.pop(0)
        resident = 0
        union: list[int] = []
        for row in step.rows:
            for position in row:
                page = position // 64
                if page >= released or page in queue:
                    resident += 1
                elif position not in union:
                    union.append(position)
        misses = [position for position in union if position not in token]
        used = [slot for slot in order if token[slot] in union]
        others = [slot for slot in order if token[slot] not in union]
        victims = others[: len(misses)]
        for slot, position in zip(victims, misses, strict=True):
            token[slot] = position
        if union:
            order = others[len(misses) :] + victims + used
        found.append(VllmDone(misses, victims, resident, list(order)))
    return found
