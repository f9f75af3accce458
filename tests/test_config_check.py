"""plan --config: what the engine refuses, ignores and cuts, and what the pair is worth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hisparse_sim.cli import cli
from hisparse_sim.simulator.serving.config_check import check_config, read_config
from hisparse_sim.simulator.serving.deployment import Deployment
from hisparse_sim.simulator.serving.engines import load_engine
from hisparse_sim.simulator.serving.hardware import load_hardware
from hisparse_sim.simulator.serving.misses import QUANTILES, LayerMisses
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.plan import Aim, make_plan
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.steptimes import LAYOUTS, load_step_times

GIB = 1 << 30
GLM, H200 = load_model("glm-5.1"), load_hardware("h200")
DEPLOYMENT = Deployment(GLM, H200, LAYOUTS["dp8-tp8"])
SETTING = Setting(DEPLOYMENT, load_step_times("glm-5.1", "h200"), ratio=8)
AIM = Aim(32_768, 8192, 256)
# A pool of 53,696 tokens, as reported in sglang pull request 37631.
POOL = replace(SETTING, deployment=replace(DEPLOYMENT, max_total_tokens=53_696), disaggregated=True)


def made_up(policy: str, size: int, resident_tokens: int = 0) -> LayerMisses:
    spread = ((200.0,) * QUANTILES,)
    return LayerMisses(
        "made up", "synthetic", "", policy, size, "staged", (200.0,), spread, 2048, 33_000
    )


def test_engine_defaults_of_a_config() -> None:
    config, findings = read_config("{}", GLM)
    assert findings == []
    assert config == {
        "top_k": 2048,
        "device_buffer_size": 4096,
        "host_to_device_ratio": 2,
        "swap_in_block_size": 960,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"top_k": 4096, "device_buffer_size": 2048}', "2048 is smaller than the top-k 4096"),
        ('{"device_buffer_size": 1024}', "smaller than the top-k"),
        (
            '{"top_k": 512}',
            "device_buffer_size 1024 is smaller than the top-k 2048",
        ),  # twice what was given
        ('{"device_buffer_size": 4100}', "not a multiple of the page"),
        ('{"device_buffer_size": 32768}', "above 32767"),
        ('{"host_to_device_ratio": 0}', "must be at least 1"),
        ('{"swap_in_block_size": 2000}', "between 1 and 1024"),
    ],
)
def test_wrong_configs(text: str, message: str) -> None:
    findings = check_config(text, SETTING, AIM)
    assert any(f.severity == "error" and message in f.text for f in findings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"top_k": 2.5}', "top_k must be a whole number"),
        ('{"host_to_device_ratio": true}', "host_to_device_ratio must be a whole number"),
    ],
)
def test_unreadable_configs(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_config(text, GLM)


def test_the_models_top_k_is_used() -> None:
    # model_executor/model_runner.py takes index_topk of the model's configuration if it has one.
    [finding] = read_config('{"top_k": 1024, "device_buffer_size": 4096}', GLM)[1]
    assert finding.severity == "warning"
    assert finding.text == "top_k 1024 is not the 2048 of glm-5.1, which the engine uses instead"


def test_keys_without_effect_are_notes() -> None:
    # sglang pull request 23239 starts with "page_size": 64.
    given = '{"page_size": 64, "algorithm": "x", "backend": "y", "min_sparse_prompt_len": 1}'
    findings = read_config(given, GLM)[1]
    assert [f.severity for f in findings] == ["note"] * 4
    assert all("reads it, HiSparse does not use it" in f.text for f in findings)
    [unknown] = read_config('{"ratio": 8}', GLM)[1]
    assert unknown.severity == "note"
    assert "unknown key 'ratio': the engine ignores it silently; it uses top_k" in unknown.text
    many = read_config(json.dumps({f"k{n}": 0 for n in range(25)}), GLM)[1]
    assert many[-1].text == "5 more unknown keys"


def test_block_size_by_release() -> None:
    old = load_engine("sglang-0.5.14")
    config, [finding] = read_config('{"swap_in_block_size": 512}', GLM, old)
    assert config["swap_in_block_size"] == 1024
    assert finding.text == "swap_in_block_size: sglang-0.5.14 ignores it and runs 1024 threads"
    assert read_config("{}", GLM, old)[0]["swap_in_block_size"] == 1024
    assert read_config('{"swap_in_block_size": 512}', GLM)[0]["swap_in_block_size"] == 512


def test_config_against_the_load() -> None:
    good = '{"device_buffer_size": 4096, "host_to_device_ratio": 8}'
    assert check_config(good, SETTING, replace(AIM, concurrency=64)) == []
    crowded = check_config(good, SETTING, AIM)
    assert [f.severity for f in crowded] == ["warning"]
    assert crowded[0].text == (
        "device pool (prefill headroom), at admission: about 9 of 32 requests/rank run at a time,"
        " the others queue"
    )
    early = check_config(good, replace(SETTING, ignore_eos=False), AIM)
    assert early[0].text.startswith("indexer keys and host pool, at admission: only 22 run")
    assert early[1].text.startswith("device pool (prefill headroom), at admission: about 13 of 32")
    small = replace(SETTING, deployment=replace(DEPLOYMENT, host_bytes=10 * GIB))
    assert check_config(good, small, AIM)[0].text.startswith("host memory, at start")


def test_a_long_output_is_cut_and_a_long_prompt_refused() -> None:
    config = '{"host_to_device_ratio": 4}'
    [cut] = check_config(config, POOL, Aim(50_000, 8192, 8))
    assert cut.severity == "warning"
    assert cut.text.startswith("output cut to 3,583 tokens: the device pool of 53,696 tokens")
    [refused] = check_config(config, POOL, Aim(53_694, 1, 8))
    assert refused.severity == "error"
    assert refused.text.startswith("length, at admission: the request is refused")
    assert "longer than 53,689" in refused.text


def test_a_cut_output_may_never_be_scheduled() -> None:
    # With prefill on the same GPUs and ignore_eos, 0.5.21 to 0.5.23 want a token less than they cut
    # to.
    config, aim = '{"host_to_device_ratio": 4}', Aim(50_000, 8192, 8)

    def warned(aim: Aim, **change: object) -> bool:
        one = replace(POOL, **{"disaggregated": False, **change})  # type: ignore[arg-type]
        return any("may never schedule" in f.text for f in check_config(config, one, aim))

    assert warned(aim)
    assert "at most 3,582 output tokens" in str(
        check_config(config, replace(POOL, disaggregated=False), aim)
    )
    assert warned(Aim(50_000, 3583, 8))
    assert not warned(Aim(50_000, 3582, 8))
    assert not warned(aim, ignore_eos=False)
    assert not warned(aim, disaggregated=True)
    older = replace(POOL.deployment, engine=load_engine("sglang-0.5.20"))
    assert not warned(aim, deployment=older)


def test_the_verdict_is_the_plans() -> None:
    findings = check_config("{}", SETTING, AIM, made_up)
    checked, verdict = findings[-2].text, findings[-1].text
    assert "host_to_device_ratio 2 (not given: the engine's default)" in checked
    found = make_plan(SETTING, AIM, made_up, "lru", (4096,), (2,))
    assert found.best is not None
    assert verdict.startswith(f"{found.best['tokens_per_s']:,.0f} tokens/s at ")
    assert f"without HiSparse {found.baseline['tokens_per_s']:,.0f}" in verdict
    assert verdict.endswith("pays at this load")
    alone = check_config("{}", SETTING, replace(AIM, concurrency=8), made_up)
    assert alone[-1].text.endswith("serve without HiSparse at this load")


def test_memory_is_checked_without_step_times() -> None:
    bare = replace(SETTING, steps=None, no_steps="nobody has measured it")
    findings = check_config('{"host_to_device_ratio": 8}', bare, AIM, made_up)
    assert findings[0].text.startswith(
        "device pool (prefill headroom), at admission: about 9 of 32"
    )
    assert findings[-1].text == "tokens/s are not known: nobody has measured it"


def plan(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["plan", "--quiet", *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_reported_launches_are_answered() -> None:
    config = '{"top_k": 2048, "device_buffer_size": 4096, "host_to_device_ratio": 4}'
    # sglang issue 30401: a long prompt on H20, TP 8.
    code, text = plan(
        *"--model glm-5.2 --hardware h20 --layout tp8 --prompt 524288 --output-len 1024".split(),
        *"--concurrency 1 --config".split(),
        config,
    )
    assert (code, "longer than 230,905" in text) == (1, True)
    # sglang pull request 23239: V3.2, TP 8, fp8 KV, --max-total-tokens 8192.
    launch = "--model deepseek-v3.2 --layout tp8 --kv-dtype fp8 --output-len 512 --concurrency 2"
    code, text = plan(*launch.split(), "--prompt", "4096", "--config", config)
    assert (code, "error" in text) == (0, False)
    limited = ("--max-total-tokens", "8192", "--config", config)
    code, text = plan(*launch.split(), "--prompt", "4096", *limited)
    assert (code, "output cut" in text) == (0, False)
    code, text = plan(*launch.split(), "--prompt", "8185", *limited)
    assert code == 1
    assert "it is admitted, and generates nothing; the device pool of 8,192" in text


def test_a_machine_without_peak_rates(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        '[hardware.mine]\nlink = "h200-pcie5"\n[[hardware.mine.figures]]\nkind = "measured"\n'
        'source = "here"\ngpus = 8\ngpu_bytes = 150_000_000_000\nruntime_bytes = 1\n'
        "node_host_bytes = 2_000_000_000_000\n"
    )
    code, text = plan("--profiles", str(file), "--hardware", "mine", "--config", "{}")
    assert code == 0
    assert "tokens/s are not known: no step times for glm-5.1 on mine, and no roofline" in text
