"""Counters and recorder on a GPU, inside a captured CUDA graph, beside both kernels."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import make_traces
import numpy as np
import pytest

from hisparse_sim.gpu_replay.engine.launching import Follower
from hisparse_sim.gpu_replay.engine.options import Options
from hisparse_sim.gpu_replay.engine.recording import Budget, Source
from hisparse_sim.gpu_replay.engine.releases import RELEASES
from hisparse_sim.gpu_replay.engine.watching import Watch
from hisparse_sim.gpu_replay.harness.batch import Batch
from hisparse_sim.gpu_replay.harness.replayer import Replayer
from hisparse_sim.gpu_replay.kernels import KERNELS, get_kernel
from hisparse_sim.gpu_replay.kernels.build import GpuError, require_gpu
from hisparse_sim.traces import open_trace

pytestmark = pytest.mark.gpu

TOP_K, BUFFER, STEPS, LAYERS, ROWS = 64, 128, 60, 3, 2


@pytest.fixture(autouse=True)
def _gpu() -> None:
    try:
        require_gpu()
    except GpuError as error:
        pytest.skip(str(error))


class Watched(Replayer):
    """A replayer whose swap-ins are watched as the engine's are, graph included."""

    watch: Watch

    def launch(self, layer: int) -> None:
        super().launch(layer)
        tables = self.request, self.seq_lens[layer], self.top_k_tokens[layer]
        self.watch.swapped_in(*tables, layer)


@pytest.mark.parametrize("name", KERNELS)
def test_a_captured_graph_counts_and_records(name: str, tmp_path: Path) -> None:
    try:
        kernel = get_kernel(name)
    except GpuError as error:
        pytest.skip(str(error))
    cells = [
        tuple(
            make_traces.drift(
                first_seq_len=100 + 60 * row,  # one outgrows the buffer on the way
                seed=10 * layer + row,
                steps=STEPS,
                top_k=TOP_K,
                keep=0.6,
                shuffled=True,
            )
            for row in range(ROWS)
        )
        for layer in range(LAYERS)
    ]
    batch = Batch(tuple(cells), STEPS)
    watches: list[Watch] = []
    layer_of = iter(range(10**9))

    def swap_in(**named: Any) -> None:
        """As the plugin calls our kernel: it says what it missed."""
        place = watches[0].reported(next(layer_of) % LAYERS)
        kernel.swap_in(**named, miss_count=place[: len(named["top_k_tokens"])])

    watched = replace(kernel, swap_in=swap_in) if name == "native" else kernel
    replayer = Watched(watched, batch, buffer=BUFFER, top_k=TOP_K, padding=1)
    coordinator = SimpleNamespace(
        device="cuda",
        top_k=TOP_K,
        device_buffer_size=BUFFER,
        is_dsv4_hisparse=False,
        item_size_bytes=1152,
        tp_group=None,
        req_device_buffer_tokens=replayer.pools.tokens,
        num_real_reqs=replayer.real,
    )
    kind = "native" if name == "native" else ""
    sizes = {"device_ring_bytes": 1 << 20, "host_ring_bytes": 1 << 20}
    options = Options(str(tmp_path), record=True, kernel=kind, **sizes)
    faults: list[Any] = []
    watch = Watch(coordinator, RELEASES["0.5.17"], options, lambda *f: faults.append(f), "0.5.17")
    watch._reader.start = lambda: None  # type: ignore[method-assign]  # we step it
    replayer.watch = watch
    watches.append(watch)
    follower = Follower(tmp_path, Source("m", name), Budget())

    replayer.capture()
    assert not watch.counters.by_layer.any()  # the warm-up had no requests
    rows = replayer.request.tolist()
    for row in range(ROWS):
        watch.admit(SimpleNamespace(rid=f"r{row}", req_pool_idx=rows[row]))
    wanted = np.zeros((LAYERS, STEPS, ROWS), np.int64)
    for step in range(STEPS):
        replayer.load_step(step)
        replayer.run_step()
        for layer, outcomes in enumerate(replayer.expect_step(step)):
            wanted[layer, step] = [len(outcome.missed) for outcome in outcomes]
        watch._reader.step()
        follower.work()
    for row in range(ROWS):
        watch.released(rows[row])
    require_gpu().cuda.synchronize()
    watch._reader.step()
    watch._reader.step()
    follower.work()
    follower.close("the test ended")

    by_layer = watch.counters.by_layer.tolist()
    assert [each[0] for each in by_layer] == [STEPS * ROWS] * LAYERS
    assert [each[2] for each in by_layer] == wanted.sum((1, 2)).tolist()
    recording = next(iter(follower.recordings.values()))
    assert (recording.steps, recording.steps_dropped) == (STEPS * ROWS, 0)
    for path in recording.written:
        trace = open_trace(path)
        row = int(trace.parts[0].request[1:])
        for part in trace.parts:
            demand, cell = trace.read(part), batch.cells[part.layer][row]
            for step in range(STEPS):
                assert np.array_equal(demand.row(step), cell.row(step))
    assert not faults
