"""Counters and the ring on the device against what the slots of every request did, one by one."""

from typing import Any

import numpy as np
import pytest
from engine_load import Load, Running
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from hisparse_sim.gpu_replay.engine import counters as module  # noqa: E402
from hisparse_sim.gpu_replay.engine.counters import (  # noqa: E402
    AGE_BUCKETS,
    MISS_BUCKETS,
    Counters,
)
from hisparse_sim.gpu_replay.engine.device_ring import (  # noqa: E402
    EPOCH,
    FACTS,
    SEQ_LEN,
    DeviceRing,
    entry_bytes,
)

quick = settings(max_examples=8, deadline=None)


def made(load: Load, tables: Any, **more: Any) -> Counters:
    more = {"reported": False, **more}
    tokens = tables.req_device_buffer_tokens
    return Counters(tokens, load.buffer, load.top_k, device="cpu", **more)


def run(load: Load, counters: Counters, tables: Any, steps: int = 25) -> None:
    """Requests join and leave at random around the steps."""
    for _ in range(steps):
        if load.draw.random() < 0.4 and (request := load.joining(tables)):
            counters.admit(request.req_pool_idx)
        if load.draw.random() < 0.1 and (request := load.leaving(tables)):
            counters.release(request.req_pool_idx)
        for layer, rows, lengths, _ in load.step(tables):
            if counters.reported is not None:
                for i, request in enumerate(load.running):
                    counters.reported[layer, i] = request.misses[-1][layer]
            if layer == load.layers - 1:
                live = counters.live(rows, tables.num_real_reqs)
                counters.count(rows, lengths, live)


def totals(load: Load) -> np.ndarray:
    """Steps, accesses and misses of every layer, by the slots."""
    found = np.zeros((load.layers, 3), np.int64)
    for request in load.running + load.ended:
        for listed, misses in zip(request.listed, request.misses, strict=True):
            for layer in range(load.layers):
                found[layer] += 1, len(listed[layer]), misses[layer]
    return found


@quick
@given(seed=st.integers(0, 999), start=st.sampled_from(["staged", "direct"]), ours=st.booleans())
def test_counts_are_those_of_the_slots(seed: int, start: str, ours: bool) -> None:
    load = Load(seed=seed, start=start)
    tables = load.coordinator()
    counters = made(load, tables, reported=ours)
    run(load, counters, tables)
    assert counters.by_layer.numpy().tolist() == totals(load).tolist()


@quick
@given(seed=st.integers(0, 999))
def test_histograms_are_those_of_the_slots(seed: int) -> None:
    load = Load(seed=seed)
    tables = load.coordinator()
    counters = made(load, tables)
    run(load, counters, tables)
    by_misses = np.zeros((load.layers, MISS_BUCKETS), np.int64)
    by_age = np.zeros((AGE_BUCKETS, 2), np.int64)
    for request in load.running + load.ended:
        for age, misses in enumerate(request.misses):
            for layer, missed in enumerate(misses):
                by_misses[layer, missed.bit_length()] += 1
            by_age[age.bit_length()] += 1, sum(misses)
    assert counters.by_misses.tolist() == by_misses.tolist()
    assert counters.by_age.tolist() == by_age.tolist()
    for request in load.running:
        counted = counters.by_row[request.req_pool_idx].tolist()
        assert counted[0] == request.steps
        assert counted[2] == sum(map(sum, request.misses))


def test_many_layers_are_compared_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_BYTES", 100)
    load = Load(layers=5)
    tables = load.coordinator()
    counters = made(load, tables)
    run(load, counters, tables)
    assert counters.by_layer.tolist() == totals(load).tolist()


def test_warm_up_and_padding_count_nothing() -> None:
    load = Load()
    tables = load.coordinator()
    counters = made(load, tables)
    load.joining(tables)  # never admitted, as in the engine's warm-up
    for layer, rows, lengths, _ in load.step(tables, padding=3):
        if layer == load.layers - 1:
            counters.count(rows, lengths, counters.live(rows, tables.num_real_reqs))
    assert not counters.by_layer.any()
    assert not counters.by_misses.any()
    assert not counters.by_age.any()


def test_a_batch_of_nobody_counts_nothing() -> None:
    load = Load()
    tables = load.coordinator()
    counters = made(load, tables)
    nobody = torch.zeros(0, dtype=torch.int64)
    misses = counters.count(nobody, nobody, counters.live(nobody, tables.num_real_reqs))
    assert misses.shape == (load.layers, 0)
    assert not counters.by_layer.any()


def test_layers_that_copy_by_a_plan_count_as_the_one_before() -> None:
    """Layers 1 and 2 have no slots of their own: what layer 0 misses is fetched three times."""
    load = Load(layers=4)
    tables = load.coordinator()
    counters = made(load, tables, planned=(1, 2))
    run(load, counters, tables)
    own = totals(load)[[0, 3], 2]
    # The slots of the load moved in layers 1 and 2 as well; these are void.
    assert counters.by_age.sum(0)[1] == 3 * own[0] + own[1]
    assert counters.by_misses.sum(1).tolist()[1:3] == [0, 0]


# --- the ring ------------------------------------------------------------------------------------


