"""Small sound files, made by code: what the mutators start from."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from make_traces import demand, drift, metadata, several, table, write, write_table

from hisparse_sim.traces import Demand, Ragged, TraceWriter
from hisparse_sim.traces.file.metadata import KEY

PROMPT = 9  # tokens


def logical(rows: int, first: int, layers: int = 2, top_k: int = 4, seed: int = 0) -> np.ndarray:
    """Return positions (rows, layers, top_k) of queries from `first` on, the newest always."""
    source = np.random.default_rng(seed)
    found = np.full((rows, layers, top_k), -1, np.int32)
    for row in range(rows):
        for layer in range(layers):
            past = source.permutation(first + row)[: top_k - 1]
            found[row, layer, : len(past) + 1] = [first + row, *past]
    return found


def _with_columns(plain: Demand) -> Demand:
    scores = np.linspace(-2, 2, len(plain.positions)).astype(np.float16)
    following = Ragged(plain.offsets, (plain.positions % 5).astype(np.int32))
    return replace(plain, scores=scores, next_positions=following)


def _made(make: Any, suffix: str = ".parquet") -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"trace{suffix}"
        make(path)
        return path.read_bytes()


def traces() -> list[bytes]:
    """Files of our own writer."""
    about = metadata(
        prompt_len={"request-0": 39, "request-1": 64},
        layer_types=("full", "shared", "full", "full"),
        notes={"a": [1, "é"]}, created="2026-01-01", source="test 1.0", dataset="none",
    )  # fmt: skip
    parts = several(requests=2, layers=(0, 3), steps=5, top_k=5)
    return [
        _made(lambda path: write(path, parts, about)),
        _made(lambda path: write(path, [*map(_with_columns, parts[:2])], about)),
        _made(lambda path: write(path, [drift(shuffled=True, ragged=True, top_k=20)],
                                 metadata(top_k=20, order="indexer"))),
        _made(lambda path: write(path, [demand([[0], [1]], 2)])),
    ]  # fmt: skip


def foreign_traces() -> list[bytes]:
    """The same rows as other programs may lay them out."""
    rows = several(requests=2, layers=(0, 3), steps=5, top_k=5)
    plain = table(rows)
    about = metadata(prompt_len={"request-0": 39})
    scored = table([_with_columns(rows[0])])
    scores = [[0.5] * len(row) for row in scored["positions"].to_pylist()]
    scored = scored.append_column("scores", [scores]).append_column(
        "next_positions", [scored["positions"].to_pylist()]
    )
    options: list[dict[str, Any]] = [
        {}, {"row_group_size": 7}, {"write_page_checksum": True, "row_group_size": 5},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "none", "use_dictionary": False, "write_statistics": False},
    ]  # fmt: skip
    return [
        *(
            _made(lambda path, each=each: write_table(path, plain, about, **each))
            for each in options
        ),
        _made(lambda path: write_table(path, scored, about)),
        _made(lambda path: write_table(path, plain, '{"version": 1, "provenance": "synthetic"}')),
    ]


def arrow_traces() -> list[bytes]:
    """Arrow files of our own writer, plain and compressed."""
    parts = several(requests=2, layers=(0, 3), steps=5, top_k=5)
    about = metadata(prompt_len={"request-0": 39, "request-1": 64})

    def compressed(path: Path) -> None:
        with TraceWriter(path, about, lz4=True) as writer:
            for part in parts:
                writer.write(part)

    return [
        _made(lambda path: write(path, parts, about), ".arrow"),
        _made(lambda path: write(path, [*map(_with_columns, parts[:2])], about), ".arrow"),
        _made(compressed, ".arrow"),
    ]


def foreign_arrow_traces() -> list[bytes]:
    """Arrow files and streams as other programs write them."""
    rows = table(several(requests=2, layers=(0, 3), steps=5, top_k=5))
    rows = rows.replace_schema_metadata({KEY: metadata(prompt_len={"request-0": 39}).to_json()})
    found = []
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        for size in (None, 7):
            file = io.BytesIO()
            with new(file, rows.schema) as writer:
                writer.write_table(rows, size)
            found.append(file.getvalue())
    return found


def sglang() -> list[bytes]:
    """Answers of /generate."""

    def answer(name: str, seed: int) -> dict[str, Any]:
        value = base64.b64encode(logical(PROMPT + 5, 0, seed=seed).tobytes()).decode()
        about = {"id": name, "prompt_tokens": PROMPT, "completion_tokens": 6, "cached_tokens": 0}
        return {"text": 'a "b" \\', "meta_info": {**about, "indexer_topk": value}}

    return [
        json.dumps(answer("a", 0)).encode(),
        json.dumps([answer("a", 0), answer("b", 1)], indent=1).encode(),
    ]


def sglang_lines() -> list[bytes]:
    """One answer a line."""
    first, both = sglang()
    return [b"\n".join(json.dumps(each).encode() for each in json.loads(both)), first + b"\n\n"]


def vllm() -> list[bytes]:
    """Completions, of one choice and of two."""

    def choice(start: int, seed: int) -> dict[str, Any]:
        file = io.BytesIO()
        np.save(file, logical(PROMPT + 5 - start, start, seed=seed))
        return {
            "indexer_topk": base64.b64encode(file.getvalue()).decode(),
            "indexer_topk_prompt_start": start,
        }  # fmt: skip

    def answer(*choices: dict[str, Any]) -> bytes:
        usage = {"prompt_tokens": PROMPT, "completion_tokens": 6 * len(choices)}
        listed = [{"index": number, **each} for number, each in enumerate(choices)]
        return json.dumps({"id": "c", "usage": usage, "choices": listed}).encode()

    bare = choice(0, 0)
    del bare["indexer_topk_prompt_start"]
    return [answer(bare), answer(choice(4, 1)), answer(choice(0, 2), choice(2, 3))]


def npy() -> list[bytes]:
    """Arrays behind a prompt of PROMPT tokens."""
    found = []
    for array in (logical(6, PROMPT), logical(6, PROMPT).astype(np.int64)[:, 0]):
        file = io.BytesIO()
        np.save(file, array)
        found.append(file.getvalue())
    return found


def npz() -> list[bytes]:
    """Archives of one array."""
    found = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, logical(6, PROMPT))
        found.append(file.getvalue())
    return found


def pt() -> list[bytes]:
    """Tensors, bare and in a dictionary. Raises ImportError without torch."""
    import torch

    found = []
    tensor = torch.from_numpy(logical(6, PROMPT))
    for value in (tensor, {"positions": tensor.long()}):
        file = io.BytesIO()
        torch.save(value, file)
        found.append(file.getvalue())
    return found


def jsonl() -> list[bytes]:
    """Lines of instrumented models, step by step over all layers."""
    array = logical(6, PROMPT)
    lines = [
        {
            "request_id": request, "layer_id": layer, "step_idx": row,
            "seq_len_current": PROMPT + row + more,
            "selected_token_pos": array[row, layer].tolist(),
        }
        for request, more in (("a", 1), ("b", 1))
        for row in range(6)
        for layer in range(2)
    ]  # fmt: skip
    return ["\n".join(map(json.dumps, lines)).encode(), json.dumps(lines[0]).encode()]
