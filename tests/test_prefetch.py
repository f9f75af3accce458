"""Replay with prefetch against a plain reference, and each prefetcher against its definition."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_traces import demand, drift, metadata, several, write
from reference import Stream, replay
from streams import cases, demand_of

from hisparse_sim.policies import PolicyError, get_policy
from hisparse_sim.policies.hook import hook
from hisparse_sim.simulator.prefetch import (
    PREFETCHERS,
    Prefetcher,
    PrefetchError,
    View,
    get_prefetcher,
    table,
)
from hisparse_sim.simulator.prefetch.kernel import Counted, Hints
from hisparse_sim.simulator.prefetch.prefetcher import nothing
from hisparse_sim.simulator.prefetch.prefetching import (
    Prefetch,
    no_hints,
    prefetch_part,
    read_with_hints,
)
from hisparse_sim.simulator.replay import sweep
from hisparse_sim.simulator.replay.replaying import replay_part
from hisparse_sim.simulator.study.least import least_exposed, least_misses, window_misses
from hisparse_sim.simulator.study.reuse import reuse_of
from hisparse_sim.traces import Demand, TraceError, open_trace, trace_from_frame
from hisparse_sim.traces.demand import Ragged

# What a prefetcher proposes before a step: (index of the row, positions present) -> positions.
Proposes = Callable[[int, set[int]], list[int]]
LRU = get_policy("lru")


def counts(found: Counted) -> list[list[int]]:
    return [each.tolist() for each in found]


def reference(
    stream: Stream,
    policy: str,
    size: int,
    start: str,
    budget: int,
    slots: int,
    in_time: int,
    proposes: Proposes,
) -> list[list[int]]:
    """Return (critical, late, useful, fetched) of every step."""
    steps = replay(stream, policy, size - slots, start)
    buffer: list[int | None] = [None] * (size - slots)
    if start == "staged" or stream.prompt_len <= size - slots:
        buffer = list(range(size - slots))
    ahead: list[int] = []
    waiting: list[int] = []
    found = []
    for place, ((seq_len, _), step) in enumerate(zip(stream.rows, steps, strict=True)):
        if seq_len <= size - slots:  # everything is resident
            found.append([0, 0, 0, 0])
            continue
        listed: list[int] = []
        room = budget
        for position in proposes(place, {*ahead, *(each for each in buffer if each is not None)}):
            if position in (*buffer, *listed) or (position not in ahead and room == 0):
                continue
            room -= position not in ahead
            listed.append(position)
        older = [each for each in ahead if each not in listed]
        waiting = [each for each in listed + older if each not in ahead or each in waiting]
        ahead = (older + listed)[-slots:] if slots else []
        waiting = [each for each in waiting if each in ahead]
        copied, waiting = waiting[:in_time], waiting[in_time:]
        useful = [each for each in step.misses if each in ahead and each not in waiting]
        waited = [each for each in step.misses if each in waiting]
        critical = len(step.misses) - len(useful) - len(waited)
        found.append([critical, len(waited), len(useful), len(copied) + len(waited)])
        buffer = step.slots
        ahead = [each for each in ahead if each not in step.misses]
        waiting = [each for each in waiting if each not in step.misses]
    return [list(each) for each in zip(*found, strict=True)]


def absent(listed: Sequence[int], present: set[int], newest: int, budget: int) -> list[int]:
    kept = [each for each in listed if each not in present and each < newest]
    return kept[:budget]


@hook
def _moved(state: Any, view: View, out: Any) -> int:
    count = 0
    for position in view.row:
        if count < len(out) and position + 1 < view.newest:
            out[count] = position + 1
            count += 1
    return count


@given(
    cases(),
    st.sampled_from(["lru", "clock", "arc"]),
    st.sampled_from(["staged", "direct"]),
    st.integers(0, 4),
    st.integers(0, 3),
    st.integers(0, 4),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_counts_are_those_of_the_reference(
    case: tuple[Stream, int],
    policy: str,
    start: str,
    budget: int,
    more: int,
    in_time: int,
    again: bool,  # what is present is proposed, too
) -> None:
    stream, size = case
    slots = (budget + more) * (budget > 0)

    def moved(place: int, present: set[int]) -> list[int]:
        row = stream.rows[place - 1][1] if place else []
        newest = stream.rows[place][0] - 1
        return absent([each + 1 for each in row], set() if again else present, newest, slots)

    wanted = reference(stream, policy, size + slots, start, budget, slots, in_time, moved)
    slash = Prefetcher("moved", "", "", nothing, _moved) if again else get_prefetcher("slash")
    prefetch = Prefetch(slash, budget, slots, in_time)
    part = demand_of(stream)
    found = prefetch_part(part, no_hints(part), prefetch, get_policy(policy), size + slots, start)
    assert counts(found) == wanted


def test_one_prefetch_step_by_step() -> None:
    # Six slots, two for the prefetch: the policy's four hold 0 1 2 3.
    rows = [[0, 7], [8, 1], [9, 2], [3, 9]]
    part = demand(rows, 20)
    found = prefetch_part(part, no_hints(part), Prefetch(get_prefetcher("slash"), 2), LRU, 6)
    # 1: nothing is known, 7 is missed; it takes slot 1 (order 0 1 2 3; 0 is used).
    # 2: 0 and 7 moved: 1 and 8 are absent, and fetched. Both are used.
    # 3: 8 and 1 moved: 9 and 2; LRU evicted 2 and 3 for 8 and 1, so both are absent and used.
    # 4: 9 and 2 moved: 10 and 3; 3 is used, 10 is not; 9 is a hit.
    assert counts(found) == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 2, 2, 1], [0, 2, 2, 2]]
    tight = prefetch_part(
        part, no_hints(part), Prefetch(get_prefetcher("slash"), 2, in_time=1), LRU, 6
    )
    assert counts(tight) == [[1, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 0], [0, 2, 2, 2]]


@given(cases(), st.sampled_from(["lru", "lfu", "belady"]), st.sampled_from(sorted(PREFETCHERS)))
@settings(max_examples=100, deadline=None)
def test_a_budget_of_nothing_is_no_prefetch(
    case: tuple[Stream, int], policy: str, name: str
) -> None:
    stream, size = case
    part = demand_of(stream)
    prefetch = Prefetch(PREFETCHERS[name], 0)
    found = prefetch_part(part, no_hints(part), prefetch, get_policy(policy), size)
    assert counts(found)[0] == [len(step.misses) for step in replay(stream, policy, size, "staged")]
    assert not any(map(any, counts(found)[1:]))


def replayed(part: Demand, name: str, hints: Hints | None = None, **options: Any) -> Counted:
    """Replay with 4 entries ahead and 12 slots for the policy."""
    prefetch = Prefetch(get_prefetcher(name, **options), 4)
    return prefetch_part(part, no_hints(part) if hints is None else hints, prefetch, LRU, 16)


def with_ranks(seed: int = 0) -> Demand:
    """A demand with scores and what is ranked behind: the best 8 and the next 6."""
    random = np.random.default_rng(seed)
    part = drift(steps=30, seed=seed, first_seq_len=40)
    behind = []
    for place in range(part.rows):
        others = np.setdiff1d(np.arange(part.seq_len[place] - 1), part.row(place))
        behind.append(random.permutation(others)[:6].astype(np.int32))
    scores = random.random(len(part.positions)).astype(np.float16)
    edges = np.cumsum([0, *map(len, behind)], dtype=np.int64)
    fields = {
        **vars(part),
        "scores": scores,
        "next_positions": Ragged(edges, np.concatenate(behind)),
    }
    return Demand(**fields)


def referenced(part: Demand, proposes: Proposes) -> list[list[int]]:
    rows = [(int(part.seq_len[i]), part.row(i).tolist()) for i in range(part.rows)]
    stream = Stream(part.request, part.layer, part.prompt_len, rows)
    return reference(stream, "lru", 16, "staged", 4, 4, 4, proposes)


@pytest.mark.parametrize("seed", range(4))
def test_next_ranks_are_those_of_the_step_before(seed: int) -> None:
    part = with_ranks(seed)
    offsets, behind = part.next_positions  # type: ignore[misc]

    def proposes(place: int, present: set[int]) -> list[int]:
        listed = behind[offsets[place - 1] : offsets[place]].tolist() if place else []
        return absent(listed, present, int(part.seq_len[place]) - 1, 4)

    found = counts(replayed(part, "next-ranks"))
    assert found == referenced(part, proposes)
    assert sum(found[3]) > 20


@pytest.mark.parametrize("seed", range(4))
def test_the_highest_decayed_sums_of_ranks(seed: int) -> None:
    part = with_ranks(seed)
    offsets, behind = part.next_positions  # type: ignore[misc]
    sums: dict[int, float] = {}

    def proposes(place: int, present: set[int]) -> list[int]:
        if place:
            for position in sums:
                sums[position] *= 0.7
            row, scores = part.row(place - 1), part.scores
            assert scores is not None
            own = scores[part.offsets[place - 1] : part.offsets[place]].astype(np.float32)
            ranking = row[np.argsort(-own, kind="stable")].tolist()
            ranking += behind[offsets[place - 1] : offsets[place]].tolist()
            for rank, position in enumerate(ranking):
                share = (1 - rank / len(ranking)) ** 2
                sums[position] = sums.get(position, 0.0) + share
        best = sorted(sums, key=lambda position: (-sums[position], position))
        positive = [position for position in best if sums[position] > 0]
        return absent(positive, present, int(part.seq_len[place]) - 1, 4)

    found = counts(replayed(part, "rank-average", decay=0.7, power=2.0))
    assert found == referenced(part, proposes)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("damp", [0.6, 1.0])
def test_the_highest_forecasts_of_level_and_trend(seed: int, damp: float) -> None:
    part = with_ranks(seed)
    known: dict[int, tuple[float, float, int]] = {}  # level, trend, last seen

    def reach(steps: int) -> float:
        return sum(damp**power for power in range(1, steps + 1))

    def proposes(place: int, present: set[int]) -> list[int]:
        if place:
            assert part.scores is not None
            own = part.scores[part.offsets[place - 1] : part.offsets[place]]
            for position, score in zip(part.row(place - 1).tolist(), own.tolist(), strict=True):
                level, trend, last = known.get(position, (score, 0.0, place))
                if last != place:
                    new = 0.5 * score + 0.5 * (level + trend * reach(place - last))
                    trend += 0.25 * ((new - level) / (place - last) - trend)
                    level = new
                known[position] = (level, trend, place)
        forecast = {
            position: level + trend * reach(place - last + 1)
            for position, (level, trend, last) in known.items()
        }
        best = sorted(forecast, key=lambda position: (-forecast[position], position))
        return absent(best, present, int(part.seq_len[place]) - 1, 4)

    found = counts(replayed(part, "holt", level=0.5, trend=0.25, damp=damp))
    assert found == referenced(part, proposes)


@pytest.mark.parametrize("recent", [True, False])
def test_hints_come_in_the_order_of_what_was_selected_here_last(recent: bool) -> None:
    part, other = drift(steps=30, first_seq_len=40), drift(steps=30, first_seq_len=40, layer=1)

    def proposes(place: int, present: set[int]) -> list[int]:
        last = {p: when for when in range(place) for p in part.row(when).tolist()}
        hinted = other.row(place).tolist()
        if recent:
            hinted.sort(key=lambda position: -last.get(position, -1))
        return absent(hinted, present, int(part.seq_len[place]) - 1, 4)

    hints = Hints(other.offsets, other.positions.view(np.uint32))
    found = counts(replayed(part, "previous-layer", hints, recent=recent))
    assert found == referenced(part, proposes)
    assert found == counts(replayed(part, "shared-index", hints, recent=recent))


def test_which_layer_is_known(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.parquet", several(requests=2, layers=(0, 2, 5, 9)), metadata(num_layers=10)
    )
    trace = open_trace(path)

    def known(name: str, layer: int) -> int | None:
        for part in trace.select("request-1", layer):
            _, hints = read_with_hints(trace, part, get_prefetcher(name))
            if not len(hints.positions):
                return None
            rows = np.split(hints.positions, hints.offsets[1:-1])
            for other in trace.select("request-1"):
                there = trace.read(other)
                alike = all(map(np.array_equal, rows, map(there.row, range(there.rows))))
                if alike:
                    return other.layer
        raise AssertionError(layer)

    assert [known("previous-layer", layer) for layer in (0, 2, 5, 9)] == [None, 0, 2, 5]
    assert [known("previous-layer:distance=2", layer) for layer in (0, 2, 5, 9)] == [
        None,
        None,
        0,
        2,
    ]
    assert [known("shared-index", layer) for layer in (0, 2, 5, 9)] == [None, 0, 0, 0]
    assert [known("shared-index:every=2", layer) for layer in (0, 2, 5, 9)] == [None, 0, None, 5]


def test_the_oracle_is_told_of_everything_or_nothing() -> None:
    part = drift(steps=200, first_seq_len=80, newest=False)
    large = Prefetch(get_prefetcher("oracle"), 8)
    critical, late, useful, fetched = prefetch_part(part, no_hints(part), large, LRU, 24)
    assert critical.sum() == late.sum() == 0
    assert useful.sum() == fetched.sum() > 200
    told = [
        prefetch_part(
            part, no_hints(part), Prefetch(get_prefetcher("oracle", recall=recall), 8), LRU, 24
        ).useful.sum()
        / useful.sum()
        for recall in (0.0, 0.3, 0.7)
    ]
    assert told[0] == 0
    assert told[1:] == pytest.approx([0.3, 0.7], abs=0.06)


def test_an_oracle_that_looks_ahead_evens_out_what_a_tight_budget_cannot() -> None:
    bursts = [[9 + 4 * i, 10 + 4 * i, 11 + 4 * i, 12 + 4 * i] for i in range(10)]
    part = demand([row for burst in bursts for row in ([0, 1], [0, 1], [0, 1], burst)], 80)
    exposed = []
    for lookahead in (1, 2, 4):
        oracle = get_prefetcher("oracle", lookahead=lookahead)
        done = prefetch_part(part, no_hints(part), Prefetch(oracle, 1, 4), LRU, 10)
        exposed.append(int((done.critical + done.late).sum()))
    assert exposed[0] > exposed[1] > exposed[2] == 0


@given(cases(), st.sampled_from(["slash", "oracle", "oracle:lookahead=3"]), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_nothing_is_below_what_is_least(case: tuple[Stream, int], name: str, budget: int) -> None:
    stream, own = case
    part = demand_of(stream)
    counted = reuse_of(part, own + budget)
    for in_time in range(budget + 1):
        prefetch = Prefetch(get_prefetcher(name), budget, in_time=in_time)
        done = prefetch_part(part, no_hints(part), prefetch, LRU, own + budget)
        assert (done.critical + done.late).sum() >= least_exposed(window_misses(counted), in_time)
        assert (done.critical + done.fetched).sum() >= least_misses(counted).sum()
        assert (done.fetched - done.late).max() <= in_time


@pytest.mark.parametrize("in_time", [None, 1])
def test_an_oracle_that_sees_further_waits_no_more(in_time: int | None) -> None:
    part = drift(steps=200, first_seq_len=80)
    needed = replay_part(part, LRU, 8).misses
    waits = []
    for lookahead in (1, 2, 8):
        oracle = Prefetch(get_prefetcher("oracle", lookahead=lookahead), 6, in_time=in_time)
        done = prefetch_part(part, no_hints(part), oracle, LRU, 14)
        waits.append(int((done.critical + done.late).sum()))
        if in_time is None:
            assert done.critical.tolist() == np.maximum(needed - 6, 0).tolist()
    assert waits == sorted(waits, reverse=True)


def test_what_drafts_selected_is_a_hint_for_the_next_step(tmp_path: Path) -> None:
    part = demand([[1, 2], [8, 3], [8, 4], [8, 5], [9, 5], [9, 6]], [20, 21, 22, 23, 24, 25])
    query = np.array([0, 1, 0, 1, 0, 1], np.int32)
    step = np.repeat(np.arange(3, dtype=np.int32), 2)
    drafted = Demand(**{**vars(part), "query": query, "step": step})
    about = metadata(top_k=4, draft_tokens=2)
    trace = open_trace(write(tmp_path / "drafts.parquet", [drafted], about))
    found, hints = read_with_hints(trace, trace.parts[0], PREFETCHERS["drafts"])
    assert [found.row(i).tolist() for i in range(found.rows)] == [[1, 2], [8, 4], [9, 5]]
    assert found.seq_len.tolist() == [20, 22, 24]
    assert hints.offsets.tolist() == [0, 0, 2, 4]
    assert hints.positions.tolist() == [8, 3, 8, 5]
    rows = sweep(trace, "lru", 10, mode=Prefetch(PREFETCHERS["drafts"], 2), compare_min=False).rows
    # 8 is there in the second step, 9 is not in the third; 3 is in the buffer.
    assert rows[["critical", "useful", "fetched"]].iloc[0].tolist() == [1, 1, 1]
    with pytest.raises(TraceError, match=r"slash does not apply to .*, which has drafts"):
        sweep(trace, "lru", 10, mode=Prefetch(PREFETCHERS["slash"], 2))


def test_traces_without_what_is_needed_are_refused() -> None:
    plain = open_trace_of(drift())

    def refusal(name: str, **options: Any) -> str:
        with pytest.raises((TraceError, ValueError)) as caught:
            sweep(plain, "lru", 16, mode=Prefetch(get_prefetcher(name), 2, **options))
        return str(caught.value)

    assert "next-ranks needs the positions ranked behind top_k, and" in refusal("next-ranks")
    assert "prefetcher holt needs scores, and" in refusal("holt")
    assert "which has no rows of drafts" in refusal("drafts")
    assert "needs the rows of another layer" in refusal("previous-layer")
    plain = open_trace_of(drift(request="a", layer=0), drift(request="b", layer=1))
    assert "needs the rows of another layer" in refusal("previous-layer")
    assert "leaves fewer than the top_k of 8 of a buffer of 16" in refusal("slash", slots=9)
    with pytest.raises(PrefetchError, match="there must be a slot for each"):
        Prefetch(get_prefetcher("slash"), 4, 3)
    with pytest.raises(PolicyError, match="unknown prefetcher 'slosh'; known are next-ranks,"):
        get_prefetcher("slosh")
    with pytest.raises(PolicyError, match=r"prefetcher slash: shift cannot be 0; its parameters"):
        get_prefetcher("slash:shift=0")


def open_trace_of(*parts: Demand) -> Any:
    from make_traces import table as frame

    return trace_from_frame(frame(parts), top_k=8, name="tiny")


@hook
def _beyond(state: Any, view: View, out: Any) -> int:
    out[0] = view.newest
    return 1


@hook
def _too_many(state: Any, view: View, out: Any) -> int:
    return len(out) + 1


@pytest.mark.parametrize("propose", [_beyond, _too_many])
def test_a_wrong_proposal_is_an_error(propose: Any) -> None:
    part = drift()
    wrong = Prefetcher("wrong", "", "", nothing, propose)
    with pytest.raises(
        PrefetchError, match=r"proposed more than 2 .* \(request 'a', layer 0, step"
    ):
        prefetch_part(part, no_hints(part), Prefetch(wrong, 2), LRU, 16)


def test_finished_work_is_kept_and_taken_up(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t.parquet", several()))
    keep = tmp_path / "work.partial"

    def rows(budget: int) -> Any:
        mode = Prefetch(get_prefetcher("previous-layer"), budget)
        return sweep(trace, "lru", [16, 20], mode=mode, compare_min=False, keep=keep).rows

    first = rows(3)
    size = keep.stat().st_size
    assert rows(3).equals(first)
    assert keep.stat().st_size == size
    assert not rows(2).equals(first)
    assert keep.stat().st_size > size
    assert (first["misses"] == first["critical"] + first["late"]).all()
    assert (first["useless"] == first["fetched"] - first["useful"] - first["late"]).all()
    assert first["prefetch_slots"].tolist() == [3, 3]


def test_the_page_lists_the_prefetchers() -> None:
    page = (Path(__file__).parents[1] / "docs" / "prefetch.md").read_text()
    before = page.split("## What is replayed")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", before, re.MULTILINE) == list(PREFETCHERS)


def test_prefetchers_are_listed() -> None:
    assert table()["prefetcher"].tolist() == list(PREFETCHERS)
    assert not table()["summary"].eq("").any()
