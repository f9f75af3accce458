"""What `engine run` asks of the plugin, on its way through the environment."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

VARIABLE = "HISPARSE_SIM_ENGINE"
ENTRY_POINT = "hisparse-sim"  # the plugin's name, for SGLANG_PLUGINS

MIB = 1 << 20


@dataclass(frozen=True)
class Options:
    """Set once by `engine run`, read by every process of the server.

    Attributes
    ----------
    folder
        Where the processes leave their events and counts.
    count, record
        Whether to count misses, and to record what is selected. Recording counts as well.
    kernel
        "" for the engine's own swap-in, or `native`.
    layers
        Layers to record; None: all that have an indexer of their own.
    shared
        Layers that repeat the selection of the one before; empty if not known.
    share
        Part of the requests to record, 0 to 1, chosen by their ids.
    requests
        Most requests to record.
    device_ring_bytes, host_ring_bytes
        Room for what was selected and not yet written: on the GPU, and in pinned host memory.
    """

    folder: str
    count: bool = False
    record: bool = False
    kernel: str = ""
    layers: tuple[int, ...] | None = None
    shared: tuple[int, ...] = ()
    share: float = 1.0
    requests: int | None = None
    device_ring_bytes: int = 128 * MIB
    host_ring_bytes: int = 256 * MIB

    @property
    def counts(self) -> bool:
        """Whether misses are counted."""
        return self.count or self.record

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with what makes SGLang load the plugin with these options."""
        found = {**base, VARIABLE: json.dumps(asdict(self))}
        chosen = [name for name in base.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
        if chosen and ENTRY_POINT not in (name.strip() for name in chosen):
            found["SGLANG_PLUGINS"] = ",".join([*chosen, ENTRY_POINT])
        return found


def from_environment() -> Options | None:
    """The options of the `engine run` that started this process, if one did."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    values = json.loads(text)
    for name in ("layers", "shared"):
        if values[name] is not None:
            values[name] = tuple(values[name])
    return Options(**values)
