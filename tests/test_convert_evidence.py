"""What a file says besides its positions is held against them: counts, checksums, its making."""

import base64
import io
import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_convert import check, logical, refused, sglang_answer, vllm_answer

from hisparse_sim.traces import open_trace
from hisparse_sim.traces.importers import IMPORTERS
from hisparse_sim.traces.importers.convert import convert


def counted(array: np.ndarray, prompt: int, generated: int, **choice: Any) -> dict[str, Any]:
    """Return an answer of vLLM that counts so many tokens."""
    answer = vllm_answer(array, prompt)
    answer["usage"]["completion_tokens"] = generated
    answer["choices"][0].update(choice)
    return answer


def written(path: Path, answer: Any) -> Path:
    path.write_text(json.dumps(answer))
    return path


@pytest.mark.parametrize("generated", ["12", 12.0, True, -1, [12]])
def test_a_count_of_vllm_that_is_none(tmp_path: Path, generated: Any) -> None:
    array = logical(31, 2, 8, 0)
    source = written(tmp_path / "v.json", counted(array, 20, generated))
    assert "answer 0 has usage.completion_tokens" in refused(tmp_path, source)


def test_an_answer_of_vllm_that_is_there_twice(tmp_path: Path) -> None:
    answer = counted(logical(31, 2, 8, 0), 20, 12)
    source = tmp_path / "v.jsonl"
    source.write_text(f"{json.dumps(answer)}\n{json.dumps(answer)}\n")
    assert "holds the answer 'cmpl-1' twice" in refused(tmp_path, source, "vllm")
    answer["usage"]["completion_tokens"] *= 2
    answer["choices"] *= 2
    source.write_text(json.dumps(answer))
    assert "an answer holds its choice 0 twice" in refused(tmp_path, source, "vllm")


@pytest.mark.parametrize(("prompt", "generated"), [(0, 12), (25, 12), (10, 2), (20, 11), (20, 13)])
def test_rows_of_vllm_against_its_usage(tmp_path: Path, prompt: int, generated: int) -> None:
    """31 rows are a prompt of 20 and 12 tokens, the last of which is not read again."""
    array = logical(31, 2, 8, 0)
    source = written(tmp_path / "v.json", counted(array, prompt, generated))
    expected = prompt + generated - 1
    message = refused(tmp_path, source)
    assert "answer 0 has 31 rows, but its usage counts" in message
    assert f"which make {expected}" in message
    written(source, counted(array, 20, 12))
    convert(source, tmp_path / "out.parquet")
    check(tmp_path / "out.parquet", array, 20, 0)


def test_usage_of_several_choices(tmp_path: Path) -> None:
    """It counts the prompt once, and what all of them generated."""
    answer = counted(logical(31, 2, 8, 0), 20, 12 + 5)
    answer["choices"] += vllm_answer(logical(24, 2, 8, 0, seed=1), 20)["choices"]
    answer["choices"][1]["index"] = 1
    source = written(tmp_path / "v.json", answer)
    convert(source, tmp_path / "out.parquet")
    trace = open_trace(tmp_path / "out.parquet")
    assert [(part.request, part.rows) for part in trace.parts[::2]] == [
        ("cmpl-1-0", 11),
        ("cmpl-1-1", 4),
    ]
    answer["usage"]["completion_tokens"] = 12
    (tmp_path / "out.parquet").unlink()
    assert "has 55 rows" in refused(tmp_path, written(source, answer))


@pytest.mark.parametrize("start", [1, 20, 5])
@pytest.mark.parametrize("where", ["choice", "answer", "option"])
def test_rows_that_begin_within_the_prompt(tmp_path: Path, start: int, where: str) -> None:
    array = logical(31 - start, 2, 8, start)
    answer = counted(array, 20, 12)
    source = written(tmp_path / "v.json", answer)
    message = refused(tmp_path, source)
    assert f"give `first_position` {start} if it was asked with indexer_topk_prompt_st" in message
    options = {"first_position": start} if where == "option" else {}
    if where != "option":
        said = answer if where == "answer" else answer["choices"][0]
        said["indexer_topk_prompt_start"] = start
    convert(written(source, answer), tmp_path / "out.parquet", **options)
    check(tmp_path / "out.parquet", array, 20, start)


@pytest.mark.parametrize("start", [-1, True, "5", 2.0, 2**31])
def test_a_start_that_is_no_position(tmp_path: Path, start: Any) -> None:
    answer = counted(logical(31, 2, 8, 0), 20, 12, indexer_topk_prompt_start=start)
    source = written(tmp_path / "v.json", answer)
    assert "has indexer_topk_prompt_start" in refused(tmp_path, source)


