"""What differs between releases of the engine, with figures reported in public."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hisparse_sim.cli import cli
from hisparse_sim.simulator.serving.deployment import Deployment
from hisparse_sim.simulator.serving.engines import CHANGES, ENGINES, NEWEST, RELEASES, load_engine
from hisparse_sim.simulator.serving.hardware import load_hardware
from hisparse_sim.simulator.serving.memory import (
    baseline_pool_tokens,
    device_pool_tokens,
    full_kv_bytes,
    slot_table_bytes,
    unbudgeted_bytes,
)
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.steptimes import LAYOUTS

GIB = 1 << 30
SHARING, GLM = load_model("glm-5.2"), load_model("glm-5.1")


def engine(minor: int) -> str:
    return f"sglang-0.5.{minor}"


def facts(minor: int) -> tuple[object, ...]:
    found = load_engine(engine(minor))
    return (
        found.budgets_every_key,
        found.budgets_fp8_as_stored,
        found.baseline_keys,
        found.plans_shared_misses,
        found.promises_whole_outputs,
        found.admits_with_page,
        found.reads_block_size,
    )


def test_the_table() -> None:
    every, some, full = "all layers", "full layers, prefill on the same GPUs", "full layers"
    expected = {
        (12, 13, 14): (False, False, every, False, False, False, False),
        (15, 16): (False, False, every, False, False, False, True),
        (17,): (True, True, every, False, False, False, True),
        (18, 19, 20): (True, True, some, True, False, False, True),
        (21,): (True, True, some, True, False, True, True),
        (22, 23): (True, True, full, True, True, True, True),
    }
    for minors, row in expected.items():
        for minor in minors:
            assert facts(minor) == row
    assert load_engine("SGLang-0.5.15.post1") == ENGINES["sglang-0.5.15"]
    assert NEWEST.name == "sglang-0.5.23"
    assert all(change.since in RELEASES and change.source for change in CHANGES)
    with pytest.raises(ValueError, match=r"known: sglang-0\.5\.12 to sglang-0\.5\.23"):
        load_engine("sglang-0.4")


def test_glm52_baseline_by_release() -> None:
    # 8 x H200, bf16: 177,408 tokens at 92,628 bytes (21 layers with keys) are 164,096 at 100,152.
    deployment = Deployment(SHARING, load_hardware("h200"), LAYOUTS["dp8-tp8"])

    def tokens(minor: int, disaggregated: bool = False) -> int:
        one = Deployment(
            deployment.model,
            deployment.hardware,
            deployment.layout,
            engine=load_engine(engine(minor)),
        )
        return one.baseline_tokens(disaggregated)

    assert [tokens(minor) for minor in (12, 17, 18, 23)] == [164_096, 164_096, 177_408, 177_408]
    assert [tokens(minor, True) for minor in (17, 18, 21, 22)] == [164_096] * 3 + [177_408]


def test_pools_reported_in_public() -> None:
    # SemiAnalysisAI/InferenceX 2271: fp8, TP 8, 1,048,576 tokens are "60.03 GB per GPU".
    old = load_engine("sglang-0.5.16")
    assert full_kv_bytes(SHARING, "fp8", 1 << 20, old) / GIB == pytest.approx(60.03, abs=0.01)
    # sglang pull request 30531: 2,574,848 tokens before, 3,002,752 after (ROCm: 576 bytes each).
    before = baseline_pool_tokens(SHARING, "fp8-raw", int(132.43 * GIB), old)
    after = baseline_pool_tokens(SHARING, "fp8-raw", int(133.40 * GIB))
    assert before == pytest.approx(2_574_848, rel=1e-4)
    assert after == pytest.approx(3_002_752, rel=1e-4)
    # sglang pull request 31992: fp8, R = 4: 92,352 bytes a token, before 86,112 with every key.
    token = 92_352
    assert device_pool_tokens(SHARING, "fp8", 4, 640 * token) == 640
    assert device_pool_tokens(SHARING, "fp8", 4, 640 * token - 1) == 576


def test_older_engines_forget_bytes() -> None:
    # 576 + 132 are counted for 656 + 4 x 132: 80 of the entry and three keys are not.
    old = load_engine("sglang-0.5.16")
    assert device_pool_tokens(GLM, "fp8", 4, 640 * 78 * 708, old) == 640
    assert unbudgeted_bytes(GLM, "fp8", 4, 640, old) == 640 * 78 * (80 + 3 * 132)
    assert unbudgeted_bytes(GLM, "bf16", 4, 640, old) == 640 * 78 * 3 * 132
    assert unbudgeted_bytes(GLM, "fp8", 4, 640) == 0
    assert baseline_pool_tokens(GLM, "fp8", 640 * 78 * 708, old) == 640
    assert baseline_pool_tokens(GLM, "fp8", 640 * 78 * 788) == 640


def test_tables_of_older_engines() -> None:
    first, before_plans = load_engine("sglang-0.5.12"), load_engine("sglang-0.5.17")
    assert slot_table_bytes(GLM, 4096) - slot_table_bytes(GLM, 4096, first) == 8 * 64
    plan = slot_table_bytes(SHARING, 4096) - slot_table_bytes(SHARING, 4096, before_plans)
    assert plan == 12 * 2048 + 4


@pytest.mark.parametrize(
    ("options", "requests"),
    [
        ("", 3),
        ("--engine sglang-0.5.17", 2),
        ("--engine SGLang-0.5.17", 2),
        ("--keys-budgeted once", 2),  # the option that --engine replaced
        ("--keys-budgeted once --engine sglang-0.5.23", 3),
    ],
)
def test_engine_on_the_command_line(options: str, requests: int) -> None:
    # 52,000 + 3,000 tokens: 164,096 hold 2 in whole pages, 177,408 hold 3.
    words = (
        "plan --model glm-5.2 --quiet --prompt 52000 --output-len 3000 --concurrency 64 --format"
    )
    result = CliRunner().invoke(cli, [*words.split(), "json", *options.split()])
    assert json.loads(result.stdout)["baseline"]["requests"] == requests


def test_an_unknown_engine() -> None:
    for command in ("plan", "serve", "sweep", "reproduce"):
        result = CliRunner().invoke(cli, [command, "--engine", "sglang-0.4"])
        assert result.exit_code == 2
        assert "known: sglang-0.5.12 to sglang-0.5.23" in result.output


@pytest.mark.parametrize("command", ["plan", "serve", "reproduce"])
def test_where_memory_is_needed_only_engines_with_it_are_named(command: str) -> None:
    """Of vLLM the replay alone is known: `sweep` has it."""
    assert "vllm" not in CliRunner().invoke(cli, [command, "--help"]).stdout
    assert "vllm-0.33" in CliRunner().invoke(cli, ["sweep", "--help"]).stdout
    for name in ("vllm-0.33", "vllm-0.34"):
        done = CliRunner().invoke(cli, [command, "--engine", name])
        assert done.exit_code == 2
        assert "sglang-0.5.12 to sglang-0.5.23" in done.stderr
