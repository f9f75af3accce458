"""What holds a deployment back: each answer provoked, and removed by more of what it names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_plan import AIM, DEPLOYMENT, setting

from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.serving_rows import serve_one

SHORT = Aim(32_768, 1024, 128, requests=1024)


def named(one: Setting, aim: Aim = AIM) -> str:
    return str(serve_one(one, aim)["bottleneck"])


def test_memory_that_requests_wait_for() -> None:
    assert named(setting("baseline")) == "device pool"
    assert named(setting(ratio=3)) == "indexer keys"
    assert named(setting(ratio=12)) == "device pool"
    tight = DEPLOYMENT.capacity(3, 4096, 1).host_pool_bytes
    full = replace(setting(ratio=3), deployment=replace(DEPLOYMENT, host_bytes=tight))
    assert named(full) == "host pool"  # it has no room for a ratio of 4
    assert named(setting(ratio=4, max_running_requests=32)) == "max-running-requests"


def test_prefill() -> None:
    assert named(setting(ratio=4), replace(SHORT, output=64)) == "prefill"  # most of the time
    one = setting(ratio=4, disaggregated=True)
    assert named(one, SHORT) == "prefill"  # saturated
    assert named(replace(one, prefill_instances=8), SHORT) != "prefill"


def test_transfer() -> None:
    slow = setting(ratio=4, disaggregated=True, prefill_instances=8, transfer_gb_s=0.2)
    row = serve_one(slow, SHORT)
    assert row["bottleneck"] == "transfer"
    # 32,768 tokens of 100,152 bytes at 0.2 GB/s on each of 8 ranks: 2.05 s each, 16.4 s a request.
    most = 8 * 0.2e9 / (32_768 * 100_152) * 1024
    assert row["tokens_per_s"] == pytest.approx(most, rel=0.1)
    assert row["tokens_per_s"] < most
    assert named(replace(slow, transfer_gb_s=20.0), SHORT) != "transfer"


def test_link_compute_and_load() -> None:
    few = Aim(32_768, 2048, 8, requests=16)
    one = setting(ratio=4)
    assert one.misses is not None
    assert named(one, few) == "compute"
    missing = replace(one, misses=one.misses.times(4))
    slow = replace(missing, host_gb_s=100.0)
    assert named(slow, replace(few, concurrency=64, requests=64)) == "link"
    assert named(one, replace(few, rate_per_s=0.001)) == "load"


def test_nothing_served() -> None:
    assert named(setting(ratio=4), Aim(200_000, 10, 8)) == ""
