"""Planning: the choice, its limits, break-even, configurations; predictions behind it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hisparse_sim import sweep
from hisparse_sim.simulator.serving.deployment import Deployment
from hisparse_sim.simulator.serving.hardware import load_hardware
from hisparse_sim.simulator.serving.latency import load_link, swap_in_on
from hisparse_sim.simulator.serving.launch import launch_flags
from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.misses import (
    QUANTILES,
    LayerMisses,
    layer_misses,
    read_miss_curve,
)
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.plan import make_plan
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.served import serve
from hisparse_sim.simulator.serving.serving_rows import ServedOnce, as_mode, serve_all, serve_one
from hisparse_sim.simulator.serving.steptimes import LAYOUTS, load_step_times
from hisparse_sim.simulator.serving.workload import Workload
from hisparse_sim.simulator.serving.worth import break_even, on_link, policy_value, scale_misses
from hisparse_sim.simulator.views.plan_view import show_plan
from hisparse_sim.traces import Demand, Metadata, TraceWriter

GIB = 1 << 30
GLM, H200 = load_model("glm-5.1"), load_hardware("h200")
DEPLOYMENT = Deployment(GLM, H200, LAYOUTS["dp8-tp8"])
STEPS = load_step_times("glm-5.1", "h200")
AIM = Aim(32_768, 8192, 256)


def made_up(policy: str, size: int, resident_tokens: int = 0) -> LayerMisses:
    """Misses that fall with the buffer: 2,048 x 2,048 / B, half for belady."""
    mean = 2048 * 1024 / size * (0.5 if policy == "belady" else 1.0)
    spread = ((mean,) * QUANTILES,)
    return LayerMisses(
        "made up", "synthetic", "", policy, size, "staged", (mean,), spread, 2048, 33_000
    )


def setting(mode: str = "hisparse", size: int = 4096, ratio: int = 8, **more: object) -> Setting:
    misses = made_up("lru", size) if mode != "baseline" else None
    return Setting(DEPLOYMENT, STEPS, mode, size, ratio, misses, **more)  # type: ignore[arg-type]


def test_residents_by_hand() -> None:
    # P = 91,968 at R = 8. The last prompt needs 32,768 + 64; beside it 4,160 and, of 0 to 8,192
    # still to come, 3,072 as the mean of min(left, 4,096). Older engines charge 0.098 of that.
    pool = setting().pool
    assert (pool.device_tokens, pool.logical_tokens) == (91_968, 735_744)
    assert setting().resident(32_768, 8192) == ((91_968 - 32_832) // 7232 + 1, "prefill headroom")
    early = setting(ignore_eos=False)
    assert early.resident(32_768, 8192) == ((91_968 - 36_928) // 4461 + 1, "prefill headroom")
    # Prefill elsewhere: keys of 735,744 / (36,864 + 512) = 19.7; buffers of 91,968 / 4,160 = 22.1.
    assert setting(disaggregated=True).resident(32_768, 8192) == (19, "indexer keys")
    # Without HiSparse: 158,144 tokens, whole outputs promised.
    assert setting("baseline").resident(32_768, 8192) == (158_144 // 40_960, "device pool")
    assert setting("baseline", disaggregated=True).resident(32_768, 8192) == (
        158_144 // (36_864 + 512),
        "device pool",
    )
    assert setting(max_running_requests=40).resident(32_768, 8192) == (5, "max-running-requests")
    assert setting().resident(91_962, 8192) == (0, "length")
    # Cut to 91,968 - 90,048 - 65 = 1,855 tokens, not refused.
    assert setting().resident(90_000, 8192) == (1, "prefill headroom")


def test_swap_in_near_the_measured_points() -> None:
    # The engine's kernel on an H200: one request and 1,024 misses 122 us, 256 misses 43 to 50 us,
    # none 13 to 28 us; 64 requests with 512 each 721 to 760 us.
    swap_in = swap_in_on(load_link("h200-pcie5"), "sglang", 4096, 1152)

    def us(requests: int, misses: float, most: float | None = None) -> float:
        busiest = misses if most is None else most
        return float(swap_in(np.array([requests]), np.array([misses]), np.array([busiest]))[0])

    assert us(1, 1024) == pytest.approx(122, rel=0.1)
    assert 43 * 0.9 < us(1, 256) < 50 * 1.1
    assert 13 < us(1, 0) < 28
    assert us(64, 512) == pytest.approx(740, rel=0.1)
    assert us(2, 100, 1024) > us(2, 100)


def test_a_step_adds_the_swap_in() -> None:
    one = setting()
    free = replace(one, mode="zero-cost")
    wait = one.exposure.step_us(14, 36_864, 0, 0)
    assert one.step_us(14, 36_864) == pytest.approx(free.step_us(14, 36_864) + wait)
    assert scale_misses(one, 0.0).step_us(14, 36_864) < one.step_us(14, 36_864)


def test_cohort_view_agrees_with_the_simulation() -> None:
    for mode in ("baseline", "hisparse"):
        one = setting(mode)
        resident, _ = one.resident(32_768, 8192)
        steady = one.steady_tokens_per_s(32_768, 8192, resident)
        load = Workload(32_768, 8192, 12 * resident * 8, concurrency=2 * resident * 8)
        assert serve(one.server(), load).output_tokens_per_s == pytest.approx(steady, rel=0.08)


def test_plan_chooses_and_explains() -> None:
    found = make_plan(setting(), AIM, made_up)
    assert found.best is not None
    able = found.candidates[found.candidates["requests"] > 0]
    assert found.best["tokens_per_s"] >= 0.99 * able["tokens_per_s"].max()
    assert any("without HiSparse: 650 tokens/s" in reason for reason in found.reasons)
    # It pays as soon as the baseline's three requests a rank are all taken.
    assert found.break_even == 32
    # What is said of the best is what serving it gives.
    served = serve_one(setting(size=found.best["buffer"], ratio=found.best["ratio"]), AIM)
    for name in served.keys() - {"prefill_busy"}:
        assert found.best[name] == served[name], name
    assert f'"device_buffer_size": {found.best["buffer"]}' in found.flags
    assert list(found.sensitivity["tokens_per_s"]) == sorted(
        found.sensitivity["tokens_per_s"], reverse=True
    )
    front = found.pareto
    assert len(front)
    assert set(front["buffer"]) <= set(found.candidates["buffer"])
    # Nobody on the front is beaten in all three.
    for one in front.to_dict("records"):
        better = (
            (able["tokens_per_s"] > one["tokens_per_s"])
            & (able["tpot_ms"] < one["tpot_ms"])
            & (able["host_gb"] < one["host_gb"])
        )
        assert not better.any()


def test_plan_as_a_document_and_as_rows() -> None:
    found = make_plan(
        setting(),
        AIM,
        made_up,
        buffers=(4096, 6144),
        ratios=(4, 6),
        other_policies=("lru", "belady"),
        linked=load_hardware("gh200"),
    )
    assert found.best is not None
    best, document = found.best, found.document()
    assert document["recommendation"]["hisparse_config"] == {
        "top_k": 2048,
        "device_buffer_size": best["buffer"],
        "host_to_device_ratio": best["ratio"],
    }
    assert document["recommendation"]["worth_it"] is True
    assert document["recommendation"]["flags"] == found.flags
    assert document["recommendation"]["break_even"] == found.break_even
    assert [row["policy"] for row in document["policies"]] == ["lru", "belady"]
    assert [row["misses_times"] for row in document["sensitivity"]] == [0, 0.5, 1, 1.5, 2]
    assert document["linked"]["hardware"] == "gh200"
    # Rows stand for themselves: which is best, from when it pays, how to start it.
    for rows in (found.rows(), found.rows(every=True)):
        marked = rows[rows["best"]].to_dict("records")
        assert [(row["buffer"], row["ratio"]) for row in marked] == [
            (best["buffer"], best["ratio"])
        ]
        assert marked[0]["flags"] == found.flags
        assert marked[0]["break_even"] == found.break_even
    assert len(found.rows(every=True)) == 4
    for row in found.rows(every=True).to_dict("records"):
        assert f'"host_to_device_ratio": {row["ratio"]}' in row["flags"]


def test_targets() -> None:
    tight = make_plan(setting(), replace(AIM, max_tpot_ms=52.0), made_up)
    assert tight.best is not None
    assert tight.best["tpot_ms"] <= 52
    chosen = setting(size=tight.best["buffer"], ratio=tight.best["ratio"])
    assert serve(chosen.server(), AIM.load).tpot_ms(50) == tight.best["tpot_ms"]
    few = make_plan(setting(), replace(AIM, max_miss_rate=0.15), made_up)
    assert few.smallest_buffer == 8192  # 1,024 / 6,144 = 17 %, 1,024 / 8,192 = 12.5 %
    none = make_plan(setting(), replace(AIM, max_tpot_ms=1.0), made_up)
    assert none.best is None
    assert none.flags == ""
    assert "no candidate reaches 1 ms per token at the 50th percentile (best: " in none.reasons[0]


def test_cost_and_goodput() -> None:
    row = serve_one(setting(ratio=4), replace(AIM, gpu_hour=2.5, requests=256))
    # 8 GPUs at 2.5 an hour over the tokens of an hour.
    assert row["cost_per_million"] == pytest.approx(20 / (row["tokens_per_s"] * 3600) * 1e6)
    assert row["meets"]
    assert row["missed"] == ""
    assert row["goodput_per_s"] == pytest.approx(256 / row["makespan_s"])
    # Of a target at the median half of the requests are good, each for itself.
    half = serve_one(setting(ratio=4), replace(AIM, requests=256, max_ttft_s=row["ttft_p50_s"]))
    assert half["meets"]
    assert half["goodput_per_s"] == pytest.approx(row["goodput_per_s"] / 2, rel=0.02)
    late = replace(AIM, requests=256, max_ttft_s=row["ttft_p50_s"], percentile=95)
    assert serve_one(setting(ratio=4), late)["missed"] == "TTFT"


def test_the_table_begins_with_the_best_and_marks_what_misses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    aim = replace(AIM, max_tpot_ms=52.0)
    found = make_plan(setting(), aim, made_up, buffers=(4096, 8192))
    assert found.best is not None
    show_plan(found, found.rows(), setting(), aim, "hisparse-sim serve", ("a note",), None)
    text = capsys.readouterr().out
    sections = re.findall(r"^(Best.*|\w.* not met)$", text, re.MULTILINE)
    assert sections[0].startswith("Best: device_buffer_size")
    assert sections[1:3] == ["Best", "TPOT target not met"]
    rows = found.rows()
    assert rows["best"].tolist() == [True] + [False] * (len(rows) - 1)
    assert (rows["tpot_ms"] > 52).equals(rows["missed"] == "TPOT")
    assert "a note" in text


def test_nothing_fits() -> None:
    found = make_plan(setting(), Aim(300_000, 1000, 8), made_up)
    assert found.best is None
    assert found.reasons[0].startswith("nothing fits: the prompt of 300,000 tokens is longer")
    assert found.baseline["requests"] == 0
    assert "158,137, the longest that the device pool of 158,144" in found.baseline["reason"]


def test_small_load_needs_no_hisparse() -> None:
    found = make_plan(setting(), replace(AIM, concurrency=8), made_up)
    assert found.best is not None
    assert found.best["limit"] == "load"
    assert found.best["bottleneck"] == "compute"
    assert found.best["worth_it"] is False
    assert "hisparse" not in found.flags
    assert found.best["tokens_per_s"] < found.baseline["tokens_per_s"]


def test_break_even_is_where_serve_crosses() -> None:
    # With lengths as they are asked for: unequal ones cross elsewhere than equal ones.
    for aim in (AIM, replace(AIM, range_ratio=0.3)):
        found = break_even(setting(ratio=4), aim, ServedOnce())
        assert found is not None
        for clients, ahead in ((found - 8, False), (found, True)):
            load = replace(aim, concurrency=clients)
            rates = [
                serve_one(one, load)["tokens_per_s"]
                for one in (setting(ratio=4), setting("baseline"))
            ]
            assert (rates[0] > rates[1]) == ahead


def test_break_even_never() -> None:
    slow = scale_misses(setting(), 20)
    assert break_even(slow, AIM, ServedOnce()) is None


def test_better_eviction_and_faster_link_give_more() -> None:
    one = setting()
    worth = policy_value(one, AIM, made_up, ["lru", "belady"], ServedOnce())
    assert worth["more_tokens"].iloc[0] == 0 < worth["more_tokens"].iloc[1]
    linked = on_link(one, load_hardware("gh200"))
    assert linked.steady_tokens_per_s(32_768, 8192, 14) > one.steady_tokens_per_s(32_768, 8192, 14)


def test_flags() -> None:
    flags = launch_flags(setting(disaggregated=True))
    assert flags.endswith(
        "--enable-hisparse --hisparse-config"
        ' \'{"top_k": 2048, "device_buffer_size": 4096, "host_to_device_ratio": 8}\''
    )
    assert "--tp-size 8 --dp-size 8 --enable-dp-attention" in flags
    assert "--kv-cache-dtype bfloat16" in flags
    assert "--disaggregation-mode decode" in flags
    spread = replace(
        setting("baseline"),
        deployment=replace(DEPLOYMENT, layout=LAYOUTS["dp8-ep8"], kv_dtype="fp8"),
    )
    assert "--ep-size 8 --kv-cache-dtype fp8_e4m3" in launch_flags(spread)
    assert "hisparse" not in launch_flags(spread)


def test_misses_of_another_buffer_are_refused() -> None:
    with pytest.raises(ValueError, match="replayed with a buffer of 4096, not 6144"):
        replace(setting(), device_buffer_size=6144)


def test_host_pool_that_does_not_fit_cannot_serve() -> None:
    small = replace(setting(), deployment=replace(DEPLOYMENT, host_bytes=10 * GIB))
    with pytest.raises(ValueError, match="the host pool of"):
        _ = small.pool


def test_misses_of_the_sample() -> None:
    # The sample's own figures, without its first steps: 9.4 % at 4096 with them.
    found = layer_misses(None, "lru", 4096)
    assert found.rate == pytest.approx(0.092, abs=0.002)
    assert len(found.per_layer) == 6
    assert found.context == pytest.approx(33_024, abs=1)
    assert layer_misses(None, "belady", 4096).mean < found.mean
    with pytest.raises(ValueError, match="no more than the 512"):
        layer_misses(None, "lru", 4096, warm_up_steps=512)


def test_a_rate_is_misses_over_accesses_of_requests_of_all_lengths(tmp_path: Path) -> None:
    """Three of 20 steps that select 2 positions, one of 90 steps that selects 8: as a sweep says,
    not misses weighed by steps over accesses weighed by requests."""
    path = tmp_path / "t.parquet"
    rng = np.random.default_rng(0)
    with TraceWriter(path, Metadata("glm-5.1", "synthetic", 8, None)) as writer:
        for number, (steps, width) in enumerate([(20, 2)] * 3 + [(90, 8)]):
            rows = np.concatenate([rng.permutation(500)[:width] for _ in range(steps)])
            step = np.arange(steps, dtype=np.int32)
            ends = np.arange(steps + 1) * width
            writer.write(Demand(f"r{number}", 0, 600, step, step + 601, ends, rows.astype("i4")))
    swept = sweep(path, ["lru"], [32], compare_min=False).rows.iloc[0]
    found = layer_misses(path, "lru", 32, warm_up_steps=0)
    assert found.selected == (3 * 20 * 2 + 90 * 8) / 150
    assert found.rate == pytest.approx(swept["miss_rate"])
    assert found.rate < 1
    assert layer_misses(path, "lru", 32).selected == (3 * 4 * 2 + 74 * 8) / 86  # the same steps
    assert found.context == pytest.approx((60 * 610.5 + 90 * 645.5) / 150)


def test_serve_all_rows() -> None:
    load = Aim(8192, 256, 8, requests=32)
    modes = ("baseline", "hisparse", "zero-cost")
    ways = [as_mode(setting("baseline"), mode, 4096, 8) for mode in modes]
    rows = serve_all(ways, made_up, "lru", [load, replace(load, concurrency=16)])
    assert list(rows["mode"]) == ["baseline"] * 2 + ["hisparse"] * 2 + ["zero-cost"] * 2
    assert list(rows["load"]) == ["8", "16"] * 3
    parts = rows[["prefill", "decode_attention", "decode_rest", "swap_in", "idle"]].sum(axis=1)
    assert parts.tolist() == pytest.approx([1.0] * 6)
    assert (rows["tpot_p50_ms"] <= rows["tpot_p99_ms"]).all()
    assert (rows["tokens_per_s_per_gpu"] == rows["tokens_per_s"] / 8).all()
    assert rows["prefill_busy"].isna().all()
    opened = serve_one(setting("baseline"), replace(load, rate_per_s=0.5, requests=20))
    assert opened["load"] == "0.5/s"


def test_largest_of_a_batch() -> None:
    found = layer_misses(None, "lru", 4096)
    one, many = found.largest_of(1), found.largest_of(64)
    assert one == pytest.approx(np.array(found.per_layer), rel=0.02)
    assert (many > one).all()
    assert (many <= [row[-1] for row in found.spread]).all()
    assert found.times(2).largest_of(64) == pytest.approx(2 * many)


def test_a_miss_curve_instead_of_a_trace(tmp_path: Path) -> None:
    rows = pd.DataFrame(
        {
            "policy": ["lru", "lru", "fifo"],
            "buffer": [4096, 8192, 4096],
            "miss_rate": [0.134, 0.067, 0.172],
        }
    )
    file = tmp_path / "curve.csv"
    rows.to_csv(file)
    misses_of = read_miss_curve(file, "lru", 100_000, 2048)
    assert misses_of("lru", 4096).mean == pytest.approx(0.134 * 2048)
    assert misses_of("lru", 8192).rate == pytest.approx(0.067)
    with pytest.raises(ValueError, match="has no lru at buffer 6144; it has lru at 4096, 8192"):
        misses_of("lru", 6144)
    rows.drop(columns="miss_rate").to_csv(file)
    with pytest.raises(ValueError, match="has no column miss_rate"):
        read_miss_curve(file, "lru", 100_000, 2048)
    with pytest.raises(ValueError, match=r"is none of \.csv"):
        read_miss_curve(tmp_path / "curve.txt", "lru", 1, 2048)
    with pytest.raises(ValueError, match="cannot read the miss curve"):
        read_miss_curve(tmp_path / "none.csv", "lru", 1, 2048)
