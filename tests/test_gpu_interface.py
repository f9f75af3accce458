"""What the GPU replay promises on a machine without a GPU."""

import ast
import os
import subprocess
import sys
from types import SimpleNamespace

import make_traces
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from reference import replay as reference_replay
from streams import cases, demand_of

from hisparse_sim.cli import cli
from hisparse_sim.gpu_replay.bench import grid
from hisparse_sim.gpu_replay.bench.grid import Point, context_of, run_grid, steady_rows, steps_of
from hisparse_sim.gpu_replay.bench.results import read_machine, read_rows, write_result
from hisparse_sim.gpu_replay.harness import machine
from hisparse_sim.gpu_replay.harness.batch import make_batch
from hisparse_sim.gpu_replay.harness.pools import scattered_places
from hisparse_sim.gpu_replay.harness.slots import SlotState
from hisparse_sim.gpu_replay.kernels import build, get_kernel, native, native_library, vllm
from hisparse_sim.gpu_replay.kernels import sglang as sglang_kernel
from hisparse_sim.gpu_replay.kernels.build import GpuError, build_library
from hisparse_sim.gpu_replay.kernels.kernel import check_tensor
from hisparse_sim.traces import TraceError, open_trace, sample_path


@given(cases())
def test_slots_follow_the_plain_reference(case):
    stream, buffer = case
    for start in ("staged", "direct"):
        state = SlotState(buffer, start, stream.prompt_len, max(n for n, _ in stream.rows))
        demand = demand_of(stream)
        for i, step in enumerate(reference_replay(stream, "lru", buffer, start)):
            seq_len, row = stream.rows[i]
            outcome = state.step(seq_len, demand.row(i))
            assert outcome.missed.tolist() == step.misses
            assert outcome.victims.tolist() == step.victims
            assert [None if t < 0 else t for t in state.token.tolist()] == step.slots
            assert state.order.tolist() == step.order
            for position, slot in zip(row, outcome.slots.tolist(), strict=True):
                newest = seq_len > buffer and position == seq_len - 1
                assert slot == buffer if newest else step.slots[slot] == position


def test_slots_refuse_an_unknown_start():
    with pytest.raises(ValueError, match="known: staged, direct"):
        SlotState(4, "warm", 10, 20)


def test_places_are_whole_pages_and_nobodys_twice():
    table = scattered_places([100, 64, 1], 128, np.random.default_rng(0))
    assert table.shape == (3, 128)
    used = np.concatenate([table[0], table[1, :64], table[2, :64]])
    assert sorted(used) == list(range(256))
    assert (np.diff(table[0, :64]) == 1).all()  # a page lies in one piece


def test_batch_of_whole_requests_and_of_parts(tmp_path):
    path = make_traces.write(tmp_path / "t.parquet", make_traces.several(requests=3, layers=(0, 1)))
    trace = open_trace(path)
    whole = make_batch(trace, 3, 2)
    assert whole.stand_in == ""
    assert [[cell.request for cell in layer] for layer in whole.cells] == [
        ["request-0", "request-1", "request-2"]
    ] * 2
    assert [layer[0].layer for layer in whole.cells] == [0, 1]
    assert whole.steps == 20  # of the shortest request
    dealt = make_batch(trace, 4, 2, steps=5)
    assert dealt.stand_in == "6 (request, layer) parts of t stand in for 4 requests x 2 layers"
    assert (dealt.steps, dealt.size, dealt.layers) == (5, 4, 2)
    with pytest.raises(ValueError, match="1 row and 1 layer"):
        make_batch(trace, 0)


def test_batch_tables_hold_the_rows_padded(tmp_path):
    demand = make_traces.drift(ragged=True, steps=9)
    trace = open_trace(make_traces.write(tmp_path / "t.parquet", [demand]))
    batch = make_batch(trace, 2)
    table = batch.positions(0, 10)
    assert table.shape == (9, 2, 10)
    for step in range(9):
        row = demand.row(step).tolist()
        assert table[step, 1].tolist() == row + [-1] * (10 - len(row))
    assert batch.seq_lens(0)[:, 0].tolist() == demand.seq_len.tolist()
    assert batch.widest_row == int(np.diff(demand.offsets).max())


