"""Host memory that GPUs read: pinned by one process, or shared and pinned by all of them.

Also the NUMA node of a GPU. Linux only.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hisparse_sim.gpu_replay.kernels.build import GpuError, import_torch, require_gpu

FILL_BYTES = 1 << 28  # random bytes made at a time


def fill_random(memory: Any, device: str) -> None:
    """Fill a tensor of uint8 rows with random bytes, made on `device`."""
    torch = import_torch()
    row_bytes = memory[:1].numel()
    step = max(1, FILL_BYTES // row_bytes)
    for first in range(0, len(memory), step):
        part = memory[first : first + step]
        part.copy_(torch.empty(part.shape, dtype=torch.uint8, device=device).random_())


@contextmanager
def shared_file(size: int) -> Iterator[str]:
    """Anonymous memory of `size` bytes; yields the path by which other processes can map it.

    No named file is left behind, however the processes end.
    """
    descriptor = os.memfd_create("hisparse-host-pool")
    try:
        os.ftruncate(descriptor, size)
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def map_shared(path: str) -> Any:
    """All of a `shared_file` as a uint8 tensor, not yet pinned."""
    with open(path, "r+b") as file:
        view = mmap.mmap(file.fileno(), 0)
    torch = import_torch()
    return torch.frombuffer(view, dtype=torch.uint8)


def pinned_memory(size: int, path: str | None = None) -> Any:
    """uint8 [size], pinned for the current GPU: the process' own, or the `shared_file` at `path`.

    A shared one is registered by every process for itself and stays so until the process ends.
    """
    torch = require_gpu()
    if path is None:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    memory = map_shared(path)
    code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), size, 0))
    if code:
        raise GpuError(
            f"the shared host pool of {size / 1e9:.1f} GB could not be pinned (CUDA error {code}): "
            "a smaller `batch` needs less"
        )
    return memory


def used_bytes() -> int:
    """Host memory in use: total less available, whoever holds it; pinned memory counts."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in lines)}
    return (kib["MemTotal"] - kib["MemAvailable"]) * 1024


def numa_node(pci_address: str, system: Path = Path("/sys")) -> int | None:
    """NUMA node of the device at `pci_address` (0000:1b:00.0), or None if the host names none."""
    try:
        node = int((system / "bus/pci/devices" / pci_address.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def cpus_of(node: int, system: Path = Path("/sys")) -> set[int]:
    """Processors of a NUMA node."""
    text = (system / f"devices/system/node/node{node}/cpulist").read_text()
    cpus: set[int] = set()
    for piece in text.strip().split(","):
        first, _, last = piece.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def pin_to_node(node: int) -> None:
    """Run this process on the node's processors; memory touched from now on comes from there."""
    os.sched_setaffinity(0, cpus_of(node))
