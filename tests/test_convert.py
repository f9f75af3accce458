"""Importers: exact round trips for every format, and one clear sentence for anything hostile."""

import base64
import io
import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.importers import IMPORTERS
from hisparse_sim.traces.importers.base64_stream import Extractor
from hisparse_sim.traces.importers.convert import convert

quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def logical(rows: int, layers: int, top_k: int, first: int, seed: int = 0) -> np.ndarray:
    """Return valid top-k of logical positions, (rows, layers, top_k), padded with -1 at the end."""
    random = np.random.default_rng(seed)
    array = np.full((rows, layers, top_k), -1, np.int32)
    for row in range(rows):
        for layer in range(layers):
            seen = random.permutation(first + row + 1)[:top_k]
            array[row, layer, : len(seen)] = seen
    return array


def sglang_answer(array: np.ndarray, prompt_len: int, name: str = "r") -> dict[str, Any]:
    text = base64.b64encode(array.astype("<i4").tobytes()).decode()
    output = len(array) + 1 - prompt_len
    about = {"id": name, "prompt_tokens": prompt_len, "completion_tokens": output}
    return {
        "text": 'a "quoted\\" indexer_topk": text',
        "meta_info": {"indexer_topk": text, **about},
    }


def vllm_answer(array: np.ndarray, prompt_len: int) -> dict[str, Any]:
    file = io.BytesIO()
    np.save(file, array)
    value = base64.b64encode(file.getvalue()).decode()
    return {
        "id": "cmpl-1",
        "choices": [{"index": 0, "message": {"content": "hi"}, "indexer_topk": value}],
        "usage": {"prompt_tokens": prompt_len},
    }


def check(path: Path, array: np.ndarray, prompt_len: int, first: int) -> None:
    """The trace holds exactly the decode rows of the array."""
    trace = open_trace(path)
    assert len(trace.parts) == array.shape[1]
    for part in trace.parts:
        demand = trace.read(part)
        assert demand.prompt_len == prompt_len
        skipped = prompt_len - first
        assert demand.rows == len(array) - skipped
        for row in range(demand.rows):
            listed = array[skipped + row, part.layer]
            assert demand.row(row).tolist() == [each for each in listed.tolist() if each >= 0]
            assert demand.seq_len[row] == prompt_len + row + 1


shapes = st.tuples(st.integers(2, 6), st.integers(1, 3), st.integers(1, 7), st.integers(0, 9))


@quick
@given(shape=shapes, seed=st.integers(0, 99))
def test_sglang_round_trip(tmp_path: Path, shape: tuple[int, ...], seed: int) -> None:
    decode, layers, top_k, prompt_len = shape
    array = logical(prompt_len + decode, layers, top_k, 0, seed)
    array[:prompt_len] = 7_000_000  # rows of the dense prefill are stale: they must not matter
    source = tmp_path / "answer.json"
    source.write_text(json.dumps(sglang_answer(array, prompt_len)))
    convert(source, tmp_path / "out.parquet", top_k=top_k)
    check(tmp_path / "out.parquet", array, prompt_len, 0)


@quick
@given(shape=shapes, seed=st.integers(0, 99), start=st.integers(0, 9))
def test_vllm_round_trip(tmp_path: Path, shape: tuple[int, ...], seed: int, start: int) -> None:
    decode, layers, top_k, prompt_len = shape
    start = min(start, prompt_len)
    array = logical(prompt_len - start + decode, layers, top_k, start, seed)
    source = tmp_path / "answer.json"
    source.write_text(json.dumps(vllm_answer(array, prompt_len)))
    convert(source, tmp_path / "out.parquet", first_position=start)
    check(tmp_path / "out.parquet", array, prompt_len, start)


@quick
@given(
    shape=shapes,
    seed=st.integers(0, 99),
    dtype=st.sampled_from([np.int16, np.int32, np.int64, ">i4"]),
    suffix=st.sampled_from([".npy", ".npz"]),
)
def test_array_round_trip(
    tmp_path: Path, shape: tuple[int, ...], seed: int, dtype: Any, suffix: str
) -> None:
    rows, layers, top_k, prompt_len = shape
    array = logical(rows, layers, top_k, prompt_len, seed).astype(dtype)
    source = tmp_path / f"array{suffix}"
    if suffix == ".npy":
        np.save(source, array)
    else:
        np.savez_compressed(source, array)
    convert(source, tmp_path / "out.parquet", prompt_len=prompt_len, provenance="dsa-serving")
    check(tmp_path / "out.parquet", array, prompt_len, prompt_len)


