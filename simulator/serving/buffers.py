"""The buffer sizes that the engine takes."""

from __future__ import annotations

from collections.abc import Iterator

from hisparse_sim.simulator.serving.lengths import PAGE_TOKENS
from hisparse_sim.simulator.serving.model import Model

MAX_BUFFER = 32_767  # slot ids are int16


def whole_pages(device_buffer_size: int, position_tokens: int = 1) -> bool:
    """Whether slots of positions of so many tokens fill whole pages, as the engine requires."""
    return device_buffer_size * position_tokens % PAGE_TOKENS == 0


def buffer_faults(model: Model, device_buffer_size: int, top_k: int = 0) -> Iterator[str]:
    """Sentences on why the engine refuses a buffer: top_k <= B <= 32767, in whole pages.

    `top_k`: of a configuration, if it states one above the model's.
    """
    size = f"device_buffer_size {device_buffer_size}"
    needed = max(model.top_k, top_k)
    if device_buffer_size < needed:
        yield (
            f"{size} is smaller than the top-k {needed} of {model.name}: one step would not fit;"
            f" choose {needed} or more"
        )
    if device_buffer_size > MAX_BUFFER:
        yield f"{size} is above {MAX_BUFFER}: the engine keeps slot ids in 16 bits"
    # A toy that selects less than a page runs in no engine: its sizes are priced as they are.
    toy = model.top_k * model.position_tokens < PAGE_TOKENS
    if not toy and not whole_pages(device_buffer_size, model.position_tokens):
        yield f"{size} is not a multiple of the page size, {PAGE_TOKENS}"


def check_buffer(model: Model, device_buffer_size: int) -> None:
    """Raise ValueError for a buffer that the engine refuses."""
    for fault in buffer_faults(model, device_buffer_size):
        raise ValueError(fault)
