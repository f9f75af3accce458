"""The plugin inside a process of the engine: what it wraps, and that no fault of it is one of the
server's."""

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hisparse_sim.gpu_replay.engine import events  # noqa: E402
from hisparse_sim.gpu_replay.engine.counters import Counters  # noqa: E402
from hisparse_sim.gpu_replay.engine.options import (  # noqa: E402
    VARIABLE,
    Options,
    from_environment,
)
from hisparse_sim.gpu_replay.engine.plugin import Plugin, install  # noqa: E402
from hisparse_sim.gpu_replay.engine.releases import RELEASES  # noqa: E402
from hisparse_sim.gpu_replay.kernels import native  # noqa: E402

FAKE = Path(__file__).parent / "fake_engine"
MADE: list[Plugin] = []  # whose threads have to end with the test


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in's coordinator module, as if it were installed."""
    monkeypatch.syspath_prepend(str(FAKE))
    # Nobody follows these recordings, to remove their rings.
    monkeypatch.setattr("hisparse_sim.gpu_replay.engine.watching.SHARED_MEMORY", tmp_path)
    from sglang.srt.managers import hisparse_coordinator

    yield hisparse_coordinator
    for plugin in MADE:
        for watch in plugin.watches.values():
            watch.stop()
    MADE.clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]


