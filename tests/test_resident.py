"""A resident share: the newest tokens of a request stay on the GPU, beside its hot buffer."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.memory import DEVICE_POOL, capacity
from hisparse_sim.simulator.serving.misses import layer_misses, read_miss_curve
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.simulator.serving.serving_rows import serve_one
from hisparse_sim.simulator.serving.sweep_with_costs import sweep
from hisparse_sim.traces import sample_path

GIB = 1 << 30


def test_memory_by_hand() -> None:
    model = load_model("glm-5.1")

    def held(resident: int) -> tuple[int, int, str]:
        found = capacity(
            model, "bf16", 10, 4096, 30_000, 15 * GIB, 1000 * GIB, resident_tokens=resident
        )
        return found.device_tokens_per_request, found.requests, found.limit

    # 15 GiB hold 83,562 tokens of 78 x (1,152 + 10 x 132) bytes: 83,520 in whole pages.
    assert held(0) == (4160, 20, DEVICE_POOL)
    assert held(1000) == (4096 + 1024 + 64, 16, DEVICE_POOL)
    assert held(100_000) == (30_016, 2, DEVICE_POOL)  # the whole request, and no buffer


def test_misses_are_those_of_a_sweep() -> None:
    found = layer_misses(None, "lru", 4096, "direct", resident_tokens=2048, warm_up_steps=0)
    rows = sweep(None, "lru", 4096, "direct", resident_tokens=2048, compare_min=False, jobs=1).rows
    assert found.mean == pytest.approx(float(rows["misses_per_step"].iloc[0]))
    assert found.mean < layer_misses(None, "lru", 4096, "direct", warm_up_steps=0).mean
    assert found.resident_tokens == 2048


def test_a_request_that_is_wholly_resident_only_plans() -> None:
    aim = Aim(16_384, 512, 8, requests=8)
    asked = Scenario(prompt=16_384, output_len=512)
    setting, misses_of, _, _ = asked.resolve("hisparse", get_policy("lru"))
    ours = replace(setting, ratio=2, resident_tokens=20_480, misses=misses_of("lru", 4096, 20_480))
    assert ours.exposure.misses(16_896) == 0
    kernel = ours.link.kernels["sglang"]
    plan_us = 78 * (kernel.plan_us + 4096 * kernel.plan_slot_us)
    assert ours.exposure.step_us(1, 16_896, 0.0, 0.0) == pytest.approx(plan_us)
    row, bare = serve_one(ours, aim), serve_one(replace(setting, mode="baseline"), aim)
    assert row["tpot_p50_ms"] - bare["tpot_p50_ms"] == pytest.approx(plan_us / 1000, rel=0.1)
    with pytest.raises(ValueError, match="replayed with 20480 resident tokens, not 0"):
        replace(ours, resident_tokens=0)


def test_the_miss_rate_counts_the_steps_that_need_the_host() -> None:
    aim = Aim(16_384, 1024, 8)
    setting, misses_of, _, _ = Scenario(prompt=16_384, output_len=1024).resolve(
        "hisparse", get_policy("lru")
    )

    def rate(resident: int) -> float:
        misses = misses_of("lru", 4096, resident)
        return replace(setting, resident_tokens=resident, misses=misses).miss_rate(aim.lengths)

    assert rate(0) == pytest.approx(misses_of("lru", 4096).rate, rel=1e-4)
    assert rate(0) > rate(8192) > rate(12_800) > 0
    # 4,096 slots and 13,312 tokens are all 17,408; with 12,800 only the second half of the steps
    # needs the host, and the mean of these steps is of 17,152 tokens.
    assert rate(13_312) == 0
    half = misses_of("lru", 4096, 12_800)
    assert rate(12_800) == pytest.approx(
        half.rate / 2 * (1 - 16_896 / 17_152) / (1 - 16_896 / half.context)
    )


def test_of_a_short_trace_nothing_misses_if_requests_stay_on_the_gpu() -> None:
    """Of longer requests it says nothing."""
    words = ["--trace", str(sample_path()), "--concurrency", "8", "--requests", "8", "--quiet"]
    words += ["--format", "json"]
    resident = ["--resident-tokens", "40960"]
    done = CliRunner().invoke(
        cli, ["plan", "--buffer", "4096", "--ratio", "2", "--candidates", *resident, *words]
    )
    assert done.exit_code == 0, done.output
    planned = json.loads(done.stdout)
    assert [row["miss_rate"] for row in planned["candidates"]] == [0.0]
    assert {row["miss_rate"] for row in (*planned["policies"], *planned["sensitivity"])} == {0.0}
    target = ["--max-miss-rate", "0", "--mode", "hisparse"]
    done = CliRunner().invoke(cli, ["serve", *target, *resident, *words])
    assert [row["meets"] for row in json.loads(done.stdout)] == [True]
    longer = ["--prompt", "65536", *target, *resident, *words]
    done = CliRunner().invoke(cli, ["serve", *longer])
    assert done.exit_code == 2
    assert "so none can miss; use longer requests" in done.stderr


def test_a_curve_has_no_resident_share(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text("buffer,miss_rate\n4096,0.1\n")
    curve = read_miss_curve(tmp_path / "curve.csv", "lru", 30_000, 2048)
    with pytest.raises(ValueError, match="says nothing of resident tokens"):
        curve("lru", 4096, 64)


@pytest.mark.parametrize("concurrency", [32, 256])
def test_plan_tries_shares_and_serve_confirms(concurrency: int) -> None:
    words = f"plan --concurrency {concurrency} --prompt 16384 --output-len 1024 --buffer 4096"
    words += " --ratio 2,4"
    done = CliRunner().invoke(
        cli, [*words.split(), "--resident-tokens", "0,4k,16k", "--format", "json", "--quiet"]
    )
    assert done.exit_code == 0, done.output
    planned = json.loads(done.stdout)
    best = planned["recommendation"]
    assert (best["resident_tokens"] > 0) == (concurrency == 32)  # few requests: memory is left
    again = CliRunner().invoke(
        cli, [*shlex.split(planned["serve"])[1:], "--format", "json", "--quiet"]
    )
    row = next(row for row in json.loads(again.stdout) if row["mode"] == "hisparse")
    assert row["tokens_per_s"] == best["tokens_per_s"]


def test_the_table_of_the_page_is_what_plans_give() -> None:
    page = Path(__file__).parents[1] / "docs" / "hybrid-and-prefetch.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| concurrent requests"))
    cells = [
        [cell.strip(" *").replace(",", "") for cell in line.strip("|").split("|")]
        for line in lines[first : first + 7]
    ]
    loads, rates = cells[0][1:], {name: row for name, *row in cells[2:]}
    shares = {"nothing resident": 0, "4096": 4096, "16384": 16_384, "whole": 40_960}
    for concurrency in ("8", "32", "128"):
        at = loads.index(concurrency)
        for name, tokens in shares.items():
            planned = hs.plan(concurrency=int(concurrency), resident_tokens=tokens)
            assert planned.best is not None
            assert rates[name][at] == f"{planned.best['tokens_per_s']:.0f}"
            assert rates["without HiSparse"][at] == f"{planned.baseline['tokens_per_s']:.0f}"
