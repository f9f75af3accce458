"""What is wrong with a --hisparse-config: what the engine refuses, and what a load runs out of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from reprlib import repr as clipped

import pandas as pd

from hisparse_sim.simulator.serving.deployment import shortages
from hisparse_sim.simulator.serving.memory import MAX_BUFFER, PAGE_TOKENS
from hisparse_sim.simulator.serving.models import Model
from hisparse_sim.simulator.serving.plan import Aim
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.traces.documents import parse_json
from hisparse_sim.traces.errors import TraceError

CONFIG_KEYS = ("top_k", "device_buffer_size", "host_to_device_ratio", "swap_in_block_size")
_MOST_UNKNOWN = 20  # keys that are named


@dataclass(frozen=True)
class Finding:
    """One thing wrong with a configuration: an error stops the engine, a warning costs."""

    severity: str  # error or warning
    text: str


def as_rows(findings: Iterable[Finding]) -> pd.DataFrame:
    """One row a finding, columns severity and text."""
    return pd.DataFrame(
        [(finding.severity, finding.text) for finding in findings], columns=["severity", "text"]
    )


def read_config(text: str, model: Model) -> tuple[dict[str, int], list[Finding]]:
    """A --hisparse-config with the engine's defaults filled in, and what is wrong with it."""
    try:
        given = parse_json(text, "the configuration")
    except TraceError as error:
        raise ValueError(str(error)) from None
    if not isinstance(given, dict):
        raise ValueError("the configuration must be a JSON object")
    findings = []
    unknown = sorted(set(given) - set(CONFIG_KEYS))
    known = ", ".join(CONFIG_KEYS)
    for key in unknown[:_MOST_UNKNOWN]:
        findings.append(Finding("error", f"unknown key {clipped(key)}; known: {known}"))
    if unknown[_MOST_UNKNOWN:]:
        findings.append(Finding("error", f"{len(unknown[_MOST_UNKNOWN:])} more unknown keys"))
    top_k = given.get("top_k", 2048)
    config = {
        "top_k": top_k,
        "device_buffer_size": given.get(
            "device_buffer_size", 2 * top_k if isinstance(top_k, int) else 4096
        ),
        "host_to_device_ratio": given.get("host_to_device_ratio", 2),
        "swap_in_block_size": given.get("swap_in_block_size", 960),
    }
    for key, value in config.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{key} must be a whole number, not {clipped(value)}")
    size = config["device_buffer_size"]
    if config["top_k"] != model.top_k:
        findings.append(
            Finding("error", f"top_k {config['top_k']} is not the {model.top_k} of {model.name}")
        )
    if size < config["top_k"]:
        findings.append(Finding("error", f"device_buffer_size {size} is below top_k"))
    if size > MAX_BUFFER:
        findings.append(Finding("error", f"device_buffer_size {size} is above {MAX_BUFFER}"))
    if size % PAGE_TOKENS:
        findings.append(
            Finding("error", f"device_buffer_size {size} is no multiple of the page, {PAGE_TOKENS}")
        )
    if config["host_to_device_ratio"] < 1:
        findings.append(Finding("error", "host_to_device_ratio must be at least 1"))
    if not 1 <= config["swap_in_block_size"] <= 1024:
        findings.append(Finding("error", "swap_in_block_size must be between 1 and 1024"))
    return config, findings


def check_config(text: str, setting: Setting, aim: Aim) -> list[Finding]:
    """What is wrong with a --hisparse-config for this deployment and load; empty: nothing."""
    config, findings = read_config(text, setting.deployment.model)
    if any(finding.severity == "error" for finding in findings):
        return findings
    wanted = -(-aim.concurrency // setting.ranks)
    # The scheduler lets in fewer than the pools hold; of a fixed length none grows out of them.
    told_below = {"device pool"}
    if setting.ignore_eos:
        told_below.add("indexer keys and host pool")
    for shortage in shortages(
        setting.deployment,
        config["host_to_device_ratio"],
        config["device_buffer_size"],
        aim.prompt,
        aim.output,
        wanted,
        max(setting.max_running_requests // setting.ranks, 1),
        colocated=not setting.disaggregated,
    ):
        if shortage.what in told_below:
            continue
        severity = "error" if shortage.what in ("host memory", "length") else "warning"
        if shortage.what == "GPU reserve" and shortage.when == "at start":
            severity = "error"
        findings.append(
            Finding(
                severity, f"{shortage.what}, {shortage.when}: {shortage.effect}; {shortage.reason}"
            )
        )
    if not any(finding.severity == "error" for finding in findings):
        findings += _queueing(config, setting, aim, wanted)
    return findings


def _queueing(config: dict[str, int], setting: Setting, aim: Aim, wanted: int) -> Iterator[Finding]:
    """A warning if the scheduler lets in fewer requests than the load has."""
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
            "warning",
            f"{limit}, at admission: about {found} of {wanted} requests/rank run at a time, the"
            " others queue",
        )
