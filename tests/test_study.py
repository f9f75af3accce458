"""The study: its rows against sweeps, its statistics, what is least, resuming, the command."""

import re
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import demand, drift, metadata, several, table, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.prefetch import PREFETCHERS
from hisparse_sim.simulator.replay.kept import Kept
from hisparse_sim.simulator.replay.sweeping import Progress
from hisparse_sim.simulator.serving.costs import SwapIn
from hisparse_sim.simulator.serving.latency import load_link
from hisparse_sim.simulator.study.batches import entries_in
from hisparse_sim.simulator.study.statistics import draws, interval_of_ratio, paired_p_value
from hisparse_sim.simulator.study.studying import Study
from hisparse_sim.traces import Demand, TraceError, trace_from_frame
from hisparse_sim.traces.drafts import drafted

BUFFERS = [16, 24]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("study")
    parts = [
        several(requests=2, layers=(0, 1, 3), steps=40, newest=False),
        [drift(request="other", layer=layer, steps=30, first_seq_len=90) for layer in (0, 1, 2)],
    ]
    return [write(folder / f"{name}.parquet", each) for name, each in zip("ab", parts, strict=True)]


@pytest.fixture(scope="module")
def found(paths: list[Path]) -> Study:
    return hs.study(paths, ["clock", "random"], BUFFERS, budgets=[2, 4, 12])


def one(rows: pd.DataFrame, **wanted: Any) -> pd.Series:
    chosen = rows
    for name, value in ({"prefetcher": "none", "budget": 0} | wanted).items():
        chosen = chosen[chosen[name] == value]
    assert len(chosen) == 1, wanted
    return chosen.iloc[0]


def test_rows_are_those_of_sweeps(paths: list[Path], found: Study) -> None:
    swept = hs.sweep(paths, ["lru", "clock", "random", "belady"], BUFFERS).rows
    assert set(found.rows["trace"]) == {"a", "b", "all"}
    for row in swept.itertuples():
        same = one(found.rows, trace=row.trace, policy=row.policy, buffer=row.buffer)
        for name in ("steps", "accesses", "misses", "miss_rate", "misses_per_step"):
            assert same[name] == getattr(row, name), name
    sums = swept.groupby(["policy", "buffer"])[["misses", "accesses"]].sum()
    for policy, size, misses, accesses in sums.reset_index().to_numpy().tolist():
        together = one(found.rows, trace="all", policy=policy, buffer=size)
        assert (together["misses"], together["accesses"]) == (misses, accesses)
        assert (together["parts"], together["requests"]) == (9, 3)


def test_intervals_hold_the_mean_and_lru_is_the_measure(found: Study) -> None:
    rows = found.rows
    assert (rows["miss_rate_low"] <= rows["miss_rate"]).all()
    assert (rows["miss_rate"] <= rows["miss_rate_high"]).all()
    plain = rows[rows["prefetcher"] == "none"]
    lru = plain[plain["policy"] == "lru"]
    assert (lru[["change", "change_low", "change_high", "gap_closed"]] == 0).all(axis=None)
    assert (lru["p_value"] == 1).all()
    best = plain[plain["policy"] == "belady"]
    assert (best["gap_closed"] == 1).all()
    assert (best["change_high"] < 0).all()
    for row in plain.itertuples():
        base = one(rows, trace=row.trace, policy="lru", buffer=row.buffer)
        assert row.change == pytest.approx(row.misses / base["misses"] - 1)


def test_nothing_is_below_what_is_least(found: Study) -> None:
    rows = found.rows
    plain = rows[rows["prefetcher"] == "none"]
    best = plain[plain["policy"] == "belady"]
    assert (best["fetch_regret"] == 0).all()
    assert (best["fetch_regret_us"].abs() < 1e-9).all()
    assert (rows["fetch_regret"] >= -1e-9).all()
    ahead = rows[rows["prefetcher"] != "none"]
    assert np.allclose(ahead["fetch_regret"], ahead["copies_per_step"] - ahead["least_misses"])
    for name in ("stall_regret", "stall_regret_us"):
        assert (rows[name] >= -1e-9).all(), name
    for name in ("barrier_regret", "barrier_regret_us"):
        assert (rows[name].dropna() >= -1e-9).all(), name
        assert plain.loc[plain["trace"] == "a", name].notna().all()
        assert ahead[name].isna().all()
    order = ["least_newest_start", "least_newest", "least_misses", "misses_per_step"]
    for lower, upper in pairwise(order):
        assert (plain[lower] <= plain[upper]).all()
    assert (plain["least_start"] <= plain["least_misses"]).all()
    assert (rows["least_exposed"] <= rows["misses_per_step"]).all()
    # Several requests have the layers of trace a, one those of trace b.
    assert rows.loc[rows["trace"] == "b", "busiest"].isna().all()
    assert (rows["busiest"].dropna() >= rows.loc[rows["busiest"].notna(), "misses_per_step"]).all()
    assert (plain["least_busiest"].dropna() > 0).all()


