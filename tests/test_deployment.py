"""Weights, reserve and pools of a deployment against hand arithmetic and published figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisparse_sim.simulator.serving.deployment import (
    LOADING_BYTES,
    Deployment,
    pinned_bytes,
    rank_weight_bytes,
)
from hisparse_sim.simulator.serving.engines import load_engine
from hisparse_sim.simulator.serving.hardware import hardware_names, load_hardware
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.simulator.serving.shortages import shortages
from hisparse_sim.simulator.serving.steptimes import LAYOUTS

GIB = 1 << 30
GLM, H200 = load_model("glm-5.1"), load_hardware("h200")
TP8, DP8 = LAYOUTS["tp8"], LAYOUTS["dp8-tp8"]


def test_weights_with_tp8_match_sglangs_cookbook() -> None:
    # SGLang's cookbook for GLM-5.1 gives about 89 GB a GPU for FP8 with TP 8.
    assert rank_weight_bytes(GLM, TP8) / GIB == pytest.approx(89, abs=1)
    # SGLang's logs: 89.58 for GLM-5-FP8, 89.44 for GLM-5.2-FP8.
    assert rank_weight_bytes(GLM, TP8) / GIB == pytest.approx(89.58, abs=0.01)
    assert rank_weight_bytes(load_model("glm-5.2"), TP8) / GIB == pytest.approx(89.44, abs=0.5)


def test_data_parallel_attention_keeps_attention_and_embedding_on_every_gpu() -> None:
    counts = GLM.parameters()
    absorbed = 2 * 512 * 64 * (192 + 256) * 78  # bf16 copies of the latent up-projection
    router = 75 * 256 * 6144  # bf16 and whole on every GPU
    to_keys = 78 * 6144 * (128 + 32)  # of the indexer, in bf16
    expected = (
        counts.attention
        + absorbed
        + 2 * (counts.embedding + router)
        + to_keys
        + (counts.experts + counts.dense - router + 2 * counts.head) / 8
    )
    assert rank_weight_bytes(GLM, DP8) == round(expected) + LOADING_BYTES


def test_pool_of_the_default_deployment() -> None:
    # 0.85 x (150.75 - 2.68) GB less 95.25 GB leaves 28.5 GiB: "about 30 GB a GPU, 240 a node".
    deployment = Deployment(GLM, H200, TP8)
    free = H200.gpu_bytes - H200.runtime_bytes
    assert deployment.device_pool_bytes == int(free * 0.85) - rank_weight_bytes(GLM, TP8)
    assert deployment.device_pool_bytes * 8 / 1e9 == pytest.approx(240, rel=0.03)
    assert deployment.reserve_bytes == free - int(free * 0.85)
    assert deployment.rank_host_bytes == (2_000_000_000_000 - 10_000_000_000) // 8


def test_overrides() -> None:
    deployment = Deployment(GLM, H200, DP8, pool_bytes=30 * GIB, host_bytes=250 * GIB)
    assert deployment.capacity(8, 4096, 40_960).requests == 36
    assert deployment.baseline_requests(40_960) == 7
    assert pinned_bytes(deployment, 8) == 8 * 1_496_128 * 89_856


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"glm-5.1 does not fit: weights take 110\.\d GB per GPU"):
        Deployment(GLM, load_hardware("rtx-pro-6000"), DP8).capacity(8, 4096, 40_960)


def test_the_way_out_where_weights_do_not_fit() -> None:
    small = load_hardware("rtx-pro-6000")
    with pytest.raises(ValueError, match="no share is enough: take a layout of more GPUs"):
        Deployment(GLM, small, DP8).check_weights()
    with pytest.raises(ValueError, match=r"mem_fraction_static above 0\.97 leaves room"):
        Deployment(GLM, small, TP8).check_weights()
    Deployment(GLM, small, TP8, mem_fraction_static=0.98).check_weights()


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="mem_fraction_static must be between 0 and 1"):
        Deployment(GLM, H200, TP8, mem_fraction_static=1.0)
    with pytest.raises(ValueError, match="unknown KV dtype"):
        Deployment(GLM, H200, TP8, kv_dtype="int4")


def test_nothing_runs_out_when_there_is_room() -> None:
    deployment = Deployment(GLM, H200, TP8)
    assert shortages(deployment, 8, 4096, 32_768, 8192, 16, 60) == []


def test_growth_runs_out_before_the_end() -> None:
    # R = 2 with 30 GiB: 583,296 logical tokens. 16 prompts of 32,768 fit (524,288), 16 of 40,960
    # do not: 583,296 / 16 = 36,456, 36,416 in pages, 3,648 steps after the prompt.
    deployment = Deployment(GLM, H200, TP8, pool_bytes=30 * GIB, host_bytes=250 * GIB)
    found = shortages(deployment, 2, 4096, 32_768, 8192, 16, 60)
    assert [(s.what, s.when) for s in found] == [
        ("indexer keys and host pool", "at step 3,649 of decode")
    ]


def test_prompt_beside_hot_buffers() -> None:
    # R = 8: P = 187,008. 36 hot buffers of 4,160 leave 37,248, 38 leave 28,928: no prompt fits.
    deployment = Deployment(GLM, H200, TP8, pool_bytes=30 * GIB, host_bytes=250 * GIB)
    crowded = shortages(deployment, 8, 4096, 32_768, 1024, 39, 60)
    assert crowded[0].what == "device pool"
    assert crowded[0].effect == "only 38 run, the others queue"
    assert all(
        s.what != "device pool"
        for s in shortages(deployment, 8, 4096, 32_768, 1024, 39, 60, colocated=False)
    )


def test_slot_tables_in_the_reserve() -> None:
    # 2,049 slots of 4.9 MB take 10.0 GB; the reserve at 0.95 is 7.4 GB, at 0.9 14.8 GB.
    tight = Deployment(GLM, H200, TP8, mem_fraction_static=0.95)
    assert shortages(tight, 8, 4096, 4000, 100, 1, 2048)[0].when == "at start"
    risky = Deployment(GLM, H200, TP8, mem_fraction_static=0.9)
    assert shortages(risky, 8, 4096, 4000, 100, 1, 2048)[0].when == "in a large prefill"


def test_host_and_length() -> None:
    deployment = Deployment(GLM, H200, TP8, pool_bytes=30 * GIB, host_bytes=100_000_000_000)
    assert shortages(deployment, 8, 4096, 4000, 100, 1, 60)[0].what == "host memory"
    assert shortages(deployment, 2, 4096, 300_000, 100, 1, 60)[0].what == "length"


def test_hardware_profiles() -> None:
    assert set(hardware_names()) >= {"h200", "h20", "b200", "gh200", "gb200", "rtx-pro-6000"}
    for name in hardware_names():
        machine = load_hardware(name)
        assert machine.gpu_bytes > machine.runtime_bytes > 0
        assert {"gpu_bytes", "node_host_bytes"} <= set(machine.sources)
    with pytest.raises(ProfileError, match="unknown hardware 'tpu'; known: b200"):
        load_hardware("tpu")


def test_own_hardware(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        '[hardware.mine]\ndescription = "a box"\n[[hardware.mine.figures]]\nkind = "measured"\n'
        'source = "here"\ngpus = 8\ngpu_bytes = 100\nruntime_bytes = 1\nnode_host_bytes = 80\n'
    )
    mine = load_hardware("mine", file)
    assert (mine.host_bytes, mine.step_times, mine.decode_scale) == (10, "", 1.0)


def test_unbudgeted_keys_come_out_of_the_reserve() -> None:
    # 30 GiB at R = 8: 321,600 x 7 tokens x 10,296 bytes = 23.2 GB beside the pool, reserve 22.2 GB.
    old = Deployment(
        GLM,
        H200,
        TP8,
        pool_bytes=30 * GIB,
        host_bytes=250 * GIB,
        engine=load_engine("sglang-0.5.16"),
    )
    assert old.unbudgeted_bytes(8) == 321_600 * 7 * 10_296
    found = old.capacity(8, 4096, 40_960)
    assert (found.requests, found.limit) == (0, "GPU reserve")
    assert "indexer keys of 23.2 GB beside the pool exceed the reserve of 22.2 GB" in found.reason
    assert shortages(old, 8, 4096, 32_768, 8192, 8, 60)[0].what == "GPU reserve"
    assert old.capacity(7, 4096, 40_960).requests > 0
