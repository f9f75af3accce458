"""Models that select blocks of tokens: memory by hand, misses in blocks, plan and serve."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.serving.demand import demand_of
from hisparse_sim.simulator.serving.hardware import load_hardware
from hisparse_sim.simulator.serving.memory import (
    baseline_pool_tokens,
    capacity,
    device_pool_tokens,
    held_tokens,
    hot_buffer_bytes,
)
from hisparse_sim.simulator.serving.misses import layer_misses
from hisparse_sim.simulator.serving.models import load_model, model_names
from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.simulator.serving.roofline import roofline_step_times
from hisparse_sim.simulator.serving.scenario import Scenario, deployment_of
from hisparse_sim.simulator.serving.scenario_misses import misses_for
from hisparse_sim.simulator.serving.steptimes import LAYOUTS

GIB = 1 << 30
QSA, M3, V4 = (load_model(name) for name in ("qsa", "minimax-m3", "deepseek-v4-flash"))


def run(words: str) -> tuple[int, Any, str]:
    done = CliRunner().invoke(cli, [*shlex.split(words), "--format", "json", "--quiet"])
    found = json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else None
    return done.exit_code, found, done.stderr


@pytest.mark.parametrize(("model", "billions"), [(QSA, 125), (M3, 428), (V4, 284)])
def test_parameters_are_about_those_published(model: Any, billions: float) -> None:
    assert model.parameters().total / 1e9 == pytest.approx(billions, rel=0.01)


def test_bytes_of_a_token_by_hand() -> None:
    # K and V of 2 or 4 heads; a group of four tokens in 584 bytes.
    assert QSA.entry_bytes("bf16") == 2 * 2 * 256 * 2
    assert QSA.entry_bytes("fp8") == 2 * 2 * 256
    assert M3.entry_bytes("bf16") == 2 * 4 * 128 * 2
    assert V4.entry_bytes("bf16") == V4.entry_bytes("fp8") == 584 // 4
    # Layers that do not select: linear, read as a whole, groups of 128 tokens and windows.
    assert QSA.resident_token_bytes() == 0
    assert M3.resident_token_bytes("bf16") == 3 * 2048
    assert V4.resident_token_bytes() == 20 * 584 // 128 + 3855


def test_pools_by_hand() -> None:
    pool = 10 * GIB
    for model, entry, key, other in (
        (QSA, 2048, 64, 0),
        (M3, 2048, 256, 6144),
        (V4, 146, 33, 3946),
    ):
        token = model.layers * (entry + key * 5) + other * 5
        assert device_pool_tokens(model, "bf16", 5, pool) == pool // token // 64 * 64
        bare = model.layers * (entry + key) + other
        assert baseline_pool_tokens(model, "bf16", pool) == pool // bare // 64 * 64


@pytest.mark.parametrize("ratio", [1, 4, 10])
def test_deepseek_v4_has_the_pool_of_its_engine(ratio: int) -> None:
    # SGLang 0.5.23, DSV4PoolConfigurator._get_bytes_per_full_token: windows, groups of 4 on the
    # GPU (1 / ratio of them), groups of 128, keys, and states of groups that are not full.
    states = 0.1 * 8 / 128 * (2 * 2 * 512 * 4 + 2 * 2 * 128 * 4) * 21
    full = 0.1 * 584 * 43 + 584 / (4 * ratio) * 21 + 584 / 128 * 20 + 132 / 4 * 21 + states
    ours = ratio * device_pool_tokens(V4, "fp8", ratio, 50 * GIB)
    assert ours == pytest.approx(50 * GIB / full, rel=0.002)


def test_slots_are_blocks() -> None:
    assert held_tokens(QSA, 1024) == 4096
    assert held_tokens(M3, 32) == 32 * 128 + 64  # with the page: a block that is being filled
    assert hot_buffer_bytes(M3, "bf16", 32) == 33 * 128 * 57 * 2048
    found = capacity(QSA, "bf16", 4, 1024, 100_000, 10 * GIB, 1000 * GIB)
    assert found.device_tokens_per_request == 4096 + 64
    with pytest.raises(ValueError, match="device_buffer_size 8 is smaller than the top-k 16"):
        capacity(M3, "bf16", 4, 8, 100_000, 10 * GIB, 1000 * GIB)


def test_gpus_that_share_requests_split_heads() -> None:
    assert deployment_of(M3, layout="tp8").entry_bytes == 2 * 128 * 2  # a head each
    assert deployment_of(M3).entry_bytes == 2048
    assert deployment_of(V4, layout="tp8").entry_bytes == 146


def test_linear_layers_take_their_share_of_the_pool() -> None:
    one = deployment_of(QSA)
    free = one.hardware.gpu_bytes - one.hardware.runtime_bytes
    left = int(free * 0.85) - one.weight_bytes
    assert one.device_pool_bytes == int(left * 0.526)


def test_misses_are_of_blocks_at_a_context_in_tokens() -> None:
    trace, note = demand_of(QSA, 32_768)
    assert trace.metadata.unit == "block4"
    assert "Qwen QSA at 38,185" in note
    found = layer_misses(trace, "lru", 1024, "direct", position_tokens=4)
    assert found.context == pytest.approx(32_768, rel=0.01)
    assert found.selected == 512
    assert 0 < found.rate < 0.5
    _, stand_in = demand_of(M3, 32_768)
    assert "with blocks of 128 tokens as if they were of 4: give a `trace`" in stand_in


def test_attention_by_hand() -> None:
    # Beyond 2,048 tokens QSA reads no more entries; the layers of M3 that do not select do.
    machine = load_hardware("h200")
    growth = {}
    for model in (QSA, M3):
        steps = roofline_step_times(model, machine, LAYOUTS["dp8-tp8"], "bf16")
        growth[model.name] = steps.decode_attention_us(8, 131_072) / steps.decode_attention_us(
            8, 8192
        )
    assert 1 < growth["qsa"] < 1.5
    assert growth["minimax-m3"] > 2


@pytest.mark.parametrize(
    ("model", "sizes"),
    [("qsa", "1024,2048"), ("minimax-m3", "32,64"), ("deepseek-v4-flash", "1024,2048")],
)
def test_serve_confirms_what_plan_says(model: str, sizes: str) -> None:
    load = f"--model {model} --prompt 64k --output-len 512 --concurrency 128 --requests 128"
    code, planned, _ = run(f"plan {load} --buffer {sizes} --ratio 2,5")
    assert code == 0
    best = planned["recommendation"]
    assert any("SGLang's rules for tokens are applied" in line for line in planned["assumptions"])
    _, rows, _ = run(planned["serve"].removeprefix("hisparse-sim "))
    row = next(row for row in rows if row["mode"] == "hisparse")
    assert row["tokens_per_s"] == best["tokens_per_s"]
    assert row["tpot_p50_ms"] == best["tpot_p50_ms"]


def test_default_buffers_go_with_the_top_k() -> None:
    words = "--model minimax-m3 --prompt 16k --output-len 64 --concurrency 8 --requests 8"
    _, planned, _ = run(f"plan {words} --ratio 2 --candidates")
    assert {row["buffer"] for row in planned["candidates"]} == {16, 24, 32, 48, 64}


def test_what_does_not_fit_together(tmp_path: Path) -> None:
    assert {"qsa", "minimax-m3", "deepseek-v4-flash"} < set(model_names())
    code, _, said = run("plan --model qsa --trace sample")
    assert code != 0
    code, _, said = run(
        "serve --model qsa --draft-tokens 2 --acceptance-length 1.5 --mode hisparse"
    )
    assert code == 2
    assert "drafts are modelled for single tokens, not for qsa" in said
    (tmp_path / "mine.toml").write_text(
        '[blocks.mine]\n[[blocks.mine.figures]]\nkind = "published"\nsource = "me"\n'
        "layers = 4\nblock_tokens = 4\ntop_k = 8\nkv_heads = 1\nhead_dim = 64\n"
    )
    with pytest.raises(ProfileError, match="lacks the figure"):  # enough for bytes alone
        Scenario(model="mine", profiles=tmp_path / "mine.toml").resolve(
            "hisparse", get_policy("lru")
        )


def test_traces_in_the_unit_of_the_model() -> None:
    rows = np.sort(
        np.random.default_rng(0).permuted(np.tile(np.arange(600), (40, 1)), axis=1)[:, :8]
    )
    lru = get_policy("lru")
    for unit, model, other in (("block4", QSA, V4), ("c4", V4, QSA)):
        trace = hs.trace_from_array(
            rows, seq_len=[601] * 40, model=model.name, provenance="synthetic", unit=unit
        )
        misses_of, _, notes = misses_for(model, lru, 2400, trace, None, "direct")
        found = misses_of("lru", 64)
        assert found.context == 2404
        assert found.selected == 8
        assert f"({model.name}, synthetic)" in notes[0]
        with pytest.raises(hs.TraceError, match=f"and {other.name} selects"):
            misses_for(other, lru, 2400, trace, None, "direct")


def test_deepseek_v4_has_one_format_of_its_own() -> None:
    """Its groups are of FP8 values, bf16 ones and scales, whatever dtype is asked for."""
    model = load_model("deepseek-v4-flash")
    assert model.kv_label("bf16") == "KV of 584 bytes per 4 tokens"
    assert load_model("qsa").kv_label("fp8") == "fp8 KV"
    words = "plan --model deepseek-v4-flash --concurrency 8 --requests 8 --buffer 1024 --ratio 2"
    shown = CliRunner().invoke(cli, words.split()).stdout
    assert shown.startswith("deepseek-v4-flash, KV of 584 bytes per 4 tokens, on 8 x h200")
    assert "bf16 KV" not in shown
    assert "--kv-cache-dtype" not in shown


@pytest.mark.parametrize(
    ("model", "runs"), [("qsa", False), ("minimax-m3", False), ("deepseek-v4-flash", True)]
)
def test_what_no_release_runs_is_said(model: str, runs: bool) -> None:
    words = f"serve --model {model} --mode zero-cost --concurrency 8 --requests 8 --format json"
    said = CliRunner().invoke(cli, words.split()).stderr
    sentence = f"HiSparse with {model}: a server does not start with --enable-hisparse"
    assert (sentence in said) != runs