@pytest.mark.parametrize("misses", [0, 3, 20, 64])
@pytest.mark.parametrize("buffer", [64, 100])
def test_bench_rows_miss_exactly_as_often_as_asked(buffer, misses):
    point = Point(2, misses, buffer, 1152, top_k=64)
    rows = steady_rows(point, 3000)
    assert rows.shape == (steps_of(point), 2, 64)
    for request in range(2):
        state = SlotState(buffer, "direct", 2999, 3000)
        turns = [[len(state.step(3000, row).missed) for row in rows[:, request]] for _ in "123"]
        assert set(turns[-1]) == {misses}


def test_bench_rows_need_enough_context():
    with pytest.raises(ValueError, match="needs a context of"):
        steady_rows(Point(1, 64, 6144, 1152, top_k=64), 1000)


@pytest.mark.parametrize(("batch", "size"), [(1, 8), (8, 8), (9, 4), (16, 4), (33, 1), (500, 1)])
def test_cluster_fits_the_batch(batch, size):
    assert native.cluster_size(batch, 8, 64) == size
    assert native.cluster_size(batch, 1, 64) == 1


def tensor(dtype="int32", shape=(4, 8), stride=(8, 1), device="cuda"):
    return SimpleNamespace(
        dtype=f"torch.{dtype}",
        shape=shape,
        stride=lambda: stride,
        device=SimpleNamespace(type=device),
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (tensor(dtype="int64"), "t must be int32, got int64"),
        (tensor(shape=(4, 7)), r"t must have shape \[>= 4, >= 8\], got \[4, 7\]"),
        (tensor(shape=(4,), stride=(1,)), "t must have shape"),
        (tensor(stride=(16, 2)), "contiguous along its last axis"),
        (tensor(device="cpu"), "t must lie on cuda, not on cpu"),
    ],
)
def test_tensors_are_checked(bad, message):
    check_tensor("t", tensor(), ["int32"], [4, 8])
    with pytest.raises(ValueError, match=message):
        check_tensor("t", bad, ["int32"], [4, 8])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2048, 1024, 1152), "must hold top_k = 2048"),
        ((1, 40000, 1152), "at most 32767"),
        ((64, 128, 584), "16-byte pieces; 584"),
    ],
)
def test_sizes_are_checked(sizes, message):
    with pytest.raises(ValueError, match=message):
        native_library.check_sizes(*sizes)


def test_unknown_kernel_lists_the_known():
    with pytest.raises(ValueError, match="known: sglang, native"):
        get_kernel("vllm")


def fake_nvcc(folder, body):
    path = folder / "nvcc"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_build_is_kept_and_found_again(tmp_path, monkeypatch):
    log = tmp_path / "log"
    script = f'echo run >> {log}\nwhile [ "$1" != -o ]; do shift; done\necho built > "$2"'
    monkeypatch.setattr(build, "find_nvcc", lambda: fake_nvcc(tmp_path, script))
    monkeypatch.setattr(build, "nvcc_version", lambda: "13.0")
    kept = tmp_path / "kept"
    first = build_library("k", "source", arch="90", directory=kept)
    assert first == build_library("k", "source", arch="90", directory=kept)
    assert build_library("k", "source", arch="80", directory=kept) != first
    assert build_library("k", "other", arch="90", directory=kept) != first
    header = tmp_path / "h.cuh"
    header.write_text("1")
    before = build_library("k", "source", arch="90", directory=kept, depends=[header])
    header.write_text("2")
    assert build_library("k", "source", arch="90", directory=kept, depends=[header]) != before
    assert len(log.read_text().split()) == 5
    assert len(list(kept.iterdir())) == 5  # nothing half-built beside them


