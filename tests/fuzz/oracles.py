"""What a file holds, read slowly and plainly, without the product: by pyarrow, NumPy, json, torch.

Every oracle returns the content of a trace, or raises `Unsound` for what no reader may accept.
"""

import base64
import io
import json
import warnings
import zipfile
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KEY = b"hisparse_trace"
REQUIRED = ("request", "layer", "step", "seq_len", "positions")
OPTIONAL = ("scores", "next_positions")
DEFAULTS = {
    "model": "", "provenance": "", "num_layers": None, "version": 1, "source": "", "dataset": "",
    "layer_types": None, "unit": "token", "order": "position", "prompt_len": {}, "created": "",
    "notes": None, "draft_tokens": 1,
}  # fmt: skip

# (request, layer, prompt_len, [(step, seq_len, positions)], scores, next_positions)
Part = tuple[str, int, int, list[tuple[int, int, list[int]]], list[Any] | None, list[Any] | None]


class Unsound(Exception):
    """No reader may accept this."""


def judge(parts: list[Part], top_k: int, num_layers: int | None) -> None:
    """Raise Unsound if a rule of the page on the trace file is broken."""
    requests = [request for request, _ in groupby(parts, key=lambda part: part[0])]
    if len(set(requests)) < len(requests) or not parts:
        raise Unsound("a request comes twice, or there is none")
    for request, layers in groupby(parts, key=lambda part: part[0]):
        numbers = [part[1] for part in layers]
        if numbers != sorted(set(numbers)) or numbers[0] < 0:
            raise Unsound(f"layers of {request!r} are {numbers}")
        if numbers[-1] >= (num_layers or 2**15):
            raise Unsound(f"layer {numbers[-1]} of {num_layers}")
    for request, layer, prompt_len, rows, _, following in parts:
        place = f"{request!r}, layer {layer}"
        for number, (step, seq_len, positions) in enumerate(rows):
            if number and (step != rows[number - 1][0] + 1 or seq_len < rows[number - 1][1]):
                raise Unsound(f"{place}: steps or seq_len of row {number}")
            if not prompt_len < seq_len:
                raise Unsound(f"{place}: prompt_len {prompt_len}, seq_len {seq_len}")
            if len(set(positions)) < len(positions) or len(positions) > top_k:
                raise Unsound(f"{place}: row {number} repeats a position, or lists too many")
            for position in [*positions, *(following[number] if following else [])]:
                if not 0 <= position < seq_len:
                    raise Unsound(f"{place}: row {number} lists {position} of {seq_len}")


def _without_padding(values: list[int], others: list[Any]) -> list[Any]:
    return [other for value, other in zip(values, others, strict=True) if value != -1]


def parquet(data: bytes) -> tuple[dict[str, Any], list[Part]]:
    """Return metadata and parts of a Parquet file, by pyarrow's own decode."""
    file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
    keys = {**(file.schema_arrow.metadata or {}), **(file.metadata.metadata or {})}
    columns = [name for name in (*REQUIRED, *OPTIONAL) if name in file.schema_arrow.names]
    return _judged(file.read(columns=columns, use_threads=False).to_pylist(), keys)


def arrow(data: bytes) -> tuple[dict[str, Any], list[Part]]:
    """Return metadata and parts of an Arrow file or stream."""
    opened = pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream
    table = opened(io.BytesIO(data)).read_all()
    table.validate(full=True)
    columns = [name for name in (*REQUIRED, *OPTIONAL) if name in table.schema.names]
    return _judged(table.select(columns).to_pylist(), table.schema.metadata or {})


def _judged(
    rows: list[dict[str, Any]], keys: dict[bytes, bytes]
) -> tuple[dict[str, Any], list[Part]]:
    said = json.loads(keys[KEY])
    metadata = {name: said.get(name, default) for name, default in DEFAULTS.items()}
    for name, default in DEFAULTS.items():
        metadata[name] = default if metadata[name] is None else metadata[name]
    names = [name for name in OPTIONAL if name in rows[0]]
    parts: list[Part] = []
    for (request, layer), group in groupby(rows, key=lambda row: (row["request"], row["layer"])):
        listed = list(group)
        prompt_len = metadata["prompt_len"].get(request, listed[0]["seq_len"] - 1)
        positions = [row["positions"] for row in listed]
        scores = following = None
        if "scores" in names:
            scores = [
                [repr(float(np.float16(score))) for score in _without_padding(*both)]
                for both in ((row["positions"], row["scores"]) for row in listed)
            ]
        if "next_positions" in names:
            following = [[p for p in row["next_positions"] if p != -1] for row in listed]
        steps = [
            (row["step"], row["seq_len"], _without_padding(each, each))
            for row, each in zip(listed, positions, strict=True)
        ]
        parts.append((str(request), layer, prompt_len, steps, scores, following))
    longest = max(len(row[2]) for part in parts for row in part[3])
    metadata["top_k"] = said.get("top_k") or max(1, longest)
    judge(parts, metadata["top_k"], metadata["num_layers"])
    return metadata, parts


