"""vLLM's swap-in kernels, compiled from a copy of its source file that the user has.

vLLM ships them as a part of a large library, and their file is in its source distribution. Of the
file only the kernels are compiled: the host code around them wants torch's headers. What arguments
a kernel takes is read from the file.

Reference: vLLM 0.33, `csrc/hisparse_kernels.cu` and `vllm/v1/hisparse/runtime.py`
(_resolve_residency, _swap_rows), whose tensors these are.
"""

import ctypes
import functools
import re
from pathlib import Path
from typing import Any

from hisparse_sim.gpu_replay.kernels.build import GpuError, build_library, require_gpu
from hisparse_sim.gpu_replay.kernels.kernel import PAGE
from hisparse_sim.gpu_replay.kernels.sglang import architecture

RESOLVE, COPY = "hisparse_resolve_residency_kernel", "hisparse_gather_compact_kernel"
_RESOLVE_THREADS, _COPY_THREADS = 1024, 512
_COPY_BLOCKS, _COPY_BLOCKS_OF_A_ROW = 64, 8
_COUNTERS = 5

# What host helpers among the kernels name; they are not called.
_STAND_INS = """
#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <cuda_runtime.h>
#define STD_TORCH_CHECK(...)
namespace torch::stable {
struct Tensor {
  const void* const_data_ptr() const { return nullptr; }
  int64_t dim() const { return 0; }
  int64_t size(int64_t) const { return 0; }
  int64_t element_size() const { return 0; }
  bool is_contiguous() const { return false; }
};
}  // namespace torch::stable
"""

_LAUNCH = """
struct {name}_arguments {{
  {fields}
}};

extern "C" const char* {name}(
    const {name}_arguments* given, int x, int y, int threads, int shared, void* stream) {{
  cudaError_t error = cudaFuncSetAttribute(
      {name}_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error == cudaSuccess) {{
    {name}_kernel<<<dim3(x, y), threads, shared, static_cast<cudaStream_t>(stream)>>>(
        {arguments});
    error = cudaGetLastError();
  }}
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}}
"""


def read_parameters(text: str, kernel: str) -> dict[str, str]:
    """Return the type of every parameter of a kernel by its name, in order, from a file's text."""
    plain = re.sub(r"//[^\n]*", "", text)
    match = re.search(rf"__global__[^;{{]*?\b{kernel}\s*\(([^()]*)\)\s*{{", plain)
    if match is None:
        raise GpuError(f"it has no {kernel}; csrc/hisparse_kernels.cu of vLLM 0.33 does")
    found = {}
    for parameter in match.group(1).split(","):
        kind, name = parameter.replace("__restrict__", "").rsplit(maxsplit=1)
        found[name] = " ".join(kind.split())
    return found


def kernels_alone(text: str) -> str:
    """Return a .cu file of the kernels of vLLM's, and functions that launch them."""
    end = re.search(r"^}\s*//\s*namespace\s*$", text, re.MULTILINE)
    if end is None:
        raise GpuError("it is not a file of vLLM's kernels: it has no anonymous namespace")
    body = re.sub(r"^#include[^\n]*$", "", text[: end.end()], flags=re.MULTILINE)
    launches = ""
    for kernel in (RESOLVE, COPY):
        parameters = read_parameters(text, kernel)
        launches += _LAUNCH.format(
            name=kernel.removesuffix("_kernel"),
            fields="\n  ".join(f"{kind} {name};" for name, kind in parameters.items()),
            arguments=", ".join(f"given->{name}" for name in parameters),
        )
    return _STAND_INS + body + launches


class Library:
    """The kernels of one file, built and loaded."""

    def __init__(self, source: Path, arch: str) -> None:
        try:
            text = source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GpuError(f"{source} cannot be read: {error}") from None
        try:
            path = build_library(
                "vllm-hisparse", kernels_alone(text), arch=arch, flags=["-std=c++17"]
            )
            self._parameters = {name: read_parameters(text, name) for name in (RESOLVE, COPY)}
        except GpuError as error:
            raise GpuError(f"{source}: {error}") from None
        self.source = source
        self._library = ctypes.CDLL(str(path))

    def launch(
        self, kernel: str, grid: tuple[int, int], threads: int, shared: int, **values: Any
    ) -> None:
        """Launch on the current stream. `values`: tensors, numbers and None by parameter."""
        torch = require_gpu()
        parameters = self._parameters[kernel]
        missing = [name for name in parameters if name not in values]
        if missing:
            raise GpuError(
                f"{self.source}: {kernel} has an unknown parameter {missing[0]}; that of vLLM 0.33"
                " is known"
            )
        fields = [(name, _ctype(kind)) for name, kind in parameters.items()]
        layout = type("Arguments", (ctypes.Structure,), {"_fields_": fields})
        given = layout(*(_value(values[name]) for name in parameters))
        function = getattr(self._library, kernel.removesuffix("_kernel"))
        function.restype = ctypes.c_char_p
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        failed = function(ctypes.byref(given), *grid, threads, shared, stream)
        if failed:
            raise GpuError(f"vLLM's {kernel} could not be launched: {failed.decode()}")


def _ctype(kind: str) -> Any:
    if kind.endswith("*"):
        return ctypes.c_void_p
    known = {"const int32_t": ctypes.c_int32, "const int64_t": ctypes.c_int64}
    if kind not in known:
        raise GpuError(f"a kernel of vLLM's takes a {kind}, which is not known here")
    return known[kind]


def _value(value: Any) -> Any:
    return value.data_ptr() if hasattr(value, "data_ptr") else value


