"""The engine's own swap-in kernel, compiled from the user's installed sglang package.

Nothing of sglang is imported or copied: its CUDA header is found on disk, instantiated for the
sizes wanted, and called through apache-tvm-ffi. Which template parameters and arguments the
installed release has is read from the header, so that releases since 0.5.11 can be built.
"""

import functools
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisparse_sim.gpu_replay.kernels.build import GpuError, build_library, require_gpu
from hisparse_sim.gpu_replay.kernels.kernel import Kernel

INSTALL = "pip install --no-deps sglang apache-tvm-ffi"

# Where releases keep the header and what it includes, newest first.
_LAYOUTS = (
    ("kernels/jit/csrc/kvcacheio/hisparse.cuh", "kernels/jit/include"),
    ("jit_kernel/csrc/hisparse.cuh", "jit_kernel/include"),
)

DEFAULT_BLOCK_SIZE = 960  # the engine's `swap_in_block_size`


@dataclass(frozen=True)
class Sources:
    """The engine's kernel as installed."""

    header: Path
    include: Path
    package: Path

    @property
    def version(self) -> str:
        """Release of the installed sglang, or `unknown`."""
        for info in self.package.parent.glob("sglang-*.dist-info"):
            return info.name.removeprefix("sglang-").removesuffix(".dist-info")
        return "unknown"


@functools.cache
def find_sglang() -> Sources:
    """Where the installed sglang keeps its swap-in kernel; GpuError says how to install it."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise GpuError(f"the engine's kernel needs the sglang package: {INSTALL}")
    if importlib.util.find_spec("tvm_ffi") is None:
        raise GpuError(f"the engine's kernel needs the apache-tvm-ffi package: {INSTALL}")
    package = Path(next(iter(spec.submodule_search_locations)))
    for header, include in _LAYOUTS:
        if (package / header).is_file():
            return Sources(package / header, package / include, package)
    raise GpuError(
        f"the sglang package in {package} holds no HiSparse kernel; "
        "releases 0.5.11 to 0.5.23 are known to: pip install --no-deps -U sglang"
    )


@dataclass(frozen=True)
class Signature:
    """Names in order of what a function template of the header takes."""

    template: tuple[str, ...]
    arguments: tuple[str, ...]


def read_signature(header: str, function: str) -> Signature | None:
    """Template parameters and arguments of a function template, if the header's text has it."""
    pattern = rf"template\s*<([^<>]*)>\s*void\s+{function}\s*\(([^()]*)\)"
    match = re.search(pattern, header)
    if match is None:
        return None
    template, arguments = (
        tuple(item.split()[-1] for item in group.split(",") if item.strip())
        for group in match.groups()
    )
    return Signature(template, arguments)


@functools.cache
def _swap_in_signature() -> Signature:
    signature = read_signature(find_sglang().header.read_text(), "load_cache_to_device_buffer")
    if signature is None:
        raise GpuError(f"{find_sglang().header} has no swap-in kernel that is known here")
    return signature


def instantiate(header: str, function: str, values: dict[str, object]) -> str:
    """`function<...>` with the header's template parameters filled in from `values` by name."""
    signature = read_signature(header, function)
    if signature is None:
        raise GpuError(f"the installed sglang has no {function}; 0.5.23 is known to")
    unknown = [name for name in signature.template if name not in values]
    if unknown:
        raise GpuError(
            f"the installed sglang's {function} has an unknown parameter {unknown[0]}; "
            "releases 0.5.11 to 0.5.23 are known"
        )
    literals = [str(values[name]).lower() for name in signature.template]
    return f"{function}<{', '.join(literals)}>"


@functools.cache
def load_function(
    arch: str, function: str, values: tuple[tuple[str, object], ...], file: str = ""
) -> Any:
    """A function template of the engine's header, or of another `file` beside it, as a loaded
    module, its template parameters filled in from `values`."""
    sources = find_sglang()
    import tvm_ffi
    from tvm_ffi import libinfo

    path = sources.header.with_name(file) if file else sources.header
    if not path.is_file():
        raise GpuError(f"the installed sglang {sources.version} has no {path.name}")
    header = path.read_text()
    expression = instantiate(header, function, dict(values))
    source = (
        "#include <tvm/ffi/function.h>\n"
        f'#include "{path}"\n'
        "namespace sglang {}\n"
        "using namespace sglang;\n"
        f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({function}, ({expression}));\n"
    )
    library = Path(libinfo.find_libtvm_ffi())
    includes = [str(sources.include), *libinfo.include_paths()]
    flags = ["-std=c++20", "--expt-relaxed-constexpr", f"-DSGL_CUDA_ARCH={arch}0"]
    flags += [f"-I{include}" for include in includes]
    flags += [f"-L{library.parent}", f"-l{library.stem.removeprefix('lib')}"]
    built = build_library(
        f"sglang-{sources.version}-{function}",
        source,
        arch=arch,
        flags=flags,
        depends=[path],
    )
    return tvm_ffi.load_module(str(built))


