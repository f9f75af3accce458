"""The swap-in kernels: the engine's and our own, how they are built, and the registry of them."""

from hisparse_sim.gpu_replay.kernels.build import GpuError
from hisparse_sim.gpu_replay.kernels.kernel import Kernel

KERNELS = ("sglang", "native")


def get_kernel(name: str) -> Kernel:
    """The kernel of that name; ValueError lists the known ones, GpuError says what is missing."""
    if name == "native":
        from hisparse_sim.gpu_replay.kernels.native import NATIVE

        return NATIVE
    if name == "sglang":
        from hisparse_sim.gpu_replay.kernels.sglang import SGLANG, find_sglang

        find_sglang()
        return SGLANG
    raise ValueError(f"unknown kernel {name!r}; known: {', '.join(KERNELS)}")


def available_kernels() -> dict[str, str]:
    """Every kernel's name, with an empty text if it can run here, else what is missing."""
    missing = {}
    for name in KERNELS:
        try:
            get_kernel(name)
            missing[name] = ""
        except GpuError as error:
            missing[name] = str(error)
    return missing


def installed_kernels() -> tuple[str, ...]:
    """The names of the kernels that can run here."""
    return tuple(name for name, missing in available_kernels().items() if not missing)