@functools.cache
def load_vllm(source: Path) -> Library:
    """The kernels of this file for the GPU that there is; GpuError says what is wrong with it."""
    return Library(source, architecture())


class Vllm:
    """The state of one layer, for requests with B slots each.

    Parameters
    ----------
    source
        vLLM's file.
    host_cache, device_cache
        uint8 [entries, bytes of an entry], pinned and on the GPU.
    host_pages, hot_pages
        int32 [requests, pages]: page of 64 entries of the host for every page of tokens, and page
        of the GPU for every 64 slots. vLLM has no host page 0: page p is entry 64 (p - 1).
    buffer
        Slots of a request.
    most
        Positions that a step of a request selects at most, in all its queries.

    Attributes
    ----------
    held
        int32 [requests, buffer], the host entry in every slot, counted from page 0; -1 is empty.
    order
        int16 [requests, buffer]; slots, next victim first.
    places
        int32 [rows, top_k], the device entry of every selected position, after `swap_in`.
    counters
        int64 [2]: hits and misses so far, as vLLM counts them.
    """

    def __init__(
        self,
        source: Path,
        host_cache: Any,
        device_cache: Any,
        host_pages: Any,
        hot_pages: Any,
        *,
        buffer: int,
        most: int,
    ) -> None:
        torch = require_gpu()
        self._library = load_vllm(source)
        self._host, self._device = host_cache, device_cache
        self._host_pages, self._hot_pages = host_pages, hot_pages
        self._buffer, self._most = buffer, most
        requests = len(host_pages)
        on_gpu = {"dtype": torch.int32, "device": "cuda"}
        self.held = torch.full((requests, buffer), -1, **on_gpu)
        slots = torch.arange(buffer, dtype=torch.int16, device="cuda")
        self.order = slots.repeat(requests, 1)
        self.counters = torch.zeros(2, dtype=torch.int64, device="cuda")
        self._state_rows = torch.arange(requests, **on_gpu)
        self.places = torch.empty((0, 0), **on_gpu)

    def swap_in(
        self, positions: Any, requests: Any, resident_pages: Any = None, *, skip_io: bool = False
    ) -> None:
        """Swap in what a step selects: decide, then copy unless `skip_io`.

        `positions`: int32 [rows, top_k], -1 is padding; `requests`: int32 [rows], rows of a request
        one after the other; `resident_pages`: int32 [requests, pages], pages of the GPU that hold a
        page of tokens, 0 where none does.
        """
        torch = require_gpu()
        rows, top_k = positions.shape
        if self.places.shape != positions.shape:  # not while a graph is captured
            self.places, self._from, self._to = (torch.empty_like(positions) for _ in range(3))
            self._counts = torch.empty_like(requests)
        entry_bytes = self._host.shape[1]
        chunks = -(-self._buffer // 32)
        table = self._most + 1
        words = 2 * table + 2 * (chunks + 1) + _COUNTERS + chunks
        sizes = {
            "host_rows": len(self._host) + PAGE,
            "hot_block_size": PAGE,
            "top_k": top_k,
        }
        self._library.launch(
            RESOLVE,
            (rows, 1),
            _RESOLVE_THREADS,
            4 * words + 2 * self._buffer,
            **sizes,
            hot_block_table=self._hot_pages,
            global_indices=positions,
            request_ids=requests,
            source_block_table=self._host_pages,
            resident_block_table=resident_pages,
            resolved_global_indices=None,
            valid_counts=None,
            swap_host_physical_rows=self._from,
            swap_device_physical_rows=self._to,
            swap_counts=self._counts,
            hot_indices=self.places,
            attention_indices=None,
            miss_mask=None,
            device_global_indices=self.held,
            lru_slots=self.order,
            stats=self.counters,
            request_state_indices=self._state_rows,
            request_state_count=len(self._state_rows),
            hot_table_stride=self._hot_pages.stride(0),
            hot_size=self._buffer,
            hash_size=table,
            region_stride=self._buffer,
            attention_block_stride=PAGE,
            source_bt_stride=self._host_pages.stride(0),
            source_num_reqs=len(self._host_pages),
            source_num_blocks=self._host_pages.shape[1],
            source_block_size=PAGE,
            resident_bt_stride=0 if resident_pages is None else resident_pages.stride(0),
            resident_num_reqs=0 if resident_pages is None else len(resident_pages),
            resident_num_blocks=0 if resident_pages is None else resident_pages.shape[1],
            resident_block_size=PAGE,
            resident_null_block=0,
            input_row_stride=positions.stride(0),
            attention_row_stride=0,
            valid_count_stride=0,
        )
        if skip_io:
            return
        self._library.launch(
            COPY,
            (rows, min(_COPY_BLOCKS_OF_A_ROW, max(1, _COPY_BLOCKS // rows))),
            _COPY_THREADS,
            0,
            **sizes,
            host_cache=self._host.data_ptr() - PAGE * entry_bytes,
            hot_cache=self._device,
            miss_global_indices=self._from,
            miss_hot_indices=self._to,
            miss_counts=self._counts,
            hot_rows=len(self._device),
            row_bytes=entry_bytes,
            hot_block_stride=PAGE * entry_bytes,
        )


def pages_of(places: Any, first: int = 0) -> Any:
    """Return int32 [requests, pages], from the place of every token or slot, [requests, many].

    `first`: number of the page that begins at place 0.
    """
    torch = require_gpu()
    return (places[:, ::PAGE] // PAGE + first).to(torch.int32).contiguous()
