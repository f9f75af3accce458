"""Rows that an engine spoilt: the others of the request, or the other requests, are not lost."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_sglang import MODEL, NEW_TOKENS, PROMPTS, FakeServer, fake, topk

from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.capture.sglang import LEFT_OUT_REQUESTS, capture, described
from hisparse_sim.traces.capture.sglang_server import Server
from hisparse_sim.traces.importers.short_rows import SHORT

__all__ = ["fake"]  # a fixture


def run(fake: FakeServer, path: Path, **options: Any) -> list[str]:
    """Capture the prompts a (9 tokens), b (5) and c (12); return the warnings."""
    warnings: list[str] = []
    server = Server(fake.url, first_wait_s=0.01, attempts=3, timeout_s=5)
    options = {"model": MODEL, "max_new_tokens": NEW_TOKENS, **options}
    model = options.pop("model")
    capture(PROMPTS, path, server, model, warn=warnings.append, **options)
    return warnings


def of_b(change: Callable[[np.ndarray], None]) -> Callable[[int, np.ndarray], None]:
    """Spoil the answer to request b alone."""

    def spoil(prompt_len: int, array: np.ndarray) -> None:
        if prompt_len == 5:
            change(array)

    return spoil


def set_row(values: Any) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[7, 1] = values

    return change


def exchange(array: np.ndarray) -> None:
    array[7, 1], array[9, 1] = [9, 8, 3, 1], [7, 0, 1, 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_row([3, 3, 1, 2]), "lists 3 twice"),
        (set_row([1, 2, 3, 99]), "lists 99, and the query stands at 7"),
        (set_row([1, 2, 3, -5]), "lists -5, and only -1 is padding"),
        (set_row(0), "lists 0 4 times, as if it had never been written"),
    ],
)
def test_a_bad_row_leaves_out_its_request(
    fake: FakeServer, tmp_path: Path, change: Callable[[np.ndarray], None], said: str
) -> None:
    """The others become the trace, whatever the order in which they come."""
    fake.spoil = of_b(change)
    path = tmp_path / "trace.parquet"
    (warning,) = run(fake, path, concurrency=1)
    assert f"request 'b', layer 1, step 2 (row 2) {said}" in warning
    assert warning.endswith("; the request is left out")
    assert "memory" not in warning
    trace = open_trace(path)
    assert trace.requests == ("a", "c")
    assert trace.metadata.notes[LEFT_OUT_REQUESTS] == ["b"]
    assert set(trace.metadata.prompt_len) == {"a", "c"}
    for part in trace.parts:
        ids = next(prompt.input_ids for prompt in PROMPTS if prompt.request == part.request)
        demand = trace.read(part)
        expected = topk(len(ids), NEW_TOKENS, sum(ids))[len(ids) :, part.layer]
        assert [demand.row(step).tolist() for step in range(demand.rows)] == expected.tolist()
    assert list(tmp_path.iterdir()) == [path]
    assert len(fake.requests) == 3


def test_exchanged_rows(fake: FakeServer, tmp_path: Path) -> None:
    fake.spoil = of_b(exchange)
    (warning,) = run(fake, tmp_path / "trace.parquet")
    assert "layer 1, step 2 (row 2) lists 9 and 1 more such" in warning
    assert "it and step 4 are swapped, each lists what the other could" in warning
    assert open_trace(tmp_path / "trace.parquet").requests == ("a", "c")


def test_nothing_is_written_if_no_request_is_good(fake: FakeServer, tmp_path: Path) -> None:
    fake.spoil = lambda prompt_len, array: set_row(0)(array[prompt_len - 5 :])
    with pytest.raises(TraceError, match=r"layer 1, step 2 .* as if it had never been written"):
        run(fake, tmp_path / "trace.parquet")
    assert list(tmp_path.iterdir()) == []
    assert len(fake.requests) == 3  # each may be good


def test_a_request_that_is_wholly_bad_after_a_good_one(fake: FakeServer, tmp_path: Path) -> None:
    """What looks like the server's setting is not, once a request was good."""

    def spoil(prompt_len: int, array: np.ndarray) -> None:
        array += 5_000 if prompt_len == 5 else 0

    fake.spoil = spoil
    path = tmp_path / "trace.parquet"
    (warning,) = run(fake, path, concurrency=1)
    assert "request 'b', layer 0, step 0 (row 0) lists 5" in warning
    assert open_trace(path).requests == ("a", "c")


