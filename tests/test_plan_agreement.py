"""serve confirms what plan says: by command, for known contradictions and for random settings."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from plan_agreement import agree, draw, run


def plan_and_serve(*words: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What plan writes, and the rows of the serve command that it prints, by mode."""
    code, planned = run("plan", *words)
    assert code == 0
    code, rows = run(*shlex.split(planned["serve"])[1:])
    assert code == 0
    return planned, {row["mode"]: row for row in rows}


def same(best: dict[str, Any], row: dict[str, Any]) -> None:
    for name in ("tokens_per_s", "tpot_p50_ms", "tpot_p99_ms", "ttft_p50_s", "bottleneck"):
        assert best[name] == row[name], name


def test_a_target_is_met_by_serve() -> None:
    # An estimate of steps alone took B 4096 and ratio 5 for 50 ms; prefills made it 85.
    planned, rows = plan_and_serve(
        *"--prompt 65536 --output-len 4096 --concurrency 128 --max-tpot-ms 60".split()
    )
    best = planned["recommendation"]
    same(best, rows["hisparse"])
    assert best["meets"]
    assert rows["hisparse"]["tpot_p50_ms"] <= 60
    assert rows["hisparse"]["tokens_per_s"] > 1.3 * rows["baseline"]["tokens_per_s"]
    _, wider = run(
        *"serve --prompt 65536 --output-len 4096 --concurrency 128 --mode hisparse".split(),
        *f"--buffer {best['buffer']} --ratio {best['ratio'] + 1} --max-tpot-ms 60".split(),
    )
    assert not wider[0]["meets"]  # the next ratio is faster and misses the target


def test_a_target_that_prefill_rules_out() -> None:
    # 39 ms by the steps alone, 205 with the prefills of a machine that is slow at them.
    words = "--model deepseek-v3.2 --hardware h20 --prompt 65536 --output-len 4096"
    code, planned = run("plan", *f"{words} --concurrency 64 --max-tpot-ms 50".split())
    assert code == 1
    assert planned["recommendation"] is None
    assert planned["reasons"][0].startswith("no candidate reaches 50 ms per token")
    assert {row["missed"] for row in planned["candidates"]} == {"TPOT"}
    assert {row["bottleneck"] for row in planned["candidates"]} == {"prefill"}
    # With prefill elsewhere it can be met, and serve says the same.
    apart, rows = plan_and_serve(
        *f"{words} --concurrency 64 --max-tpot-ms 50 --disaggregated".split()
    )
    same(apart["recommendation"], rows["hisparse"])
    assert rows["hisparse"]["meets"]


def test_one_prefill_instance_is_the_bottleneck_that_plan_names() -> None:
    words = "--hardware h20 --prompt 65536 --output-len 8192 --buffer 4096,8192 --ratio 8,12"
    planned, rows = plan_and_serve(*words.split(), *"--prefill-instances 1".split())
    best = planned["recommendation"]
    same(best, rows["hisparse"])
    assert rows["hisparse"]["bottleneck"] == "prefill"
    assert rows["hisparse"]["prefill_busy"] > 0.95
    # Decode alone would give 3.6 times as much as without HiSparse.
    assert rows["hisparse"]["tokens_per_s"] < 1.5 * rows["baseline"]["tokens_per_s"]
    # No wait for memory or prefill in the time per token: it is a decode step's.
    assert rows["hisparse"]["tpot_p99_ms"] < 60
    assert rows["hisparse"]["ttft_p50_s"] > 1000


def test_the_number_of_prefill_instances_is_searched() -> None:
    words = "--hardware h20 --disaggregated --prompt 65536 --output-len 8192"
    planned, rows = plan_and_serve(*words.split(), *"--buffer 4096 --ratio 12".split())
    best = planned["recommendation"]
    same(best, rows["hisparse"])
    assert (best["prefill_instances"], best["decode_instances"]) == (3, 1)
    assert best["gpus"] == 32
    assert rows["hisparse"]["bottleneck"] != "prefill"
    tried = {row["prefill_instances"]: row for row in planned["candidates"]}
    assert tried[2]["bottleneck"] == "prefill"
    assert best["tokens_per_s"] > 1.3 * tried[2]["tokens_per_s"]


@pytest.mark.parametrize("number", range(1000, 1015))
def test_random_settings(number: int) -> None:
    few = "--buffer 2048,4096,8192 --ratio 2,5,10 --requests 60".split()
    words = draw(number)
    if "--requests" in words:
        few = few[:-2]
    row = agree([*words, *few])
    assert row["outcome"] == "none" or row["largest_difference"] <= 0.05
    assert row.get("targets_met", True)


def test_the_agreement_is_not_of_refusals_alone() -> None:
    few = "--buffer 4096 --ratio 5 --requests 20".split()
    words = ["--prompt", "32768", "--concurrency", "16", *few]
    assert agree(words)["outcome"] == "served"
