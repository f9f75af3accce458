"""What is said of rows that no trace can hold: by hand, and against a slow and obvious check."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.file.captured import BadRows, demands
from hisparse_sim.traces.file.diagnosis import unusable
from hisparse_sim.traces.importers.convert import convert

PROMPT, OUTPUT, LAYERS, TOP_K = 100, 40, 4, 32
SLOTS = "SGLANG_DSA_FUSE_TOPK=0"
SINGLE = "a fault of the engine's top-k or of the file, not of a setting"


def answer_rows(seed: int = 0) -> np.ndarray:
    """What an engine answers: (tokens - 1, layers, top_k), the newest position always listed."""
    random = np.random.default_rng(seed)
    array = np.full((PROMPT + OUTPUT - 1, LAYERS, TOP_K), -1, np.int32)
    for token in range(len(array)):
        for layer in range(LAYERS):
            listed = random.permutation(token)[: TOP_K - 1]
            array[token, layer, : len(listed) + 1] = [token, *listed]
    return array


def written(folder: Path, array: np.ndarray, **about: Any) -> Path:
    value = base64.b64encode(array.astype("<i4").tobytes()).decode()
    meta_info = {
        "id": "r1", "prompt_tokens": PROMPT, "completion_tokens": OUTPUT, "indexer_topk": value,
    }  # fmt: skip
    (folder / "answer.json").write_text(json.dumps({"meta_info": {**meta_info, **about}}))
    return folder / "answer.json"


def converted(folder: Path, array: np.ndarray, **about: Any) -> list[str]:
    """Return the warnings of a conversion."""
    warnings: list[str] = []
    source = written(folder, array, **about)
    convert(source, folder / "out.parquet", num_layers=LAYERS, top_k=TOP_K, warn=warnings.append)
    return warnings


def repeated(array: np.ndarray) -> None:
    array[110, 2, 3:6] = 35
    array[110, 2, 6:] = np.arange(40, 66)


def twice(array: np.ndarray) -> None:
    repeated(array)
    array[110, 2, 4] = 36


def out_of_range(array: np.ndarray) -> None:
    array[110, 2, 3] = 123_456_789


def negative(array: np.ndarray) -> None:
    array[110, 2, 3] = -77


def zero(array: np.ndarray) -> None:
    array[110, 2] = 0


def zero_padded(array: np.ndarray) -> None:
    array[110, 2, 20:] = 0
    array[110, 2, :20] = np.arange(20, 40)


def one_row_of_slots(array: np.ndarray) -> None:
    array[110, 2] += 5_000


def exchanged(array: np.ndarray) -> None:
    array[[110, 130], 2] = array[[130, 110], 2]


def neighbours(array: np.ndarray) -> None:
    array[[110, 111]] = array[[111, 110]]


def rotated(array: np.ndarray) -> None:
    array[PROMPT:, 1] = np.roll(array[PROMPT:, 1], 1, axis=0)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (repeated, "layer 2, step 10 (row 110) lists 35 3 times: "),
        (twice, "layer 2, step 10 (row 110) lists 35 twice: "),
        (out_of_range, "layer 2, step 10 (row 110) lists 123456789, and the query stands at 110: "),
        (negative, "layer 2, step 10 (row 110) lists -77, and only -1 is padding: "),
        (zero, "layer 2, step 10 (row 110) lists 0 32 times, as if it had never been written: "),
        (zero_padded, "layer 2, step 10 (row 110) lists 0 12 times: "),
        (one_row_of_slots, "and 31 more such, and the query stands at 110: "),
        (exchanged, "it and step 30 are swapped, each lists what the other could: "),
        (
            neighbours,
            "layer 0, step 10 (row 110) lists 111, and the query stands at 110: it and step 11 are "
            "swapped, each lists what the other could (4 of 156 rows looked at are unusable): ",
        ),
        (rotated, "it is the row of step 38, and those of its layer are out of order: "),
    ],
)
def test_single_rows(tmp_path: Path, spoil: Callable[[Any], None], said: str) -> None:
    """The row's defect, its place, and no word of the server's memory."""
    array = answer_rows()
    spoil(array)
    with pytest.raises(BadRows) as caught:
        converted(tmp_path, array)
    message = str(caught.value)
    assert "request 'r1', layer " in message
    assert said + SINGLE in message
    assert "memory" not in message
    assert SLOTS not in message
    assert not caught.value.fault.common


def block(array: np.ndarray) -> None:
    array[array >= 0] += 64


def next_block(array: np.ndarray) -> None:
    array[array >= 0] += 1


def far_block(array: np.ndarray) -> None:
    array[array >= 0] += 4096


def small_pool(array: np.ndarray) -> None:
    places = np.random.default_rng(1).permutation(192).astype(np.int32)
    array[array >= 0] = places[array[array >= 0]]


def pages(array: np.ndarray) -> None:
    places = np.array([37, 5, 11], np.int32)
    array[array >= 0] = places[array[array >= 0] // 64] * 64 + array[array >= 0] % 64


def most_rows(array: np.ndarray) -> None:
    far_block(array[PROMPT + 19 :])


@pytest.mark.parametrize("spoil", [block, next_block, far_block, small_pool, pages, most_rows])
def test_slots(tmp_path: Path, spoil: Callable[[Any], None]) -> None:
    """Where most rows look like places in the engine's memory, and only there, it says so."""
    array = answer_rows()
    spoil(array)
    with pytest.raises(BadRows, match="most rows do not list positions of the text") as caught:
        converted(tmp_path, array)
    assert SLOTS in str(caught.value)
    assert caught.value.fault.common