def test_a_start_that_the_user_contradicts(tmp_path: Path) -> None:
    answer = counted(logical(26, 2, 8, 5), 20, 12, indexer_topk_prompt_start=5)
    source = written(tmp_path / "v.json", answer)
    message = refused(tmp_path, source, first_position=4)
    assert "choice 0 has indexer_topk_prompt_start 5, not `first_position` 4" in message
    convert(source, tmp_path / "out.parquet", first_position=5)


@pytest.mark.parametrize("form", ["sglang", "vllm"])
def test_a_key_that_comes_twice(tmp_path: Path, form: str) -> None:
    """JSON leaves open which value counts; Python takes the last."""
    array = logical(9, 2, 3, 0)
    answer = sglang_answer(array, 5) if form == "sglang" else vllm_answer(array, 5)
    text = json.dumps(answer)
    source = tmp_path / "a.json"
    for key in ("indexer_topk", "prompt_tokens"):
        source.write_text(text.replace(f'"{key}": ', f'"{key}": "AAAA", "{key}": '))
        assert f"an object in it has the key '{key}' twice" in refused(tmp_path, source, top_k=3)


@pytest.mark.parametrize("form", ["sglang", "vllm"])
def test_a_value_that_belongs_to_no_answer(tmp_path: Path, form: str) -> None:
    array = logical(9, 2, 3, 0)
    answer = sglang_answer(array, 5) if form == "sglang" else vllm_answer(array, 5)
    answer["chunk"] = {"indexer_topk": base64.b64encode(array.tobytes()).decode()}
    message = refused(tmp_path, written(tmp_path / "a.json", answer), top_k=3)
    assert "has 1 more indexer_topk than answers" in message


@pytest.mark.parametrize(
    "evidence", [{"spec_verify_ct": 15}, {"spec_accept_length": 2.6}, {"spec_accept_rate": 0.5}]
)
def test_speculative_answers(tmp_path: Path, evidence: dict[str, Any]) -> None:
    answers = [sglang_answer(logical(9, 2, 3, 0), 5, name) for name in "ab"]
    answers[1]["meta_info"].update(evidence)
    source = written(tmp_path / "a.json", answers)
    message = refused(tmp_path, source, top_k=3)
    (key,) = evidence
    assert f"answer 1 comes from speculative decoding (its meta_info has {key})" in message
    answers[1]["meta_info"].update(dict.fromkeys(evidence, 0))  # the server could, and did not
    convert(written(source, answers), tmp_path / "out.parquet", top_k=3)


def test_a_flipped_bit_in_an_archive(tmp_path: Path) -> None:
    """Each byte of a .pt and of a .npz, in turn: refused, or it changes nothing."""
    torch = pytest.importorskip("torch")
    array = logical(6, 2, 4, 9)
    wanted = array.tolist()
    torch.save(torch.from_numpy(array), tmp_path / "a.pt")
    np.savez(tmp_path / "a.npz", array)
    source = random.Random(3)
    for suffix, least in ((".pt", 192), (".npz", 192)):
        whole = (tmp_path / f"a{suffix}").read_bytes()
        start = whole.index(array.tobytes())
        at = [*range(start, start + array.nbytes), *source.sample(range(len(whole)), 150)]
        flipped = tmp_path / f"flipped{suffix}"
        silent = 0
        for byte in at:
            data = bytearray(whole)
            data[byte] ^= 1 << source.randrange(8)
            flipped.write_bytes(data)
            try:
                refused(tmp_path, flipped, prompt_len=9)
            except pytest.fail.Exception:
                trace = open_trace(tmp_path / "out.parquet")
                found = [[trace.read(part).row(row).tolist() for part in trace.parts]
                         for row in range(6)]  # fmt: skip
                assert found == wanted
                (tmp_path / "out.parquet").unlink()
                silent += 1
        assert len(at) - silent >= least


def test_an_archive_whose_directory_cannot_be_told(tmp_path: Path) -> None:
    """torch reads it all the same; which checksums hold is open."""
    torch = pytest.importorskip("torch")
    torch.save(torch.from_numpy(logical(4, 2, 3, 5)), tmp_path / "a.pt")
    with (tmp_path / "a.pt").open("ab") as file:
        file.write(b"PK\x05\x06" + bytes(10))  # as the end of a directory begins
    assert torch.load(tmp_path / "a.pt").shape == (4, 2, 3)
    message = refused(tmp_path, tmp_path / "a.pt", prompt_len=5)
    assert "cannot be read as tensors only" in message