def test_a_failed_build_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    script = "echo 'k.cu(3): error: expected a ;' >&2; exit 1"
    monkeypatch.setattr(build, "find_nvcc", lambda: fake_nvcc(tmp_path, script))
    monkeypatch.setattr(build, "nvcc_version", lambda: "13.0")
    with pytest.raises(GpuError, match=r"could not build k: k\.cu\(3\): error: expected"):
        build_library("k", "source", arch="90", directory=tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir()) == []


def test_missing_compiler_is_one_sentence(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    build.find_nvcc.cache_clear()
    with pytest.raises(GpuError, match="nvcc was not found: install the CUDA toolkit"):
        build.find_nvcc()


def test_missing_packages_are_named_with_the_command(monkeypatch, tmp_path):
    found = {}
    monkeypatch.setattr(sglang_kernel.importlib.util, "find_spec", found.get)
    find = sglang_kernel.find_sglang.__wrapped__
    with pytest.raises(GpuError, match="pip install --no-deps sglang apache-tvm-ffi"):
        find()
    found["sglang"] = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    with pytest.raises(GpuError, match="apache-tvm-ffi package"):
        find()
    found["tvm_ffi"] = SimpleNamespace()
    with pytest.raises(GpuError, match="holds no HiSparse kernel"):
        find()
    for header, include in sglang_kernel._LAYOUTS[::-1]:  # the newer one wins
        path = tmp_path / header
        path.parent.mkdir(parents=True)
        path.write_text("")
        assert find() == sglang_kernel.Sources(path, tmp_path / include, tmp_path)


HEADER = """
template <int BLOCK_SIZE, int NUM_TOP_K, bool IsMLA>
void load(tvm::ffi::TensorView top_k, int64_t page_size) {}
template <int NEW>
void copy(tvm::ffi::TensorView a) {}
"""


def test_template_parameters_are_read_from_the_header():
    assert sglang_kernel.read_signature(HEADER, "load") == sglang_kernel.Signature(
        ("BLOCK_SIZE", "NUM_TOP_K", "IsMLA"), ("top_k", "page_size")
    )
    values = {"NUM_TOP_K": 2048, "IsMLA": True, "BLOCK_SIZE": 960, "SkipIO": False}
    assert sglang_kernel.instantiate(HEADER, "load", values) == "load<960, 2048, true>"
    with pytest.raises(GpuError, match="has no gather"):
        sglang_kernel.instantiate(HEADER, "gather", values)
    with pytest.raises(GpuError, match="unknown parameter NEW"):
        sglang_kernel.instantiate(HEADER, "copy", values)


def test_our_swap_in_takes_the_engines_arguments():
    """Names, order and defaults, read from the installed package without importing it."""
    try:
        package = sglang_kernel.find_sglang().package
    except GpuError as error:
        pytest.skip(str(error))
    path = package / "kernels/ops/kvcache/hisparse.py"
    if not path.is_file():
        pytest.skip(f"{path} is laid out differently")
    functions = {
        node.name: node.args
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    for name in ("load_cache_to_device_buffer_mla", "copy_cache_planned_mla"):
        theirs = functions[name]
        for module in (native, sglang_kernel):
            ours = getattr(module, name).__kwdefaults__ or {}
            code = getattr(module, name).__code__
            names = code.co_varnames[: code.co_argcount]
            keywords = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
            assert names[: len(theirs.args)] == tuple(a.arg for a in theirs.args)
            wanted = {a.arg for a in theirs.kwonlyargs} - (
                {"is_dsv4_layout"} if module is sglang_kernel else set()
            )
            assert wanted <= set(keywords)
            assert set(keywords) - wanted <= set(ours)  # whatever is more has a default


@pytest.mark.parametrize(
    "command",
    [
        ["info"],
        ["replay", str(sample_path())],
        ["bench"],
        ["calibrate", "-o", "links.toml"],
    ],
)
def test_commands_say_what_is_missing(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = CliRunner().invoke(cli, ["gpu", *command])
    assert result.exit_code == 1
    assert result.output == (
        "Error: the GPU replay needs PyTorch, which is not installed: pip install torch\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from hisparse_sim.gpu_replay.commands.gpu import gpu; "
        "print([m for m in ('torch', 'numpy', 'pandas', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_result_files_come_back(tmp_path):
    path = tmp_path / "r.json"
    write_result(path, {"gpu": "G"}, {"repeats": 3}, [{"us": 1.5}, {"us": 2.0}], summary={"n": 2})
    assert read_rows(path) == [{"us": 1.5}, {"us": 2.0}]
    assert read_machine(path) == {"gpu": "G"}
    path.write_text("{}")
    with pytest.raises(TraceError, match="is not a result file of"):
        read_rows(path)
    with pytest.raises(TraceError, match="does not exist"):
        read_rows(tmp_path / "absent.json")


def test_the_native_source_compiles(tmp_path, monkeypatch):
    build.find_nvcc.cache_clear()
    try:
        build.find_nvcc()
    except GpuError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = native_library.compile_native(64, 100, 656, "90")
    assert path.parent == tmp_path / "hisparse-sim"
    assert path.stat().st_size > 0


@pytest.mark.parametrize(("misses", "buffer"), [(2049, 4096), (-1, 4096), (8, 1024), (8, 40000)])
def test_bench_refuses_impossible_points_before_it_measures(misses, buffer):
    with pytest.raises(ValueError, match="a point needs 0 <= misses <= 2048 <= buffer"):
        next(run_grid([1], [8, misses], [4096, buffer], [1152]))


def test_bench_takes_as_much_context_as_a_point_needs():
    point = Point(1, 64, 128, 1152, top_k=64)
    steady_rows(point, context_of(point))
    with pytest.raises(ValueError, match="needs a context"):
        steady_rows(point, context_of(point) - 1)


def test_a_grid_that_is_cut_short_keeps_its_rows(monkeypatch, tmp_path):
    point = {"entry_bytes": 1152, "buffer": 4096, "batch": 1, "misses": 0, "native_us": 6.5}

    def rows(*_grid, **_options):
        yield point
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "run_grid", rows)
    monkeypatch.setattr(machine, "describe_machine", lambda: {"gpu": "a GPU"})
    path = tmp_path / "grid.json"
    result = CliRunner().invoke(cli, ["gpu", "bench", "-o", str(path)])
    assert result.exit_code != 0
    assert read_rows(path) == [point]


VLLM = """#include "torch_utils.h"
#include <torch/csrc/stable/ops.h>
namespace {
constexpr int kWarpSize = 32;
__global__ __launch_bounds__(1024) void hisparse_resolve_residency_kernel(
    const int32_t* __restrict__ global_indices,  // [num_rows, top_k], (padded)
    int16_t* __restrict__ lru_slots, const int64_t host_rows) {
}
__global__ void hisparse_gather_compact_kernel(const char* __restrict__ host_cache) {
}
}  // namespace

void hisparse_gather_compact(torch::stable::Tensor const& host_cache) {
}
"""


def test_of_a_file_of_vllms_the_kernels_alone_are_compiled():
    assert vllm.read_parameters(VLLM, vllm.RESOLVE) == {
        "global_indices": "const int32_t*",
        "lru_slots": "int16_t*",
        "host_rows": "const int64_t",
    }
    text = vllm.kernels_alone(VLLM)
    assert "torch_utils.h" not in text
    assert "torch/csrc" not in text
    assert "hisparse_gather_compact(torch" not in text
    assert "given->global_indices, given->lru_slots, given->host_rows" in text
    assert 'extern "C" const char* hisparse_gather_compact(' in text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("int main() {}", "it has no anonymous namespace"),
        (VLLM.replace("resolve_residency", "swap_in"), "it has no hisparse_resolve_residency"),
    ],
)
def test_another_file_than_vllms_is_refused(text, sentence):
    with pytest.raises(GpuError, match=sentence):
        vllm.kernels_alone(text)


def test_a_file_of_vllms_that_is_not_there_is_named(tmp_path):
    with pytest.raises(GpuError, match=r"none\.cu cannot be read"):
        vllm.Library(tmp_path / "none.cu", "90")
