"""A swap-in kernel, and checks that all share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PAGE = 64  # tokens; the engine reserves one page behind the slots of a request


@dataclass(frozen=True)
class Kernel:
    """A swap-in kernel, called as SGLang calls its own.

    Attributes
    ----------
    name
        As `--kernel` names it.
    swap_in
        Takes the arguments of the engine's `load_cache_to_device_buffer_mla`.
    copy_planned
        Takes those of `copy_cache_planned_mla`: moves the KV entries of a recorded plan.
    prepare
        `prepare(top_k, buffer, entry_bytes)` builds and loads what those calls will need, so that
        they may be captured into a CUDA graph.
    pads_rows
        Whether a request longer than the buffer may select fewer than top_k positions.
    """

    name: str
    swap_in: Callable[..., None]
    copy_planned: Callable[..., None]
    prepare: Callable[[int, int, int], None]
    pads_rows: bool


def check_tensor(
    name: str, tensor: Any, dtypes: Sequence[str], shape: Sequence[int], device: str = "cuda"
) -> None:
    """Raise ValueError unless the tensor has one of the dtypes, at least the shape, dense rows."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in dtypes:
        raise ValueError(f"{name} must be {' or '.join(dtypes)}, got {dtype}")
    actual = tuple(tensor.shape)
    if len(actual) != len(shape) or any(a < s for a, s in zip(actual, shape, strict=True)):
        wanted = ", ".join(f">= {size}" for size in shape)
        raise ValueError(f"{name} must have shape [{wanted}], got {list(actual)}")
    if tensor.stride()[-1] != 1:
        raise ValueError(f"{name} must be contiguous along its last axis")
    if tensor.device.type != device:
        raise ValueError(f"{name} must lie on {device}, not on {tensor.device.type}")