def compile_sglang(
    top_k: int, buffer: int, block_size: int, plan: bool, skip_io: bool, arch: str
) -> Any:
    """The engine's swap-in for these sizes as a loaded module; about 10 s when not yet built."""
    values = {
        "BLOCK_SIZE": block_size,
        "NUM_TOP_K": top_k,
        "HOT_BUFFER_SIZE": buffer,
        "IsMLA": True,
        "IsDsv4Layout": False,
        "SPARSE_BLOCK_SIZE": 1,
        "TopKIsBlocks": False,
        "RecordMissPlan": plan,
        "SkipIO": skip_io,
    }
    for wanted, parameter in ((plan, "RecordMissPlan"), (skip_io, "SkipIO")):
        if wanted and parameter not in _swap_in_signature().template:
            raise GpuError(
                f"sglang {find_sglang().version} cannot do {parameter}: "
                "pip install --no-deps -U sglang"
            )
    return load_function(arch, "load_cache_to_device_buffer", tuple(values.items()))


def architecture() -> str:
    """Compute capability of the GPU, such as "90"."""
    major, minor = require_gpu().cuda.get_device_capability()
    return f"{major}{minor}"


def load_cache_to_device_buffer_mla(
    top_k_tokens: Any,
    device_buffer_tokens: Any,
    host_cache_locs: Any,
    device_buffer_locs: Any,
    host_cache: Any,
    device_buffer: Any,
    top_k_device_locs: Any,
    req_pool_indices: Any,
    seq_lens: Any,
    lru_slots: Any,
    item_size_bytes: int,
    num_top_k: int,
    hot_buffer_size: int,
    page_size: int = 1,
    block_size: int = DEFAULT_BLOCK_SIZE,
    num_real_reqs: Any = None,
    miss_src: Any = None,
    miss_dst: Any = None,
    miss_count: Any = None,
    skip_io: bool = False,
) -> None:
    """The engine's swap-in; arguments as in `native.load_cache_to_device_buffer_mla`."""
    torch = require_gpu()
    plan = miss_src is not None
    module = compile_sglang(num_top_k, hot_buffer_size, block_size, plan, skip_io, architecture())
    empty = torch.empty(0, device=top_k_tokens.device)
    if num_real_reqs is None:
        num_real_reqs = torch.full(
            (1,), top_k_tokens.shape[0], dtype=torch.int32, device=top_k_tokens.device
        )
    # In the order of the header; the V cache is absent with latent attention.
    arguments = [
        top_k_tokens, device_buffer_tokens, host_cache_locs, device_buffer_locs, host_cache, empty,
        device_buffer, empty, top_k_device_locs, req_pool_indices, seq_lens, lru_slots,
        num_real_reqs, page_size, item_size_bytes,
    ]  # fmt: skip
    if "miss_count_out" in _swap_in_signature().arguments:
        arguments += [miss_src, miss_dst, miss_count] if plan else [empty, empty, empty]
    module.load_cache_to_device_buffer(*arguments)


def copy_cache_planned_mla(
    *,
    miss_src: Any,
    miss_dst: Any,
    miss_count: Any,
    num_real_reqs: Any,
    host_cache: Any,
    device_buffer: Any,
    item_size_bytes: int,
    num_blocks: int = 4,
    block_size: int = 1024,
    skip_io: bool = False,
) -> None:
    """The engine's replay of a recorded plan; arguments as in `native.copy_cache_planned_mla`."""
    torch = require_gpu()
    values = {"BLOCK_SIZE": block_size, "IsMLA": True, "IsDsv4Layout": False, "SkipIO": skip_io}
    module = load_function(architecture(), "copy_cache_planned", tuple(values.items()))
    empty = torch.empty(0, device=miss_src.device)
    module.copy_cache_planned(
        miss_src, miss_dst, miss_count, num_real_reqs, host_cache, empty, device_buffer, empty,
        num_blocks, item_size_bytes,
    )  # fmt: skip


def _prepare(top_k: int, buffer: int, entry_bytes: int) -> None:
    """Builds the plain swap-in; the engine's kernel takes the size of a KV entry at run time."""
    compile_sglang(top_k, buffer, DEFAULT_BLOCK_SIZE, False, False, architecture())


SGLANG = Kernel(
    name="sglang",
    swap_in=load_cache_to_device_buffer_mla,
    copy_planned=copy_cache_planned_mla,
    prepare=_prepare,
    pads_rows=False,
)