def hooked(module: Any, plugin: Plugin) -> Any:
    """Apply the hooks as the engine's registry does."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    HookRegistry.hooks = dict(plugin.hooks())
    HookRegistry.apply_hooks()
    return module.HiSparseCoordinator(layers=2, rows=3, top_k=4, device_buffer_size=8)


def made(folder: Path, **options: Any) -> Plugin:
    plugin = Plugin(Options(str(folder), **options), RELEASES["0.5.17"], "0.5.17")
    MADE.append(plugin)
    return plugin


def decode(coordinator: Any, request: Any, steps: int = 5) -> None:
    coordinator.num_real_reqs.fill_(1)
    for _ in range(steps):
        request.seq_len += 1
        for layer in range(2):
            listed = torch.randperm(request.seq_len)[:4].to(torch.int32)[None]
            coordinator.swap_in_selected_pages(
                torch.tensor([request.req_pool_idx]), torch.tensor([request.seq_len]), listed, layer
            )


def a_request(rid: str = "a", row: int = 1) -> Any:
    return SimpleNamespace(rid=rid, req_pool_idx=row, prompt_len=12, seq_len=12)


def faults(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in folder.glob("events-*.jsonl"):
        found += [e for e in events.EventReader(path).read() if e["kind"] == events.FAULT]
    return found


def test_without_its_variable_it_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    code = (
        "import sys; before = set(sys.modules)\n"
        "from hisparse_sim.gpu_replay.engine.plugin import install; install()\n"
        "print([m for m in set(sys.modules) - before if m.split('.')[0] in"
        " ('torch', 'numpy', 'sglang', 'pandas', 'numba', 'click')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_options_travel_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options("/f", count=True, layers=(0, 2), shared=(1,), share=0.5, requests=3)
    found = options.environment({"SGLANG_PLUGINS": "other"})
    assert found["SGLANG_PLUGINS"] == "other,hisparse-sim"
    assert "SGLANG_PLUGINS" not in options.environment({})
    assert options.environment(found)["SGLANG_PLUGINS"] == "other,hisparse-sim"
    monkeypatch.setenv(VARIABLE, found[VARIABLE])
    assert from_environment() == options


def test_it_wraps_only_what_is_asked_for(tmp_path: Path) -> None:
    assert not made(tmp_path).hooks()
    assert len(made(tmp_path, count=True).hooks()) == 5
    kernel = made(tmp_path, kernel="native").hooks()
    assert [name.rsplit(".", 1)[1] for name in kernel] == ["load_cache_to_device_buffer_mla"]
    later = Plugin(Options(str(tmp_path), kernel="native"), RELEASES["0.5.23"], "0.5.23").hooks()
    assert any(name.endswith("copy_cache_planned_mla") for name in later)


def test_an_unknown_release_is_left_alone(
    sglang: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9.9")
    monkeypatch.setenv(VARIABLE, Options(str(tmp_path), count=True).environment({})[VARIABLE])
    install()
    from sglang.srt.plugins.hook_registry import HookRegistry

    assert not HookRegistry.hooks
    assert "hisparse-sim is off: SGLang 9.9.9 is not known here" in caplog.text


def test_it_counts(sglang: Any, tmp_path: Path) -> None:
    plugin = made(tmp_path, count=True)
    coordinator = hooked(sglang, plugin)
    request = a_request()
    coordinator.alloc_device_buffer(request)
    decode(coordinator, request)
    coordinator.request_finished(request)
    watch = plugin.watches[coordinator]
    watch.stop()
    counted = json.loads(next(tmp_path.glob("counts-*.json")).read_text())
    assert counted["steps"] == 5
    assert counted["requests_ended"] == 1
    assert sum(counted["steps_by_misses"]) == 10
    assert [layer["accesses"] for layer in counted["by_layer"]] == [20, 20]
    assert all(layer["bytes"] == 1152 * layer["misses"] > 0 for layer in counted["by_layer"])
    assert not plugin.faults


def test_an_engine_in_inference_mode_is_counted(sglang: Any, tmp_path: Path) -> None:
    with torch.inference_mode():
        coordinator = hooked(sglang, plugin := made(tmp_path, record=True))
        coordinator.alloc_device_buffer(request := a_request())
        decode(coordinator, request)
        coordinator.request_finished(request)
    (watch,) = plugin.watches.values()
    watch.stop()  # its thread is in no such mode, and has moved the tail of the ring
    assert watch.counted()["steps"] == 5
    assert not faults(tmp_path)


@pytest.mark.parametrize("name", ["swapped_in", "admit", "released", "row"])
def test_a_fault_switches_counting_off_and_the_engine_goes_on(
    sglang: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plugin = made(tmp_path, count=True)
    coordinator = hooked(sglang, plugin)
    watch = plugin.watches[coordinator]

    def broken(*_: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(watch, name, broken)
    request = a_request()
    coordinator.alloc_device_buffer(request)
    before = coordinator.lru_slots.clone()
    decode(coordinator, request)
    assert not torch.equal(before, coordinator.lru_slots)  # the engine swapped in
    coordinator.request_finished(request)
    assert plugin.faults == [("counting", "out of luck")]  # once: it is off then
    assert not plugin.watches
    assert [fault["message"] for fault in faults(tmp_path)] == ["out of luck"]


def test_what_the_engine_s_graphs_write_to_outlives_a_fault(
    sglang: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs captured before the fault go on counting: their tensors must not be freed."""
    plugin = made(tmp_path, record=True)
    coordinator = hooked(sglang, plugin)
    (watch,) = plugin.watches.values()
    tensor = weakref.ref(watch.counters.by_layer)
    monkeypatch.setattr(type(watch), "admit", lambda *_: 1 / 0)
    monkeypatch.setattr(plugin, "failed", lambda *_: None)  # a log would keep its traceback
    coordinator.alloc_device_buffer(a_request())
    del watch
    gc.collect()
    assert not plugin.watches
    assert tensor() is not None


