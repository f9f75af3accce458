"""What a server counts of its hot buffers, read from the text of its Prometheus endpoint.

vLLM counts by itself, SGLang with `hisparse-sim engine run --count`; names and labels are alike.

Counters only grow from the start of a server on, so a window is the difference of two readings.
vLLM's workers copy the counts of a hot buffer to the endpoint once every 2,000 steps: a window
should hold many of these; in SGLang they are a second old at most. All series of one model are
added up: its engines, and in each the ranks of tensor parallelism, which count the same.

Reference: vLLM 0.33, `stats.py` (names) and `worker.py` (_METRICS_INTERVAL, only layers with an
index) in `distributed/kv_transfer/kv_connector/v1/hisparse`; `v1/spec_decode/metrics.py`,
`v1/metrics/loggers.py`.
"""

import math
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hisparse_sim.traces import TraceError
from hisparse_sim.traces.files import opened

SNAPSHOT_STEPS = 2000  # from one copy of the counters to the next
VLLM, SGLANG = "vllm", "sglang"
SERVERS = {VLLM: "vLLM", SGLANG: "SGLang"}  # prefix of the names -> as it is called
COUNTERS = {  # of the exposition -> ours
    "hisparse_cache_hits": "hits",
    "hisparse_cache_misses": "misses",
    "hisparse_host_to_device_bytes": "bytes",
    "generation_tokens": "generated_tokens",
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "draft_tokens",
    "spec_decode_num_accepted_tokens": "accepted_drafts",
}
GAUGES = {
    "hisparse_host_cache_usage_perc": "host_cache_usage",
    "hisparse_pending_page_transfers": "pending_page_transfers",
}
HISTOGRAMS = {  # seconds; there with --kv-cache-metrics alone, and sampled
    "hisparse_host_block_lifetime_seconds": "host_block_lifetime_s",
    "hisparse_host_block_idle_before_evict_seconds": "host_block_idle_before_evict_s",
    "hisparse_host_block_reuse_gap_seconds": "host_block_reuse_gap_s",
}
_TIMEOUT_S = 30.0
_LARGEST_BYTES = 64 << 20


@dataclass(frozen=True)
class Reading:
    """The series of one model at one time, added up."""

    source: str
    server: str  # of SERVERS
    model_name: str
    engines: int
    counters: Mapping[str, float]
    gauges: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # sum, count


@dataclass(frozen=True)
class Observed:
    """What happened in a window: counts, and means of what histograms sampled in it."""

    model_name: str
    engines: int
    counts: Mapping[str, float]
    gauges: Mapping[str, float]
    means_s: Mapping[str, float]
    window_s: float | None = None
    server: str = VLLM  # of SERVERS

    @property
    def hit_rate(self) -> float:
        """Hits over hits and misses of the hot buffers."""
        return self.counts["hits"] / (self.counts["hits"] + self.counts["misses"])

    @property
    def queries(self) -> int:
        """Queries of a step: the token that is verified anyway, and the drafts."""
        drafts = self.counts.get("drafts", 0)
        return 1 + round(self.counts.get("draft_tokens", 0) / drafts) if drafts else 1

    @property
    def accepted_per_step(self) -> float:
        """Mean tokens that a step accepts."""
        drafts = self.counts.get("drafts", 0)
        return 1 + self.counts.get("accepted_drafts", 0) / drafts if drafts else 1.0


def read(source: str, model_name: str | None = None) -> Reading:
    """Read an address (http:// or https://) or a file of saved text.

    Raises TraceError if it cannot be read, is no such text, has no counters of HiSparse, or those
    of several models of which `model_name` names none.
    """
    return parse(_text(source), source, model_name)


def observe(source: str, window_s: float, model_name: str | None = None) -> Observed:
    """Read an address twice, `window_s` seconds apart. Raises what `read` and `between` raise."""
    first = read(source, model_name)
    begin = time.monotonic()
    time.sleep(window_s)
    last = read(source, model_name)
    return between(first, last, time.monotonic() - begin)


