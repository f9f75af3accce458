"""The latency model: its formula by hand, the shipped figures, the fit, how well it predicts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hisparse_sim as hs
from hisparse_sim.gpu_replay.bench.calibrate import (
    calibrate_from,
    fit_profile,
    profile_text,
    relative_errors,
    write_profile,
)
from hisparse_sim.gpu_replay.bench.results import read_rows
from hisparse_sim.simulator.serving.latency import (
    KERNELS,
    KernelCost,
    Link,
    load_link,
    measured_swap_ins,
    swap_in_us,
)
from hisparse_sim.simulator.serving.profiles import ProfileError, read_profiles

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"

PLAIN = Link(
    name="plain",
    description="",
    kind="measured",
    source="by hand",
    entry_ns=10.0,
    link_gb_s=50.0,
    bulk_gb_s=55.0,
    kernels={
        "sglang": KernelCost(8.0, 0.001, 4.0, 100.0, 0.0),
        "native": KernelCost(2.0, 0.001, 1.0, 0.0, 0.02),
    },
)


def test_nothing_missed_costs_the_plan():
    assert swap_in_us(PLAIN, "sglang", 64, 0, 4000, 1000) == pytest.approx(8 + 4)


def test_copy_is_the_sum_of_cubes():
    # One request: own 300 x 100 ns = 30 us; link 300 x (10 + 1000 / 50) ns = 9 us.
    one = swap_in_us(PLAIN, "sglang", 1, 300, 4000, 1000)
    assert one == pytest.approx(12 + 4 + (30**3 + 9**3) ** (1 / 3))
    # Thirty of them: the link takes 270 us and the busiest request hardly counts.
    many = swap_in_us(PLAIN, "sglang", 30, 300, 4000, 1000)
    assert many == pytest.approx(16 + (30**3 + 270**3) ** (1 / 3))
    assert many < 16 + 271


def test_the_busiest_request_counts():
    even = swap_in_us(PLAIN, "sglang", 4, 100, 4000, 1000)
    uneven = swap_in_us(PLAIN, "sglang", 4, 100, 4000, 1000, peak=400)
    assert even == pytest.approx(16 + (10**3 + 12**3) ** (1 / 3))
    assert uneven == pytest.approx(16 + (40**3 + 12**3) ** (1 / 3))


def test_arguments_broadcast():
    us = swap_in_us(PLAIN, "native", np.array([[1], [8]]), np.array([0, 64, 256]), 4096, 1152)
    assert us.shape == (2, 3)
    assert (np.diff(us, axis=1) > 0).all()


def test_unknown_kernel_and_link_name_the_known():
    with pytest.raises(ValueError, match="known: sglang, native"):
        swap_in_us(PLAIN, "vllm", 1, 1, 4096, 1152)
    with pytest.raises(ProfileError, match="h200-pcie5"):
        load_link("carrier-pigeon")


def test_every_shipped_link_loads_and_says_where_it_is_from():
    names = read_profiles("links")
    assert {"h200-pcie5", "pcie4", "gh200-c2c", "gb200-c2c"} <= set(names)
    for name in names:
        link = load_link(name)
        assert link.kind == ("measured" if name == "h200-pcie5" else "modelled")
        assert link.source
        assert link.description


def test_the_pace_of_one_request_goes_with_the_round_trip():
    # 1,191.19 ns over PCIe 5 and 100.7 ns an entry of 1,152 bytes: 13.6 kB in flight. The same
    # bytes every 618 ns are an entry every 52.3 ns; the first comes 0.573 us sooner.
    here, there = load_link("h200-pcie5"), load_link("gh200-c2c")
    for kernel in KERNELS:
        flying = here.kernels[kernel].bytes_in_flight(here.round_trip_ns, 1152)
        assert there.kernels[kernel].bytes_in_flight(there.round_trip_ns, 1152) == (
            pytest.approx(flying)
        )
    ours, engines = there.kernels["sglang"], here.kernels["sglang"]
    assert here.kernels["sglang"].bytes_in_flight(1191.19, 1152) == pytest.approx(13_625, abs=1)
    assert ours.miss_ns == pytest.approx(99.8132 * 618 / 1191.19)
    assert ours.first_us == pytest.approx(engines.first_us - 0.57319)
    assert (ours.plan_us, ours.plan_slot_us) == (engines.plan_us, engines.plan_slot_us)
    # Rates go with the large copy: 375 over 55.37 GB/s.
    assert there.link_gb_s == pytest.approx(56.3862 * 375 / 55.37)
    assert there.entry_ns == pytest.approx(2.61309 * 55.37 / 375)


def test_a_published_swap_in_over_c2c():
    """arXiv 2608.07009, as two readers of it quote: a call of 16 requests at B = 2,048 takes 112 us
    on an H200 and 29 on a GH200. The misses that give 112 there give 34 here, 17 % above; before
    the latency was derived it was 44. Out of sample: nothing was chosen by it."""
    h200, gh200 = load_link("h200-pcie5"), load_link("gh200-c2c")
    misses = 255
    assert swap_in_us(h200, "sglang", 16, misses, 2048, 1152) == pytest.approx(112, abs=0.1)
    derived = float(swap_in_us(gh200, "sglang", 16, misses, 2048, 1152))
    assert derived == pytest.approx(29, rel=0.2)
    copied = replace(gh200, kernels=h200.kernels)
    assert float(swap_in_us(copied, "sglang", 16, misses, 2048, 1152)) > 1.5 * 29


def test_links_over_pcie_are_as_they_were_fitted():
    for name, link_gb_s, entry_ns in (
        ("h200-pcie5", 56.3862, 2.61309),
        ("pcie4", 28.1931, 5.22617),
    ):
        link = load_link(name)
        assert (link.link_gb_s, link.entry_ns) == (link_gb_s, entry_ns)
        assert link.kernels["sglang"] == KernelCost(
            10.5711, 0.00118575, 4.41114, 99.8132, 0.000780002
        )
        assert link.kernels["native"] == KernelCost(4.51339, 0.000619571, 0.827324, 0, 0.00811635)


def test_kernels_of_a_link_without_round_trip(tmp_path):
    path = tmp_path / "links.toml"
    path.write_text(
        '[links.mine]\nkernels_of = "pcie4"\n[[links.mine.figures]]\nkind = "measured"\n'
        'source = "here"\nbulk_gb_s = 100\nround_trip_ns = 700\n'
    )
    with pytest.raises(ProfileError, match="kernels of pcie4, which has none of its own or no"):
        load_link("mine", path)
    itself = path.read_text().replace("pcie4", "mine")
    (tmp_path / "itself.toml").write_text(itself)
    with pytest.raises(ProfileError, match="kernels of mine, which has none of its own"):
        load_link("mine", tmp_path / "itself.toml")
    path.write_text(path.read_text().replace("pcie4", "h200-pcie5"))
    assert load_link("mine", path).kernels["sglang"].miss_ns == pytest.approx(
        99.8132 * 700 / 1191.19
    )


def synthetic_rows():
    rows = []
    for batch in (1, 4, 32):
        for misses in (0, 64, 256, 1024):
            for buffer in (2048, 6144):
                for item in (656, 1152):
                    row = {"batch": batch, "misses": misses, "buffer": buffer, "entry_bytes": item}
                    for kernel in KERNELS:
                        row[f"{kernel}_us"] = float(
                            swap_in_us(PLAIN, kernel, batch, misses, buffer, item)
                        )
                    row["gather_us"] = 3 + batch * misses * (10 + item / 50) / 1e3
                    rows.append(row)
    return rows


def test_fit_recovers_what_made_the_points():
    link = fit_profile(synthetic_rows(), "again", "", "", 55.0)
    assert link.entry_ns == pytest.approx(10, rel=0.01)
    assert link.link_gb_s == pytest.approx(50, rel=0.01)
    for kernel in KERNELS:
        assert np.abs(relative_errors(synthetic_rows(), link, kernel)).max() < 0.01


def test_fit_needs_two_item_sizes():
    rows = [row for row in synthetic_rows() if row["entry_bytes"] == 656]
    with pytest.raises(ValueError, match="two entry sizes"):
        fit_profile(rows, "x", "", "", 55.0)


def test_a_written_profile_is_a_profile(tmp_path):
    path = tmp_path / "mine.toml"
    write_profile(replace(PLAIN, name="mine", description="by hand"), path)
    link = load_link("mine", path)
    assert link.kernels == PLAIN.kernels
    assert (link.kind, link.source) == ("measured", "by hand")
    assert profile_text(link) == path.read_text()


def test_shipped_figures_are_the_fit_of_the_shipped_measurement():
    fitted, _ = calibrate_from(RESULTS / "swap-in-h200.json", "h200-pcie5")
    shipped = load_link("h200-pcie5")
    for kernel in KERNELS:
        assert vars(shipped.kernels[kernel]) == pytest.approx(
            vars(fitted.kernels[kernel]), rel=0.01, abs=1e-6
        )
    assert shipped.link_gb_s == pytest.approx(fitted.link_gb_s, rel=0.01)


@pytest.mark.parametrize("kernel", KERNELS)
def test_predicts_points_and_traces_not_fitted(kernel):
    """Median error at most 10 %, 95th percentile at most 20 %."""
    link = load_link("h200-pcie5")
    points = read_rows(RESULTS / "held-out-points-h200.json")
    errors = [np.abs(relative_errors(points, link, kernel))]
    for run in read_rows(RESULTS / "trace-replay-h200.json"):
        if run["kernel"] == kernel:
            predicted = swap_in_us(
                link,
                kernel,
                run["batch"],
                np.array(run["misses"]) / run["batch"],
                run["buffer"],
                run["entry_bytes"],
                np.array(run["peak_misses"]),
            )
            errors.append(np.abs(predicted / np.array(run["us"]) - 1))
    for some in (errors[0], np.concatenate(errors[1:])):
        assert np.median(some) <= 0.10
        assert np.quantile(some, 0.95) <= 0.20


def test_shipped_points_are_those_measured() -> None:
    shipped = measured_swap_ins()
    rows = pd.DataFrame(read_rows(RESULTS / "swap-in-h200.json"))
    assert len(shipped) == len(rows) == 120
    pd.testing.assert_frame_equal(shipped, rows[list(shipped)], atol=0.001, check_dtype=False)


@pytest.mark.parametrize("name", ["batch", "misses", "buffer", "entry_bytes", "peak"])
@pytest.mark.parametrize("wrong", [float("nan"), None, -1.0, float("inf"), [1.0, -1.0]])
def test_a_count_that_is_none_is_refused(name: str, wrong: Any) -> None:
    """NaN, None and negative misses would cost nothing, like no misses."""
    if name == "peak" and wrong is None:
        return  # as many as `misses`
    given: dict[str, Any] = {"batch": 1, "misses": 5, "buffer": 64, "entry_bytes": 1152}
    with pytest.raises(ValueError, match=f"^{name} must be finite and at least 0, not "):
        swap_in_us(PLAIN, "sglang", **{**given, name: wrong})


@pytest.mark.parametrize("batch", [-100, 0, float("nan"), 2.5, True])
def test_a_sweep_refuses_a_batch_of_no_requests(batch: Any) -> None:
    held = hs.trace_from_array(np.arange(8).reshape(2, 4), prompt_len=20)
    with pytest.raises(ValueError, match=r"^batch must be "):
        hs.sweep(held, "lru", 8, link="h200-pcie5", batch=batch)


@pytest.mark.parametrize("seed", [1.5, None, "1"])
def test_a_sweep_refuses_a_seed_that_is_no_number(seed: Any) -> None:
    held = hs.trace_from_array(np.arange(8).reshape(2, 4), prompt_len=20)
    for run in (hs.sweep, hs.replay):
        with pytest.raises(ValueError, match=r"^seed must be a whole number, not "):
            run(held, "random", 8, seed=seed)
