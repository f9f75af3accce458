"""Compiles CUDA sources on the user's machine and keeps the results.

A library is built once per (sources, flags, architecture, nvcc version) and found again in the
user's cache directory. Building needs nvcc and nothing else; no GPU.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class GpuError(RuntimeError):
    """Something that the GPU replay needs is missing or failed, in one clear sentence."""


def import_torch() -> Any:
    """The torch module, imported only when a GPU is wanted.

    Raises
    ------
    GpuError
        if torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise GpuError(
            "the GPU replay needs PyTorch, which is not installed: pip install torch"
        ) from None
    return torch


def require_gpu() -> Any:
    """The torch module, once an NVIDIA GPU answers through it; else GpuError."""
    torch = import_torch()
    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise GpuError(
            "the GPU replay needs an NVIDIA GPU, and PyTorch sees none here; "
            "simulations (sweep, curve, plan) run without one"
        )
    return torch


def cache_dir() -> Path:
    """Where libraries are kept: `$XDG_CACHE_HOME/hisparse-sim`, else `~/.cache/hisparse-sim`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hisparse-sim"


@functools.cache
def find_nvcc() -> Path:
    """The CUDA compiler: on the PATH, under `$CUDA_HOME`, or in /usr/local/cuda; else GpuError."""
    places = [shutil.which("nvcc")]
    home = os.environ.get("CUDA_HOME")
    places += [f"{home}/bin/nvcc"] if home else []
    places += ["/usr/local/cuda/bin/nvcc"]
    for place in places:
        if place and os.access(place, os.X_OK):
            return Path(place)
    raise GpuError(
        "the CUDA compiler nvcc was not found: install the CUDA toolkit, "
        "or point CUDA_HOME at it or put nvcc on the PATH"
    )


@functools.cache
def nvcc_version() -> str:
    """Release of nvcc, such as `13.0`."""
    answer = subprocess.run([find_nvcc(), "--version"], capture_output=True, text=True)
    match = re.search(r"release (\d+\.\d+)", answer.stdout)
    if answer.returncode != 0 or match is None:
        raise GpuError(f"{find_nvcc()} --version failed, so nothing can be compiled")
    return match.group(1)


def build_library(
    name: str,
    source: str,
    *,
    arch: str,
    flags: Sequence[str] = (),
    depends: Sequence[Path] = (),
    directory: Path | None = None,
) -> Path:
    """Compile CUDA source text into a shared library, or find the one built before.

    Parameters
    ----------
    name
        Readable beginning of the file name.
    source
        Text of one .cu file.
    arch
        Compute capability in digits, such as `90`.
    flags
        Further arguments for nvcc, in order.
    depends
        Files that the source includes; a change in one makes a new library.
    directory
        Where to keep it; `cache_dir()` if not given.

    Returns the path of the library. Raises GpuError with the compiler's first error.
    """
    target_flag = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    command = [str(find_nvcc()), "-O3", "-shared", "-Xcompiler", "-fPIC", target_flag]
    digest = hashlib.sha256()
    for part in (source, arch, nvcc_version(), sys.platform, *flags):
        digest.update(part.encode() + b"\0")
    for file in depends:
        digest.update(file.read_bytes())
    target = (directory or cache_dir()) / f"{name}-{digest.hexdigest()[:16]}.so"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Built beside the target and renamed: two processes may build at once, and a build that
        # breaks off leaves nothing that looks finished.
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            input_file = Path(scratch) / f"{name}.cu"
            input_file.write_text(source)
            built = Path(scratch) / target.name
            # The flags come last, so that libraries follow the object that needs them.
            command += [str(input_file), "-o", str(built), *flags]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                raise GpuError(f"nvcc could not build {name}: {_first_error(result.stderr)}")
            built.replace(target)
    except OSError as error:
        raise GpuError(f"cannot keep built kernels in {target.parent}: {error.strerror}") from None
    return target


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line or "fatal" in line]
    return (errors or lines or ["no message"])[0]