def test_the_slots_that_lru_would_need(paths: list[Path], found: Study) -> None:
    curve = hs.mrc(paths[0], "textbook-lru").rows
    rows = found.rows[found.rows["trace"] == "a"]
    for misses, slots in rows[["misses", "lru_slots"]].to_numpy().tolist():
        enough = curve[curve["misses"] <= misses]["buffer"]
        assert np.isnan(slots) if enough.empty else slots == enough.min()


def test_prefetch_rows_say_where_its_copies_went(found: Study) -> None:
    rows = found.rows[found.rows["prefetcher"] != "none"]
    assert set(rows["prefetcher"]) == {"slash", "previous-layer", "shared-index", "oracle"}
    # 12 slots leave fewer than top_k of 16.
    assert sorted(set(zip(rows["buffer"], rows["budget"], strict=True))) == [
        (16, 2), (16, 4), (24, 2), (24, 4), (24, 12),
    ]  # fmt: skip
    ahead = rows["useful_per_step"] + rows["late_per_step"] + rows["useless_per_step"]
    assert np.allclose(ahead, rows["fetched_per_step"])
    assert np.allclose(rows["critical_per_step"] + rows["late_per_step"], rows["misses_per_step"])
    missed = rows["misses_per_step"] + rows["useful_per_step"] - rows["pollution_per_step"]
    lru = [
        one(found.rows, trace=row.trace, policy="lru", buffer=row.buffer)["misses_per_step"]
        for row in rows.itertuples()
    ]
    assert np.allclose(missed, lru)
    oracle = rows[rows["prefetcher"] == "oracle"]
    assert (oracle["useless_per_step"] == 0).all()
    assert (rows["late_per_step"] == 0).all()  # the link has room
    assert (
        "left out, since they do not apply to every trace: next-ranks, rank-average, holt, drafts"
        in (found.notes)
    )
    assert any("the link copies" in note for note in found.notes)
    assert [note for note in found.notes if note.startswith("left out at")] == [
        "left out at a buffer of 16, of which they leave fewer than the top_k of 8: budgets of 12"
    ]


