"""Our kernel's library: compiled from native.cu for given sizes, loaded, and called."""

import ctypes
import functools
from pathlib import Path

from hisparse_sim.gpu_replay.kernels.build import GpuError, build_library, require_gpu

SOURCE = Path(__file__).with_name("native.cu")
HEADERS = tuple(SOURCE.with_name(name) for name in ("pieces.cuh", "swap_in.cuh"))

# Sizes of a library that is only wanted for what does not depend on them.
ANY_SIZES = (1, 1, 16)


class SwapIn(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "top_k", "tokens", "locs", "host_locs", "order", "out", "request", "seq_len", "real",
            "host", "device", "plan_source", "plan_target", "plan_count",
        )),
        *((name, ctypes.c_int64) for name in (
            "top_k_stride", "tokens_stride", "locs_stride", "host_stride", "order_stride",
            "out_stride", "plan_stride",
        )),
        *((name, ctypes.c_int32) for name in (
            "batch", "cluster", "wide_request", "wide_seq_len", "skip_io", "early",
        )),
        ("worth", ctypes.c_void_p),
        ("worth_stride", ctypes.c_int64),
    ]  # fmt: skip


class Planned(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "source", "target", "count", "real", "host", "device",
        )),
        ("stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("batch", "blocks", "skip_io")),
    ]  # fmt: skip


def check_sizes(top_k: int, buffer: int, entry_bytes: int) -> None:
    """Raise ValueError for a size that the kernel cannot take."""
    if not 1 <= top_k <= buffer <= 32767:
        raise ValueError(
            f"the buffer must hold top_k = {top_k} slots or more and at most 32767, got {buffer}"
        )
    if entry_bytes < 16 or entry_bytes % 16:
        raise ValueError(
            f"the native kernel moves KV entries in 16-byte pieces; {entry_bytes} is not a "
            "multiple of 16"
        )


def compile_native(top_k: int, buffer: int, entry_bytes: int, arch: str) -> Path:
    """Path of the library for these sizes, built if need be (seconds). Needs nvcc, no GPU."""
    check_sizes(top_k, buffer, entry_bytes)
    sizes = [f"-DTOP_K={top_k}", f"-DBUFFER={buffer}", f"-DENTRY_BYTES={entry_bytes}"]
    name = f"native-{top_k}-{buffer}-{entry_bytes}"
    return build_library(
        name,
        SOURCE.read_text(),
        arch=arch,
        flags=["-std=c++17", f"-I{SOURCE.parent}", *sizes],
        depends=HEADERS,
    )


class Library:
    """One compiled native.cu on one device."""

    def __init__(self, path: Path, device: int) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.hs_error.restype = ctypes.c_char_p
        self._check(self._library.hs_prepare(device))

    def _check(self, code: int) -> None:
        if code:
            reason = self._library.hs_error(code).decode()
            needs = self._library.hs_shared_bytes()
            raise GpuError(
                f"the native kernel could not be launched: {reason} "
                f"(it wants {needs} bytes of shared memory per block; "
                "host_cache must be pinned memory)"
            )

    def swap_in(self, arguments: SwapIn, stream: int) -> None:
        self._check(self._library.hs_swap_in(ctypes.byref(arguments), ctypes.c_void_p(stream)))

    def copy_planned(self, arguments: Planned, stream: int) -> None:
        self._check(self._library.hs_copy_planned(ctypes.byref(arguments), ctypes.c_void_p(stream)))

    def pci_address(self, device: int) -> str:
        """Where the device sits on the PCI bus, such as 0000:1b:00.0."""
        address = ctypes.create_string_buffer(32)
        self._check(self._library.hs_pci_address(device, address, len(address)))
        return address.value.decode().lower()

    def empty(self, stream: int) -> None:
        """Launch a kernel that does nothing: what a launch and its timing cost."""
        self._check(self._library.hs_empty(ctypes.c_void_p(stream)))

    def delay(self, us: float, stream: int) -> None:
        """Keep the stream busy for some microseconds."""
        self._check(self._library.hs_delay(ctypes.c_int64(int(us * 1e3)), ctypes.c_void_p(stream)))


@functools.cache
def load_native(top_k: int, buffer: int, entry_bytes: int, device: int) -> Library:
    """The library for these sizes on that device, built and loaded on first use."""
    torch = require_gpu()
    major, minor = torch.cuda.get_device_capability(device)
    return Library(compile_native(top_k, buffer, entry_bytes, f"{major}{minor}"), device)
