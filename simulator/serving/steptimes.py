"""How long one engine step computes: tables made from AIConfigurator's measured kernel data.

A decode step of data-parallel attention has two parts. Attention (projections, indexer, sparse
attention) runs on every rank for its own requests, so the slowest rank counts. The rest (experts,
their communication, norms, head) runs on all tokens of all ranks together. Tables store the two
apart, so that ranks may hold different batches and a prefill may run on one rank alone.

Nothing here knows HiSparse: this is the compute of the model with the whole KV on the GPU.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from reprlib import repr as clipped
from typing import Any

from hisparse_sim.simulator.serving.profiles import LEAST_POSITIVE, MOST, ProfileError, steptimes
from hisparse_sim.traces.documents import parse_json, read_json
from hisparse_sim.traces.errors import TraceError

AICONFIGURATOR_VERSION = "0.12.0"


@dataclass(frozen=True)
class Layout:
    """How a model is spread over the GPUs of one instance."""

    name: str
    attention_dp: int  # ranks with their own requests and KV
    attention_tp: int  # GPUs that share one rank's requests and hold copies of their KV
    experts_tp: int
    experts_ep: int

    @property
    def gpus(self) -> int:
        return self.attention_dp * self.attention_tp


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("dp8-tp8", 8, 1, 8, 1),  # --tp-size 8 --dp-size 8 --enable-dp-attention
        Layout("dp8-ep8", 8, 1, 1, 8),  # the same with --ep-size 8
        Layout("tp8", 1, 8, 8, 1),  # --tp-size 8
    )
}

_SYSTEMS = {"h200": "h200_sxm", "b200": "b200_sxm"}
_KV = {"bf16": "bfloat16", "fp8": "fp8"}
# Operations that run per rank on the rank's own tokens.
_ATTENTION = ("generation_attention", "context_attention")


@dataclass(frozen=True)
class StepTimes:
    """Compute time of steps for one model, machine, layout and KV dtype. All times in us."""

    model: str
    hardware: str
    layout: str
    kv_dtype: str
    source: str
    batch: tuple[float, ...]  # [b] requests on one rank
    context: tuple[float, ...]  # [c] tokens a request has
    attention_us: tuple[tuple[float, ...], ...]  # [b][c]
    rest_us: tuple[float, ...]  # [b], with that many requests on every rank
    prefill_tokens: tuple[float, ...]  # [p] tokens of one prompt on one rank
    prefill_attention_us: tuple[float, ...]  # [p] whole prompt
    prefill_rest_us: tuple[float, ...]  # [p], with that many tokens on every rank

    def decode_attention_us(self, batch: float, context: float) -> float:
        """Attention of a step with `batch` requests of mean length `context` on the busiest rank.

        Bilinear between the points of the table; beyond its last point on the last slope unless
        that falls, below its first point (one request, the shortest context) constant.
        """
        if batch <= 0:
            return 0.0
        i, x = _place(self.batch, batch)
        j, y = _place(self.context, context)
        fewer, more = self.attention_us[i], self.attention_us[i + 1]
        low, high = _between(fewer[j], fewer[j + 1], y), _between(more[j], more[j + 1], y)
        return _between(low, high, x)

    def decode_rest_us(self, mean_batch: float) -> float:
        """Experts, communication, norms and head, with `mean_batch` requests a rank on average."""
        return _line(self.batch, self.rest_us, mean_batch)

    def decode_us(self, batch: float, context: float) -> float:
        """A whole step with `batch` requests on every rank."""
        return self.decode_attention_us(batch, context) + self.decode_rest_us(batch)

    def prefill_attention_chunk_us(self, start: int, stop: int) -> float:
        """Attention of the prompt's tokens [start, stop), which see everything before them."""
        return max(self._prompt_us(stop) - self._prompt_us(start), 0.0)  # measured points scatter

    def _prompt_us(self, tokens: int) -> float:
        if tokens < self.prefill_tokens[0]:
            return self.prefill_attention_us[0] * tokens / self.prefill_tokens[0]
        return _line(self.prefill_tokens, self.prefill_attention_us, tokens)

    def prefill_rest_chunk_us(self, mean_tokens: float) -> float:
        """The rest for a chunk, with `mean_tokens` prompt tokens a rank on average over ranks."""
        return _line(self.prefill_tokens, self.prefill_rest_us, mean_tokens)

    def scaled(self, hardware: str, decode: float, prefill: float, source: str) -> StepTimes:
        """The same table for a machine whose steps take `decode` and `prefill` times as long."""

        def times(values: Iterable[float], factor: float) -> tuple[float, ...]:
            return tuple(value * factor for value in values)

        return replace(
            self,
            hardware=hardware,
            source=f"{self.source}; modelled from {self.hardware}: {source}",
            attention_us=tuple(times(row, decode) for row in self.attention_us),
            rest_us=times(self.rest_us, decode),
            prefill_attention_us=times(self.prefill_attention_us, prefill),
            prefill_rest_us=times(self.prefill_rest_us, prefill),
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def _place(grid: tuple[float, ...], value: float) -> tuple[int, float]:
    """Interval of `grid` and the position in it; under the first point 0, above the last past 1."""
    index = min(max(bisect_left(grid, value) - 1, 0), len(grid) - 2)
    return index, max((value - grid[index]) / (grid[index + 1] - grid[index]), 0.0)


def _line(grid: tuple[float, ...], values: tuple[float, ...], at: float) -> float:
    index, x = _place(grid, at)
    return _between(values[index], values[index + 1], x)


def _between(low: float, high: float, x: float) -> float:
    """The line from `low` at 0 to `high` at 1; beyond that it goes on, but never falls."""
    return low + (high - low) * (min(x, 1.0) if high < low else x)


def parse_step_times(text: str, file: str) -> StepTimes:
    """Step times from the JSON that `to_json` writes; ProfileError names what is wrong."""
    try:
        return _table(parse_json(text, "it"), file)
    except TraceError as error:
        raise ProfileError(f"{file} is no step-time table: {error}") from None


def _table(data: Any, file: str) -> StepTimes:
    names = [field.name for field in fields(StepTimes)]
    if not isinstance(data, dict) or set(data) != set(names):
        raise ProfileError(f"{file} is no step-time table: its keys must be {', '.join(names)}")
    for name in ("model", "hardware", "layout", "kv_dtype", "source"):
        if not isinstance(data[name], str) or not data[name].isprintable():
            raise ProfileError(f"{file}: {name} must be a line of text, not {clipped(data[name])}")
    table: dict[str, Any] = {name: data[name] for name in names}
    for name, axes in _AXES.items():
        shape = [len(table[axis]) for axis in axes] if axes else [max(2, _length(data[name]))]
        table[name] = _numbers(data[name], shape, f"{file}: {name}")
        if not axes and any(b <= a for a, b in pairwise(table[name])):
            raise ProfileError(f"{file}: {name} must ascend")
    return StepTimes(**table)


# The grids, and before what stands over them. [] of an axis is a grid itself.
_AXES: dict[str, tuple[str, ...]] = {
    "batch": (),
    "context": (),
    "attention_us": ("batch", "context"),
    "rest_us": ("batch",),
    "prefill_tokens": (),
    "prefill_attention_us": ("prefill_tokens",),
    "prefill_rest_us": ("prefill_tokens",),
}


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _numbers(value: Any, shape: Sequence[int], place: str) -> Any:
    """Nested lists of that shape as tuples of numbers above 0; ProfileError for anything else."""
    if shape:
        if _length(value) != shape[0]:
            raise ProfileError(f"{place} must be a list of {shape[0]}, not {clipped(value)}")
        return tuple(
            _numbers(each, shape[1:], f"{place}[{index}]") for index, each in enumerate(value)
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProfileError(f"{place} must be a number, not {clipped(value)}")
    if not LEAST_POSITIVE <= value <= MOST:
        raise ProfileError(f"{place} must be above {LEAST_POSITIVE:g} and up to {MOST:g}")
    return value


def _shipped() -> dict[str, str]:
    folder = files(steptimes)
    return {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".json")
    }


def file_name(model: str, hardware: str, layout: str, kv_dtype: str) -> str:
    return f"{model}_{hardware}_{layout}_{kv_dtype}.json"


def load_step_times(
    model: str,
    hardware: str,
    layout: str = "dp8-tp8",
    kv_dtype: str = "bf16",
    path: str | Path | None = None,
) -> StepTimes:
    """The shipped table (or the one in the file `path`); ProfileError lists what there is."""
    if path is not None:
        try:
            return _table(read_json(path), str(path))
        except TraceError as error:
            raise ProfileError(f"cannot read the step times: {error}") from None
    shipped = _shipped()
    name = file_name(model, hardware, layout, kv_dtype)
    if name not in shipped:
        known = ", ".join(entry.removesuffix(".json") for entry in shipped)
        raise ProfileError(
            f"no step times for {name.removesuffix('.json')}; shipped: {known}; make your own with"
            " benchmarks/make_step_times.py or ask AIConfigurator"
        )
    return parse_step_times(shipped[name], name)


def _ask(
    repository: str,
    system: str,
    layout: Layout,
    kv_dtype: str,
    prefill: bool,
    batch: int,
    tokens: int,
) -> tuple[float, float]:
    """(attention, rest) in us of one step from AIConfigurator."""
    try:
        from aiconfigurator.cli.api import cli_estimate
    except ImportError as error:
        raise ProfileError(
            "AIConfigurator is not installed: pip install"
            f" aiconfigurator=={AICONFIGURATOR_VERSION}, or use a shipped table"
        ) from error
    result = cli_estimate(
        model_path=repository,
        system_name=system,
        mode="static_ctx" if prefill else "static_gen",
        backend_name="sglang",
        isl=tokens,
        osl=8 if prefill else 2,
        batch_size=batch,
        tp_size=layout.attention_tp,
        attention_dp_size=layout.attention_dp,
        moe_tp_size=layout.experts_tp,
        moe_ep_size=layout.experts_ep,
        kvcache_quant_mode=_KV[kv_dtype],
    )
    summary = result.summary
    parts = summary.get_context_latency_dict() if prefill else summary.get_generation_latency_dict()
    attention = sum(ms for name, ms in parts.items() if name in _ATTENTION)
    return attention * 1000, (sum(parts.values()) - attention) * 1000


DEFAULT_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
DEFAULT_CONTEXTS = (1024, 4096, 8192, 16384, 32768, 49152, 65536, 98304, 131072, 163000)
DEFAULT_PROMPTS = (64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 98304, 131072, 163000)


def ask_aiconfigurator(
    model: str,
    repository: str,
    hardware: str,
    layout: str = "dp8-tp8",
    kv_dtype: str = "bf16",
    batches: tuple[int, ...] = DEFAULT_BATCHES,
    contexts: tuple[int, ...] = DEFAULT_CONTEXTS,
    prompts: tuple[int, ...] = DEFAULT_PROMPTS,
) -> StepTimes:
    """A table made from AIConfigurator's database, about half a second for every point."""
    if hardware not in _SYSTEMS:
        raise ProfileError(
            f"AIConfigurator has no data for {hardware} here; known: {', '.join(_SYSTEMS)}"
        )
    if kv_dtype not in _KV:
        raise ProfileError(f"AIConfigurator knows the KV dtypes {', '.join(_KV)}, not {kv_dtype}")
    place, system = LAYOUTS[layout], _SYSTEMS[hardware]

    def ask(prefill: bool, batch: int, tokens: int) -> tuple[float, float]:
        attention, rest = _ask(repository, system, place, kv_dtype, prefill, batch, tokens)
        return round(attention, 1), round(rest, 1)

    decode = [[ask(False, batch, context) for context in contexts] for batch in batches]
    prefill = [ask(True, 1, tokens) for tokens in prompts]
    return StepTimes(
        model=model,
        hardware=hardware,
        layout=layout,
        kv_dtype=kv_dtype,
        source=(
            f"AIConfigurator {AICONFIGURATOR_VERSION} (Apache-2.0), {system}, SGLang 0.5.14 kernel"
            f" data, {repository}, attention dp {place.attention_dp} tp {place.attention_tp},"
            f" experts tp {place.experts_tp} ep {place.experts_ep}; measured kernels summed"
        ),
        batch=tuple(batches),
        context=tuple(contexts),
        attention_us=tuple(tuple(point[0] for point in row) for row in decode),
        rest_us=tuple(row[0][1] for row in decode),
        prefill_tokens=tuple(prompts),
        prefill_attention_us=tuple(point[0] for point in prefill),
        prefill_rest_us=tuple(point[1] for point in prefill),
    )