def test_counting_is_rehearsed_before_the_engine_s_graphs(
    sglang: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot count is off from the start, without a ring left in shared memory."""
    monkeypatch.setattr(Counters, "count", lambda *_: 1 / 0)
    plugin = made(tmp_path, record=True)
    coordinator = hooked(sglang, plugin)
    assert plugin.faults == [("counting", "division by zero")]
    assert not plugin.watches
    assert not list(tmp_path.glob("hisparse-sim-*"))
    coordinator.alloc_device_buffer(request := a_request())
    decode(coordinator, request)


def test_a_fault_of_the_engine_stays_the_engine_s(sglang: Any, tmp_path: Path) -> None:
    plugin = made(tmp_path, count=True)
    coordinator = hooked(sglang, plugin)
    with pytest.raises(AttributeError):
        coordinator.alloc_device_buffer(SimpleNamespace(rid="a"))
    assert not plugin.faults


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"is_dsv4_hisparse": True}, "not that of DeepSeek-V4"),
        ({"spec_swap": SimpleNamespace(enabled=True)}, "speculative decoding is not counted"),
    ],
)
def test_what_is_not_counted_is_said(
    sglang: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], why: str
) -> None:
    init = sglang.HiSparseCoordinator.__init__

    def changed(self: Any, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        vars(self).update(change)

    monkeypatch.setattr(sglang.HiSparseCoordinator, "__init__", changed)
    plugin = made(tmp_path, count=True)
    hooked(sglang, plugin)
    assert not plugin.watches
    assert why in plugin.faults[0][1]


def test_no_room_for_a_recording_leaves_the_server_running(sglang: Any, tmp_path: Path) -> None:
    plugin = made(tmp_path, record=True, host_ring_bytes=100)
    coordinator = hooked(sglang, plugin)
    decode(coordinator, a_request())
    assert "a ring of 100 bytes is too small" in plugin.faults[0][1]


# --- our kernel ----------------------------------------------------------------------------------


def test_our_kernel_runs_in_place_of_the_engine_s_and_says_what_it_missed(
    sglang: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_s = sglang.load_cache_to_device_buffer_mla
    calls = []

    def ours(*, miss_count: Any, early: bool, **named: Any) -> None:
        before = named["device_buffer_tokens"].clone()
        engine_s(**named)
        rows = named["req_pool_indices"]
        changed = (named["device_buffer_tokens"] != before).sum(1)[rows]
        miss_count.copy_(changed)
        calls.append(int(changed.sum()))

    monkeypatch.setattr(native, "load_cache_to_device_buffer_mla", ours)
    plugin = made(tmp_path, count=True, kernel="native")
    coordinator = hooked(sglang, plugin)
    request = a_request()
    coordinator.alloc_device_buffer(request)
    decode(coordinator, request)
    counted = plugin.watches[coordinator].counters.by_layer
    assert counted[:, 2].tolist() == [sum(calls[0::2]), sum(calls[1::2])]
    assert counted[:, 2].min() > 0


def test_the_engine_s_kernel_is_back_after_a_fault_of_ours(
    sglang: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def ours(**_: Any) -> None:
        tried.append(1)
        raise ValueError("nvcc was not found")

    monkeypatch.setattr(native, "load_cache_to_device_buffer_mla", ours)
    plugin = made(tmp_path, count=True, kernel="native")
    coordinator = hooked(sglang, plugin)
    request = a_request()
    coordinator.alloc_device_buffer(request)
    before = coordinator.lru_slots.clone()
    decode(coordinator, request)
    assert len(tried) == 1
    assert not torch.equal(before, coordinator.lru_slots)
    assert plugin.faults == [("kernel", "nvcc was not found")]
    assert not plugin.watches  # what it counted came from our kernel


# --- metrics -------------------------------------------------------------------------------------


def test_metrics_are_the_counts_under_vllm_s_names() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from hisparse_sim.gpu_replay.engine.metrics import Metrics

    registry = prometheus.CollectorRegistry()
    metrics = Metrics(2, registry)
    for accesses, misses in ((10, 4), (10, 4), (25, 9)):
        metrics.show([{"layer": 3, "accesses": accesses, "misses": misses, "bytes": 16 * misses}])
    labels = {"layer": "3", "tp_rank": "2"}
    for name, value in (
        ("sglang:hisparse_cache_hits", 16),
        ("sglang:hisparse_cache_misses", 9),
        ("sglang:hisparse_host_to_device_bytes", 144),
    ):
        assert registry.get_sample_value(f"{name}_total", labels) == value


def test_without_the_engine_s_metrics_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from hisparse_sim.gpu_replay.engine.metrics import SHARED_FOLDER, Metrics

    monkeypatch.delenv(SHARED_FOLDER, raising=False)
    Metrics(0).show([{"layer": 0, "accesses": 1, "misses": 1, "bytes": 1}])
