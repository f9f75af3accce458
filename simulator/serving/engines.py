"""Releases of the engines: whose rules a replay follows, and what differs in memory, admission and
swap-in.

A release is the oldest one with all earlier changes applied. Each change names its release, its
pull request if known, and a place in the wheel of that release (below sglang/srt). All were read in
the source, none was run. Post releases behave like their base. Of vLLM the rules of replay are
known (`simulator/replay/modes/vllm.py`), its memory and admission are not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

RELEASES = tuple(f"0.5.{n}" for n in range(12, 24))
ALL_LAYERS, FULL_IF_COLOCATED, FULL_LAYERS = (
    "all layers",
    "full layers, prefill on the same GPUs",
    "full layers",
)


@dataclass(frozen=True)
class Engine:
    """The behaviour of one release; the defaults are those of SGLang 0.5.12."""

    name: str
    rules: str = "sglang"  # of a replay, a name in `simulator.replay.modes.RULES`
    memory: bool = True  # whether memory and admission are modelled
    budgets_every_key: bool = False
    budgets_fp8_as_stored: bool = False
    baseline_keys: str = ALL_LAYERS
    pads_context_table: bool = False
    plans_shared_misses: bool = False
    reads_block_size: bool = False
    admits_with_page: bool = False
    promises_whole_outputs: bool = False
    drafts: bool = False

    def mode(self, shares_index: bool, drafts: bool) -> str:
        """The mode of serving that it has for a model with layers that share an index, or without,
        a name of `exposure.MODES`: it does not prefetch where it speculates."""
        ahead = self.plans_shared_misses and shares_index and not drafts
        return "prefetch" if ahead else "hisparse"

    def baseline_key_layers(self, layers: int, full_layers: int, disaggregated: bool) -> int:
        """Layers that keep indexer keys without HiSparse; with it all of them do."""
        only_full = self.baseline_keys == FULL_LAYERS or (
            self.baseline_keys == FULL_IF_COLOCATED and not disaggregated
        )
        return full_layers if only_full else layers


@dataclass(frozen=True)
class Change:
    """One fact of `Engine`, from the release `since` on."""

    fact: str
    since: str
    value: bool | str
    meaning: str
    source: str


CHANGES = (
    Change(
        "pads_context_table",
        "0.5.13",
        True,
        "the table of host locations has one page more than the context",
        "managers/hisparse_coordinator.py, __init__",
    ),
    Change(
        "reads_block_size",
        "0.5.15",
        True,
        "swap_in_block_size is read, 960 if not given; before 0.5.15 the kernel ran 1024 threads",
        "https://github.com/sgl-project/sglang/pull/27563; mem_cache/sparsity/factory.py",
    ),
    Change(
        "budgets_every_key",
        "0.5.17",
        True,
        "with HiSparse the pool's size counts R indexer keys per token; before 0.5.17 it counted"
        " one key, and the remaining R - 1 were taken from the reserve",
        "https://github.com/sgl-project/sglang/pull/31992; model_executor/pool_configurator.py",
    ),
    Change(
        "budgets_fp8_as_stored",
        "0.5.17",
        True,
        "an fp8 entry counts as the 656 bytes that it takes; before 0.5.17, as 576",
        "https://github.com/sgl-project/sglang/pull/31992; model_executor/pool_configurator.py",
    ),
    Change(
        "baseline_keys",
        "0.5.18",
        FULL_IF_COLOCATED,
        "without HiSparse, and with prefill on the same GPUs, layers that share an indexer keep no"
        " keys; before 0.5.18 all layers kept them",
        "https://github.com/sgl-project/sglang/pull/30531; mem_cache/kv_cache_configurator.py",
    ),
    Change(
        "plans_shared_misses",
        "0.5.18",
        True,
        "layers that share an indexer replay the copies of the layer before them, ahead of time",
        "managers/hisparse_coordinator.py, _init_shared_index_prefetch",
    ),
    Change(
        "admits_with_page",
        "0.5.21",
        True,
        "requests of a fixed length are admitted with one page more than their prompt",
        "managers/schedule_policy.py, add_one_req_ignore_eos",
    ),
    Change(
        "baseline_keys",
        "0.5.22",
        FULL_LAYERS,
        "without HiSparse, layers that share an indexer keep no keys, wherever prefill runs",
        "mem_cache/kv_cache_configurator.py, _should_elide_dsa_index_k",
    ),
    Change(
        "promises_whole_outputs",
        "0.5.22",
        True,
        "future tokens of running requests of a fixed length count in full; before 0.5.22 they were"
        " scaled by the scheduler's estimate",
        "managers/schedule_policy.py, _get_running_request_total_token_offset",
    ),
    Change(
        "drafts",
        "0.5.22",
        True,
        "HiSparse runs with speculative decoding, linear drafts of 2 to 4 rows: a step fetches what"
        " any of its queries misses, once",
        "arg_groups/hisparse_hook.py, validate_hisparse; managers/hisparse_coordinator.py,"
        " HiSparseSpecSwapManager",
    ),
)
VLLM = Engine("vllm-0.33", rules="vllm", memory=False, plans_shared_misses=True, drafts=True)
VLLM_SOURCE = "v1/hisparse/runtime.py and coordinator.py of the vllm 0.33.0 wheel"


def _at(release: str) -> Engine:
    place = RELEASES.index(release)
    facts: dict[str, Any] = {
        change.fact: change.value for change in CHANGES if RELEASES.index(change.since) <= place
    }
    return replace(Engine(f"sglang-{release}"), **facts)


SGLANG = {engine.name: engine for engine in map(_at, RELEASES)}
ENGINES = {**SGLANG, VLLM.name: VLLM}
NEWEST = ENGINES[f"sglang-{RELEASES[-1]}"]
KNOWN = f"{next(iter(SGLANG))} to {NEWEST.name}"


def load_engine(name: str, *, memory: bool = False) -> Engine:
    """The engine called `name`, such as sglang-0.5.23; a post release stands for its base.

    Raises ValueError naming the known ones, or for one whose memory is not modelled where
    `memory` is needed.
    """
    found = ENGINES.get(re.sub(r"\.?post\d+$", "", name.casefold()))
    if found is None:
        others = "" if memory else f" and {VLLM.name}"
        raise ValueError(f"unknown engine {name!r}; known: {KNOWN}{others}")
    if memory and not found.memory:
        raise ValueError(
            f"memory and admission of {found.name} are not modelled, only its replay: choose an"
            f" engine from {KNOWN}, or sweep without ratios"
        )
    return found