def watched(
    load: Load, entries: int, recorded: tuple[int, ...]
) -> tuple[Counters, DeviceRing, Any]:
    tables = load.coordinator()
    ring = DeviceRing(recorded, load.layers, load.rows, load.top_k, entries, "cpu")
    return made(load, tables), ring, tables


def step(load: Load, counters: Counters, ring: DeviceRing, tables: Any) -> None:
    for layer, rows, lengths, top_k in load.step(tables):
        if layer == 0:
            live = counters.live(rows, tables.num_real_reqs)
            ring.begin(rows, live)
        ring.take(layer, top_k)
        if layer == load.layers - 1:
            ring.end(rows, lengths, counters.count(rows, lengths, live))


def drained(ring: DeviceRing) -> list[tuple[int, int, list[int], np.ndarray]]:
    """Epoch, seq_len, misses and positions of what waits; then the ring is empty."""
    found = []
    for number in range(int(ring.tail), int(ring.head)):
        at = number % ring.entries
        head = ring.heads[at].tolist()
        found.append((head[EPOCH], head[SEQ_LEN], head[FACTS:], ring.positions[at].numpy().copy()))
    ring.tail.copy_(ring.head)
    return found


@quick
@given(seed=st.integers(0, 999), entries=st.integers(1, 9), every=st.integers(1, 6))
def test_a_ring_keeps_whole_beginnings_and_counts_the_rest(
    seed: int, entries: int, every: int
) -> None:
    """However slowly it is emptied: of every request the first steps, in order, exactly as they
    were; the others are counted."""
    load = Load(seed=seed)
    counters, ring, tables = watched(load, entries, (0, 2))
    requests: dict[int, Running] = {}
    unrecorded: set[int] = set()
    kept: dict[int, list[Any]] = {}
    for number in range(30):
        if load.draw.random() < 0.4 and (request := load.joining(tables)):
            epoch = len(requests) + 1
            requests[epoch] = request
            counters.admit(request.req_pool_idx)
            ring.admit(request.req_pool_idx, epoch, record=epoch % 4 != 0)
            unrecorded |= {epoch} if epoch % 4 == 0 else set()
        if load.draw.random() < 0.1 and (request := load.leaving(tables)):
            counters.release(request.req_pool_idx)
        step(load, counters, ring, tables)
        if number % every == 0:
            for entry in drained(ring):
                kept.setdefault(entry[0], []).append(entry)
    for entry in drained(ring):
        kept.setdefault(entry[0], []).append(entry)
    lost = 0
    for epoch, request in requests.items():
        entries_of = kept.get(epoch, [])
        assert epoch not in unrecorded or not entries_of
        lost += 0 if epoch in unrecorded else request.steps - len(entries_of)
        for at, (_, seq_len, misses, positions) in enumerate(entries_of):
            assert seq_len == request.prompt_len + at + 1
            assert misses == request.misses[at]
            for index, layer in enumerate(ring.recorded):
                row = positions[index]
                assert row[row >= 0].tolist() == request.listed[at][layer].tolist()
    assert int(ring.dropped) == lost


def test_an_entry_is_not_shown_before_its_last_layer() -> None:
    load = Load()
    counters, ring, tables = watched(load, 4, (0, 1, 2))
    request = load.joining(tables)
    assert request is not None
    counters.admit(request.req_pool_idx)
    ring.admit(request.req_pool_idx, 1, record=True)
    for layer, rows, _, top_k in load.step(tables):
        if layer == 0:
            ring.begin(rows, counters.live(rows, tables.num_real_reqs))
        ring.take(layer, top_k)
        assert int(ring.head) == 0


def test_the_size_of_an_entry() -> None:
    """61 layers of 2,048 positions are half a megabyte."""
    assert entry_bytes(61, 61, 2048) == 8 * (2 + 61) + 4 * 61 * 2048


# --- inside a CUDA graph -------------------------------------------------------------------------


@pytest.mark.parametrize("ours", [False, True])
def test_a_step_stays_on_the_device(ours: bool) -> None:
    """A graph must not hold a copy from the host, nor anything that waits for the device.

    On the meta device, where tensors have no values: reading one is an error by itself.
    """
    from torch.overrides import TorchFunctionMode

    class OnDevice(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            assert func not in (torch.tensor, torch.as_tensor, torch.from_numpy)
            for each in torch.utils._pytree.tree_leaves((args, kwargs)):
                if isinstance(each, torch.Tensor) and each.dim():
                    assert each.device.type == "meta", f"{func} takes a tensor of the host"
            if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
                index = args[1] if isinstance(args[1], tuple) else (args[1],)
                assert not any(isinstance(each, list | np.ndarray) for each in index)
            return func(*args, **(kwargs or {}))

    def on_device(*shape: int, dtype: Any = torch.int64) -> Any:
        return torch.empty(shape, dtype=dtype, device="meta")

    tokens = on_device(3, 5, 14, dtype=torch.int32)
    counters = Counters(tokens, 10, 6, reported=ours, device="meta", planned=(1,))
    ring = DeviceRing((0, 2), 3, 5, 6, 8, "meta")
    rows, lengths, real = on_device(2), on_device(2), on_device(1, dtype=torch.int32)
    with OnDevice():
        live = counters.live(rows, real)
        ring.begin(rows, live)
        for layer in range(3):
            ring.take(layer, on_device(2, 7, dtype=torch.int32))
        ring.end(rows, lengths, counters.count(rows, lengths, live))