def test_requests_that_end_at_once_are_left_out(fake: FakeServer, tmp_path: Path) -> None:
    def end(prompt_len: int, array: np.ndarray) -> None:
        fake.output = 1 if prompt_len == 9 else NEW_TOKENS  # for the request after a

    fake.spoil = end
    (warning,) = run(fake, tmp_path / "trace.parquet", concurrency=1, ignore_eos=False)
    assert "request 'b' ended after 1 tokens" in warning
    assert open_trace(tmp_path / "trace.parquet").requests == ("a", "c")


def test_short_rows_are_kept(fake: FakeServer, tmp_path: Path) -> None:
    """As ties leave them: 2 of 4 positions, and in one row none."""

    def drop(prompt_len: int, array: np.ndarray) -> None:
        array[prompt_len + 1, 2, 2:] = -1
        if prompt_len == 12:
            array[prompt_len + 3, 0] = -1

    fake.spoil = drop
    path = tmp_path / "trace.parquet"
    (warning,) = run(fake, path)
    assert (
        "request 'a', layer 2, row 1 lists 2 positions, and a decode step could list 4" in warning
    )
    assert "(4 of 45 rows are short, and kept so): the engine's top-k drops entries" in warning
    trace = open_trace(path)
    assert trace.metadata.notes[SHORT] == 4
    assert [len(trace.read(part).row(1)) for part in trace.parts if part.layer == 2] == [2, 2, 2]


def test_short_rows_of_an_earlier_call_are_counted(fake: FakeServer, tmp_path: Path) -> None:
    fake.spoil = lambda prompt_len, array: array[prompt_len:, 2, 2:].fill(-1)
    path = tmp_path / "trace.parquet"

    def interrupt(done: int, count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(fake, path, concurrency=1, progress=interrupt)
    time.sleep(0.2)  # what was asked before the interrupt has arrived
    while fake.active:
        time.sleep(0.01)
    fake.requests.clear()
    (warning,) = run(fake, path)
    assert len(fake.requests) < 3
    assert "(15 of 45 rows are short" in warning


def test_rows_without_any_position(fake: FakeServer, tmp_path: Path) -> None:
    fake.spoil = lambda prompt_len, array: array[prompt_len:].fill(-1)
    with pytest.raises(TraceError, match="has 15 of 15 rows without a position"):
        run(fake, tmp_path / "trace.parquet", concurrency=1)
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"spec_verify_ct": 3}, "comes from speculative decoding .*spec_verify_ct"),
        ({"completion_tokens": 4}, "not 4 x 12 rows x 3 layers x 4 positions but 14 rows"),
        ({"completion_tokens": 10**30}, "counts 9 prompt and 10{30} output tokens for 9"),
        ({"completion_tokens": -1}, "counts 9 prompt and -1 output tokens for 9"),
        ({"completion_tokens": True}, "counts 9 prompt and True output tokens for 9"),
        ({"prompt_tokens": "\x1b[2J"}, r"counts '\\x1b\[2J' prompt"),
    ],
)
def test_what_the_answer_says_is_used(
    fake: FakeServer, tmp_path: Path, about: dict[str, Any], said: str
) -> None:
    fake.about = about
    with pytest.raises(TraceError, match=said) as caught:
        run(fake, tmp_path / "trace.parquet", concurrency=1)
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []
    assert len(fake.requests) == 1


def test_a_bad_row_of_a_shared_layer(fake: FakeServer, tmp_path: Path) -> None:
    """One row that differs from its anchor is a fault of that request, not another model."""
    config = tmp_path / "config.json"
    config.write_text(
        '{"num_hidden_layers": 3, "index_topk": 4, "indexer_types": ["full", "full", "shared"]}'
    )

    def share(prompt_len: int, array: np.ndarray) -> None:
        array[:, 2] = array[:, 1]
        if prompt_len == 5:
            array[7, 2] = array[7, 2][::-1]

    fake.spoil = share
    path = tmp_path / "trace.parquet"
    (warning,) = run(fake, path, model=described("GLM-5.2", config))
    assert "request 'b', layer 2, step 2 lists other positions than layer 1" in warning
    assert "1 of 5 rows are so, a fault of the engine's top-k" in warning
    assert open_trace(path).requests == ("a", "c")
