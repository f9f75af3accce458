"""A model on a machine: memory of weights, reserve and pools, and whether it fits.

Follows the engine (SGLang): the static share of the GPU, `mem_fraction_static`, holds weights and
the KV pool; the rest, the reserve, holds activations, CUDA graphs and HiSparse's tables of
the request slots. Every rank has its own host pool, even if tensor parallelism makes ranks hold
the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from hisparse_sim.simulator.serving.engines import NEWEST, Engine
from hisparse_sim.simulator.serving.hardware import Hardware
from hisparse_sim.simulator.serving.memory import (
    Capacity,
    baseline_pool_tokens,
    capacity,
    device_pool_tokens,
    host_pool_bytes,
    pages,
    unbudgeted_bytes,
)
from hisparse_sim.simulator.serving.model import Model
from hisparse_sim.simulator.serving.steptimes import Layout
from hisparse_sim.traces.arguments import whole_number
from hisparse_sim.traces.file.units import plural

RESERVE = "GPU reserve"
GIB = 1 << 30

# What loading takes beyond the parameters (rotary tables, block scales, allocator). SGLang's log of
# GLM-5-FP8 with TP 8 says 89.58 GiB, the parameters are 88.99:
# https://github.com/ajith-sirra-amd/Issues (GLM-5-FP8-MI355X-SGLANG-ERROR.md). GLM-5.2-FP8 on
# RTX PRO 6000 takes 89.44, 0.97 more than its parameters:
# https://github.com/OpenAgentsInc/hydralisk/issues/4
LOADING_BYTES = 633_000_000


def rank_weight_bytes(model: Model, layout: Layout) -> int:
    """Bytes of weights on one GPU, as the engine sees them after loading.

    Experts, dense layers and head are split over all GPUs. Data-parallel attention keeps all
    attention weights and the embedding on every GPU; tensor parallelism splits them, except the
    down-projections and the indexer. Routers, and the indexer's projections to keys and head
    weights, are whole on every GPU and in bf16. The engine keeps the latent up-projection twice: as
    loaded, and absorbed into queries and outputs in bf16. Read from SGLang 0.5.23:
    srt/models/deepseek_v2.py, srt/models/deepseek_common/deepseek_weight_loader.py,
    srt/layers/attention/dsa/dsa_indexer.py.
    """
    counts, up = model.parameters(), model.absorbed_parameters
    to_keys = model.indexer_key_parameters
    unsplit = model.unsplit_attention_parameters - to_keys
    tp = layout.attention_tp
    attention = (unsplit + (counts.attention - unsplit - to_keys) / tp) * model.weight_bytes
    router = (model.all_layers - model.dense_layers) * model.hidden * model.experts
    split = (
        counts.experts * model.expert_weight_bytes
        + (counts.dense - router) * model.weight_bytes
        + 2 * counts.head
    )
    whole = 2 * (router + to_keys + (up + counts.embedding) / tp)
    return round(attention + split / layout.gpus + whole) + LOADING_BYTES


@dataclass(frozen=True)
class Deployment:
    """One serving instance. `pool_bytes` and `host_bytes` override those of the machine."""

    model: Model
    hardware: Hardware
    layout: Layout
    kv_dtype: str = "bf16"
    mem_fraction_static: float = 0.85
    pool_bytes: int | None = None  # device pool of one GPU
    host_bytes: int | None = None  # host memory of one GPU's rank
    host_reserve_bytes: int = 10_000_000_000  # of the node's host memory, not for pools
    engine: Engine = NEWEST
    max_total_tokens: int | None = None  # --max-total-tokens: the most that a pool may have
    draft_layers: int = 0  # of speculative decoding: their KV is on the GPU, too

    def __post_init__(self) -> None:
        if not 0 < self.mem_fraction_static < 1:
            raise ValueError(
                f"mem_fraction_static must be between 0 and 1, not {self.mem_fraction_static}"
            )
        if self.layout.gpus > self.hardware.gpus and self.layout.gpus % self.hardware.gpus:
            raise ValueError(
                f"layout {self.layout.name} needs {self.layout.gpus} GPUs; {self.hardware.name} has"
                f" {self.hardware.gpus}"
            )
        if self.max_total_tokens is not None:
            whole_number("max_total_tokens", self.max_total_tokens, 1)
        self.model.entry_bytes(self.kv_dtype)

    @property
    def entry_bytes(self) -> int:
        return self.model.entry_bytes(self.kv_dtype)

    @property
    def weight_bytes(self) -> int:
        return rank_weight_bytes(self.model, self.layout)

    @property
    def device_pool_bytes(self) -> int:
        """Bytes of one GPU left for KV; 0 or less if the weights do not fit."""
        if self.pool_bytes is not None:
            return self.pool_bytes
        free = self.hardware.gpu_bytes - self.hardware.runtime_bytes
        left = int(free * self.mem_fraction_static) - self.weight_bytes
        return int(left * self.model.pool_share) if left > 0 else left

    @property
    def reserve_bytes(self) -> int:
        """Bytes of one GPU outside the static share: activations, CUDA graphs, slot tables."""
        free = self.hardware.gpu_bytes - self.hardware.runtime_bytes
        return free - int(free * self.mem_fraction_static)

    @property
    def rank_host_bytes(self) -> int:
        """Host memory that one GPU's rank may pin. TP ranks hold copies, so each needs its own."""
        if self.host_bytes is not None:
            return self.host_bytes
        free = self.hardware.node_host_bytes - self.host_reserve_bytes
        return max(free, 0) // self.ranks_per_host_memory

    @property
    def ranks_per_host_memory(self) -> int:
        """Ranks that pin from the memory that `Hardware.node_host_bytes` counts."""
        return min(self.layout.gpus, self.hardware.gpus)

    @property
    def pulling_gpus(self) -> int:
        """GPUs that swap in from one host at once: all ranks reach a layer together."""
        return min(self.layout.gpus, self.hardware.gpus_per_host)

    def check_machine(self) -> None:
        """Raise ValueError if the given pool or host memory exceeds that of the machine."""
        name, free = self.hardware.name, self.hardware.gpu_bytes - self.hardware.runtime_bytes
        if self.device_pool_bytes > free:
            raise ValueError(
                f"a device pool of {_gib(self.device_pool_bytes)} is more than the {_gib(free)} of"
                f" a GPU of {name}"
            )
        ranks = self.ranks_per_host_memory
        asked, there = self.rank_host_bytes * ranks, self.hardware.node_host_bytes
        if asked > there:
            raise ValueError(
                f"{_gib(self.rank_host_bytes)} of host memory for each of {ranks} GPUs are"
                f" {_gib(asked)}, and {name} has {_gib(there)}: if yours has more, state its total"
                " as `host_memory_gib`"
            )

    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of a result that may not have been stated: machine, memory, engine."""
        hardware = self.hardware
        other = f" (or do you mean {hardware.variants}?)" if hardware.variants else ""
        gpu = hardware.gpu_bytes - hardware.runtime_bytes
        given = self.pool_bytes is not None
        room = (
            f"{self.mem_fraction_static:g} of {_gib(gpu)} less {_gib(self.weight_bytes)} of weights"
        )
        nodes = -(-self.layout.gpus // hardware.gpus)
        lines = [
            f"{hardware.name}: {hardware.description}{other}",
            f"device pool: {_gib(self.device_pool_bytes)} per GPU, {'as given' if given else room}",
            f"host memory: {_gib(hardware.node_host_bytes)} for {hardware.gpus} GPUs"
            + (f" in each of {nodes} nodes" if nodes > 1 else "")
            + f", {_gib(self.rank_host_bytes)} for the host pool of each",
            f"engine: {self.engine.name}",
        ]
        if self.model.position_tokens > 1:
            blocks = plural(self.model.unit)
            lines.append(
                f"{self.model.name} selects {blocks} in {self.model.layers} of its"
                f" {self.model.all_layers} layers: SGLang's rules for tokens are applied to them"
            )
        if given and self.device_pool_bytes + self.weight_bytes > gpu:
            lines[1] += (
                f"; with the {_gib(self.weight_bytes)} of {self.model.name}'s weights that is more"
                f" than the {_gib(gpu)} of a GPU, so smaller weights are assumed"
            )
        return tuple(lines)

    def check_weights(self) -> None:
        """Raise ValueError with the figures if the weights leave no memory for KV."""
        if self.device_pool_bytes <= 0:
            free = self.hardware.gpu_bytes - self.hardware.runtime_bytes
            share = ceil(100 * self.weight_bytes / free) / 100
            way_out = "; no share is enough: take a layout of more GPUs or other weights"
            if share < 1:
                way_out = f"; a mem_fraction_static above {share:.2f} leaves room for KV"
            raise ValueError(
                f"{self.model.name} does not fit: weights take {self.weight_bytes / 1e9:.1f} GB"
                f" per GPU, {self.mem_fraction_static:g} of {free / 1e9:.1f} GB is"
                f" {free * self.mem_fraction_static / 1e9:.1f} GB{way_out}"
            )

    def baseline_tokens(self, disaggregated: bool = False) -> int:
        """Tokens of KV on one rank without HiSparse; `disaggregated`: prefill on other GPUs."""
        self.check_weights()
        return baseline_pool_tokens(
            self.model,
            self.kv_dtype,
            self.device_pool_bytes,
            self.engine,
            disaggregated=disaggregated,
            most=self.max_total_tokens,
            draft_layers=self.draft_layers,
        )

    def pool_tokens(self, ratio: int) -> int:
        """P of one rank under HiSparse."""
        self.check_weights()
        return device_pool_tokens(
            self.model,
            self.kv_dtype,
            ratio,
            self.device_pool_bytes,
            self.engine,
            most=self.max_total_tokens,
            draft_layers=self.draft_layers,
        )

    def unbudgeted_bytes(self, ratio: int) -> int:
        """Bytes outside the pool that the engine does not count: they come out of the reserve."""
        return unbudgeted_bytes(
            self.model, self.kv_dtype, ratio, self.pool_tokens(ratio), self.engine
        )

    def capacity(
        self,
        ratio: int,
        device_buffer_size: int,
        tokens: int,
        output: int = 0,
        scratch_tokens: int = 0,
        resident_tokens: int = 0,
    ) -> Capacity:
        """Requests of `tokens`, `output` of them generated, that one rank decodes together."""
        self.check_weights()
        found = capacity(
            self.model,
            self.kv_dtype,
            ratio,
            device_buffer_size,
            tokens,
            self.device_pool_bytes,
            self.rank_host_bytes,
            output=output,
            engine=self.engine,
            most=self.max_total_tokens,
            draft_layers=self.draft_layers,
            scratch_tokens=scratch_tokens,
            resident_tokens=resident_tokens,
        )
        extra = self.unbudgeted_bytes(ratio)
        if extra > self.reserve_bytes:
            reason = (
                f"indexer keys of {extra / 1e9:.1f} GB beside the pool exceed the reserve of"
                f" {self.reserve_bytes / 1e9:.1f} GB"
            )
            return replace(found, requests=0, limit=RESERVE, reason=reason)
        return found

    def baseline_requests(self, tokens: int, disaggregated: bool = False) -> int:
        """Requests of `tokens` that one rank holds without HiSparse."""
        return self.baseline_tokens(disaggregated) // pages(tokens)


def _gib(bytes_: int) -> str:
    return f"{bytes_ / GIB:,.1f} GiB"


def pinned_bytes(deployment: Deployment, ratio: int) -> int:
    """Host memory that all ranks of the instance pin together."""
    pool = deployment.pool_tokens(ratio)
    rank = host_pool_bytes(pool, ratio, deployment.model.layers, deployment.entry_bytes)
    return rank * deployment.layout.gpus