# --- importers -----------------------------------------------------------------------------------


def strictly(text: str | bytes) -> Any:
    """Parse JSON in which no key has two values."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise Unsound("a key has two values")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique)


def _texts(data: bytes, suffix: str) -> list[Any]:
    lines = data.split(b"\n") if suffix == ".jsonl" else [data]
    return [strictly(line) for line in lines if line.strip()]


def npy(data: bytes) -> np.ndarray:
    """Read a .npy file; that Python 2 may have written it is no fault."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
        return found


def _decode_rows(request: str, array: np.ndarray, first: int, prompt_len: int) -> list[Part]:
    """Return the decode rows of an array (rows, layers, top_k) whose row 0 is the query `first`."""
    if array.ndim == 2:
        array = array[:, None, :]
    if array.ndim != 3 or array.dtype.kind not in "iu":
        raise Unsound(f"{array.dtype} of the shape {array.shape}")
    parts: list[Part] = []
    for layer in range(array.shape[1]):
        rows: list[tuple[int, int, list[int]]] = []
        for number, row in enumerate(array[:, layer].tolist()):
            if first + number < prompt_len:
                continue
            if min(row) < -1:
                raise Unsound(f"row {number} holds {min(row)}")
            listed = [position for position in row if position != -1]
            rows.append((len(rows), first + number + 1, listed))
        if not rows:
            raise Unsound("no row of decode")
        parts.append((request, layer, prompt_len, rows, None, None))
    return parts


def sglang(data: bytes, suffix: str) -> list[Part]:
    """Answers of two layers and top_k 4."""
    answers = [
        answer
        for text in _texts(data, suffix)
        for answer in (text if isinstance(text, list) else [text])
    ]
    parts: list[Part] = []
    for number, answer in enumerate(answers):
        about = answer["meta_info"]
        if any(key.startswith("spec_") and value for key, value in about.items()):
            raise Unsound("speculative")
        raw = base64.b64decode(about["indexer_topk"], validate=True)
        array = np.frombuffer(raw, "<i4").reshape(-1, 2, 4)
        prompt_len, output = about["prompt_tokens"], about.get("completion_tokens")
        if type(output) is int and len(array) != prompt_len + output - 1:
            raise Unsound(f"{len(array)} rows for {prompt_len} and {output} tokens")
        name = about.get("id")
        name = name if isinstance(name, str) and name else f"answer-{number}"
        parts += _decode_rows(name, array, 0, prompt_len)
    return parts


def vllm(data: bytes, suffix: str) -> list[Part]:
    """Answers with a .npy file each choice."""
    parts: list[Part] = []
    number = 0
    for answer in _texts(data, suffix):
        usage = answer["usage"]
        prompt_len, output = usage["prompt_tokens"], usage.get("completion_tokens")
        generated = 0
        for choice in answer["choices"]:
            raw = base64.b64decode(choice["indexer_topk"], validate=True)
            array = npy(raw)
            start = choice.get("indexer_topk_prompt_start")
            start = answer.get("indexer_topk_prompt_start") if start is None else start
            name = answer.get("id")
            name = name if isinstance(name, str) and name else "choice"
            parts += _decode_rows(f"{name}-{number}", array, start or 0, prompt_len)
            generated += len(array) + (start or 0) + 1 - prompt_len
            number += 1
        if type(output) is int and generated != output:
            raise Unsound(f"{generated} tokens were generated, and {output} are counted")
    return parts


def array(data: bytes, suffix: str) -> list[Part]:
    """An array behind a prompt of nine tokens; the file is called `input`."""
    if suffix == ".pt":
        import torch

        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if archive.testzip():
                raise Unsound("a checksum is wrong")
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        while isinstance(found, dict):
            (found,) = found.values()
        return _decode_rows("input", found.numpy(), 9, 9)
    if suffix == ".npz":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            (member,) = archive.infolist()
            data = archive.read(member)
    return _decode_rows("input", npy(data), 9, 9)


def jsonl(data: bytes, suffix: str) -> list[Part]:
    """Lines of one (request, layer, step) each."""
    lines = [json.loads(line) for line in data.split(b"\n") if line.strip()]
    without = any(line["seq_len_current"] in line["selected_token_pos"] for line in lines)
    groups: dict[str, dict[int, list[Any]]] = {}
    for line in lines:
        listed = [position for position in line["selected_token_pos"] if position != -1]
        row = line["step_idx"], line["seq_len_current"] + without, listed
        layers = groups.setdefault(str(line["request_id"]), {})
        layers.setdefault(line["layer_id"], []).append(row)
    parts: list[Part] = []
    for request, layers in groups.items():
        for layer in sorted(layers):
            rows = sorted(layers[layer], key=lambda row: row[0])
            parts.append((request, layer, rows[0][1] - 1, rows, None, None))
    return parts


def written(path: Path) -> list[Part]:
    """Return the parts of a trace file that was just written."""
    return parquet(path.read_bytes())[1]