@quick
@given(shape=shapes, seed=st.integers(0, 99), exclusive=st.booleans(), order=st.randoms())
def test_jsonl_round_trip(
    tmp_path: Path, shape: tuple[int, ...], seed: int, exclusive: bool, order: Any
) -> None:
    rows, layers, top_k, prompt_len = shape
    array = logical(rows, layers, top_k, prompt_len, seed)
    array[0, 0, 0] = prompt_len  # the newest token, which tells how lengths are counted
    others = array[0, 0, 1:]
    others[others == prompt_len] = -1
    lines = [
        {
            "request_id": 5,
            "layer_id": layer,
            "step_idx": row,
            "seq_len_current": prompt_len + row + (not exclusive),
            "selected_token_pos": array[row, layer].tolist(),
            "extra": None,
        }
        for row in range(rows)
        for layer in range(layers)
    ]
    order.shuffle(lines)
    source = tmp_path / "rows.jsonl"
    source.write_text("\n\n".join(map(json.dumps, lines)))
    known = {} if prompt_len else {"prompt_len": 0}  # a row of the first token is the prompt's
    convert(source, tmp_path / "out.parquet", provenance="dsa-serving", **known)
    check(tmp_path / "out.parquet", array, prompt_len, prompt_len)


def test_several_sglang_answers(tmp_path: Path) -> None:
    arrays = [logical(9, 2, 3, 0, seed) for seed in range(3)]
    answers = [sglang_answer(array, 4, f"r{i}") for i, array in enumerate(arrays)]
    for name, text in (
        ("answers.jsonl", "\n".join(map(json.dumps, answers)) + "\n"),
        ("answers.json", json.dumps(answers)),
    ):
        (tmp_path / name).write_text(text)
        convert(tmp_path / name, tmp_path / "out.parquet", "sglang", top_k=3, num_layers=2)
        trace = open_trace(tmp_path / "out.parquet")
        assert trace.requests == ("r0", "r1", "r2")
        assert trace.metadata.prompt_len == {"r0": 4, "r1": 4, "r2": 4}
        for part in trace.parts:
            demand = trace.read(part)
            expected = arrays[int(part.request[1])][4:, part.layer]
            assert [demand.row(i).tolist() for i in range(5)] == expected.tolist()


@quick
@given(data=st.data())
def test_extractor_agrees_with_json(data: st.DataObject) -> None:
    """Whatever the chunks, values come out whole and the rest is what json makes of it."""
    payloads = data.draw(st.lists(st.binary(max_size=40), max_size=3))
    texts = data.draw(st.lists(st.text(max_size=12), min_size=3, max_size=3))
    document: list[Any] = []
    for number, payload in enumerate(payloads):
        value = base64.b64encode(payload).decode()
        document.append({texts[0]: texts[1], "key": value, "inner": {"key": None, "n": number}})
    document.append([texts[2], "key", '"key": "AAAA"', {"other": "key"}])
    raw = json.dumps(document, ensure_ascii=data.draw(st.booleans())).encode()
    if data.draw(st.booleans()):
        raw = raw.replace(b"/", b"\\/")
    received: dict[int, bytearray] = {}

    def open_sink(number: int) -> Any:
        received[number] = bytearray()
        return received[number].extend

    extractor = Extractor("key", open_sink)
    at = 0
    while at < len(raw):
        size = data.draw(st.integers(1, 30))
        extractor.feed(raw[at : at + size])
        at += size
    found = extractor.finish()
    assert [bytes(received[i]) for i in range(len(payloads))] == payloads
    expected = json.loads(raw)
    for number in range(len(payloads)):
        if texts[0] != "key":
            expected[number]["key"] = {"base64": number}
    if texts[0] != "key":
        assert found == expected


def refused(tmp_path: Path, source: Path, form: str | None = None, **options: Any) -> str:
    """Convert, expect one sentence, and nothing left behind."""
    before = set(tmp_path.iterdir())
    with pytest.raises(TraceError) as caught:
        convert(source, tmp_path / "out.parquet", form, provenance="dsa-serving", **options)
    assert set(tmp_path.iterdir()) == before
    message = str(caught.value)
    assert "\n" not in message
    assert str(source) in message
    return message


def test_physical_slots_are_refused(tmp_path: Path) -> None:
    good = logical(12, 2, 4, 0)
    source = tmp_path / "answer.json"
    source.write_text(json.dumps(sglang_answer(good + 5_000, 6)))
    message = refused(tmp_path, source, top_k=4)
    assert "layer 0, step 0 (row 6) lists 500" in message
    assert "12 of 12 rows looked at" in message
    assert "SGLANG_DSA_FUSE_TOPK=0" in message


