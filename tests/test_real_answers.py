"""Whole answers of a running SGLang server, from the HTTP body to the misses (tests/answers)."""

import base64
import json
import lzma
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

from hisparse_sim.cli import cli
from hisparse_sim.gpu_replay.harness.slots import SlotState
from hisparse_sim.simulator.replay import replay
from hisparse_sim.traces import open_trace

ANSWERS = sorted((Path(__file__).parent / "answers").glob("*.json.xz"))
LAYERS, TOP_K = 4, 2048


class Answer(NamedTuple):
    meta: dict[str, Any]
    positions: np.ndarray  # [prompt + output - 1, LAYERS, TOP_K]
    trace: Path


@pytest.fixture(scope="module", params=ANSWERS, ids=lambda path: path.name.split(".")[0])
def answer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """An answer, and the trace that the command line makes of it."""
    folder = tmp_path_factory.mktemp("answer")
    body, trace = folder / "answer.json", folder / "answer.parquet"
    body.write_bytes(lzma.decompress(request.param.read_bytes()))
    sizes = ["--layers", str(LAYERS), "--top-k", str(TOP_K)]
    done = CliRunner().invoke(cli, ["trace", "convert", str(body), *sizes, "-o", str(trace)])
    assert done.exit_code == 0, done.output
    meta = json.loads(body.read_text())["meta_info"]
    body.unlink()  # a hundred megabytes
    raw = base64.b64decode(meta.pop("indexer_topk"))
    return Answer(meta, np.frombuffer(raw, "<i4").reshape(-1, LAYERS, TOP_K), trace)


def test_the_trace_holds_every_decode_row_and_no_other(answer: Answer) -> None:
    prompt, new = answer.meta["prompt_tokens"], answer.meta["completion_tokens"]
    assert len(answer.positions) == prompt + new - 1
    trace = open_trace(answer.trace)
    assert trace.metadata.provenance == "dsa-serving"
    assert [part.layer for part in trace.parts] == list(range(LAYERS))
    for part in trace.parts:
        demand = trace.read(part)
        assert demand.prompt_len == prompt
        assert demand.seq_len.tolist() == list(range(prompt + 1, prompt + new))
        for step in range(demand.rows):
            assert np.array_equal(demand.row(step), answer.positions[prompt + step, part.layer])


def test_the_trace_is_valid(answer: Answer) -> None:
    done = CliRunner().invoke(cli, ["trace", "validate", str(answer.trace)])
    assert done.exit_code == 0, done.output
    assert "ok" in done.output


@pytest.mark.parametrize("start", ["staged", "direct"])
def test_its_replay_counts_as_the_slots_do_one_by_one(answer: Answer, start: str) -> None:
    trace = open_trace(answer.trace)
    replayed = replay(trace, "lru", TOP_K, start=start)
    wanted = []
    for part in trace.parts:
        demand = trace.read(part)
        slots = SlotState(TOP_K, start, demand.prompt_len, int(demand.seq_len[-1]))
        for step in range(demand.rows):
            wanted.append(len(slots.step(int(demand.seq_len[step]), demand.row(step)).missed))
    assert replayed.misses.tolist() == wanted
    assert sum(wanted) > 0
