"""vLLM's kernels against the plain reference and the mode `vllm`, on a GPU; skipped elsewhere.

They are compiled from vLLM's `csrc/hisparse_kernels.cu`, which VLLM_KERNELS points to.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_reference import Step, replay_vllm
from make_traces import drift

from hisparse_sim.gpu_replay.kernels.build import GpuError, require_gpu
from hisparse_sim.gpu_replay.kernels.vllm import Vllm
from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.replay.modes import RULES, Request
from hisparse_sim.simulator.replay.modes.vllm import resident_pages
from hisparse_sim.traces.drafts import drafted

pytestmark = pytest.mark.gpu

TOP_K, PAGE, VALUES, LONGEST = 256, 64, 288, 4096
PAGES = LONGEST // PAGE


@pytest.fixture(autouse=True)
def torch() -> Any:
    if "VLLM_KERNELS" not in os.environ:
        pytest.skip("VLLM_KERNELS does not point to vLLM's csrc/hisparse_kernels.cu")
    try:
        return require_gpu()
    except GpuError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("resident_tokens", [0, 700])
@pytest.mark.parametrize("queries", [1, 2, 4])
@pytest.mark.parametrize("keep", [0.95, 0.6, 0.1])
def test_the_kernel_takes_the_slots_of_the_reference(
    torch: Any, keep: float, queries: int, resident_tokens: int
) -> None:
    buffer = (queries + 1) * TOP_K
    demand = drift(steps=40, top_k=TOP_K, first_seq_len=3000, keep=keep, shuffled=True)
    if queries > 1:
        demand = drafted(demand, queries, (1 + queries) / 2)
    heads = [*demand.first_rows.tolist(), demand.rows]
    committed = demand.seq_len[demand.first_rows].astype(np.int64) - 1
    steps = [
        Step(int(committed[i]), [demand.row(row).tolist() for row in range(*heads[i : i + 2])])
        for i in range(len(committed))
    ]
    expected = replay_vllm(steps, buffer, queries, resident_tokens // PAGE)
    lower, upper = resident_pages(committed, queries, resident_tokens)

    # Two requests with pages in random order, of which the second is the one that is replayed. An
    # entry holds the number of its position; those of the other request hold -1.
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(2 * PAGES).reshape(2, PAGES)
    host = torch.full((2 * LONGEST, VALUES), -1, dtype=torch.int32)
    positions = torch.arange(LONGEST, dtype=torch.int32)
    places = torch.from_numpy(shuffled[1].repeat(PAGE) * PAGE + np.tile(np.arange(PAGE), PAGES))
    host[places] = positions[:, None]
    hot = -(-buffer // PAGE)
    first_resident = 1 + 2 * hot  # page 0 of the GPU is none
    device = torch.full(((first_resident + PAGES) * PAGE, VALUES), -1, dtype=torch.int32).cuda()
    device[first_resident * PAGE :] = positions[:, None].cuda()
    as_bytes = host.view(torch.uint8).pin_memory()

    def on_gpu(table: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(table, np.int32)).cuda()

    cache = Vllm(
        Path(os.environ["VLLM_KERNELS"]),
        as_bytes,
        device.view(torch.uint8),
        on_gpu(shuffled + 1),
        on_gpu(1 + rng.permutation(2 * hot).reshape(2, hot)),
        buffer=buffer,
        most=queries * TOP_K,
    )
    requests = on_gpu(np.ones(queries))
    hits = misses = 0
    held = [-1] * buffer
    position_of = {int(place) + PAGE: position for position, place in enumerate(places)}
    for number, (step, done) in enumerate(zip(steps, expected, strict=True)):
        table = np.zeros((2, PAGES), np.int32)
        page = np.arange(PAGES) * PAGE
        table[1] = np.where(
            (page >= lower[number]) & (page < upper[number]), 0, first_resident + np.arange(PAGES)
        )
        listed = np.full((queries, TOP_K), -1, np.int32)
        for query, row in enumerate(step.rows):
            listed[query, : len(row)] = row
        cache.swap_in(on_gpu(listed), requests, on_gpu(table))
        torch.cuda.synchronize()
        for position, slot in zip(done.misses, done.victims, strict=True):
            held[slot] = position
        found = [position_of.get(entry, -1) for entry in cache.held[1].tolist()]
        assert found == held
        assert cache.order[1].tolist() == done.order
        read = device[cache.places.clamp(min=0).long(), 0].cpu().numpy()
        assert (read[listed >= 0] == listed[listed >= 0]).all()
        misses += len(done.misses)
        hits += sum(map(len, step.rows)) - done.resident - len(done.misses)
        assert cache.counters.tolist() == [hits, misses]
    assert cache.held[0].tolist() == [-1] * buffer  # the other request's

    request = Request(demand, queries, TOP_K, resident_tokens, "direct", 0)
    replayed = RULES["vllm"].replay(request, get_policy("lru"), buffer)
    assert replayed.misses.tolist() == [len(done.misses) for done in expected]
    assert misses > 0 or keep > 0.9
