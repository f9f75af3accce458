"""Machines: memory and rates of a GPU and of its share of the host, from hardware.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hisparse_sim.simulator.serving.profiles import Profile, Source, find_profile, read_profiles

MOST_GPUS = 2**20


@dataclass(frozen=True)
class Hardware:
    """One node, or one group of GPUs that serves together."""

    name: str
    description: str
    gpus: int
    gpu_bytes: int  # memory of one GPU as the driver reports it
    runtime_bytes: int  # taken on each GPU before weights: CUDA context, NCCL
    node_host_bytes: int  # host memory of all GPUs together
    step_times: str  # whose step-time table holds; empty: none
    prefill_scale: float  # prefill time of this machine over that of the table
    decode_scale: float
    link: str  # name of the host link's profile
    gpus_per_host: int  # that read from one host memory at once
    bf16_tflops: float  # peak, dense; here and below 0: not known
    fp8_tflops: float
    memory_gb_s: float  # of the GPU's own memory, peak
    gpu_link_gb_s: float  # between the GPUs of a node, each GPU and direction
    node_link_gb_s: float  # the same between nodes
    variants: str  # another machine that may have been meant
    sources: Mapping[str, Source]

    def missing_rates(self, gpus: int) -> tuple[str, ...]:
        """Names of the peak rates that are not known and without which no roofline holds for an
        instance of `gpus`."""
        needed = ["bf16_tflops", "fp8_tflops", "memory_gb_s", "gpu_link_gb_s"]
        if gpus > self.gpus:
            needed.append("node_link_gb_s")
        return tuple(name for name in needed if not getattr(self, name))

    @property
    def host_bytes(self) -> int:
        """Host memory for each GPU."""
        return self.node_host_bytes // self.gpus


def _hardware(profile: Profile) -> Hardware:
    gpus = profile.count("gpus", least=1, most=MOST_GPUS)
    return Hardware(
        name=profile.name,
        description=profile.labels.get("description", ""),
        gpus=gpus,
        gpu_bytes=profile.count("gpu_bytes", least=1),
        runtime_bytes=profile.count("runtime_bytes"),
        node_host_bytes=profile.count("node_host_bytes", least=1),
        step_times=profile.labels.get("step_times", ""),
        prefill_scale=profile.number("prefill_scale", 1.0, positive=True),
        decode_scale=profile.number("decode_scale", 1.0, positive=True),
        link=profile.labels.get("link", ""),
        gpus_per_host=profile.count("gpus_per_host", gpus, least=1, most=MOST_GPUS),
        bf16_tflops=profile.number("bf16_tflops", 0.0),
        fp8_tflops=profile.number("fp8_tflops", 0.0),
        memory_gb_s=profile.number("memory_gb_s", 0.0),
        gpu_link_gb_s=profile.number("gpu_link_gb_s", 0.0),
        node_link_gb_s=profile.number("node_link_gb_s", 0.0),
        variants=profile.labels.get("variants", ""),
        sources=profile.sources,
    )


def load_hardware(name: str, profiles: str | Path | None = None) -> Hardware:
    """The machine called `name`, shipped or from the user's TOML file; else lists the known."""
    return _hardware(find_profile("hardware", name, profiles))


def hardware_names(profiles: str | Path | None = None) -> tuple[str, ...]:
    """Names of all known machines, sorted."""
    return tuple(sorted(read_profiles("hardware", profiles)))
