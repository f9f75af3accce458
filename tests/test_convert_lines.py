"""Lines of JSON: rows of the prompt among them, and how their lengths are counted."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from test_convert import check, logical, refused, sglang_answer, vllm_answer

from hisparse_sim.cli import cli
from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.importers.convert import convert

PAGE = Path(__file__).parents[1] / "docs" / "convert.md"


def lines(
    folder: Path, array: np.ndarray, first: int, shift: int = 0, requests: tuple[str, ...] = ("a",)
) -> Path:
    """Write (rows, layers, top_k), row 0 at position `first`; lengths are off by `shift`."""
    found = [
        {"request_id": request, "layer_id": layer, "step_idx": row,
         "seq_len_current": first + row + 1 + shift,
         "selected_token_pos": array[row, layer].tolist()}
        for request in requests for row in range(len(array)) for layer in range(array.shape[1])
    ]  # fmt: skip
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, found)))
    return folder / "rows.jsonl"


def with_newest(rows: int, first: int) -> np.ndarray:
    """Return rows of two layers that list four positions, the newest among them."""
    newest = np.arange(first, first + rows)[:, None, None]
    return np.repeat(newest - np.array([0, 3, 5, 11]), 2, axis=1)


def converted(folder: Path, source: Path, **options: Any) -> list[str]:
    doubts: list[str] = []
    convert(source, folder / "out.parquet", provenance="synthetic", warn=doubts.append, **options)
    return doubts


@pytest.mark.parametrize("shift", [0, -1])
def test_lines_from_the_first_token_on_are_refused(tmp_path: Path, shift: int) -> None:
    source = lines(tmp_path, logical(50, 2, 8, 0), 0, shift)
    message = refused(tmp_path, source)
    assert "request 'a', layer 0 begins with rows of the prompt" in message
    assert "the query of the first token" in message
    assert "give `prompt_len`" in message


@pytest.mark.parametrize("shift", [0, -1])
def test_lines_of_the_prompt_are_left_out_and_counted(tmp_path: Path, shift: int) -> None:
    array = logical(50, 2, 8, 0)
    source = lines(tmp_path, array, 0, shift)
    words = ["trace", "convert", source, "--provenance", "synthetic", "--prompt-len", 40, "-o",
             tmp_path / "out.parquet"]  # fmt: skip
    found = CliRunner().invoke(cli, [*map(str, words)])
    assert found.exit_code == 0, found.output
    assert "left out 80 rows of the prompt, over all layers" in found.stderr
    assert "warning" not in found.stderr
    check(tmp_path / "out.parquet", array, 40, 0)
    assert open_trace(tmp_path / "out.parquet").metadata.notes["prompt_rows_left_out"] == 80


def test_nothing_is_left_out_where_there_is_nothing(tmp_path: Path) -> None:
    assert converted(tmp_path, lines(tmp_path, with_newest(12, 40), 40), prompt_len=40) == []
    assert "prompt_rows_left_out" not in open_trace(tmp_path / "out.parquet").metadata.notes


def test_a_prompt_that_no_line_is_behind(tmp_path: Path) -> None:
    source = lines(tmp_path, with_newest(12, 40), 40)
    message = refused(tmp_path, source, prompt_len=1000)
    assert "has no seq_len_current above `prompt_len` 1000, so no row is a decode step" in message


def test_a_short_first_line_is_doubted(tmp_path: Path) -> None:
    """The prompt may be that short: only the user knows."""
    source = lines(tmp_path, logical(50, 2, 8, 3), 3)
    doubts = converted(tmp_path, source)
    assert len(doubts) == 1
    assert "row 0 has only 4 positions to choose from, and rows list up to 8" in doubts[0]
    assert converted(tmp_path, source, prompt_len=3) == []
    source = lines(tmp_path, logical(50, 2, 8, 3), 3, requests=("a", "b", "c"))
    doubts = converted(tmp_path, source)
    assert len(doubts) == 1
    assert "(the same of 2 other requests)" in doubts[0]


def test_lengths_that_stay_hide_rows_of_the_prompt(tmp_path: Path) -> None:
    """A script that writes the length of the whole prompt beside each of its rows."""
    array = logical(30, 1, 8, 3)
    source = lines(tmp_path, array, 3)
    text = re.sub(r'"seq_len_current": \d+', '"seq_len_current": 60', source.read_text())
    source.write_text(text)
    assert "row 0 lists nothing but the positions up to 3" in refused(tmp_path, source)
    doubts = converted(tmp_path, source, prompt_len=50)
    assert "looks like rows of the prompt (row 0 lists nothing but" in doubts[0]


def test_a_newest_token_that_is_never_listed(tmp_path: Path) -> None:
    array = with_newest(12, 40)
    assert converted(tmp_path, lines(tmp_path, array, 40)) == []
    assert converted(tmp_path, lines(tmp_path, array, 40, -1)) == []  # counted without it
    notes = open_trace(tmp_path / "out.parquet").metadata.notes
    assert notes["seq_len_current"] == "without the newest token"
    random = logical(7, 2, 4, 200)  # not rising: no other sign
    random[random >= 198] = 5
    doubts = converted(tmp_path, lines(tmp_path, np.sort(random)[..., -1:], 200))
    assert len(doubts) == 1
    assert "request 'a' never lists its newest token" in doubts[0]
    assert "seq_len_current - 1" in doubts[0]


def test_one_bad_number_does_not_shift_the_file(tmp_path: Path) -> None:
    array = with_newest(12, 40)
    array[-1, 1, 0] += 1
    message = refused(tmp_path, lines(tmp_path, array, 40))
    assert "line 24 selects the position seq_len_current" in message
    assert "(1 of the lines do so), and 23 lines list the one before it" in message


@pytest.mark.parametrize("form", ["sglang", "vllm"])
def test_answers_know_their_prompt(tmp_path: Path, form: str) -> None:
    """A smaller `prompt_len` would make rows of the prompt decode steps; a larger one cuts."""
    array = logical(9, 2, 3, 0)
    answer = sglang_answer(array, 5) if form == "sglang" else vllm_answer(array, 5)
    source = tmp_path / "answer.json"
    source.write_text(json.dumps(answer))
    message = refused(tmp_path, source, top_k=3, prompt_len=3)
    assert "counts 5 tokens of its prompt, and with `prompt_len` 3 the last 2 would" in message
    convert(source, tmp_path / "out.parquet", top_k=3, prompt_len=7)
    check(tmp_path / "out.parquet", array, 7, 0)
    assert open_trace(tmp_path / "out.parquet").metadata.notes["prompt_rows_left_out"] == 14


def test_rows_of_sglang_begin_where_the_answer_says(tmp_path: Path) -> None:
    """All of prompt + output - 1 are there: then row 0 is no other than the first token."""
    source = tmp_path / "answer.json"
    source.write_text(json.dumps(sglang_answer(logical(9, 2, 3, 0), 5)))
    assert "not 4 x 7 rows" in refused(tmp_path, source, top_k=3, num_layers=2, first_position=2)


@pytest.mark.parametrize("form", [None, "sglang", "vllm"])
def test_a_bare_value_lacks_the_answer_around_it(tmp_path: Path, form: str | None) -> None:
    source = tmp_path / "answer.json"
    source.write_text(json.dumps({"indexer_topk": "AAAA"}))
    message = refused(tmp_path, source, form, top_k=3)
    for missing in ("meta_info", "prompt_tokens", "completion_tokens", "choices", "usage"):
        assert f'"{missing}"' in message


def test_the_answers_on_the_page_are_what_is_read(tmp_path: Path) -> None:
    found = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.S)]
    sglang, vllm, line = found
    (tmp_path / "s.json").write_text(json.dumps(sglang))
    convert(tmp_path / "s.json", tmp_path / "s.parquet", num_layers=1, top_k=2)
    trace = open_trace(tmp_path / "s.parquet")
    assert trace.metadata.prompt_len == {"r1": 2}
    demand = trace.read(trace.parts[0])
    assert (demand.seq_len.tolist(), demand.row(0).tolist()) == ([3], [2, 0])
    value = vllm_answer(logical(4, 2, 3, 0), 2)["choices"][0]["indexer_topk"]
    assert vllm["choices"][0]["indexer_topk"] == "BASE64 OF A .npy FILE"
    vllm["choices"][0]["indexer_topk"] = value
    (tmp_path / "v.json").write_text(json.dumps(vllm))
    convert(tmp_path / "v.json", tmp_path / "v.parquet")
    check(tmp_path / "v.parquet", logical(4, 2, 3, 0), 2, 0)
    (tmp_path / "l.jsonl").write_text(json.dumps(line))
    doubts = converted(tmp_path, tmp_path / "l.jsonl")
    assert doubts == []
    assert open_trace(tmp_path / "out.parquet").rows == 1


def test_the_whole_file_is_refused_for_one_request(tmp_path: Path) -> None:
    source = lines(tmp_path, with_newest(12, 40), 40, requests=("a",))
    good = source.read_text()
    bad = lines(tmp_path, logical(9, 1, 4, 0), 0, requests=("b",)).read_text()
    source.write_text(good + "\n" + bad)
    with pytest.raises(TraceError, match="request 'b', layer 0 begins with rows of the prompt"):
        convert(source, tmp_path / "o.parquet", provenance="synthetic")


def test_layers_of_different_lengths_are_doubted(tmp_path: Path) -> None:
    source = lines(tmp_path, with_newest(12, 40), 40)
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    for row in rows:
        row["seq_len_current"] += 500 * (row["layer_id"] == 1 and row["step_idx"] > 5)
    source.write_text("\n".join(map(json.dumps, rows)))
    doubts = converted(tmp_path, source, prompt_len=40)
    assert f"{source}: request 'a', layer 1: steps or seq_len differ from its first layer" in doubts
