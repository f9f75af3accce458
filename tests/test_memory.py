"""The memory rules of the engine against arithmetic done by hand."""

from __future__ import annotations

import pytest

from hisparse_sim.simulator.serving.engines import load_engine
from hisparse_sim.simulator.serving.memory import (
    baseline_pool_tokens,
    capacity,
    device_pool_tokens,
    device_tokens,
    full_kv_bytes,
    host_pool_bytes,
    hot_buffer_bytes,
    indexer_bytes,
    pages,
    request_host_bytes,
    slot_table_bytes,
)
from hisparse_sim.simulator.serving.models import load_model

GIB = 1 << 30
GLM = load_model("glm-5.1")


def test_pages() -> None:
    assert [pages(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]


def test_device_pool_shrinks_as_the_ratio_grows() -> None:
    # One token: 78 layers x (1152 + 132 R). R = 1: 100,152 bytes; R = 8: 172,224 bytes.
    assert device_pool_tokens(GLM, "bf16", 1, 100_152 * 6400) == 6400
    assert device_pool_tokens(GLM, "bf16", 1, 100_152 * 6400 - 1) == 6400 - 64  # whole pages
    assert device_pool_tokens(GLM, "bf16", 8, 172_224 * 6400) == 6400
    assert baseline_pool_tokens(GLM, "bf16", 100_152 * 6400) == 6400
    assert baseline_pool_tokens(GLM, "bf16", 100_152 * 6400 - 1) == 6400 - 64


def test_shared_layers_keep_keys_under_hisparse_only() -> None:
    # GLM-5.2: 78 items, 21 keys; with HiSparse 78 keys.
    model = load_model("glm-5.2")
    token = 78 * 1152 + 21 * 132
    assert full_kv_bytes(model, "bf16", 64) == 64 * token
    assert baseline_pool_tokens(model, "bf16", 640 * token) == 640
    assert indexer_bytes(model, 64) == 64 * 78 * 132


def test_host_pool_has_one_page_more() -> None:
    assert host_pool_bytes(6400, 8, 78, 1152) == (51_200 + 64) * 89_856


def test_a_128k_request() -> None:
    # 131,072 tokens x 78 layers x (1152 + 132) bytes; published with 128-byte keys: 13.09 GB.
    assert full_kv_bytes(GLM, "bf16", 131_072) == 131_072 * 78 * 1284
    assert full_kv_bytes(GLM, "bf16", 131_072) / 1e9 == pytest.approx(13.13, abs=0.005)
    with_128_byte_keys = 131_072 * 78 * (1152 + 128)
    assert with_128_byte_keys / 1e9 == pytest.approx(13.09, abs=0.005)
    assert request_host_bytes(GLM, "bf16", 131_072) == 131_072 * 89_856
    assert indexer_bytes(GLM, 131_072) == 131_072 * 10_296
    assert request_host_bytes(GLM, "fp8", 100) == 128 * 78 * 656


def test_hot_buffer_of_4096_takes_about_0_4_gb() -> None:
    assert hot_buffer_bytes(GLM, "bf16", 4096) == 4160 * 78 * 1152 == 373_800_960
    assert hot_buffer_bytes(GLM, "bf16", 4096) / 1e9 == pytest.approx(0.4, abs=0.05)


def test_slot_tables() -> None:
    # 78 x (8 x 4160 + 2 x 4096) + 8 x 202,816 + 8 x 4160 + 8 x 2048
    assert slot_table_bytes(GLM, 4096) == 3_234_816 + 1_622_528 + 33_280 + 16_384
    shared = load_model("glm-5.2")  # a plan of misses: 12 x 2048 + 4
    context = 8 * (shared.context + 64)
    expected = 3_234_816 + context + 33_280 + 16_384 + 24_580
    assert slot_table_bytes(shared, 4096) == expected
    assert slot_table_bytes(GLM, 4096) / 1e6 == pytest.approx(4.9, abs=0.05)
    assert 2049 * slot_table_bytes(GLM, 4096) / 1e9 == pytest.approx(10.0, abs=0.1)


def test_short_requests_hold_their_pages() -> None:
    assert device_tokens(100, 4096) == 128
    assert device_tokens(4032, 4096) == 4032
    assert device_tokens(4033, 4096) == 4160  # the last page brings the reserved one
    assert device_tokens(4096, 4096) == 4160
    assert device_tokens(4097, 4096) == 4160


def test_without_hisparse_240_gb() -> None:
    # Published: about 60 requests of 32K or 15 of 128K; the arithmetic gives 73 and 18.
    pool = baseline_pool_tokens(GLM, "bf16", 240_000_000_000)
    assert pool // 32_768 == 73
    assert pool // 131_072 == 18


def test_indexer_keys_bind_at_a_small_ratio() -> None:
    # 30 GiB / (78 x 2208) = 187,037 tokens, 187,008 in pages; x 8 = 1,496,064; / 40,960 = 36.5.
    # The device pool would hold 187,008 / 4160 = 44 hot buffers.
    found = capacity(GLM, "bf16", 8, 4096, 40_960, 30 * GIB, 250 * GIB)
    assert found.pool_tokens == 187_008
    assert found.logical_tokens == 1_496_064
    assert (found.requests, found.limit) == (36, "indexer keys")
    assert "37 requests of 40,960 tokens exceed the 1,496,064 tokens" in found.reason


def test_hot_buffers_bind_at_a_large_ratio() -> None:
    # 30 GiB / (78 x 3264) = 126,527, 126,464 in pages; / 4160 = 30.4.
    # Keys: 2,023,424 / 40,960 = 49.4.
    found = capacity(GLM, "bf16", 16, 4096, 40_960, 30 * GIB, 250 * GIB)
    assert (found.requests, found.limit) == (30, "device pool")
    assert "31 hot buffers of 4,160 tokens exceed the device pool of 126,464" in found.reason


def test_host_pool_that_does_not_fit_stops_the_start() -> None:
    # R = 8 pins (1,496,064 + 64) x 89,856 = 134.4 GB; R = 5 pins 102.4 GB.
    found = capacity(GLM, "bf16", 8, 4096, 40_960, 30 * GIB, 110_000_000_000)
    assert (found.requests, found.limit) == (0, "host")
    assert found.host_pool_bytes == 1_496_128 * 89_856
    assert "the host pool of 134.4 GB" in found.reason
    assert "the largest ratio that fits is 5" in found.reason
    assert capacity(GLM, "bf16", 5, 4096, 40_960, 30 * GIB, 110_000_000_000).requests == 27
    assert capacity(GLM, "bf16", 6, 4096, 40_960, 30 * GIB, 110_000_000_000).requests == 0
    none = capacity(GLM, "bf16", 2, 4096, 40_960, 30 * GIB, 1_000_000_000)
    assert "no ratio fits" in none.reason


def test_longest_request_is_the_pool_not_pool_times_ratio() -> None:
    # R = 16: P = 126,464 although 2,023,424 tokens fit on the host; the longest prompt is P - 7.
    assert capacity(GLM, "bf16", 16, 4096, 126_457, 30 * GIB, 250 * GIB).requests > 0
    found = capacity(GLM, "bf16", 16, 4096, 126_458, 30 * GIB, 250 * GIB)
    assert (found.requests, found.limit) == (0, "length")
    assert "126,458 tokens is longer than 126,457, the longest that the device pool" in (
        found.reason
    )


def test_a_cut_output_makes_the_request_shorter() -> None:
    # 126,464 - 120,000 - 64 - 1 = 6,399 of 20,000; 2,023,424 tokens hold 16 of 126,400.
    found = capacity(GLM, "bf16", 16, 4096, 140_000, 30 * GIB, 250 * GIB, output=20_000)
    assert (found.requests, found.limit, found.output) == (16, "indexer keys", 6399)
    none = capacity(GLM, "bf16", 16, 4096, 126_458, 30 * GIB, 250 * GIB, output=1)
    assert (none.requests, none.limit, none.output) == (0, "length", 0)  # accepted, no room
    assert "room for 0 of the 1 output tokens" in none.reason


def test_longest_request_by_the_context() -> None:
    found = capacity(GLM, "bf16", 2, 4096, 202_746, 60 * GIB, 500 * GIB)
    assert (found.requests, found.limit) == (0, "length")
    assert "longer than 202,745, the longest that the context of 202,752" in found.reason


def test_no_pool_at_all() -> None:
    found = capacity(GLM, "bf16", 2, 4096, 100, 1000, GIB)
    assert (found.requests, found.limit, found.pool_tokens) == (0, "length", 0)


@pytest.mark.parametrize(
    ("ratio", "buffer", "tokens", "message"),
    [
        (8, 2047, 4000, "smaller than the top-k 2048"),
        (8, 32_768, 4000, "above 32767"),
        (0, 4096, 4000, "ratio must be at least 1"),
        (8, 4096, 0, "tokens must be at least 1"),
    ],
)
def test_what_the_engine_refuses(ratio: int, buffer: int, tokens: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        capacity(GLM, "bf16", ratio, buffer, tokens, 30 * GIB, 250 * GIB)


def test_engines_that_budgeted_one_key_a_token() -> None:
    # P as without HiSparse: 30 GiB / 100,152 = 321,600 whatever the ratio.
    old = load_engine("sglang-0.5.16")
    found = capacity(GLM, "bf16", 8, 4096, 40_960, 30 * GIB, 250 * GIB, engine=old)
    assert (found.pool_tokens, found.logical_tokens) == (321_600, 2_572_800)
    assert (found.requests, found.limit) == (62, "indexer keys")
