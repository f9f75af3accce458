"""Where step times come from: shipped tables, another machine's, a roofline, AIConfigurator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hisparse_sim.simulator.serving.hardware import hardware_names, load_hardware
from hisparse_sim.simulator.serving.models import KV_DTYPES, load_model, model_names
from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.simulator.serving.roofline import (
    DECODE_REST,
    Roofline,
    roofline_step_times,
)
from hisparse_sim.simulator.serving.step_source import steps_for
from hisparse_sim.simulator.serving.steptimes import (
    LAYOUTS,
    load_step_times,
    shipped_tables,
)

GLM, H200, DP8 = load_model("glm-5.1"), load_hardware("h200"), LAYOUTS["dp8-tp8"]


def test_a_shipped_table_comes_first() -> None:
    table = steps_for(GLM, H200, "dp8-tp8", "bf16")
    assert table == load_step_times("glm-5.1", "h200")
    assert table.kind == "measured"
    assert steps_for(GLM, H200, "dp8-tp8", "fp8-raw").kv_dtype == "fp8"


def test_a_model_without_experts_has_a_roofline() -> None:
    dense = replace(GLM, experts=0, experts_per_token=0)
    [few, many] = [Roofline(model, H200, DP8, "bf16").rest_terms(4.0) for model in (dense, GLM)]
    assert few[0] == 0 < many[0]


def test_a_rate_of_next_to_nothing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        '[hardware.own]\n[[hardware.own.figures]]\nkind = "modelled"\nsource = "a test"\n'
        "gpus = 8\ngpu_bytes = 1000\nruntime_bytes = 0\nnode_host_bytes = 1000\n"
        "gpu_link_gb_s = 1e-320\n"
    )
    with pytest.raises(ProfileError, match="gpu_link_gb_s must be a number 0 or above 1e-09"):
        load_hardware("own", file)


def test_tables_of_the_layouts_that_reporters_run() -> None:
    names = set(shipped_tables())
    for model in ("deepseek-v3.2", "glm-5.1", "glm-5.2"):
        for hardware in ("h200", "b200", "gb200"):
            for layout in ("dp8-tp8", "tp8"):
                for dtype in ("bf16", "fp8"):
                    assert f"{model}_{hardware}_{layout}_{dtype}" in names
    assert "deepseek-v3.2_h100_dp16-ep16_bf16" in names
    for name in names:
        model, hardware, layout, dtype = name.split("_")
        table = load_step_times(model, hardware, layout, dtype)
        assert f"{table.model}_{table.hardware}_{table.layout}_{table.kv_dtype}" == name
        assert table.decode_us(8, 32_768) > table.decode_us(1, 4096)


def test_the_table_of_another_machine_is_scaled() -> None:
    here = load_step_times("glm-5.1", "h200")
    table = steps_for(GLM, load_hardware("h20"), "dp8-tp8", "bf16")
    assert table.decode_us(4, 36_864) == here.decode_us(4, 36_864)
    assert table.prefill_rest_chunk_us(1000) == pytest.approx(
        6.7 * here.prefill_rest_chunk_us(1000)
    )
    assert "modelled from h200" in table.source
    assert table.kind == "modelled"


def test_a_roofline_where_no_table_is() -> None:
    for hardware, layout in (("rtx-pro-6000", "tp8"), ("gb200", "dp8-ep8"), ("h200", "dp16-ep16")):
        table = steps_for(GLM, load_hardware(hardware), layout, "bf16")
        assert (table.kind, table.hardware) == ("modelled", hardware)
        assert table.source.startswith("roofline of ")
    assert steps_for(GLM, H200, "dp8-tp8", "bf16", "roofline").kind == "modelled"


def test_every_shipped_combination_has_step_times() -> None:
    # 112 of the 162 combinations of three layouts ended with "no step times for ...".
    for model in map(load_model, model_names()):
        for hardware in map(load_hardware, hardware_names()):
            for layout in LAYOUTS:
                for dtype in KV_DTYPES:
                    table = steps_for(model, hardware, layout, dtype)
                    assert table.decode_us(4, 32_768) > 0
                    measured = f"{model.name}_{hardware.name}_{layout}" in {
                        name.rsplit("_", 1)[0] for name in shipped_tables()
                    }
                    assert (table.kind == "measured") == measured


def test_no_roofline_without_peak_rates() -> None:
    bare = replace(H200, name="bare", step_times="", fp8_tflops=0.0)
    with pytest.raises(ProfileError, match=r"no roofline without the figures fp8_tflops in its"):
        steps_for(GLM, bare, "dp8-tp8", "bf16")
    apart = replace(H200, node_link_gb_s=0.0)
    assert roofline_step_times(GLM, apart, DP8, "bf16")
    with pytest.raises(ProfileError, match="figures node_link_gb_s"):
        roofline_step_times(GLM, apart, LAYOUTS["dp16-ep16"], "bf16")


def test_a_given_table(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(load_step_times("glm-5.1", "b200").to_json())
    assert steps_for(GLM, H200, "dp8-tp8", "bf16", str(own)).hardware == "b200"


def test_terms_by_hand() -> None:
    # One request of 32,768 tokens. Sparse attention: 2,048 entries of 1,152 bytes a layer at
    # 4.8 TB/s beat 2,048 x 64 heads x 2 x (2 x 512 + 64) operations at 989 TFLOPS.
    roof = Roofline(GLM, H200, DP8, "bf16")
    _, sparse, indexer = roof.attention_terms(1, 2048, 32_768, 32_768)
    assert sparse == pytest.approx(78 * 2048 * 1152 / 4.8e6)
    assert indexer == pytest.approx(78 * 32_768 * 132 / 4.8e6)
    slow = Roofline(GLM, load_hardware("h20"), DP8, "bf16")
    assert slow.attention_terms(1, 2048, 1, 1)[1] == pytest.approx(
        78 * 2048 * 64 * 2 * (2 * 512 + 64) / 148e6
    )
    # Eight tokens, one a rank, hit 1 - (1 - 8 / 256)^8 of the experts, an eighth of them a GPU.
    experts, _, exchange = roof.rest_terms(1)
    hit = 1 - (31 / 32) ** 8
    assert experts == pytest.approx(hit * GLM.parameters().experts / 8 / 4.8e6)
    assert exchange == pytest.approx(4 * 8 * 6144 * 78 * 7 / 8 / 450e3)
    assert roof.decode_rest_us(1) == pytest.approx(
        DECODE_REST[0] * 78 + np.dot(DECODE_REST[1:], roof.rest_terms(1))
    )


def test_two_nodes_exchange_over_the_slower_link() -> None:
    # 16 GPUs in two nodes: 8 tokens inside each, and every token once to the other node, FP8 there
    # and bf16 back, at 50 GB/s.
    roof = Roofline(GLM, H200, LAYOUTS["dp16-ep16"], "bf16")
    inside = 4 * 8 * 6144 * 78 * 7 / 8 / 450e3
    assert roof.rest_terms(1)[2] == pytest.approx(inside + 3 * 6144 * 78 / 50e3)


def test_the_roofline_is_near_what_was_measured() -> None:
    # Whole decode steps of the 56 tables, and prompts of 4,096 tokens and more.
    decode, prefill = [], []
    for name in shipped_tables():
        model, hardware, layout, dtype = name.split("_")
        table = load_step_times(model, hardware, layout, dtype)
        roof = Roofline(load_model(model), load_hardware(hardware), LAYOUTS[layout], dtype)
        for b in (1, 8, 32):
            for c in (4096, 32_768, 131_072):
                ours = roof.decode_attention_us(b, c) + roof.decode_rest_us(b)
                decode.append(abs(ours / table.decode_us(b, c) - 1))
        for n in (8192, 65_536):
            ours = roof.prefill_attention_us(n) + roof.prefill_rest_us(n)
            theirs = table.prefill_attention_chunk_us(0, n) + table.prefill_rest_chunk_us(n)
            prefill.append(abs(ours / theirs - 1))
    assert np.median(decode) < 0.15
    assert np.quantile(decode, 0.9) < 0.35
    assert np.median(prefill) < 0.25
    assert np.quantile(prefill, 0.9) < 0.6


def test_rooflines_grow_with_work_and_shrink_with_rates() -> None:
    table = steps_for(GLM, load_hardware("rtx-pro-6000"), "tp8", "fp8")
    assert np.all(np.diff(table.attention_us, axis=0) > 0)
    assert np.all(np.diff(table.attention_us, axis=1) > 0)
    assert np.all(np.diff(table.prefill_attention_us) > 0)
    for figure in ("bf16_tflops", "fp8_tflops", "memory_gb_s", "gpu_link_gb_s"):
        faster = replace(H200, **{figure: 2 * getattr(H200, figure)})
        before, after = (Roofline(GLM, one, DP8, "bf16") for one in (H200, faster))
        assert after.decode_attention_us(32, 65_536) <= before.decode_attention_us(32, 65_536)
        assert after.prefill_rest_us(8192) <= before.prefill_rest_us(8192)
