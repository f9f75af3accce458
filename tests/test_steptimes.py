"""Step-time tables: interpolation by hand, bad files, and what the shipped tables must say."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.simulator.serving.aiconfigurator import ask_aiconfigurator
from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.simulator.serving.steptimes import (
    LAYOUTS,
    StepTimes,
    load_step_times,
    parse_step_times,
)

TABLE = StepTimes(
    model="m",
    hardware="h",
    layout="dp8-tp8",
    kv_dtype="bf16",
    source="by hand",
    batch=(1, 3),
    context=(1000, 2000),
    attention_us=((10, 20), (30, 60)),
    rest_us=(100, 120),
    prefill_tokens=(100, 200),
    prefill_attention_us=(50, 150),
    prefill_rest_us=(40, 60),
)


def test_bilinear_decode() -> None:
    assert TABLE.decode_attention_us(1, 1000) == 10
    assert TABLE.decode_attention_us(2, 1500) == 30  # mean of the four corners
    assert TABLE.decode_rest_us(2) == 110
    assert TABLE.decode_us(3, 2000) == 180


def test_beyond_the_table() -> None:
    assert TABLE.decode_attention_us(1, 3000) == 30  # on the last slope
    assert TABLE.decode_attention_us(5, 1000) == 50
    assert TABLE.decode_attention_us(1, 10) == 10  # constant below
    assert TABLE.decode_rest_us(0.5) == 100
    assert TABLE.decode_attention_us(0, 1000) == 0


def test_chunks_of_a_prompt_add_up() -> None:
    whole = TABLE.prefill_attention_chunk_us(0, 200)
    parts = [TABLE.prefill_attention_chunk_us(i, i + 40) for i in range(0, 200, 40)]
    assert whole == 150
    assert sum(parts) == pytest.approx(whole)
    assert TABLE.prefill_attention_chunk_us(0, 50) == 25


def test_scaled() -> None:
    slow = TABLE.scaled("x", 2, 3, "because")
    assert slow.decode_us(2, 1500) == 2 * TABLE.decode_us(2, 1500)
    assert slow.prefill_rest_chunk_us(150) == 3 * TABLE.prefill_rest_chunk_us(150)
    assert "modelled from h: because" in slow.source


def test_json_round_trip() -> None:
    assert parse_step_times(TABLE.to_json(), "file") == TABLE


@pytest.mark.parametrize(
    "change",
    [
        {"batch": [1]},
        {"context": [2000, 1000]},
        {"rest_us": [1]},
        {"prefill_rest_us": [1]},
        {"attention_us": [[1, 2]]},
    ],
)
def test_bad_tables(change: dict[str, Any]) -> None:
    with pytest.raises(ProfileError, match=r"bad\.json"):
        parse_step_times(json.dumps(asdict(TABLE) | change), "bad.json")


@pytest.mark.parametrize("text", ["{", "[]", '{"model": "m"}', "null"])
def test_no_table_at_all(text: str) -> None:
    with pytest.raises(ProfileError, match="is not a step-time table"):
        parse_step_times(text, "bad.json")


def test_shipped_table_agrees_with_aiconfigurators_command() -> None:
    # `aiconfigurator cli estimate` for this layout, 32k in and 8k out: TPOT 28.1, 36.1, 40.1, 45.8,
    # 52.8 ms at 1, 4, 8, 16, 32 requests a GPU (mean context 36,864); 8 prompts of 32k 10.4 s.
    table = load_step_times("glm-5.1", "h200", "dp8-ep8", "bf16")
    for batch, tpot_ms in ((1, 28.1), (4, 36.1), (8, 40.1), (16, 45.8), (32, 52.8)):
        assert table.decode_us(batch, 36_864) / 1000 == pytest.approx(tpot_ms, abs=0.1)
    prompt = table.prefill_attention_chunk_us(0, 32_768) + table.prefill_rest_chunk_us(32_768)
    assert prompt / 1e6 == pytest.approx(10.4, abs=0.05)
    assert "AIConfigurator 0.12.0" in table.source


def test_shipped_times_grow() -> None:
    table = load_step_times("glm-5.1", "h200")
    assert LAYOUTS[table.layout].gpus == 8
    for row in table.attention_us:  # measured: up to 1 % of noise
        assert all(b > 0.99 * a for a, b in pairwise(row))
    assert all(b > a for a, b in pairwise(table.prefill_attention_us))


def test_unknown_table_lists_the_shipped(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"no step times for glm-5.1_tpu_dp8-tp8_bf16; shipped"):
        load_step_times("glm-5.1", "tpu")
    with pytest.raises(ProfileError, match="cannot read the step times"):
        load_step_times("glm-5.1", "tpu", path=tmp_path / "none.json")
    own = tmp_path / "own.json"
    own.write_text(TABLE.to_json())
    assert load_step_times("glm-5.1", "tpu", path=own) == TABLE


def test_asking_without_aiconfigurator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator", None)
    monkeypatch.setitem(sys.modules, "aiconfigurator.cli.api", None)
    with pytest.raises(ProfileError, match=r"pip install aiconfigurator==0\.12\.0"):
        ask_aiconfigurator("glm-5.1", "zai-org/GLM-5.1-FP8", "h200")
    with pytest.raises(
        ProfileError, match="has no data for h20 here; known: h200, h100, b200, gb200"
    ):
        ask_aiconfigurator("glm-5.1", "zai-org/GLM-5.1-FP8", "h20")
