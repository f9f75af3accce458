"""Replay by an engine's rules for drafts and resident pages, against plain references.

The names of the hand-worked steps are those of the cases in docs/semantics-modes.md.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_reference import Done, Request, Sglang, Step, replay_sglang, replay_vllm
from hypothesis import given, settings
from hypothesis import strategies as st
from make_traces import demand, drift, metadata, write

from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.simulator.replay.modes import EPOCH_CLOCK, RULES, mode_of
from hisparse_sim.simulator.replay.modes import Request as ModeRequest
from hisparse_sim.simulator.replay.modes.epoch_clock import replay_epoch_clock
from hisparse_sim.simulator.replay.modes.mode import ModeReplay
from hisparse_sim.simulator.replay.modes.sglang import _steps, scratch_tokens
from hisparse_sim.simulator.replay.modes.steps import union_of
from hisparse_sim.traces import Demand, open_trace
from hisparse_sim.traces.drafts import drafted


def steps_of(one: Demand) -> list[Step]:
    heads = [*one.first_rows.tolist(), one.rows]
    return [
        Step(int(one.seq_len[head]) - 1, [one.row(i).tolist() for i in range(head, end)])
        for head, end in pairwise(heads)
    ]


def clock(
    one: Demand, buffer_size: int, scratch: int, start: str = "staged", top_k: int = 8
) -> ModeReplay:
    queries = int(one.query.max()) + 1 if one.query is not None else 1
    request = ModeRequest(one, queries, top_k, 0, start, 0)
    filled = start == "staged" or one.prompt_len <= buffer_size
    steps = _steps(request, buffer_size)
    return replay_epoch_clock(steps, buffer_size, scratch, filled=filled, victims=True)


def assert_same(found: ModeReplay, wanted: list[Done]) -> None:
    assert found.misses.tolist() == [len(done.misses) for done in wanted]
    assert found.resident_accesses == sum(done.reserved for done in wanted)
    assert found.unloaded == sum(len(done.unloaded) for done in wanted)
    victims = np.where(found.victims < 0, -1, found.victims).tolist()
    assert victims == [-1 if v is None else v for done in wanted for v in done.victims]


# --- SGLang, worked by hand ----------------------------------------------------------------------


def run(
    rows: list[tuple[int, list[list[int]]]], B: int, c: int = 64, start: str = "staged"
) -> list[Done]:
    """Replay (S, rows of the queries) from a prompt of the first S tokens."""
    steps = [Step(committed, lists) for committed, lists in rows]
    return replay_sglang(Request(rows[0][0], B, c, start), steps)


def test_rule_2_a_staged_request_starts_with_its_first_tokens() -> None:
    (done,) = run([(20, [[0, 3, 9]])], 4)
    assert done.hits == {0, 3}
    assert done.misses == [9]
    (done,) = run([(20, [[0, 3, 9]])], 4, start="direct")
    assert done.misses == [0, 3, 9]
    # A prompt that fits is preloaded whatever the start. No short path: the hits are noted.
    (done,) = run([(4, [[0, 3]])], 4, start="direct")
    assert (done.misses, done.hits, done.epoch) == ([], {0, 3}, 1)
    assert done.ref == [1, 0, 0, 1]


def test_rule_3_verified_tokens_are_free() -> None:
    # 20 committed tokens: 20, 21 and 22 are verified, each seen by the queries from its own on.
    (done,) = run([(20, [[20, 5], [20, 21, 5], [22, 20, 6]])], 4)
    assert done.misses == [5, 6]
    assert done.reserved == 5


def test_rule_17_the_newest_committed_token_is_free_from_the_second_step_on() -> None:
    first, second, third = run([(20, [[19]]), (21, [[20, 19]]), (22, [[20]])], 4)
    assert first.misses == [19]  # nothing was committed to the reserved page yet
    assert second.misses == []  # 20 is in the reserved page, 19 was fetched
    assert third.misses == [20]  # one step later it is on the host alone


def test_rule_17_committed_tokens_below_b_are_in_their_slots() -> None:
    # 3 and 4 are committed by the first step: 3 has slot 3, 4 is the newest.
    _, second = run([(3, [[0], [3]]), (5, [[3, 4]])], 4)
    assert second.misses == []
    assert (second.hits, second.reserved) == ({3}, 1)


def test_rule_6_a_position_counts_once_for_all_queries() -> None:
    (done,) = run([(20, [[9, 1], [8, 9, 1], [9, 7, 1]])], 4)
    assert done.misses == [9, 8, 7]  # in the order of their first listing
    assert done.hits == {1}


def test_rule_8_a_miss_takes_the_oldest_of_its_own_slots() -> None:
    # B = 8, cursor 0. Step 1 uses slots 0 and 4 (ref 1). Step 2: two misses of strides 2: the
    # first may take 0, 2, 4, 6, ages 1, 2, 1, 2: slot 2, the first of the oldest; the second 1.
    first, second = run([(20, [[0, 4]]), (21, [[9, 10]])], 8)
    assert first.ref == [1, 0, 0, 0, 1, 0, 0, 0]
    assert second.victims == [2, 1]
    assert second.cursor == 2


def test_rule_8_looks_at_six_slots_at_most() -> None:
    # One miss, B = 12: p = 12, samples k = 0, 2, 4, 6, 8, 10. Odd slots are older (0) than the
    # even ones, used in step 1, but none of them is looked at: the first of the even ones.
    rows = [(30, [[0, 2, 4, 6, 8, 10]]), (31, [[20]])]
    assert run(rows, 12)[1].victims == [0]


def test_rule_9_a_miss_without_a_free_sample_probes() -> None:
    # B = 4, two misses, hits 0 and 2: the slots 0 and 2 of the first miss are both in use. The
    # second takes 1 (of 1 and 3). The probe of the first starts at (0 + 0 x K) mod 4 = 0 and goes
    # on by K mod 4 = 1: 0 hit, 1 taken, 2 hit, 3.
    (done,) = run([(20, [[0, 2, 9, 10]])], 4)
    assert done.victims == [3, 1]


def test_rules_10_to_13_too_many_for_the_buffer_keep_the_last_query() -> None:
    # B = 4: hits 0, 1; misses 9, 10, 11: 5 > 4. All fit into the scratch area. Marks are cleared;
    # the last query uses slot 1 and admits 11, ordinal 2 of 3: places 2, 5, ..: (2 K + 1) mod 4
    # = 3. 9 and 10 are served from the scratch area and not kept.
    (done,) = run([(20, [[0, 9, 10], [1, 11]])], 4)
    assert (done.case, done.misses) == ("B", [9, 10, 11])
    assert done.victims == [None, None, 3]
    assert done.tokens == [0, 1, 2, 11]
    assert done.unloaded == []
    assert done.cursor == 3


def test_rules_10_to_13_with_a_scratch_area_that_overflows() -> None:
    # c = 1: 10 and 11 overflow and must have slots. Marks stay, so that 0 and 1 are safe, and the
    # budget for what is admitted is 4 - 2 - 2 = 0. Strides of 2: place 0: (0 + 1) mod 4 = 1, in
    # use; place 2: (2 K + 1) mod 4 = 3. 11: place 1: (K + 1) mod 4 = 2.
    (done,) = run([(20, [[0, 9, 10], [1, 11, 9]])], 4, c=1)
    assert done.case == "B"
    assert done.victims == [None, 3, 2]
    assert done.tokens == [0, 1, 11, 10]


def test_rule_15_an_overflow_without_a_place_is_not_loaded() -> None:
    # All four slots are used by hits: the one overflowing miss finds none.
    (done,) = run([(20, [[0, 1, 9], [2, 3, 10]])], 4, c=1)
    assert (done.case, done.victims, done.unloaded) == ("B", [None, None], [1])


def test_rule_16_the_cursor_moves_by_the_misses_and_the_epoch_with_every_step() -> None:
    first, second, third = run([(20, [[9, 10, 11]]), (21, [[9]]), (22, [[12, 13]])], 4)
    assert [done.cursor for done in (first, second, third)] == [3, 3, 1]
    assert [done.epoch for done in (first, second, third)] == [1, 2, 3]


def test_rule_4_epochs_wrap_to_one() -> None:
    cache = Sglang(Request(20, 4, 8, "staged"))
    cache.epoch = 2**23 - 1
    assert cache.step(Step(20, [[9]]), 21).epoch == 1


# --- SGLang, compiled ----------------------------------------------------------------------------


@st.composite
def verified(draw: st.DrawFn, most: int = 4) -> Demand:
    """Return steps of speculative decoding, from a short request or a long one."""
    queries = draw(st.integers(2, most))
    top_k = draw(st.integers(1, 12))
    plain = drift(
        steps=draw(st.integers(queries, 40)),
        top_k=top_k,
        first_seq_len=draw(st.sampled_from([2, 9, 30, 90])),
        seed=draw(st.integers(0, 99)),
        keep=draw(st.sampled_from([0.2, 0.8])),
        ragged=draw(st.booleans()),
        shuffled=True,
    )
    return drafted(plain, queries, 1 + draw(st.floats(0, 1)) * (queries - 1))


@settings(deadline=None, max_examples=60)
@given(
    verified(),
    st.sampled_from([2, 3, 4, 7, 8, 12, 16, 24, 33]),
    st.sampled_from([1, 3, 8, 64]),
    st.sampled_from(["staged", "direct"]),
)
def test_epoch_clock_takes_the_slots_of_the_reference(
    one: Demand, buffer_size: int, scratch: int, start: str
) -> None:
    wanted = replay_sglang(Request(one.prompt_len, buffer_size, scratch, start), steps_of(one))
    assert_same(clock(one, buffer_size, scratch, start), wanted)


def test_more_misses_than_one_group_of_threads() -> None:
    """Above 512 misses the later ones choose after the earlier have claimed and probed."""
    plain = drift(steps=8, top_k=700, first_seq_len=6000, keep=0.4, shuffled=True)
    one = drafted(plain, 2, 1.5)
    for buffer_size in (1000, 1400):
        for scratch in (300, 1024):
            wanted = replay_sglang(
                Request(one.prompt_len, buffer_size, scratch, "staged"), steps_of(one)
            )
            assert {done.case for done in wanted} <= {"A", "B"}
            assert_same(clock(one, buffer_size, scratch), wanted)


def test_positions_too_large_for_a_table() -> None:
    one = drafted(demand([[1, 2**30], [2, 2**30 + 1], [1, 3]], 2**30 + 20), 2)
    wanted = replay_sglang(Request(one.prompt_len, 4, 8, "staged"), steps_of(one))
    assert_same(clock(one, 4, 8), wanted)


def test_the_scratch_area_is_as_large_as_the_engine_makes_it() -> None:
    assert scratch_tokens(4, 2048, 4096) == 4096  # 4 x 2,048 - 4,096
    assert scratch_tokens(4, 2048, 8192) == 1024
    assert scratch_tokens(2, 2048, 4096) == 1024
    assert scratch_tokens(1, 512, 4096) == 512


# --- policies of the registry on the union -------------------------------------------------------


@settings(deadline=None, max_examples=15)
@given(verified(), st.sampled_from(["lru", "belady"]))
def test_policies_are_asked_for_the_union_once(one: Demand, policy: str) -> None:
    """The distinct positions that are not in the reserved page, as one step of the plain replay."""
    buffer_size = 48
    seen = []
    newest = None
    steps = steps_of(one)
    for number, step in enumerate(steps):
        verify = {step.committed + r for r in range(len(step.rows))}
        free = verify | ({newest} if newest is not None else set())
        seen.append(list(dict.fromkeys(p for row in step.rows for p in row if p not in free)))
        if number + 1 < len(steps):
            following = steps[number + 1].committed - 1
            newest = following if following >= buffer_size else newest
    # The reserved page is taken out already: any seq_len beyond the positions would do, if the
    # request is a long one; a short one misses nothing.
    lengths = [step.committed if step.committed <= buffer_size else 10_000 for step in steps]
    plain = demand(seen, lengths, prompt_len=one.prompt_len)
    wanted = replay_part(plain, policy, buffer_size).misses
    queries = int(one.query.max()) + 1  # type: ignore[union-attr]
    request = ModeRequest(one, queries, 12, 0, "staged", 0)
    found = RULES["sglang"].replay(request, get_policy(policy), buffer_size)
    assert found.misses.tolist() == wanted.tolist()


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 99), st.sampled_from(["lru", "belady"]))
def test_one_query_without_a_resident_share_is_the_plain_replay(seed: int, policy: str) -> None:
    plain = drift(seed=seed, steps=60)
    request = ModeRequest(plain, 1, 8, 0, "staged", 0)
    found = RULES["sglang"].replay(request, get_policy(policy), 16)
    assert found.misses.tolist() == replay_part(plain, policy, 16).misses.tolist()
    assert found.resident_accesses == 0


def test_one_draft_is_the_plain_replay_where_the_rules_coincide() -> None:
    """Rows that list neither the newest nor the last committed token, under the same policy."""
    plain = drift(steps=60, newest=False)
    rows = [[p for p in plain.row(i).tolist() if p < plain.seq_len[i] - 2] for i in range(60)]
    plain = demand(rows, plain.seq_len.tolist())
    request = ModeRequest(drafted(plain, 1), 1, 8, 0, "staged", 0)
    for policy in ("lru", "belady"):
        found = RULES["sglang"].replay(request, get_policy(policy), 16)
        assert found.misses.tolist() == replay_part(plain, policy, 16).misses.tolist()


def test_a_resident_share_is_never_fetched() -> None:
    """Tokens behind the first 32 of the last 40 are on the GPU: only 60 and below are missed."""
    plain = demand([[50, 61, 100], [49, 62, 101]], 101)
    request = ModeRequest(plain, 1, 8, 40, "staged", 0)
    found = RULES["sglang"].replay(request, get_policy("lru"), 8)
    # 101 tokens: from 61 on; 102: from 62 on.
    assert found.misses.tolist() == [1, 1]
    assert found.resident_accesses == 4
    everything = RULES["sglang"].replay(request._replace(resident_tokens=200), get_policy("lru"), 8)
    assert everything.misses.tolist() == [0, 0]


# --- vLLM ----------------------------------------------------------------------------------------


def vllm(
    one: Demand, buffer_size: int, resident_tokens: int = 0, policy: str = "lru"
) -> ModeReplay:
    queries = 1 if one.query is None else int(one.query.max()) + 1
    request = ModeRequest(one, queries, 8, resident_tokens, "direct", 0)
    return RULES["vllm"].replay(request, get_policy(policy), buffer_size)


def test_vllm_starts_empty_and_knows_no_short_request() -> None:
    # 200 committed tokens are pages 0 to 3; 2 and 3 are always resident: positions from 128 on.
    first, second = replay_vllm([Step(200, [[1, 127, 128]]), Step(201, [[1, 127]])], 8, 1)
    assert (first.misses, first.victims, first.resident) == ([1, 127], [0, 1], 1)
    assert first.order == [2, 3, 4, 5, 6, 7, 0, 1]
    assert second.misses == []
    found = vllm(demand([[1, 127, 128], [1, 127]], 201), 512)
    assert found.misses.tolist() == [2, 0]  # a buffer of 512 would be a short request of SGLang's
    assert found.resident_accesses == 1


def test_vllm_loses_the_end_of_the_prompt_first() -> None:
    # Pages 0 to 5, of which 4 and 5 stay; 3, 2, 1, 0 are released in this order, and two of them
    # are kept: 1 and 0. Then decode fills page 4: it joins the queue, and 1 is lost.
    rows = [Step(350, [[10, 70, 130, 200, 260]]), Step(384, [[10, 70, 260]])]
    first, second = replay_vllm(rows, 8, 1, resident_pages=2)
    assert (first.misses, first.resident) == ([130, 200], 3)
    assert (second.misses, second.resident) == ([70], 2)


def test_vllm_counts_a_position_once_in_the_order_of_its_first_listing() -> None:
    (done,) = replay_vllm([Step(400, [[9, 5], [7, 9], [5, 3]])], 8, 3)
    assert (done.misses, done.victims) == ([9, 5, 7, 3], [0, 1, 2, 3])


def test_vllm_leaves_the_order_alone_where_everything_is_resident() -> None:
    rows = [Step(400, [[9, 5]]), Step(401, [[400, 399]]), Step(402, [[9]])]
    first, second, third = replay_vllm(rows, 4, 1)
    assert second.order == first.order == [2, 3, 0, 1]
    assert third.order == [2, 3, 1, 0]


@settings(deadline=None, max_examples=30)
@given(verified(), st.sampled_from([48, 60]), st.integers(0, 4), st.booleans())
def test_vllm_misses_what_the_reference_misses(
    one: Demand, buffer_size: int, pages: int, long: bool
) -> None:
    if long:  # several pages
        shift = 300
        one = drafted(drift(steps=80, first_seq_len=shift, top_k=12, seed=pages), 3, 2.5)
    queries = int(one.query.max()) + 1  # type: ignore[union-attr]
    wanted = replay_vllm(steps_of(one), buffer_size, queries, pages)
    found = vllm(one, buffer_size, 64 * pages)
    assert found.misses.tolist() == [len(done.misses) for done in wanted]
    assert found.resident_accesses == sum(done.resident for done in wanted)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 99), st.integers(0, 3))
def test_vllm_with_one_query_a_step(seed: int, pages: int) -> None:
    one = drift(steps=90, first_seq_len=250, top_k=8, seed=seed, shuffled=True)
    wanted = replay_vllm(steps_of(one), 16, 1, pages)
    found = vllm(one, 16, 64 * pages)
    assert found.misses.tolist() == [len(done.misses) for done in wanted]
    best = vllm(one, 16, 64 * pages, "belady").misses.sum()
    assert best <= found.misses.sum()


def test_unions_hold_every_position_once() -> None:
    one = drafted(drift(steps=20, shuffled=True), 4, 2)
    steps = _steps(ModeRequest(one, 4, 8, 0, "staged", 0), 16)
    offsets, positions = union_of(steps)
    for step in range(len(offsets) - 1):
        own = steps.positions[
            steps.offsets[steps.heads[step]] : steps.offsets[steps.heads[step + 1]]
        ]
        assert positions[offsets[step] : offsets[step + 1]].tolist() == list(
            dict.fromkeys(own.tolist())
        )


# --- which mode ----------------------------------------------------------------------------------


def trace(tmp_path: Path, draft_tokens: int = 1) -> Any:
    plain = drift(steps=20)
    one = plain if draft_tokens == 1 else drafted(plain, draft_tokens)
    return open_trace(write(tmp_path / "t.parquet", [one], metadata(draft_tokens=draft_tokens)))


def test_the_plain_replay_is_no_mode(tmp_path: Path) -> None:
    plain = trace(tmp_path)
    assert mode_of([plain]) is None
    assert mode_of([plain], draft_tokens=1) is None
    for settings_ in ({"draft_tokens": 2}, {"resident_tokens": 64}, {"rules": "vllm"}):
        assert mode_of([plain], **settings_) is not None  # type: ignore[arg-type]
    drafts = mode_of([trace(tmp_path, 3)])
    assert drafts is not None
    assert drafts.own_policy([trace(tmp_path, 3)]) == "epoch-clock"


@pytest.mark.parametrize(
    ("queries", "settings_", "sentence"),
    [
        (3, {"draft_tokens": 2}, "has 3 draft tokens a step, not 2"),
        (
            3,
            {"acceptance_length": 2.0},
            "says itself that 3.00 tokens of a step were accepted",
        ),
        (1, {"acceptance_length": 2.0}, "give `draft_tokens`, too"),
        (1, {"draft_tokens": 2, "acceptance_length": 2.5}, "of 2 draft tokens 1 to 2 are accepted"),
        (1, {"draft_tokens": 64}, "must be from 1 to 63"),
        (1, {"resident_tokens": -1}, "must not be negative"),
        (1, {"rules": "tgi"}, "unknown rules 'tgi'; known are sglang, vllm"),
    ],
)
def test_settings_that_contradict(
    tmp_path: Path, queries: int, settings_: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        mode_of([trace(tmp_path, queries)], **settings_)


def test_buffers_that_an_engine_or_a_policy_cannot_do_with(tmp_path: Path) -> None:
    plain = trace(tmp_path)
    vllm_mode = mode_of([plain], "vllm", draft_tokens=3)
    assert vllm_mode is not None
    with pytest.raises(ValueError, match=r"vLLM 0\.33 wants a buffer of at least 24 slots"):
        vllm_mode.check(plain, get_policy("lru"), 16)
    sglang = mode_of([plain], draft_tokens=3)
    assert sglang is not None
    sglang.check(plain, EPOCH_CLOCK, 16)
    with pytest.raises(ValueError, match=r"lru gives every position of a step a slot, .* 24"):
        sglang.check(plain, get_policy("lru"), 16)
    resident = mode_of([plain], resident_tokens=64)
    assert resident is not None
    with pytest.raises(ValueError, match="epoch-clock is SGLang's policy for drafts"):
        resident.check(plain, EPOCH_CLOCK, 16)


def test_defaults_and_refusals_of_the_engines() -> None:
    assert RULES["sglang"].default_buffer(4, 2048) == 4096
    assert RULES["vllm"].default_buffer(4, 2048) == 10240  # (3 + 2) x top_k
    assert RULES["vllm"].default_buffer(1, 2048) == 4096
    assert RULES["sglang"].refused(4, 2048, 4096) == ()
    assert len(RULES["sglang"].refused(5, 512, 4096)) == 1
    assert "8,192" in RULES["sglang"].refused(4, 4096, 8192)[0]