def test_what_the_link_cannot_copy_in_time_comes_late(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def counts() -> pd.Series:
        rows = hs.study(paths[1], "lru", 24, prefetchers="oracle", budgets=4).rows
        return one(rows, policy="lru", prefetcher="oracle", budget=4)

    plenty = counts()
    monkeypatch.setattr("hisparse_sim.simulator.study.studying.entries_in", lambda us, swap_in: 1)
    scarce = counts()
    assert plenty["late_per_step"] == 0 < scarce["late_per_step"]
    assert scarce["misses_per_step"] > plenty["misses_per_step"]
    assert scarce["least_exposed"] > plenty["least_exposed"]


def test_entries_in_a_time() -> None:
    link = replace(load_link("h200-pcie5"), entry_ns=2, link_gb_s=50)
    # An entry takes 2 ns and 1000 bytes at 50 bytes a ns, 22 in all; 4 requests share the link.
    assert entries_in(0.88, SwapIn(link, "native", 4, 1000)) == 10


class AtOnce(Executor):
    """Every task has ended when the first report comes."""

    def submit(self, call, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        future.set_result(call(*args, **kwargs))
        return future


def test_rows_come_in_the_order_asked_for(paths: list[Path]) -> None:
    """However the work is divided."""
    asked: dict[str, Any] = {"buffers": BUFFERS, "prefetchers": "slash", "budgets": 2}
    one_by_one = hs.study(paths[1], ["clock", "random", "fifo"], jobs=1, **asked).rows
    shared = hs.study(
        paths[1], ["clock", "random", "fifo"], jobs=4, executor=AtOnce(), **asked
    ).rows
    pd.testing.assert_frame_equal(one_by_one, shared)
    assert list(dict.fromkeys(one_by_one["policy"])) == ["lru", "clock", "random", "fifo", "belady"]


@pytest.mark.parametrize("executor", [None, AtOnce()], ids=["threads", "all ended"])
def test_an_interrupted_study_is_taken_up_again(
    paths: list[Path], tmp_path: Path, executor: Executor | None
) -> None:
    keep = tmp_path / "work.partial"
    options: dict[str, Any] = {"budgets": [2], "prefetchers": ["slash", "oracle"], "jobs": 1}
    heard: list[Progress] = []
    late: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        heard.append(progress)
        if progress.steps > 0.6 * progress.total_steps and not late:
            late.append(progress)
            raise KeyboardInterrupt

    begun = hs.study(
        paths, "lru", BUFFERS, keep=keep, progress=interrupt, executor=executor, **options
    )
    assert begun.interrupted
    assert begun.rows.empty
    assert f"{begun.finished} of 4 passes" in begun._shown()[0]
    with Kept(keep) as kept:
        assert kept.holds_work
    assert [each.steps for each in heard] == sorted(each.steps for each in heard)
    after: list[Progress] = []
    ended = hs.study(paths, "lru", BUFFERS, keep=keep, progress=after.append, **options)
    assert 0 < len(after) < len(heard)
    assert not ended.interrupted
    whole = hs.study(paths, "lru", BUFFERS, **options)
    pd.testing.assert_frame_equal(ended.rows, whole.rows)


def test_the_command_prints_and_writes(paths: list[Path], tmp_path: Path) -> None:
    def run(*words: object) -> Any:
        return CliRunner().invoke(cli, ["study", *map(str, [*paths, *words])])

    chosen = ("--policy", "lru,clock", "--buffer", "16,24", "--budget", "4", "--prefetch", "slash")
    printed = run(*chosen)
    assert printed.exit_code == 0, printed.output
    for words in (
        "gap closed %",
        "us over MIN",
        "misses over least",
        "pollution",
        "best start",
        "busiest",
        "9 parts, 3 requests",
    ):
        assert words in printed.stdout
    target = tmp_path / "study.parquet"
    written = run(*chosen, "-o", target)
    assert written.exit_code == 0, written.output
    rows = pd.read_parquet(target)
    assert {"trace_sha256", "seed", "version", "parameters", "change", "busiest"} <= set(rows)
    assert not target.with_name("study.parquet.partial").exists()
    plotted = CliRunner().invoke(
        cli, ["plot", "policies", str(target), "-o", str(tmp_path / "x.png")]
    )
    assert "is a study, whose rows are not those of a sweep" in plotted.output
    alone = run(*chosen[:-1], "none", "--format", "csv")
    assert "slash" not in alone.stdout
    for wrong, said in (
        (("--prefetch", "holt"), "prefetcher holt needs scores"),
        (("--prefetch", "slosh"), "slosh"),
        (("--prefetch", "none,slash"), "none of --prefetch stands alone"),
        (("--policy", "clock:bits=2"), "has no parameters"),
        (("--policy", "epoch-clock"), "SGLang's rule for several queries a step"),
    ):
        refused = run("--buffer", "16", *wrong)
        assert refused.exit_code in (1, 2)
        assert said in refused.output


def test_requests_of_one_name_in_two_traces_are_one(tmp_path: Path) -> None:
    paths = []
    for seed, name in enumerate("ab"):
        parts = [drift(layer=layer, steps=30, seed=seed) for layer in range(3)]
        paths.append(write(tmp_path / f"{name}.parquet", parts))
    rows = hs.study(paths, "lru", 16, prefetchers=()).rows
    assert one(rows, trace="all", policy="lru")["requests"] == 1


def test_a_trace_with_drafts_is_studied_by_the_first_query_of_a_step(tmp_path: Path) -> None:
    parts = [drift(layer=layer, steps=90, first_seq_len=60) for layer in range(2)]
    drafts = [drafted(part, 3, 2) for part in parts]
    about = metadata(draft_tokens=3)
    found = hs.study(write(tmp_path / "drafts.parquet", drafts, about), "clock", 16, budgets=[2, 4])
    firsts = [
        hs.replay(
            trace_from_frame(table([first_queries(part)]), top_k=8, name="firsts"), "clock", 16
        ).misses.sum()
        for part in drafts
    ]
    assert one(found.rows, policy="clock")["misses"] == sum(firsts)
    with_drafts = one(found.rows, policy="lru", prefetcher="drafts", budget=4)
    assert with_drafts["useful_per_step"] > 1
    assert found.rows["lru_slots"].isna().all()
    assert set(found.rows["queries"]) == {"first"}
    said = "drafts has drafts: of every step only the first query is replayed"
    assert found.notes[0] == said
    words = ["--policy", "lru", "--buffer", "16", "--prefetch", "none"]
    printed = CliRunner().invoke(cli, ["study", str(tmp_path / "drafts.parquet"), *words])
    assert "without the rows of drafts" in printed.stdout
    assert said in printed.stderr


def test_traces_with_and_without_drafts_are_studied_together(tmp_path: Path) -> None:
    parts = [drift(layer=layer, steps=90, first_seq_len=60) for layer in range(2)]
    drafts = [drafted(part, 3, 2) for part in parts]
    paths = [
        write(tmp_path / "plain.parquet", parts),
        write(tmp_path / "drafts.parquet", drafts, metadata(draft_tokens=3)),
    ]
    found = hs.study(paths, "clock", 16, budgets=2)
    assert set(found.rows["prefetcher"]) == {"none"}
    assert dict(zip(found.rows["trace"], found.rows["queries"], strict=True)) == {
        "plain": "all",
        "drafts": "first",
        "all": "first",
    }
    alone = [hs.study(path, "clock", 16, prefetchers=()).rows for path in paths]
    for name, rows in zip(("plain", "drafts"), alone, strict=True):
        for policy in ("lru", "clock", "belady"):
            both = one(found.rows, trace=name, policy=policy)
            assert both["misses"] == one(rows, policy=policy)["misses"]


def first_queries(part: Demand) -> Demand:
    heads = part.first_rows
    return demand([part.row(head).tolist() for head in heads], part.seq_len[heads].tolist())


# --- statistics ----------------------------------------------------------------------------------


def test_requests_are_drawn_and_layers_within_them() -> None:
    weights = draws(np.array([0, 0, 0, 1, 1]), 4000, seed=1)
    assert np.allclose(weights.mean(axis=0), 1, atol=0.08)
    drawn = weights[:, :3].sum(axis=1) / 3
    assert (drawn + weights[:, 3:].sum(axis=1) / 2 == 2).all()
    assert np.allclose(
        [(drawn == times).mean() for times in (0, 1, 2)], [0.25, 0.5, 0.25], atol=0.03
    )


def test_the_interval_of_one_request_is_that_of_its_layers() -> None:
    rates = np.random.default_rng(0).normal(10, 2, 400)
    weights = draws(np.zeros(400, np.int64), 2000, seed=0)
    low, high = interval_of_ratio(weights, rates, np.ones(400))
    half = 1.96 * rates.std() / 20
    assert (low, high) == pytest.approx((rates.mean() - half, rates.mean() + half), abs=0.05)


def test_resamples_without_misses_of_lru_have_no_interval() -> None:
    weights = draws(np.array([0, 1]), 100, seed=0)
    assert np.isnan(interval_of_ratio(weights, np.array([1, 1]), np.array([0, 1]))).all()


def test_a_paired_test_knows_chance_from_a_difference() -> None:
    assert paired_p_value(np.array([1.0, 1.0, 1.0]), 0) == 0.25  # 2 of 8 changes of sign
    assert paired_p_value(np.full(13, 0.1), 0) == 2 / 2**13
    assert paired_p_value(np.full(20, 0.1), 0) < 0.001
    assert paired_p_value(np.array([1.0, -1.0, 0.5, -0.5]), 0) == 1
    assert paired_p_value(np.array([0.2, 0.1, -0.1, -0.2]), 0) == 1  # their sum is 3e-17
    assert np.isnan(paired_p_value(np.ones(1), 0))


def test_the_help_names_the_default_buffers(paths: list[Path]) -> None:
    top_k = metadata().top_k
    tried = hs.study(paths[1], "lru", prefetchers=()).rows["buffer"].unique().tolist()
    named = CliRunner().invoke(cli, ["study", "--help"]).output
    words = re.search(r"default: (1, .*?) times", " ".join(named.split()))
    assert words is not None
    times = [float(each) for each in re.split(", | and ", words[1])]
    assert [int(each * top_k) for each in times] == tried


def test_too_small_buffers_are_refused(paths: list[Path]) -> None:
    with pytest.raises(TraceError, match="a buffer of 4 holds"):
        hs.study(paths, "lru", 4)
    with pytest.raises(ValueError, match="budgets"):
        hs.study(paths, "lru", 16, budgets=0, prefetchers=PREFETCHERS["slash"])
    assert metadata().top_k == 8
