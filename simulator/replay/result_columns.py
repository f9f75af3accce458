"""The columns of result files: the kind and range of their values."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from hisparse_sim.traces import TraceError

_HALF = re.compile("[\ud800-\udfff]")
_LONGEST_SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class _Number:
    """A column of numbers: its range, and whether they are whole."""

    least: float = 0
    most: float = 1e300
    whole: bool = False

    @property
    def told(self) -> str:
        kind = "whole number" if self.whole else "number"
        if self.most >= 2**53:
            return f"a finite {kind}" + f" from {self.least:g} on" * (self.least > -1e300)
        return f"a {kind} from {self.least:g} to {self.most:g}"


_COUNT = _Number(most=2**53, whole=True)
_AMOUNT = _Number()
_SHARE = _Number(most=1)
_PART = _Number(most=1 + 1e-9)  # of a sum of 1, as floating point gives it
_ANY = _Number(least=-1e300)
_UNBOUNDED = _Number(least=-float("inf"), most=float("inf"))
_NUMBERS: Mapping[str, _Number] = {
    **dict.fromkeys(
        "accesses anchor_accesses anchor_misses break_even budget decode_instances draft_tokens"
        " first_step gpus host_bytes_per_request replayed_accesses replayed_misses"
        " resident_accesses resident_tokens unloaded"
        " host_to_device_ratio hot_buffer_bytes entry_bytes max misses prefill_instances ratio"
        " request_tokens requests requests_per_gpu skip_steps steps step top_k window".split(),
        _COUNT,
    ),
    **dict.fromkeys(("buffer", "layer"), _Number(most=32767, whole=True)),
    "batch": _Number(most=65536, whole=True),
    **dict.fromkeys(
        "baseline_tokens_per_s baseline_tpot_ms baseline_ttft_s bytes_per_request bytes_per_step"
        " copies_per_step copy_us device_pool_gib host_gb"
        " accepted_per_step bytes_per_token hidden host_gib misses_per_step misses_per_token p10"
        " native_us p50 p90 p95 sglang_us sum_gb_s swap_in_us timer_us"
        " cost_per_million goodput_per_s tokens_per_s tokens_per_s_per_gpu tpot_ms tpot_p50_ms"
        " tpot_p95_ms tpot_p99_ms ttft_s ttft_p50_s ttft_p95_s ttft_p99_s".split(),
        _AMOUNT,
    ),
    **dict.fromkeys(("prefill", "decode_attention", "decode_rest", "swap_in", "idle"), _PART),
    **dict.fromkeys(("miss_rate", "miss_rate_low", "miss_rate_high"), _SHARE),
    **dict.fromkeys(("gap_closed", "gap_closed_low", "gap_closed_high"), _UNBOUNDED),
    "excess_over_min": _Number(least=-1, most=float("inf")),
    **dict.fromkeys(("published", "ours", "error"), _ANY),
}
TEXTS = frozenset(  # with the seed, an identifier of up to 63 bits
    "bottleneck engine flags gap hardware how kv_dtype layout limit link load machine method missed"
    " mode model parameters policy prefetcher provenance reason request rules seed selected_layers"
    " selected_requests selected_steps source start swap_in_kernel trace trace_sha256 unit version"
    " what".split()
)
_FLAGS = frozenset(("best", "meets"))
LISTS = frozenset(("us",))  # of numbers


def typed(path: Path, name: str, values: pd.Series) -> pd.Series:
    """Return a column of the file `path` with the type of its name; unknown ones as they are.

    Raises TraceError for a value that has not this type, or is out of range.
    """
    if isinstance(values.dtype, pd.CategoricalDtype):
        known = all(isinstance(each, str) for each in values.cat.categories)
        values = values.astype("string" if known else object)
    if name in TEXTS:
        return _texts(path, name, values)
    if name in _NUMBERS:
        return _numbers(path, name, values, _NUMBERS[name])
    if name in _FLAGS:
        return _flags(path, name, values)
    if name in LISTS:
        _check(path, name, values, _are_numbers, "a list of numbers")
    return values


def _texts(path: Path, name: str, values: pd.Series) -> pd.Series:
    if isinstance(values.dtype, pd.StringDtype):
        return values.astype("string")
    if pd.api.types.is_float_dtype(values) and (values.dropna() % 1 == 0).all():
        values = values.astype("Int64")  # whole numbers beside missing ones
    if not _numeric(values):
        _check(path, name, values, _is_text, "a text")
        values = values.map(str, na_action="ignore")
    return values.astype("string")


def _flags(path: Path, name: str, values: pd.Series) -> pd.Series:
    known = {"True": True, "False": False, True: True, False: False}

    def good(value: Any) -> bool:
        return isinstance(value, str | bool | np.bool_) and value in known

    _check(path, name, values, good, "true or false")
    return values.map(known, na_action="ignore").astype("boolean").fillna(False).astype(bool)


def _numbers(path: Path, name: str, values: pd.Series, kind: _Number) -> pd.Series:
    given = values.notna().to_numpy()
    if isinstance(values.dtype, pd.StringDtype):
        found = _from_texts(values)
    elif _numeric(values):
        found = values.astype("Float64").to_numpy(na_value=np.nan).astype(np.float64)
    else:
        _check(path, name, values, _is_number, kind.told)
        found = np.array([_float(value) for value in values])
    good = (found >= kind.least) & (found <= kind.most)
    if kind.whole:
        good &= found == np.round(found)
    wrong = given & ~good
    if wrong.any():
        raise _wrong(path, name, values, wrong, kind.told)
    if not kind.whole:
        return pd.Series(found, values.index)
    whole = pd.Series(np.where(given, found, 0).astype(np.int64), values.index)
    return whole if given.all() else whole.astype("Int64").where(given)


def _numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _from_texts(values: pd.Series) -> npt.NDArray[np.float64]:
    try:
        cast = pa.array(values.tolist(), pa.string(), from_pandas=True).cast(pa.float64())
        found: npt.NDArray[Any] = cast.to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:  # one of them is no number: find it
        found = pd.to_numeric(values, errors="coerce").astype("Float64").to_numpy(na_value=np.nan)
    return found.astype(np.float64)


def _float(value: Any) -> float:
    try:
        return float("nan") if value is None or value is pd.NA else float(value)
    except OverflowError:
        return float("inf")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    """Texts, and numbers that are names; JSON can spell half characters, which no text holds."""
    return _is_number(value) or (isinstance(value, str) and not _HALF.search(value))


def _are_numbers(value: Any) -> bool:
    return (
        isinstance(value, list | np.ndarray)
        and len(value) > 0
        and all(_is_number(one) and abs(_float(one)) <= _ANY.most for one in value)
    )


def _check(
    path: Path, name: str, values: pd.Series, good: Callable[[Any], bool], wanted: str
) -> None:
    wrong = [not (value is None or value is pd.NA or good(value)) for value in values]
    if any(wrong):
        raise _wrong(path, name, values, wrong, wanted)


def _wrong(
    path: Path, name: str, values: pd.Series, wrong: Iterable[bool], wanted: str
) -> TraceError:
    at = int(np.argmax(np.fromiter(wrong, bool)))
    shown = repr(values.iloc[at])
    if len(shown) > _LONGEST_SHOWN:
        shown = shown[:_LONGEST_SHOWN] + "..."
    return TraceError(f"{path}, row {at + 1}: {name} is {shown}, not {wanted}")