def test_common_faults_that_are_no_slots(tmp_path: Path) -> None:
    array = answer_rows()
    array[PROMPT:] = 0
    with pytest.raises(BadRows, match=r"lists 0 32 times.* \(156 of 156 rows .*left rows unfilled"):
        converted(tmp_path, array)
    array = answer_rows()
    array[PROMPT:, :, 31] = 2**30
    with pytest.raises(BadRows, match=r"lists 1073741824, and .*left rows unfilled") as caught:
        converted(tmp_path, array)
    assert SLOTS not in str(caught.value)
    assert caught.value.fault.common


def test_rows_of_other_tokens(tmp_path: Path) -> None:
    """The newest positions tell whose rows they are, and the counts whether all are there."""
    array = answer_rows()
    later = np.concatenate([array[16:], array[:16]])  # row 0 is that of token 16
    with pytest.raises(BadRows, match="row 0 is that of token 16 of the text"):
        converted(tmp_path, later)
    earlier = np.concatenate([array[:16], array[:-16]])
    (doubt,) = converted(tmp_path, earlier)
    assert "the newest position of row 0 is 84, rising by 1 per row" in doubt
    assert "stands at 100: the rows may be those of other tokens" in doubt
    prompt = np.concatenate([array[:PROMPT], array[: OUTPUT - 1]])
    with pytest.raises(TraceError, match="these are rows of the prompt"):
        converted(tmp_path, prompt)


def test_rows_that_are_missing(tmp_path: Path) -> None:
    array = answer_rows()
    size = "which is not 4 x 139 rows x 4 layers x 32 positions but"
    for rows, about, said in (
        (array[16:], {"cached_tokens": 16}, f"{size} 123 rows, as if they started at token 16, up "
         "to which the prompt was cached: give `first_position` 16"),
        (array[16:], {}, f"{size} 123 rows, as if they started at token 16 of the prompt: "),
        (array[:-5], {}, "unless the answer was cut"),
        (np.concatenate([array, array[:3]]), {}, f"{size} 142 rows"),
        (array[:, :2], {}, f"{size} fits 2 layers of 32 or 4 layers of 16; check `num_layers`"),
        (array[:, :3], {}, f"{size} fits 3 layers of 32 or 4 layers of 24; check"),
    ):  # fmt: skip
        with pytest.raises(TraceError) as caught:
            converted(tmp_path, rows, **about)
        assert said in str(caught.value)


def test_short_rows_are_kept(tmp_path: Path) -> None:
    """924 of 2,048 dropped on a tie (a public report), here 12 of 32; and a row without any."""
    array = answer_rows()
    array[110::5, 2, 20:] = -1
    array[120, 3] = -1
    (warning,) = converted(tmp_path, array)
    assert (
        "request 'r1', layer 2, row 10 lists 20 positions, and a decode step could list 32"
        in warning
    )
    assert "(7 of 156 rows are short, and kept so)" in warning
    trace = open_trace(tmp_path / "out.parquet")
    assert trace.metadata.notes["short_rows"] == 7
    for part in trace.parts:
        demand = trace.read(part)
        for step in range(demand.rows):
            listed = array[PROMPT + step, part.layer]
            assert demand.row(step).tolist() == listed[listed >= 0].tolist()


def slow(row: list[int], seq_len: int) -> bool:
    """Whether no trace can hold a row: each entry looked at by itself."""
    seen: set[int] = set()
    for entry in row:
        if entry == -1:
            continue
        if entry < 0 or entry >= seq_len or entry in seen:
            return True
        seen.add(entry)
    return False


@settings(max_examples=300, deadline=None)
@given(data=st.data(), width=st.integers(1, 5), rows=st.integers(1, 6), first=st.integers(0, 4))
def test_unusable_is_the_slow_check(data: st.DataObject, width: int, rows: int, first: int) -> None:
    entries = st.one_of(st.integers(-3, 10), st.sampled_from([2**31 - 1, -(2**31)]))
    lists = data.draw(
        st.lists(st.lists(entries, min_size=width, max_size=width), min_size=rows, max_size=rows)
    )
    seq_len = np.arange(rows, dtype=np.int64) + first + 1
    wanted = [slow(row, int(length)) for row, length in zip(lists, seq_len, strict=True)]
    array = np.array(lists, np.int32)
    assert unusable(array, seq_len).tolist() == wanted
    # Whatever is wrong has a sentence with its place; what is not comes back.
    call = demands(
        array[:, None], place="p", request="r", first_position=first, prompt_len=first
    )  # fmt: skip
    if any(wanted):
        with pytest.raises(BadRows, match=rf"^p: request 'r', layer 0, step {wanted.index(True)} "):
            list(call)
    else:
        (part,) = call
        assert [part.row(step).tolist() for step in range(rows)] == [
            [entry for entry in row if entry >= 0] for row in lists
        ]
