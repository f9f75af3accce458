"""A model on a machine: what weights, reserve and pools take, whether it fits, what runs out when.

Follows the engine (SGLang): the static share of the GPU, `mem_fraction_static`, holds weights and
the KV pool; what is left over, the reserve, holds activations, CUDA graphs and HiSparse's tables of
the request slots. Every rank has its own host pool, also when tensor parallelism makes the ranks
hold the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hisparse_sim.simulator.serving.engines import NEWEST, Engine
from hisparse_sim.simulator.serving.hardware import Hardware
from hisparse_sim.simulator.serving.memory import (
    Capacity,
    baseline_pool_tokens,
    capacity,
    device_pool_tokens,
    device_tokens,
    host_pool_bytes,
    pages,
    slot_table_bytes,
    unbudgeted_bytes,
)
from hisparse_sim.simulator.serving.models import Model
from hisparse_sim.simulator.serving.steptimes import Layout

RESERVE = "GPU reserve"

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
    counts = model.parameters()
    up = model.kv_lora_rank * model.heads * (model.nope_dim + model.value_dim) * model.layers
    to_keys = model.indexer_key_parameters
    unsplit = model.unsplit_attention_parameters - to_keys
    tp = layout.attention_tp
    attention = (unsplit + (counts.attention - unsplit - to_keys) / tp) * model.weight_bytes
    router = (model.layers - model.dense_layers) * model.hidden * model.experts
    split = (
        counts.experts * model.expert_weight_bytes
        + (counts.dense - router) * model.weight_bytes
        + 2 * counts.head
    )
    whole = 2 * (router + to_keys + (up + counts.embedding) / tp)
    return round(attention + split / layout.gpus + whole) + LOADING_BYTES


@dataclass(frozen=True)
class Deployment:
    """One serving instance. `pool_bytes` and `host_bytes` override what the machine gives."""

    model: Model
    hardware: Hardware
    layout: Layout
    kv_dtype: str = "bf16"
    mem_fraction_static: float = 0.85
    pool_bytes: int | None = None  # device pool of one GPU
    host_bytes: int | None = None  # host memory of one GPU's rank
    host_reserve_bytes: int = 10_000_000_000  # of the node's host memory, not for pools
    engine: Engine = NEWEST

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
        return int(free * self.mem_fraction_static) - self.weight_bytes

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
        ranks = min(self.layout.gpus, self.hardware.gpus)
        return (self.hardware.node_host_bytes - self.host_reserve_bytes) // ranks

    @property
    def pulling_gpus(self) -> int:
        """GPUs that swap in from one host at once: all ranks reach a layer together."""
        return min(self.layout.gpus, self.hardware.gpus_per_host)

    def check_weights(self) -> None:
        """Raise ValueError with the figures if the weights leave no room for KV."""
        if self.device_pool_bytes <= 0:
            free = self.hardware.gpu_bytes - self.hardware.runtime_bytes
            raise ValueError(
                f"{self.model.name} does not fit: weights take {self.weight_bytes / 1e9:.1f} GB a"
                f" GPU, {self.mem_fraction_static:g} of {free / 1e9:.1f} GB is"
                f" {free * self.mem_fraction_static / 1e9:.1f} GB"
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
        )

    def pool_tokens(self, ratio: int) -> int:
        """P of one rank under HiSparse."""
        self.check_weights()
        return device_pool_tokens(
            self.model, self.kv_dtype, ratio, self.device_pool_bytes, self.engine
        )

    def unbudgeted_bytes(self, ratio: int) -> int:
        """Bytes beside the pool that the engine forgot to count: they come out of the reserve."""
        return unbudgeted_bytes(
            self.model, self.kv_dtype, ratio, self.pool_tokens(ratio), self.engine
        )

    def capacity(
        self, ratio: int, device_buffer_size: int, tokens: int, output: int = 0
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


@dataclass(frozen=True)
class Shortage:
    """One resource that a plan exhausts: what, when, and what the engine then does."""

    what: str
    when: str
    effect: str
    reason: str


def shortages(
    deployment: Deployment,
    ratio: int,
    device_buffer_size: int,
    prompt: int,
    output: int,
    requests: int,
    max_running_requests: int,
    colocated: bool = True,
) -> list[Shortage]:
    """What `requests` on one rank, all decoding together from their first token, run out of.

    Empty if they all finish without a shortage. `max_running_requests` is per rank. Activations and
    CUDA graphs share the reserve with the slot tables and are not counted: a table that takes more
    than half of the reserve is reported as a risk.
    """
    found = deployment.capacity(ratio, device_buffer_size, prompt + output, output)
    output = found.output
    pool, logical = found.pool_tokens, found.logical_tokens
    out: list[Shortage] = []
    if found.limit == "host":
        out.append(Shortage("host memory", "at start", "the engine does not start", found.reason))
    if found.limit == RESERVE:
        out.append(Shortage(RESERVE, "at start", "out of GPU memory", found.reason))
    if found.limit == "length":
        out.append(Shortage("length", "at admission", "the request is refused", found.reason))
    tables = (max_running_requests + 1) * slot_table_bytes(
        deployment.model, device_buffer_size, deployment.engine
    )
    reserve = deployment.reserve_bytes - deployment.unbudgeted_bytes(ratio)
    if tables > reserve:
        out.append(
            Shortage(
                RESERVE,
                "at start",
                "out of memory while the slot tables are made",
                f"{max_running_requests + 1:,} slots take {tables / 1e9:.1f} GB, the reserve has"
                f" {reserve / 1e9:.1f} GB",
            )
        )
    elif tables > reserve / 2:
        out.append(
            Shortage(
                RESERVE,
                "in a large prefill",
                "may run out of memory",
                f"{max_running_requests + 1:,} slots take {tables / 1e9:.1f} of the"
                f" {reserve / 1e9:.1f} GB that activations need too",
            )
        )
    held = device_tokens(prompt, device_buffer_size)
    staged = pages(prompt) if colocated else 0
    if (requests - 1) * held + max(held, staged) > pool:
        room = max((pool - max(held, staged)) // held + 1, 0) if pool >= staged else 0
        out.append(
            Shortage(
                "device pool",
                "at admission",
                f"only {room} run, the others queue",
                f"{requests - 1:,} hot buffers of {held:,} tokens and"
                + (f" a prompt of {prompt:,}" if colocated else " one more")
                + f" exceed {pool:,} tokens",
            )
        )
    if requests * pages(prompt) > logical:
        out.append(
            Shortage(
                "indexer keys and host pool",
                "at admission",
                f"only {logical // pages(prompt)} run, the others queue",
                f"{requests:,} prompts of {prompt:,} tokens exceed {logical:,} tokens",
            )
        )
    elif requests * pages(prompt + output) > logical:
        step = logical // requests // 64 * 64 - prompt
        out.append(
            Shortage(
                "indexer keys and host pool",
                f"at step {step + 1:,} of decode",
                "requests are retracted and prefilled again",
                f"{requests:,} requests of {prompt + step + 1:,} tokens need another page each, the"
                f" pool has {logical:,} tokens",
            )
        )
    return out


def pinned_bytes(deployment: Deployment, ratio: int) -> int:
    """Host memory that all ranks of the instance pin together."""
    pool = deployment.pool_tokens(ratio)
    rank = host_pool_bytes(pool, ratio, deployment.model.layers, deployment.entry_bytes)
    return rank * deployment.layout.gpus