def parse(text: str, source: str, model_name: str | None = None) -> Reading:
    """Return what the text of an endpoint counts. Raises what `read` raises."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise TraceError("prometheus_client is not installed: pip install '.[observe]'") from None
    try:
        samples = [
            (sample.name, dict(sample.labels), float(sample.value))
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]
    except Exception as error:  # whatever a damaged text makes the parser raise
        reason = " ".join(str(error).split())[:120]
        raise TraceError(f"{source} is not the text of a Prometheus endpoint ({reason})") from None
    counting = {name.split(":")[0] for name, _, _ in samples if ":hisparse_cache_" in name}
    server = next((name for name in SERVERS if name in counting), None)
    if server is None:
        raise TraceError(
            f"{source} has no hisparse_cache_hits_total: is it the /metrics of a vLLM server with "
            "HiSparse? SGLang has these counters under `hisparse-sim engine run --count` with "
            "--enable-metrics"
        )
    models = sorted({labels["model_name"] for _, labels, _ in samples if "model_name" in labels})
    chosen = model_name or (models[0] if len(models) == 1 else "")
    if models and chosen not in models:
        raise TraceError(f"{source} counts {', '.join(models)}: choose one with `model_name`")
    return _summed(
        [(name, labels, value) for name, labels, value in samples if _of(labels, chosen)],
        source,
        server,
        chosen,
    )


def between(first: Reading | None, last: Reading, window_s: float | None = None) -> Observed:
    """Return what was counted from one reading to a later one; None: from the start of the server.

    Raises TraceError if the server was started anew in between, or counted nothing.
    """
    counts = dict(last.counters)
    histograms = dict(last.histograms)
    if first is not None:
        if first.model_name != last.model_name:
            raise TraceError(f"{first.source} and {last.source} count different models")
        for name in counts:
            counts[name] -= first.counters.get(name, 0.0)
            if counts[name] < 0:
                raise TraceError(
                    f"{last.source} counts fewer {name} than {first.source}: the readings are in "
                    f"the wrong order, or the server was started anew"
                )
        for name, (total, count) in first.histograms.items():
            if name in histograms:
                histograms[name] = (histograms[name][0] - total, histograms[name][1] - count)
    if counts["hits"] + counts["misses"] <= 0:
        why = (
            f"vLLM copies its counters every {SNAPSHOT_STEPS:,} steps, and counts what is not read "
            "from resident pages; "
        )
        raise TraceError(
            f"{last.source} counted no hit and no miss: {why if last.server == VLLM else ''}"
            "choose a longer `window`, under load"
        )
    means = {name: total / count for name, (total, count) in histograms.items() if count > 0}
    return Observed(
        last.model_name, last.engines, counts, last.gauges, means, window_s, last.server
    )


def _of(labels: Mapping[str, str], model_name: str) -> bool:
    return labels.get("model_name", model_name) == model_name


def _summed(
    samples: Iterable[tuple[str, Mapping[str, str], float]],
    source: str,
    server: str,
    model_name: str,
) -> Reading:
    counters = dict.fromkeys(("hits", "misses", "bytes"), 0.0)
    gauges: dict[str, list[float]] = {}
    histograms: dict[str, list[float]] = {}
    engines = set()
    for full_name, labels, value in samples:
        name = full_name.removeprefix(f"{server}:")
        base = name.removesuffix("_total")
        if not math.isfinite(value) or value < 0:
            raise TraceError(f"{source} gives {full_name} as {value}, which is no count")
        if base in COUNTERS:
            counters[COUNTERS[base]] = counters.get(COUNTERS[base], 0.0) + value
            engines.add(labels.get("engine", ""))
        elif name in GAUGES:
            gauges.setdefault(GAUGES[name], []).append(value)
        else:
            for ending, place in (("_sum", 0), ("_count", 1)):
                own = HISTOGRAMS.get(name.removesuffix(ending)) if name.endswith(ending) else None
                if own is not None:
                    histograms.setdefault(own, [0.0, 0.0])[place] += value
    return Reading(
        source,
        server,
        model_name,
        max(1, len(engines)),
        counters,
        {name: sum(values) / len(values) for name, values in gauges.items()},
        {name: (total, count) for name, (total, count) in histograms.items()},
    )


def _text(source: str) -> str:
    if not source.startswith(("http://", "https://")):
        with opened(Path(source)) as file:
            return _decoded(file.read(_LARGEST_BYTES + 1), source)
    deadline = time.monotonic() + _TIMEOUT_S
    content = b""
    try:
        with urllib.request.urlopen(source, timeout=_TIMEOUT_S) as answer:
            while chunk := answer.read1(1 << 16):
                content += chunk
                if len(content) > _LARGEST_BYTES:
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no whole answer in {_TIMEOUT_S:g} s")
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason: Any = getattr(error, "reason", None) or error
        raise TraceError(f"{source} cannot be read ({reason}): is the server running?") from None
    return _decoded(content, source)


def _decoded(content: bytes, source: str) -> str:
    if len(content) > _LARGEST_BYTES:
        raise TraceError(f"{source} is larger than {_LARGEST_BYTES >> 20} MB: no such text is")
    return content.decode(errors="replace")