def test_cut_and_damaged_answers(tmp_path: Path) -> None:
    text = json.dumps(sglang_answer(logical(9, 2, 4, 0), 5))
    source = tmp_path / "answer.json"
    value = text.index("AAAA") if "AAAA" in text else text.index("indexer_topk", 60) + 30
    for spoilt, reason in (
        (text[: value + 50], "cut off"),
        (text[:-3], "not complete JSON"),
        (text[: value + 9] + "!" + text[value + 10 :], "damaged"),
        ("[" * 100_000, "JSON"),
        ("", "answer.json is empty"),
        (" ", "JSON"),
        ('{"meta_info": {}}', "--enable-return-indexer-topk"),
        ('{"meta_info": 3}', "--enable-return-indexer-topk"),
        ('{"meta_info": {"indexer_topk": null}}', "--enable-return-indexer-topk"),
        ('{"meta_info": {"indexer_topk": "AAAA"}}', "`prompt_len`"),
    ):
        source.write_text(spoilt)
        assert reason in refused(tmp_path, source, "sglang", top_k=4)
    source.write_text(text)
    assert "`num_layers` and `top_k`" in refused(tmp_path, source)
    assert "check `num_layers`" in refused(tmp_path, source, top_k=5, num_layers=2)
    assert "bytes" in refused(tmp_path, source, top_k=7)
    assert "none is a decode step" in refused(tmp_path, source, top_k=4, prompt_len=9, num_layers=2)


def test_hostile_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "executed"), "w"))

    source = tmp_path / "array.npy"
    np.save(source, np.array([Bomb()], dtype=object), allow_pickle=True)
    assert "Python objects" in refused(tmp_path, source, prompt_len=3)
    source.write_bytes(pickle.dumps(Bomb()))
    refused(tmp_path, source, prompt_len=3)
    np.save(source, logical(4, 2, 3, 5))
    whole = source.read_bytes()
    assert "`prompt_len`" in refused(tmp_path, source)
    assert "and the query stands at 1 (" in refused(tmp_path, source, prompt_len=1)
    source.write_bytes(whole[:-20])
    refused(tmp_path, source, prompt_len=5)
    # A header that claims a petabyte.
    source.write_bytes(whole.replace(b"(4, 2, 3)", b"(99999, 9999, 999)")[: len(whole)])
    refused(tmp_path, source, prompt_len=5)
    for wrong in (np.zeros((2, 2)), np.zeros(3, int), np.zeros((2, 0, 3), int)):
        np.save(source, wrong)
        refused(tmp_path, source, prompt_len=5)
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("array.npy", bytes(50 << 20))
    assert "would expand" in refused(tmp_path, bomb, prompt_len=5)
    bomb.write_bytes(b"PK\x03\x04 no archive")
    refused(tmp_path, bomb, prompt_len=5)
    monkeypatch.setitem(sys.modules, "torch", None)
    tensor = tmp_path / "tensor.pt"
    tensor.write_bytes(pickle.dumps(Bomb()))
    assert "install torch" in refused(tmp_path, tensor, prompt_len=5)
    assert not (tmp_path / "executed").exists()


def test_tensors_are_loaded_without_executing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    array = logical(4, 2, 3, 5)
    source = tmp_path / "tensor.pt"
    torch.save(torch.from_numpy(array), source)
    convert(source, tmp_path / "out.parquet", prompt_len=5, provenance="dsa-serving")
    check(tmp_path / "out.parquet", array, 5, 5)

    class Bomb:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "executed"), "w"))

    torch.save(Bomb(), source)
    (tmp_path / "out.parquet").unlink()
    refused(tmp_path, source, prompt_len=5)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ('{"request_id": 1}', "has no layer_id"),
        ('{"layer_id": -1}', "request_id"),
        ('{"layer_id": true}', "request_id"),
    ],
)
def test_spoilt_rows(tmp_path: Path, line: str, reason: str) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(line)
    message = refused(tmp_path, source, "jsonl")
    assert reason in message
    assert "line 1" in message


def test_spoilt_values_of_rows(tmp_path: Path) -> None:
    good: dict[str, Any] = {
        "request_id": "a", "layer_id": 0, "step_idx": 0, "seq_len_current": 9,
        "selected_token_pos": [1, 2],
    }  # fmt: skip
    source = tmp_path / "rows.jsonl"
    for key, value in (
        ("layer_id", True), ("step_idx", "x"), ("seq_len_current", -1),
        ("selected_token_pos", 3), ("selected_token_pos", [1, 2.5]),
        ("selected_token_pos", [2**40]),
    ):  # fmt: skip
        source.write_text(json.dumps({**good, key: value}))
        assert key in refused(tmp_path, source)
    source.write_text("\n")
    assert "holds no rows" in refused(tmp_path, source, "jsonl")


def test_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown format 'x'; known are sglang, vllm"):
        convert(tmp_path / "a", tmp_path / "b", "x")
    assert "`form`" in refused(tmp_path, tmp_path / "what.bin")
    for form in IMPORTERS:
        refused(tmp_path, tmp_path / "absent.npy", form)
    source = tmp_path / "array.npy"
    np.save(source, logical(2, 1, 2, 3))
    with pytest.raises(TraceError, match="`provenance`"):
        convert(source, tmp_path / "out.parquet", prompt_len=3)
