"""The metadata of a trace file: the JSON under `hisparse_trace` in the Parquet schema."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.units import TOKEN, WANTED, is_unit

KEY = b"hisparse_trace"
VERSION = 1
PROVENANCES = ("dsa-serving", "trained-indexer", "attention-oracle", "synthetic")
ORDERS = ("position", "indexer")
MOST_QUERIES = 63  # of a step; the engine's reserved page holds them and the newest token


@dataclass(frozen=True)
class Metadata:
    """The metadata of a trace: the origin of its positions, and what they count."""

    model: str  # "" where unknown
    provenance: str  # one of PROVENANCES
    top_k: int  # largest number of positions in a row
    num_layers: int | None  # of the model, not of the file; None where unknown
    version: int = VERSION
    source: str = ""  # engine or library with its version, top-k kernel
    dataset: str = ""
    layer_types: tuple[str, ...] | None = None  # [num_layers], "full" or "shared"
    unit: str = TOKEN  # what a position counts: token, or blockN for a block of N tokens
    order: str = "position"  # of the positions in a row: sorted, or as the "indexer" listed them
    draft_tokens: int = 1  # queries of a step at most; above 1 there is a column `row`
    prompt_len: Mapping[str, int] = field(default_factory=dict)  # request -> positions
    created: str = ""
    notes: Any = None  # any JSON

    @classmethod
    def from_json(cls, text: str | bytes) -> "Metadata":
        """Parse and check; keys that this version does not know are ignored.

        `provenance` and `top_k` may be absent and come back as "" and 0: the reader can get them
        elsewhere. Raises TraceError with what is wrong; the caller knows the file and adds it.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"its metadata is not valid JSON ({error})") from None
        if not isinstance(found, dict):
            raise TraceError("its metadata is not a JSON object")
        _refuse_surrogates(found)
        version = found.get("version")
        if version != VERSION or isinstance(version, bool):
            raise TraceError(
                f"its metadata has version {json.dumps(version)[:40]}, and this release reads "
                f"version {VERSION}"
            )
        values: dict[str, Any] = {"model": "", "provenance": "", "top_k": 0, "num_layers": None}
        for name, (accepts, wanted) in _FIELDS.items():
            value = found.get(name)
            if value is None:
                continue
            if not accepts(value):
                shown = json.dumps(value)
                raise TraceError(
                    f"its metadata gives {name} as {shown[:80]}{'...' if len(shown) > 80 else ''}, "
                    f"expected {wanted}"
                )
            values[name] = value
        layer_types = values.get("layer_types")
        if layer_types is not None:
            values["layer_types"] = tuple(layer_types)
            if values["num_layers"] not in (None, len(layer_types)):
                raise TraceError(
                    f"its metadata gives {len(layer_types)} layer_types for "
                    f"{values['num_layers']} layers"
                )
        return cls(**values, notes=found.get("notes"))

    def to_json(self) -> str:
        """Return the JSON text that `from_json` reads.

        Raises TraceError if it holds text that no file or terminal can take.
        """
        found = asdict(self)
        if self.draft_tokens == 1:
            del found["draft_tokens"]  # such files are the same as before there was the key
        _refuse_surrogates(found)
        return json.dumps(found)


def _refuse_surrogates(found: dict[str, Any]) -> None:
    """Python strings and JSON escapes can hold half a character, which nothing can print."""
    for name, value in found.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise TraceError(
                f"its metadata gives {name!a} with a lone surrogate, which is not a character"
            ) from None


def _whole(least: int, most: int = 2**31 - 1) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _lengths(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_whole(0), value.values()))


def _one_of(values: tuple[str, ...]) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: value in values), "one of " + ", ".join(values)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (_text, "a string"),
    "provenance": _one_of(PROVENANCES),
    "top_k": (_whole(1), "a whole number of at least 1"),
    "num_layers": (_whole(1), "a whole number of at least 1"),
    "source": (_text, "a string"),
    "dataset": (_text, "a string"),
    "layer_types": (_texts, "a list of strings"),
    "unit": (is_unit, f"one of {WANTED}"),
    "order": _one_of(ORDERS),
    "draft_tokens": (_whole(1, MOST_QUERIES), f"a whole number from 1 to {MOST_QUERIES}"),
    "prompt_len": (_lengths, "an object of whole numbers, one per request"),
    "created": (_text, "a string"),
}


def fit_caveat(metadata: Metadata) -> str:
    """Return the caveat on the fit of a synthetic trace whose parameters differ from the fitted
    ones; a trace that was cut out of another keeps its notes."""
    notes = metadata.notes
    while isinstance(notes, dict) and "fit_holds" not in notes:
        notes = notes.get("original")
    return str(notes["fit_holds"]) if isinstance(notes, dict) else ""
