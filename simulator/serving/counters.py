"""What a server counts of its hot buffers, read from the text of its Prometheus endpoint.

vLLM counts by itself, SGLang with `hisparse-sim engine run --count`; names and labels are alike.

Counters only grow from the start of a server on, so a window is the difference of two readings.
vLLM's workers copy the counts of a hot buffer to the endpoint once every 2,000 steps: a window
should hold many of these; in SGLang they are a second old at most. All series of one model are
added up: its engines, and in each the ranks of tensor parallelism, which count the same. Readings
are compared series by series, since an engine that was started anew is hidden in a sum.

Reference: vLLM 0.33, `stats.py` (names) and `worker.py` (_METRICS_INTERVAL, only layers with an
index) in `distributed/kv_transfer/kv_connector/v1/hisparse`; `v1/spec_decode/metrics.py`,
`v1/metrics/loggers.py`.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hisparse_sim.traces import TraceError
from hisparse_sim.traces.bounded_http import get
from hisparse_sim.traces.file.metadata import MOST_QUERIES
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
_GROWING = COUNTERS | {  # without `_total`
    f"{name}_{part}": f"{own} {part}"
    for name, own in HISTOGRAMS.items()
    for part in ("sum", "count")
}
_TIMEOUT_S = 30.0
_LARGEST_BYTES = 64 << 20
_LARGEST_VALUE = 2.0**64  # of a counter

Series = tuple[tuple[str, str], ...]  # its labels, sorted
Sample = tuple[str, dict[str, str], float]  # name, labels, value


@dataclass(frozen=True)
class Reading:
    """The series of one model at one time."""

    source: str
    server: str  # of SERVERS
    model_name: str
    counters: Mapping[str, Mapping[Series, float]]  # by the names in _GROWING
    gauges: Mapping[str, float] = field(default_factory=dict)  # means over the series
    started: Mapping[str, Mapping[Series, float]] = field(default_factory=dict)  # Unix time

    @property
    def engines(self) -> int:
        """Number of engines that count."""
        counting = [*self.counters["hits"], *self.counters["misses"]]
        return max(1, len({dict(labels).get("engine") for labels in counting}))

    def total(self, name: str) -> float:
        """Return a counter of all series together; 0 if there is none."""
        return sum(self.counters.get(name, {}).values())


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

    Raises ValueError if it is no address, TraceError if it cannot be read, is no such text, has no
    counters of HiSparse, or those of several models of which `model_name` names none.
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
    models = _models(samples, ":hisparse_cache_") or _models(samples, ":")
    chosen = model_name or (models[0] if len(models) == 1 else "")
    if models and chosen not in models:
        raise TraceError(f"{source} counts {', '.join(models)}: choose one with `model_name`")
    own = [sample for sample in samples if sample[1].get("model_name", chosen) == chosen]
    counting = {name.split(":")[0] for name, _, _ in own if ":hisparse_cache_" in name}
    servers = [server for server in SERVERS if server in counting]
    if not servers:
        raise TraceError(
            f"{source} has no hisparse_cache_hits_total: is it the /metrics of a vLLM server with "
            "HiSparse? SGLang has these counters under `hisparse-sim engine run --count` with "
            "--enable-metrics"
        )
    if len(servers) > 1:
        raise TraceError(
            f"{source} counts for {' and '.join(map(SERVERS.__getitem__, servers))}: give the text "
            f"of one server"
        )
    return _collected(own, source, servers[0], chosen)


def between(first: Reading | None, last: Reading, window_s: float | None = None) -> Observed:
    """Return what was counted from one reading to a later one; None: from the start of the server.

    Raises TraceError if the server was started anew in between, or counted nothing.
    """
    if first is not None:
        _check_later(first, last)
    counts = {
        name: last.total(name) - (first.total(name) if first else 0.0) for name in last.counters
    }
    if counts["hits"] + counts["misses"] <= 0:
        why = (
            f"vLLM copies its counters every {SNAPSHOT_STEPS:,} steps, and counts what is not read "
            "from resident pages; "
        )
        raise TraceError(
            f"{last.source} counted no hit and no miss: {why if last.server == VLLM else ''}"
            "choose a longer `window`, under load"
        )
    names = ("drafts", "draft_tokens", "accepted_drafts")
    drafts, tokens, accepted = (counts.get(name, 0.0) for name in names)
    if tokens > drafts * (MOST_QUERIES - 1) or accepted > tokens:
        raise TraceError(
            f"{last.source} counts {tokens:,.0f} draft tokens in {drafts:,.0f} steps,"
            f" {accepted:,.0f} of them accepted: that cannot be"
        )
    means = {
        own: counts[f"{own} sum"] / counts[f"{own} count"]
        for own in HISTOGRAMS.values()
        if counts.get(f"{own} count", 0.0) > 0 and f"{own} sum" in counts
    }
    return Observed(
        last.model_name,
        last.engines,
        {name: counts[name] for name in COUNTERS.values() if name in counts},
        last.gauges,
        means,
        window_s,
        last.server,
    )


def _check_later(first: Reading, last: Reading) -> None:
    """Raise TraceError unless `last` is a later reading of what `first` is one of."""
    if (first.server, first.model_name) != (last.server, last.model_name):
        raise TraceError(f"{first.source} and {last.source} count different models")
    for name, counted in first.counters.items():
        for series, value in counted.items():
            later = last.counters.get(name, {}).get(series)
            if later is None:
                raise TraceError(
                    f"{last.source} has no {name}{_shown(series)}, which {first.source} has: an"
                    f" engine ended in between"
                )
            started = first.started.get(name, {}).get(series)
            if started != last.started.get(name, {}).get(series, started):
                raise TraceError(f"the server was started anew after {first.source}")
            if later < value:
                raise TraceError(
                    f"{last.source} counts fewer {name}{_shown(series)} than {first.source}: the"
                    f" readings are in the wrong order, or the server was started anew"
                )


def _shown(series: Series) -> str:
    labels = ", ".join(f"{label} {value}" for label, value in series if label != "model_name")
    return f" ({labels})" if labels else ""


def _models(samples: Iterable[Sample], part: str) -> list[str]:
    """Return the models of which series with this in their name are."""
    return sorted(
        {
            labels["model_name"]
            for name, labels, _ in samples
            if part in name and "model_name" in labels
        }
    )


def _collected(samples: Iterable[Sample], source: str, server: str, model_name: str) -> Reading:
    counters: dict[str, dict[Series, float]] = {}
    started: dict[str, dict[Series, float]] = {}
    gauges: dict[str, list[float]] = {}
    for full_name, labels, value in samples:
        if not full_name.startswith(f"{server}:"):
            continue
        name = full_name.removeprefix(f"{server}:")
        growing = _GROWING.get(name.removesuffix("_total"))
        since = _GROWING.get(name.removesuffix("_created"))
        if growing is None and since is None and name not in GAUGES:
            continue
        if not 0 <= value < _LARGEST_VALUE:
            raise TraceError(f"{source} gives {full_name} as {value}, which is no count")
        series = tuple(sorted(labels.items()))
        if growing is not None:
            if series in counters.setdefault(growing, {}):
                raise TraceError(f"{source} has {full_name}{_shown(series)} twice")
            counters[growing][series] = value
        elif since is not None:
            started.setdefault(since, {})[series] = value
        else:
            gauges.setdefault(GAUGES[name], []).append(value)
    for name in ("hits", "misses"):
        # vLLM shows its counters from the start on, SGLang each with its first count.
        if server == VLLM and name not in counters:
            raise TraceError(
                f"{source} has no {server}:hisparse_cache_{name}_total: save all that the endpoint"
                f" sends"
            )
        counters.setdefault(name, {})
    means = {name: sum(values) / len(values) for name, values in gauges.items()}
    return Reading(source, server, model_name, counters, means, started)


def is_address(source: str) -> bool:
    """Return whether a source is a URL to be read, not a file."""
    return source.lower().startswith(("http://", "https://"))


def _text(source: str) -> str:
    if is_address(source):
        content = get(source, _TIMEOUT_S, _LARGEST_BYTES)
    else:
        with opened(source) as file:
            content = file.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise TraceError(f"{source} is larger than {_LARGEST_BYTES >> 20} MB: no such text is")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{source} is not the text of a Prometheus endpoint: its byte {error.start:,} is not"
            f" UTF-8; is it compressed?"
        ) from None
