"""SGLang's kernel for drafts against the plain reference, on a GPU; skipped elsewhere.

The kernel numbers misses by a race. Its numbers are read back and given to the reference, which
must then choose the same slots. Where misses probe for one slot at once the race decides again:
then the result is checked for what must hold, and the reference goes on from it.

Misses choose in groups of 512, and there is no barrier between the probes of a group and the choice
of the next one: both may take one slot. Then one of the two positions is not kept, or a slot holds
the entry of the other, and steps read the wrong one: nothing is compared from there on.
"""

from typing import Any

import pytest
from draft_reference import Done, Request, Sglang, Step
from make_traces import drift

from hisparse_sim.gpu_replay.kernels import sglang_drafts
from hisparse_sim.gpu_replay.kernels.build import GpuError, require_gpu
from hisparse_sim.gpu_replay.kernels.sglang import find_sglang
from hisparse_sim.traces.drafts import drafted

pytestmark = pytest.mark.gpu

TOP_K, PAGE, VALUES = 1024, 64, 288  # 288 32-bit values are an entry of 1152 bytes
_GROUP = 512  # misses that choose before any of them probes


@pytest.fixture(autouse=True)
def torch() -> Any:
    try:
        found = require_gpu()
        header = find_sglang().header.with_name(sglang_drafts.FILE)
    except GpuError as error:
        pytest.skip(str(error))
    if not header.is_file():
        pytest.skip("the installed sglang has no swap-in for drafts: releases from 0.5.19 on do")
    return found


class Engine:
    """One request of the kernel, with entries that hold the number of their position."""

    def __init__(self, torch: Any, buffer_size: int, scratch: int, longest: int, queries: int):
        self.torch, self.size, self.queries = torch, buffer_size, queries
        rows = buffer_size + PAGE + scratch
        on_gpu = {"dtype": torch.int32, "device": "cuda"}
        self.host = torch.arange(longest, dtype=torch.int32)[:, None].repeat(1, VALUES).pin_memory()
        self.device = torch.full((rows, VALUES), -1, **on_gpu)
        self.device[:buffer_size] = self.host[:buffer_size].cuda()
        self.tokens = torch.full((1, buffer_size + PAGE), -1, **on_gpu)
        self.tokens[0, :buffer_size] = torch.arange(buffer_size, **on_gpu)
        self.locs = torch.arange(buffer_size + PAGE, **on_gpu)[None].contiguous()
        self.host_locs = torch.arange(longest, dtype=torch.int64, device="cuda")[None].contiguous()
        places = torch.arange(buffer_size + PAGE, rows, **on_gpu)[None].contiguous()
        self.accesses = queries * TOP_K
        self.state = sglang_drafts.new_state(1, buffer_size, places, self.accesses)

    def step(self, step: Step) -> Any:
        """Return the places that the kernel gave, [n, k]."""
        torch, size = self.torch, self.size
        for query in range(self.queries):
            self._place(size + 1 + query, step.committed + query)
        listed = torch.full((1, self.queries, TOP_K), -1, dtype=torch.int32)
        for query, row in enumerate(step.rows):
            listed[0, query, : len(row)] = torch.tensor(row, dtype=torch.int32)
        found = torch.full_like(listed, -1).cuda()
        lengths = torch.arange(self.queries, dtype=torch.int32, device="cuda") + step.committed + 1
        sglang_drafts.swap_in(
            listed.cuda(),
            self.tokens,
            self.host_locs,
            self.locs,
            self.host,
            self.device,
            found,
            torch.zeros(1, dtype=torch.int64, device="cuda"),
            lengths,
            self.state,
        )
        torch.cuda.synchronize()
        return found[0].cpu()

    def commit(self, newest: int) -> None:
        """The newest committed token goes to the first slot of the reserved page."""
        self._place(self.size, newest)

    def _place(self, slot: int, position: int) -> None:
        self.tokens[0, slot] = position
        self.device[self.locs[0, slot].long()] = position

    def sound(self) -> bool:
        """Whether every slot holds the entry of its position, and no place serves twice."""
        locs = self.locs[0, : self.size]
        places = self.torch.cat([locs, self.state.scratch_locs[0]])
        held = self.device[locs.long(), 0]
        distinct = len(places.unique()) == len(places)
        return distinct and self.torch.equal(held, self.tokens[0, : self.size])

    def slots(self) -> list[int]:
        found: list[int] = self.tokens[0, : self.size].tolist()
        return found


