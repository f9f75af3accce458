"""The source of the native kernel, run on the processor: its decisions against NumPy, both rules.

Threads become fibers (`cuda_on_cpu/cuda_runtime.h`), so this needs g++ and no GPU. It shows that
the logic is right, and neither races nor speed; those are for `test_gpu_kernels.py` and
`test_gpu_fast_slow.py`.
"""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_traces import drift
from test_fast_slow import with_next

from hisparse_sim.gpu_replay.harness.fast_slow import FastSlowState, Worths
from hisparse_sim.gpu_replay.harness.slots import SlotState
from hisparse_sim.gpu_replay.kernels.native_library import SOURCE, SwapIn
from hisparse_sim.traces import Demand

HERE = Path(__file__).with_name("cuda_on_cpu")
PAGE = 64


@functools.cache
def library(top_k: int, buffer: int) -> Any:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    path = Path(tempfile.mkdtemp()) / "swap_in.so"
    sizes = [f"-DTOP_K={top_k}", f"-DBUFFER={buffer}", "-DENTRY_BYTES=16"]
    folders = [f"-I{HERE}", f"-I{SOURCE.parent}"]
    options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC"]
    command: list[str | Path] = [
        compiler,
        *options,
        *sizes,
        *folders,
        HERE / "swap_in.cpp",
        "-o",
        path,
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(path))


def assert_decides_alike(of: Demand, top_k: int, buffer: int, start: str, by_worth: bool) -> int:
    """Compare slots, state, page table and plan after every step; return the misses."""
    context = max(buffer, int(of.seq_len.max()))
    if by_worth:
        worths = Worths(of)
        scored = FastSlowState(buffer, start, of.prompt_len, context)
    state = scored if by_worth else SlotState(buffer, start, of.prompt_len, context)
    random = np.random.default_rng(0)
    tokens = np.full((1, buffer + PAGE), -1, np.int32)
    tokens[0, :buffer] = state.token
    order = state.order[None].astype(np.int16)
    locs = random.permutation(buffer + PAGE).astype(np.int32)[None]
    host_locs = random.permutation(context).astype(np.int64)[None]
    out = np.empty((1, top_k), np.int32)
    source, target = np.zeros((1, top_k), np.int64), np.zeros((1, top_k), np.int32)
    count, request = np.zeros(1, np.int32), np.zeros(1, np.int64)
    total = 0
    for step in range(of.rows):
        row = of.row(step)
        seq_len = np.array([of.seq_len[step]], np.int64)
        top = np.full((1, top_k), -1, np.int32)
        top[0, : len(row)] = row
        worth = worths.of(step, context) if by_worth else None
        arrays: dict[str, Any] = {
            "top_k": top, "tokens": tokens, "locs": locs, "host_locs": host_locs, "order": order,
            "out": out, "request": request, "seq_len": seq_len, "plan_source": source,
            "plan_target": target, "plan_count": count,
        }  # fmt: skip
        arguments = SwapIn(
            **{name: array.ctypes.data for name, array in arrays.items()},
            worth=None if worth is None else worth.ctypes.data,
            plan_stride=top_k, batch=1, cluster=1, wide_request=True, wide_seq_len=True,
            skip_io=True,
        )  # fmt: skip
        library(top_k, buffer).swap_in(ctypes.byref(arguments))
        length = int(seq_len[0])
        if worth is None:
            outcome = state.step(length, row)
        else:
            outcome = scored.step_by_worth(length, row, worth)
        misses = len(outcome.missed)
        assert count[0] == misses
        np.testing.assert_array_equal(tokens[0, :buffer], state.token)
        np.testing.assert_array_equal(order[0], state.order)
        np.testing.assert_array_equal(out[0, : len(row)], locs[0, outcome.slots])
        np.testing.assert_array_equal(source[0, :misses], host_locs[0, outcome.missed])
        np.testing.assert_array_equal(target[0, :misses], locs[0, outcome.victims])
        total += misses
    return total


@pytest.mark.parametrize("by_worth", [False, True], ids=["lru", "fast-slow"])
@pytest.mark.parametrize("start", ["staged", "direct"])
@pytest.mark.parametrize("buffer", [65, 128])
def test_decides_as_numpy_does(buffer: int, start: str, by_worth: bool) -> None:
    of = drift(steps=40, top_k=64, first_seq_len=buffer - 3, keep=0.6, shuffled=True, ragged=True)
    of = with_next(of, 1, 128)
    assert assert_decides_alike(of, 64, buffer, start, by_worth) > 50


@pytest.mark.parametrize("by_worth", [False, True], ids=["lru", "fast-slow"])
def test_decides_as_numpy_does_with_several_slots_a_thread(by_worth: bool) -> None:
    of = drift(steps=12, top_k=2048, first_seq_len=9000, keep=0.8, shuffled=True)
    of = with_next(of, 1, 2048)
    assert assert_decides_alike(of, 2048, 4096, "staged", by_worth) > 1000