def test_an_archive_without_checksums(tmp_path: Path) -> None:
    """torch can leave them out, and then nothing tells damage."""
    torch = pytest.importorskip("torch")
    torch.save(torch.from_numpy(logical(4, 2, 3, 5)), tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        member = max(archive.infolist(), key=lambda each: each.file_size)
    data = (tmp_path / "a.pt").read_bytes()
    crc = member.CRC.to_bytes(4, "little")
    assert data.count(crc) >= 1
    (tmp_path / "a.pt").write_bytes(data.replace(crc, bytes(4)))
    assert "or was saved without checksums" in refused(tmp_path, tmp_path / "a.pt", prompt_len=5)


def test_short_rows_are_counted_everywhere(tmp_path: Path) -> None:
    """In any layer, behind any number of rows; they are kept."""
    array = logical(80, 3, 8, 40)
    array[70, 1, 5:] = -1
    array[75, 2, :] = -1
    np.save(tmp_path / "a.npy", array)
    doubts: list[str] = []
    convert(tmp_path / "a.npy", tmp_path / "o.parquet", prompt_len=40, provenance="synthetic",
            warn=doubts.append)  # fmt: skip
    check(tmp_path / "o.parquet", array, 40, 40)
    (doubt,) = doubts
    assert "request 'a', layer 1, row 70 lists 5 positions, and a decode step could list 8" in doubt
    assert "(2 of 240 rows are short, and kept so)" in doubt
    assert open_trace(tmp_path / "o.parquet").metadata.notes["short_rows"] == 2
    lines = [
        {"request_id": "r", "layer_id": layer, "step_idx": row, "seq_len_current": 41 + row,
         "selected_token_pos": array[row, layer].tolist()}
        for row in range(80) for layer in range(3)
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    doubts.clear()
    convert(
        tmp_path / "a.jsonl", tmp_path / "o.parquet", provenance="synthetic", warn=doubts.append
    )
    assert "(2 of 240 rows are short, and kept so)" in doubts[-1]
    assert open_trace(tmp_path / "o.parquet").metadata.notes["short_rows"] == 2


def test_rows_of_the_prompt_in_any_layer(tmp_path: Path) -> None:
    """A first layer that says nothing, here of fewer positions than others, hides none."""
    array = logical(50, 2, 8, 0)
    array[:, 0] = logical(50, 1, 8, 40)[:, 0]
    np.save(tmp_path / "a.npy", array)
    message = refused(tmp_path, tmp_path / "a.npy", prompt_len=40)
    assert "begins with rows of the prompt" in message
    assert "`first_position` 0" in message


@pytest.mark.parametrize("form", IMPORTERS)
@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".npy", ".npz", ".pt"])
def test_empty_files_and_pipes(tmp_path: Path, form: str, suffix: str) -> None:
    source = tmp_path / f"a{suffix}"
    source.write_bytes(b"")
    assert refused(tmp_path, source, form).endswith(" is empty")
    assert refused(tmp_path, source).endswith(" is empty")
    source.unlink()
    os.mkfifo(source)  # nobody writes to it
    assert "is a device or pipe, not a file: save it as a file first" in refused(
        tmp_path, source, form
    )
    assert "is a device or pipe" in refused(tmp_path, source)


def test_a_npy_of_headers_only(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, logical(4, 2, 3, 5))
    source = tmp_path / "a.npy"
    for size in (1, 6, 10, 64, 128):
        source.write_bytes(file.getvalue()[:size])
        refused(tmp_path, source, prompt_len=5)


def test_layers_and_top_k_that_fit_the_size_only(tmp_path: Path) -> None:
    """2 layers of 8 are 4 of 4 in bytes: rows of the prompt tell, and else the newest token."""
    array = logical(40, 2, 8, 0)
    array[30:, :, 7] = np.arange(30, 40)[:, None]  # the newest token, at the end of each row
    array[30:, :, :7] = logical(10, 2, 7, 29)
    source = written(tmp_path / "a.json", sglang_answer(array, 30))
    message = refused(tmp_path, source, num_layers=4, top_k=4)
    assert "lists the first token in 2 layers, and nothing in 2: they look like 2 layers of 8" in (
        message
    )
    array[:30] = 7_000_000  # what an engine left there
    written(source, sglang_answer(array, 30))
    doubts: list[str] = []
    convert(source, tmp_path / "o.parquet", num_layers=4, top_k=4, warn=doubts.append)
    assert "layer 0 never lists its newest token" in doubts[-1]
    assert "(2 of 4 layers are so): check `num_layers` and `top_k`" in doubts[-1]
    doubts.clear()
    convert(source, tmp_path / "o.parquet", num_layers=2, top_k=8, warn=doubts.append)
    assert doubts == []
