"""The machine that a result was measured on."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from hisparse_sim.gpu_replay.harness.timing import capture, time_graphs
from hisparse_sim.gpu_replay.kernels.build import GpuError, nvcc_version, require_gpu

COPY_BYTES = 1 << 28


def describe_machine() -> dict[str, Any]:
    """GPU, link, driver and versions, for `gpu info` and for every result file.

    `host_to_device_gb_s` is measured: one pinned copy of 256 MiB.
    """
    torch = require_gpu()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    queried = _query_driver(
        "driver_version", "pcie.link.gen.max", "pcie.link.width.max", "pcie.link.gen.current"
    )
    return {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": queried["driver_version"],
        "pcie_generation": queried["pcie.link.gen.max"],
        "pcie_generation_now": queried["pcie.link.gen.current"],
        "pcie_width": queried["pcie.link.width.max"],
        "host_to_device_gb_s": round(measure_link(), 2),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "nvcc": _nvcc(),
        "sglang": _sglang(),
        "hisparse_sim": _version("hisparse-sim"),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def measure_link(repeats: int = 20) -> float:
    """GB/s of one large copy from pinned host memory to the device, median."""
    torch = require_gpu()
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True).random_()
    device = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    device.copy_(host)
    graph = capture(lambda: device.copy_(host, non_blocking=True))
    samples = time_graphs({"copy": graph}, repeats)["copy"]
    return COPY_BYTES / float(np.median(samples)) / 1e3


def _query_driver(*fields: str) -> dict[str, str]:
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "-i", "0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        values = [value.strip() for value in answer.splitlines()[0].split(",")]
        return dict(zip(fields, values, strict=True))
    except (OSError, subprocess.CalledProcessError, IndexError, ValueError):
        return dict.fromkeys(fields, "unknown")


def _nvcc() -> str:
    try:
        return nvcc_version()
    except GpuError:
        return "absent"


def _sglang() -> str:
    from hisparse_sim.gpu_replay.kernels.sglang import find_sglang

    try:
        return find_sglang().version
    except GpuError:
        return "absent"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "source tree"
