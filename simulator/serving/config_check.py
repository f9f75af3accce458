"""What is wrong with a --hisparse-config: what the engine refuses, and what a load exhausts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from reprlib import repr as clipped
from typing import Any

import pandas as pd

from hisparse_sim.simulator.serving.buffers import buffer_faults
from hisparse_sim.simulator.serving.deployment import RESERVE
from hisparse_sim.simulator.serving.engines import NEWEST, Engine
from hisparse_sim.simulator.serving.lengths import CUT, check_length
from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.memory import PAGE_TOKENS, pages
from hisparse_sim.simulator.serving.misses import MissesOf
from hisparse_sim.simulator.serving.model import Model
from hisparse_sim.simulator.serving.plan import make_plan
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.shortages import shortages
from hisparse_sim.traces.arguments import whole_number
from hisparse_sim.traces.documents import parse_json
from hisparse_sim.traces.errors import TraceError

MOST_THREADS = 1024  # of a swap-in block; what releases ran that do not read swap_in_block_size
DEFAULTS = {  # of the keys that HiSparse uses; the buffer's is twice the top_k given
    "top_k": 2048,
    "device_buffer_size": 4096,
    "host_to_device_ratio": 2,
    "swap_in_block_size": 960,
}
UNUSED = ("algorithm", "backend", "min_sparse_prompt_len", "page_size")  # parsed, without effect
_MOST_UNKNOWN = 20  # keys that are named
_MOST_LETTERS = 64  # of a key, when it is compared with those known
# A limit that is a part of a memory, with the name under which runs report that memory.
_PLACES = {"prefill headroom": "device pool (prefill headroom)"}
ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True)
class Finding:
    """A finding about a configuration: an error stops the engine or the requests, a warning costs
    performance, a note informs."""

    severity: str  # error, warning or note
    text: str


def as_rows(findings: Iterable[Finding]) -> pd.DataFrame:
    """One row per finding, columns severity and text."""
    return pd.DataFrame(
        [(finding.severity, finding.text) for finding in findings], columns=["severity", "text"]
    )


def read_config(
    text: str, model: Model, engine: Engine = NEWEST
) -> tuple[dict[str, int], list[Finding]]:
    """A --hisparse-config with the engine's defaults filled in, and what is wrong with it.

    As the engine reads it (mem_cache/sparsity/factory.py): unknown keys are ignored silently, and
    the top-k is that of the model. Raises ValueError if it is not such a JSON object.
    """
    try:
        given = parse_json(text, "the configuration")
    except TraceError as error:
        raise ValueError(str(error)) from None
    if not isinstance(given, dict):
        raise ValueError("the configuration must be a JSON object")
    top_k = given.get("top_k", DEFAULTS["top_k"])
    config = DEFAULTS | {"device_buffer_size": 2 * top_k if isinstance(top_k, int) else 0}
    config |= {key: given[key] for key in DEFAULTS if key in given}
    for key, value in config.items():
        whole_number(key, value)
    findings = list(_keys(given, engine))
    if not engine.reads_block_size:
        config["swap_in_block_size"] = MOST_THREADS
    findings += _values(config, model)
    return config, findings


def _keys(given: Mapping[str, Any], engine: Engine) -> Iterator[Finding]:
    """Notes on keys without effect, warnings where one looks mistyped."""
    for key in UNUSED:
        if key in given:
            yield Finding(NOTE, f"{key}: the engine reads it, HiSparse does not use it")
    if "swap_in_block_size" in given and not engine.reads_block_size:
        yield Finding(
            NOTE, f"swap_in_block_size: {engine.name} ignores it and runs {MOST_THREADS} threads"
        )
    unknown = sorted(set(given) - set(DEFAULTS) - set(UNUSED))
    known = ", ".join(DEFAULTS)
    for key in unknown[:_MOST_UNKNOWN]:
        said = f"unknown key {clipped(key)}: the engine ignores it silently"
        if meant := get_close_matches(key[:_MOST_LETTERS], DEFAULTS, 1, 0.8):
            yield Finding(WARNING, f"{said}; did you mean {meant[0]}?")
        else:
            yield Finding(NOTE, f"{said}; it uses {known}")
    if unknown[_MOST_UNKNOWN:]:
        yield Finding(NOTE, f"{len(unknown[_MOST_UNKNOWN:])} more unknown keys")


def _values(config: Mapping[str, int], model: Model) -> Iterator[Finding]:
    """Errors in the values of keys, and a warning for a top_k without effect."""
    size, top_k = config["device_buffer_size"], config["top_k"]
    if top_k != model.top_k:
        yield Finding(
            WARNING,
            f"top_k {top_k} is not the {model.top_k} of {model.name}, which the engine uses"
            " instead",
        )
    yield from (Finding(ERROR, fault) for fault in buffer_faults(model, size, top_k))
    if config["host_to_device_ratio"] < 1:
        yield Finding(ERROR, "host_to_device_ratio must be at least 1")
    if not 1 <= config["swap_in_block_size"] <= MOST_THREADS:
        yield Finding(ERROR, f"swap_in_block_size must be between 1 and {MOST_THREADS}")


def check_config(
    text: str, setting: Setting, aim: Aim, misses_of: MissesOf | None = None, policy: str = "lru"
) -> list[Finding]:
    """What is wrong with a --hisparse-config for this deployment and load; empty: nothing.

    With `misses_of`, notes add what was checked, the speed and whether HiSparse pays, from the same
    plan as for any other candidate.
    """
    deployment = setting.deployment
    config, findings = read_config(text, deployment.model, deployment.engine)
    if not errors(findings):
        findings += _shortages(config, setting, aim)
    if not errors(findings):
        findings += _lengths(config, setting, aim)
        findings += _queueing(config, setting, aim, -(-aim.concurrency // setting.ranks))
    if misses_of is not None:
        findings.append(Finding(NOTE, _checked(text, config)))
        if not errors(findings):
            findings += _verdict(config, setting, aim, misses_of, policy)
    return findings


def errors(findings: Iterable[Finding]) -> bool:
    """Whether the engine, or requests, stop."""
    return any(finding.severity == ERROR for finding in findings)


def _shortages(config: Mapping[str, int], setting: Setting, aim: Aim) -> Iterator[Finding]:
    # The scheduler admits fewer than the pools hold; requests of a fixed length never outgrow them.
    told_below = {"device pool"}
    if setting.ignore_eos:
        told_below.add("indexer keys and host pool")
    for shortage in shortages(
        setting.deployment,
        config["host_to_device_ratio"],
        config["device_buffer_size"],
        aim.prompt,
        aim.output,
        -(-aim.concurrency // setting.ranks),
        setting.max_running,
        colocated=not setting.disaggregated,
    ):
        if shortage.what in told_below:
            continue
        stops = shortage.what in ("host memory", "length") or (
            shortage.what == RESERVE and shortage.when == "at start"
        )
        yield Finding(
            ERROR if stops else WARNING,
            f"{shortage.what}, {shortage.when}: {shortage.effect}; {shortage.reason}",
        )


def _lengths(config: Mapping[str, int], setting: Setting, aim: Aim) -> Iterator[Finding]:
    """Warnings of outputs that the engine cuts."""
    pool = setting.deployment.pool_tokens(config["host_to_device_ratio"])
    length = check_length(aim.prompt, aim.output, pool, setting.deployment.model.context)
    if length.outcome == CUT:
        yield Finding(WARNING, f"output cut to {length.output:,} tokens: {length.reason}")
    spare = pool - pages(aim.prompt) - PAGE_TOKENS - length.output
    page = setting.deployment.engine.admits_with_page
    if page and setting.ignore_eos and not setting.disaggregated and spare <= 1:
        yield Finding(
            WARNING,
            f"{setting.deployment.engine.name} may never schedule such a request, nor those behind"
            f" it: with ignore_eos it admits at most {length.output - 1:,} output tokens beside"
            " this prompt (read in the source, not run)",
        )


def _checked(text: str, config: Mapping[str, int]) -> str:
    given = parse_json(text, "the configuration")
    keys = (
        f"{key} {value}" + ("" if key in given else " (not given: the engine's default)")
        for key, value in config.items()
    )
    return f"checked: {', '.join(keys)}"


def _verdict(
    config: Mapping[str, int], setting: Setting, aim: Aim, misses_of: MissesOf, policy: str
) -> Iterator[Finding]:
    """The speed of this pair compared with serving without HiSparse."""
    if setting.steps is None:
        yield Finding(NOTE, f"tokens/s are not known: {setting.no_steps}")
        return
    buffers, ratios = (config["device_buffer_size"],), (config["host_to_device_ratio"],)
    found = make_plan(setting, aim, misses_of, policy, buffers, ratios)
    if found.best is None:
        yield Finding(NOTE, found.reasons[0])
        return
    ours, base = found.best, found.baseline
    pays = "HiSparse pays" if ours["worth_it"] else "serve without HiSparse"
    without, batch = base["tokens_per_s"], ours["batch"]
    yield Finding(
        NOTE,
        f"{ours['tokens_per_s']:,.0f} tokens/s at {ours['tpot_ms']:.1f} ms per token; bottleneck:"
        f" {ours['bottleneck']}; {batch} {'request' if batch == 1 else 'requests'}/rank decode on"
        f" average over the run; without HiSparse {without:,.0f} tokens/s: {pays} at this load",
    )


def _queueing(
    config: Mapping[str, int], setting: Setting, aim: Aim, wanted: int
) -> Iterator[Finding]:
    """A warning if the scheduler admits fewer requests than the load has."""
    one = replace(
        setting,
        mode="hisparse",
        device_buffer_size=config["device_buffer_size"],
        ratio=config["host_to_device_ratio"],
        misses=None,
    )
    found, limit = one.resident(aim.prompt, aim.output)
    if found < wanted:
        yield Finding(
            WARNING,
            f"{_PLACES.get(limit, limit)}, at admission: about {found} of {wanted} requests/rank"
            " run at a time, the others queue",
        )
