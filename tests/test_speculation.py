"""Speculative decoding in time and memory: by hand, and where it does nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from test_serving import exposure, table

from hisparse_sim.cli import cli
from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.serving.engines import load_engine
from hisparse_sim.simulator.serving.memory import baseline_pool_tokens, device_pool_tokens
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.simulator.serving.speculation import Speculation

GLM = load_model("glm-5.1")


def setting(**more: Any) -> Setting:
    found = Scenario(prompt=32_768, **more).resolve("hisparse", get_policy("lru"))
    misses = found.misses_of("lru", 4096)
    return replace(found.setting, device_buffer_size=4096, ratio=4, misses=misses)


def test_step_times_by_hand() -> None:
    # 3 rows of 2 requests cost what 6 requests cost, and two drafts a layer of 78 each for 2.
    plain = setting().known_steps
    steps = plain.verifying(3, 2.0, 78)
    drafts = 2 / 78
    for context in plain.context:
        verify = plain.decode_attention_us(6, context)
        draft = drafts * plain.decode_attention_us(2, context)
        found = steps.decode_attention_us(2, context)
        assert found == pytest.approx((verify + draft) / 2, rel=0.02)
    verify, draft = plain.decode_rest_us(6), drafts * plain.decode_rest_us(2)
    assert steps.decode_rest_us(2) == pytest.approx((verify + draft) / 2, rel=0.02)
    assert steps.prefill_rest_chunk_us(4096) == plain.prefill_rest_chunk_us(4096)
    assert steps.kind == "modelled"


def test_waits_by_hand() -> None:
    plain = exposure("hisparse")
    assert plain.replayed is not None
    twice = replace(plain, replayed=plain.replayed.times(2.0), accepted=1.6)
    whole = replace(twice, accepted=1.0)
    assert twice.step_us(2, 40_000, 100.0, 50.0) == pytest.approx(
        whole.step_us(2, 40_000, 100.0, 50.0) / 1.6
    )
    # Overlap hides copies behind the attention of a whole step, which yields 1.6 tokens.
    hidden = replace(twice, mode="overlap")
    other = replace(whole, mode="overlap")
    assert hidden.step_us(2, 40_000, 100.0, 50.0) == pytest.approx(
        other.step_us(2, 40_000, 100.0, 80.0) / 1.6
    )


def test_memory_by_hand() -> None:
    # workspace 3 * 2048 = 6144; scratch max(1024, 6144 - 4096) = 2048, or 1024 beside 6144 slots.
    three = Speculation(3, 2.0)
    assert three.scratch_tokens(2048, 4096) == 2048
    assert three.scratch_tokens(2048, 6144) == 1024
    assert Speculation(2, 1.5).scratch_tokens(2048, 2048) == 2048
    assert Speculation(2, 1.5).scratch_tokens(1000, 1000) == 1024  # whole pages of 64
    # The draft layer's entries for all P * R tokens, its keys like those of the other layers.
    pool = 10**10
    token = 78 * (1152 + 4 * 132) + 4 * 1152 + 4 * 132
    assert device_pool_tokens(GLM, "bf16", 4, pool, draft_layers=1) == pool // token // 64 * 64
    token = 79 * (1152 + 132)
    assert baseline_pool_tokens(GLM, "bf16", pool, draft_layers=1) == pool // token // 64 * 64
    one = setting(draft_tokens=3, acceptance_length=2.0)
    assert one.pool.scratch_tokens == 2048
    assert replace(one, mode="baseline", misses=None).pool.scratch_tokens == 0
    found = one.deployment.capacity(4, 4096, 40_960, 8192, one.scratch_tokens)
    assert found.device_tokens_per_request == 4096 + 64 + 2048


def test_one_token_accepted_is_only_a_cost() -> None:
    plain = setting()
    rate = plain.steady_tokens_per_s(32_768, 8192, 4)
    worst = setting(draft_tokens=2, acceptance_length=1.0)
    best = setting(draft_tokens=2, acceptance_length=2.0, union_misses=1.0)
    fewer = setting(draft_tokens=2, acceptance_length=2.0)
    assert worst.steady_tokens_per_s(32_768, 8192, 4) < rate
    assert best.steady_tokens_per_s(32_768, 8192, 4) > 1.5 * rate
    assert (
        rate
        < fewer.steady_tokens_per_s(32_768, 8192, 4)
        < (best.steady_tokens_per_s(32_768, 8192, 4))
    )


def test_limits() -> None:
    for arguments, message in (
        ({"draft_tokens": 1, "acceptance_length": 1.0}, "`draft_tokens` must be from 2 to 16"),
        ({"draft_tokens": 3, "acceptance_length": 4.0}, "`acceptance_length` must be from 1 to"),
        ({"draft_tokens": 3, "acceptance_length": 2.0, "union_misses": 0.5}, "`union_misses` must"),
    ):
        with pytest.raises(ValueError, match=message):
            Speculation(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give both"):
        Scenario(draft_tokens=3)
    with pytest.raises(ValueError, match="give both"):
        Scenario(union_misses=2.0)
    with pytest.raises(ValueError, match=r"sglang-0\.5\.21 has no speculative decoding"):
        Speculation(3, 2.0).check(load_engine("sglang-0.5.21"), 2048, 4096, 60)
    engine = load_engine("sglang-0.5.23")
    for rows, top_k in ((5, 1024), (3, 512)):
        with pytest.raises(
            ValueError, match="HiSparse SGLang takes drafts of 2 to 4 tokens a step"
        ):
            Speculation(rows, 2.0).check(engine, top_k, 4096, 60)
    with pytest.raises(ValueError, match="draft_tokens x top_k up to 8,192"):
        Speculation(4, 2.0).check(engine, 4096, 8192, 60)
    # A slot for each request and one more, of which there may be as many as the buffer has.
    drafting = {"draft_tokens": 4, "acceptance_length": 2.0}
    assert setting(**drafting, max_running_requests=8 * 4095).max_running == 4095
    with pytest.raises(ValueError, match="4,096 on a rank and one, than device_buffer_size, 4,096"):
        setting(**drafting, max_running_requests=8 * 4096)
    one = setting(draft_tokens=3, acceptance_length=2.0)
    with pytest.raises(ValueError, match="does not prefetch where it speculates"):
        replace(one, mode="prefetch")


def test_commands_say_that_the_factors_are_stated() -> None:
    words = "--draft-tokens 3 --acceptance-length 2 --union-misses 2.5 --requests 32".split()
    load = "--prompt 16k --output-len 1k --concurrency 32".split()
    done = CliRunner().invoke(cli, ["serve", *load, *words, "--mode", "hisparse", "--quiet"])
    text = " ".join(done.output.split())
    assert "3 rows verified a step, 2 tokens accepted, misses of their union 2.5 times" in text
    words += ["--buffer", "4096", "--ratio", "4", "--format", "json", "--quiet"]
    done = CliRunner().invoke(cli, ["plan", *load, *words])
    planned = json.loads(done.stdout)
    assert "--speculative-num-draft-tokens 3" in planned["candidates"][0]["flags"]
    assert "--draft-tokens 3" in planned["serve"]
    assert "--union-misses 2.5" in planned["serve"]


def test_a_table_by_hand_and_its_first_point() -> None:
    # Where a row more costs nothing, accepting two tokens halves the time.
    flat = table()
    found = flat.verifying(2, 2.0, 10**9)
    both = flat.decode_attention_us(2, 1000)
    assert found.decode_attention_us(1, 1000) == pytest.approx(both / 2)