@pytest.mark.parametrize("queries", [2, 3, 4])
@pytest.mark.parametrize("buffer_size", [1024, 2048, 3072, 4096])
@pytest.mark.parametrize("keep", [0.95, 0.6, 0.1])
def test_the_kernel_takes_the_slots_of_the_reference(
    torch: Any, queries: int, buffer_size: int, keep: float
) -> None:
    """From few misses to more than the buffer holds: cases A and B, with and without overflow."""
    plain = drift(steps=30, top_k=TOP_K, first_seq_len=6000, keep=keep, shuffled=True)
    one = drafted(plain, queries, (1 + queries) / 2)
    accesses = queries * TOP_K
    scratch = min(accesses, max(1024, accesses - buffer_size))
    engine = Engine(torch, buffer_size, scratch, 8192, queries)
    cache = Sglang(Request(one.prompt_len, buffer_size, scratch, "staged"))
    heads = [*one.first_rows.tolist(), one.rows]
    exact = 0
    for number, head in enumerate(heads[:-1]):
        rows = [one.row(row).tolist() for row in range(head, heads[number + 1])]
        step = Step(int(one.seq_len[head]) - 1, rows)
        last = number + 2 == len(heads)
        following = None if last else int(one.seq_len[heads[number + 1]]) - 1
        given = engine.step(step)
        missed = sglang_drafts.ordinals(engine.state, 0, accesses)
        done = cache.step(step, following, missed)
        assert len(missed) == len(set(missed))
        disturbed, sound = raced(done, buffer_size, scratch), engine.sound()
        assert sound or disturbed
        content = engine.device[:, 0].tolist()
        for place, listed in read_at(rows, given.tolist()).items():
            assert content[place] in listed
            assert len(listed) == 1 or disturbed
        slots = engine.slots()
        if disturbed:
            if check_raced(done, slots, scratch) or not sound:
                break
            cache.token = list(slots)
            cache.ref = engine.state.cache_policy[1].tolist()
        else:
            exact += 1
            assert slots == done.tokens
            assert engine.state.cache_policy[1].tolist() == done.ref
        if following is not None:
            engine.commit(following - 1)
    # A buffer of top_k slots is taken by the last query alone: the last free slots are probed for.
    assert exact > 0 or keep < 0.9 or buffer_size == TOP_K


def read_at(rows: list[list[int]], given: list[list[int]]) -> dict[int, set[int]]:
    """Return the positions that are read at every place: one, unless two took one slot."""
    found: dict[int, set[int]] = {}
    for row, places in zip(rows, given, strict=True):
        for position, place in zip(row, places, strict=False):
            if place >= 0:
                found.setdefault(place, set()).add(position)
    return found


def raced(done: Done, buffer_size: int, scratch: int) -> bool:
    """Whether threads of the kernel can disturb one another in such a step."""
    if (len(done.misses) > _GROUP and done.probing) or len(done.probing) > 1:
        return True
    # Strides of overflow cross those of admitted misses; hashed strides cross each other unless B
    # is a power of two.
    crossing = len(done.misses) > scratch or buffer_size & (buffer_size - 1) != 0
    return done.case == "B" and crossing


def check_raced(done: Done, slots: list[int], scratch: int) -> int:
    """Check what holds whoever is first; return the positions that lost their slot."""
    assert len(set(slots)) == len(slots)
    if len(done.misses) > scratch:
        return 0  # which misses are admitted depends on the race, too
    wanting = [i for i, victim in enumerate(done.victims) if victim is not None]
    lost = [i for i in wanting if done.misses[i] not in set(slots)]
    if done.case == "A":
        # Sampled slots of the first group are chosen before anything can be probed for, and belong
        # to one miss alone.
        for i in wanting:
            if i < _GROUP and i not in done.probing:
                assert slots[done.victims[i]] == done.misses[i]
        assert not lost or len(done.misses) > _GROUP
    assert len(lost) <= len(done.probing)
    return len(lost)
