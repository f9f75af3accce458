"""The compute time of an engine step: tables made from AIConfigurator's measured kernel data.

A decode step of data-parallel attention has two parts. Attention (projections, indexer, sparse
attention) runs on every rank for its own requests, so the slowest rank counts. The rest (experts,
their communication, norms, head) runs on all tokens of all ranks together. Tables store the two
separately, so that ranks may hold different batches and a prefill may run on one rank alone.

HiSparse plays no part here: this is the compute of the model with the whole KV cache on the GPU.
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

from hisparse_sim.simulator.serving.profiles import ProfileError, steptimes
from hisparse_sim.traces.documents import LEAST_AMOUNT, MOST_AMOUNT, parse_json, read_json
from hisparse_sim.traces.errors import TraceError

MEASURED, MODELLED = "measured", "modelled"


@dataclass(frozen=True)
class Layout:
    """How a model is distributed over the GPUs of one instance."""

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
        Layout("dp16-ep16", 16, 1, 1, 16),  # dp8-ep8 over 16 GPUs
    )
}


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
    kind: str = MEASURED  # kernels measured and summed, or modelled

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
        """Experts, communication, norms and head, with `mean_batch` requests per rank on
        average."""
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
        """The rest for a chunk, with `mean_tokens` prompt tokens per rank on average."""
        return _line(self.prefill_tokens, self.prefill_rest_us, mean_tokens)

    def scaled(self, hardware: str, decode: float, prefill: float, source: str) -> StepTimes:
        """The same table for a machine whose steps take `decode` and `prefill` times as long."""

        def times(values: Iterable[float], factor: float) -> tuple[float, ...]:
            return tuple(value * factor for value in values)

        return replace(
            self,
            hardware=hardware,
            kind=MODELLED,
            source=f"{self.source}; modelled from {self.hardware}: {source}",
            attention_us=tuple(times(row, decode) for row in self.attention_us),
            rest_us=times(self.rest_us, decode),
            prefill_attention_us=times(self.prefill_attention_us, prefill),
            prefill_rest_us=times(self.prefill_rest_us, prefill),
        )

    def verifying(self, rows: int, accepted: float, layers: int) -> StepTimes:
        """Times per accepted token of steps that verify `rows` of them for every request.

        Verified rows take as long as that many requests, and each but the first was drafted by one
        more layer of `layers` (see speculation.py). Prefill stays the same.
        """
        share = (rows - 1) / layers
        batch = tuple(number / rows for number in self.batch)
        attention = [
            [
                (verify + share * self.decode_attention_us(number, context)) / accepted
                for verify, context in zip(line, self.context, strict=True)
            ]
            for number, line in zip(batch, self.attention_us, strict=True)
        ]
        rest = [
            (verify + share * self.decode_rest_us(number)) / accepted
            for number, verify in zip(batch, self.rest_us, strict=True)
        ]
        return replace(
            self,
            batch=batch,
            attention_us=tuple(map(tuple, attention)),
            rest_us=tuple(rest),
            kind=MODELLED,
            source=f"{self.source}; modelled: {rows} rows verified a step",
        )

    def to_json(self) -> str:
        """A line for each figure, in the order of the fields."""
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in asdict(self).items())
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _place(grid: tuple[float, ...], value: float) -> tuple[int, float]:
    """Interval of `grid` and the position in it; below the first point 0, above the last more than
    1."""
    index = min(max(bisect_left(grid, value) - 1, 0), len(grid) - 2)
    return index, max((value - grid[index]) / (grid[index + 1] - grid[index]), 0.0)


def _line(grid: tuple[float, ...], values: tuple[float, ...], at: float) -> float:
    index, x = _place(grid, at)
    return _between(values[index], values[index + 1], x)


def _between(low: float, high: float, x: float) -> float:
    """The line from `low` at 0 to `high` at 1; beyond that it continues, but never falls."""
    return low + (high - low) * (min(x, 1.0) if high < low else x)


def parse_step_times(text: str, file: str) -> StepTimes:
    """Step times from the JSON that `to_json` writes; ProfileError names what is wrong."""
    try:
        return _table(parse_json(text, "it"), file)
    except TraceError as error:
        raise ProfileError(f"{file} is not a step-time table: {error}") from None


def _table(data: Any, file: str) -> StepTimes:
    names = [field.name for field in fields(StepTimes)]
    if isinstance(data, dict):
        data = {"kind": MEASURED} | data  # tables of earlier versions have none
    if not isinstance(data, dict) or set(data) != set(names):
        raise ProfileError(f"{file} is not a step-time table: its keys must be {', '.join(names)}")
    if data["kind"] not in (MEASURED, MODELLED):
        raise ProfileError(
            f"{file}: kind must be {MEASURED} or {MODELLED}, not {clipped(data['kind'])}"
        )
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
    if not LEAST_AMOUNT <= value <= MOST_AMOUNT:
        raise ProfileError(f"{place} must be above {LEAST_AMOUNT:g} and up to {MOST_AMOUNT:g}")
    return value


def shipped_tables() -> tuple[str, ...]:
    """Names of the tables in this package, MODEL_HARDWARE_LAYOUT_KV, sorted."""
    names = (entry.name for entry in files(steptimes).iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def table_name(model: str, hardware: str, layout: str, kv_dtype: str) -> str:
    return f"{model}_{hardware}_{layout}_{kv_dtype}"


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
    name = table_name(model, hardware, layout, kv_dtype)
    shipped = files(steptimes) / f"{name}.json"
    if not shipped.is_file():
        raise ProfileError(
            f"no step times for {name}; shipped:"
            f" {', '.join(shipped_tables())}; make your own with benchmarks/make_step_times.py or"
            " ask AIConfigurator"
        )
    return parse_step_times(shipped.read_text(encoding="utf-8"), f"{name}.json")
