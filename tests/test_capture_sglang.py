"""Capture from a small server that speaks SGLang's protocol, also when it misbehaves."""

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_sglang
import numpy as np
import pytest
from fake_sglang import MODEL, NEW_TOKENS, PROMPTS, FakeServer, Handler, fake, topk

from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.capture.sglang import (
    Model,
    Prompt,
    capture,
    described,
    estimate,
    prepare,
    server_command,
    server_notes,
)
from hisparse_sim.traces.capture.sglang_server import Server
from hisparse_sim.traces.file.model_config import read_config
from hisparse_sim.traces.locks import locked

__all__ = ["fake"]  # a fixture


def run(fake: FakeServer, path: Path, **options: Any) -> None:
    server = Server(fake.url, first_wait_s=0.01, attempts=3, timeout_s=options.pop("timeout_s", 5))
    capture(PROMPTS, path, server, MODEL, max_new_tokens=NEW_TOKENS, **options)


def check(path: Path, output: int = NEW_TOKENS) -> None:
    """The file holds exactly what the server selected while decoding."""
    trace = open_trace(path)
    assert trace.requests == ("a", "b", "c")
    assert trace.metadata.provenance == "dsa-serving"
    assert trace.metadata.order == "indexer"
    for part in trace.parts:
        ids = next(p.input_ids for p in PROMPTS if p.request == part.request)
        demand = trace.read(part)
        assert demand.prompt_len == len(ids)
        expected = topk(len(ids), output, sum(ids))[len(ids) :, part.layer]
        assert [demand.row(i).tolist() for i in range(demand.rows)] == expected.tolist()
    assert len(trace.parts) == 9


def test_capture(fake: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    calls: list[tuple[int, int]] = []
    run(fake, path, progress=lambda *call: calls.append(call))
    check(path)
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert list(tmp_path.iterdir()) == [path]
    assert fake.most_active <= 2
    for body in fake.requests:
        assert body["return_indexer_topk"] is True
        assert body["sampling_params"] == {
            "max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True,
        }  # fmt: skip


def test_requests_that_end_early(fake: FakeServer, tmp_path: Path) -> None:
    fake.output = 3
    run(fake, tmp_path / "trace.parquet", ignore_eos=False)
    check(tmp_path / "trace.parquet", output=3)
    fake.output = 1
    with pytest.raises(TraceError, match="ended after 1 tokens"):
        run(fake, tmp_path / "trace.parquet", ignore_eos=False)


def test_concurrency_is_bounded(fake: FakeServer, tmp_path: Path) -> None:
    run(fake, tmp_path / "trace.parquet", concurrency=1)
    assert fake.most_active == 1


@pytest.mark.parametrize(
    "fault",
    ["error", "cut", "damaged", "no json", "chunks", "cut chunks", "busy", "starting", "abort"],
)
def test_passing_faults_are_retried(fake: FakeServer, tmp_path: Path, fault: str) -> None:
    path = tmp_path / "trace.parquet"
    fake.faults[fault] = 2
    run(fake, path)
    check(path)
    assert len(fake.requests) == (3 if fault == "chunks" else 5)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("error", r"failed 3 times; the last time it answered /generate with 500 .*out of memory"),
        ("cut", "failed 3 times; the last time"),
        ("refused", "answered /generate with 400"),
        ("physical", "SGLANG_DSA_FUSE_TOPK=0"),
        ("wide", "check `num_layers` and `top_k`"),
        ("narrow", "check `num_layers` and `top_k`"),
        ("no flag", "--enable-return-indexer-topk"),
        ("null", "--enable-return-indexer-topk"),
        ("abort", "aborted the request: 'out of"),
        ("redirect", "307, a redirection to https://elsewhere/"),
        ("page", "text/html; .*expected plain JSON"),
        ("packed", "gzip.*expected plain JSON"),
        ("other count", "counts 10 prompt and 6 output tokens for 9"),
    ],
)
def test_lasting_faults(fake: FakeServer, tmp_path: Path, fault: str, reason: str) -> None:
    """One sentence, no trace file, nothing left behind; no retries where none can help."""
    fake.faults[fault] = 99
    with pytest.raises(TraceError, match=reason) as caught:
        run(fake, tmp_path / "trace.parquet", concurrency=1)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert len(fake.requests) == (3 if fault in ("error", "cut", "abort") else 1)


def test_silent_server(fake: FakeServer, tmp_path: Path) -> None:
    fake.faults["silent"] = 99
    with pytest.raises(TraceError, match=r"it sent nothing for 0\.1 s"):
        run(fake, tmp_path / "trace.parquet", timeout_s=0.1, concurrency=1)


def test_a_failure_ends_requests_that_wait(fake: FakeServer, tmp_path: Path) -> None:
    fake.faults.update({"silent": 1, "refused": 1})
    begin = time.monotonic()
    with pytest.raises(TraceError, match="400"):
        run(fake, tmp_path / "trace.parquet", timeout_s=15)
    assert time.monotonic() - begin < 8


def test_a_server_that_asks_for_a_pause_gets_it(fake: FakeServer, tmp_path: Path) -> None:
    fake.faults["busy"] = 2
    begin = time.monotonic()
    run(fake, tmp_path / "trace.parquet", concurrency=1)
    assert time.monotonic() - begin > 0.6
    check(tmp_path / "trace.parquet")


def test_an_interrupted_capture_ends_at_once(fake: FakeServer, tmp_path: Path) -> None:
    """Ctrl-C while a server is silent: the finished request stays, nothing else does."""
    path = tmp_path / "trace.parquet"
    begin = time.monotonic()

    def interrupt(done: int, count: int) -> None:
        fake.faults["silent"] = 99
        time.sleep(0.2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(fake, path, concurrency=1, progress=interrupt, timeout_s=15)
    assert time.monotonic() - begin < 8
    kept = list((tmp_path / "trace.parquet.partial").iterdir())
    assert [file.suffix for file in kept] == [".rows"]
    assert list(tmp_path.iterdir()) == [kept[0].parent]
    fake.faults.clear()
    fake.release.set()
    run(fake, path)
    check(path)


def test_absent_server(tmp_path: Path) -> None:
    """Waiting starts no server: at the first contact nobody is asked twice."""
    told: list[str] = []
    begin = time.monotonic()
    for url in ("http://127.0.0.1:9", "http://no-such-host.invalid"):
        server = Server(url, attempts=5, first_wait_s=5, tell=told.append)
        with pytest.raises(TraceError, match=rf"no server answers at {url} .*--estimate needs it"):
            capture(PROMPTS, tmp_path / "trace.parquet", server, MODEL)
        with pytest.raises(TraceError, match="--url"):
            prepare(server, [("a", "b")])
    assert time.monotonic() - begin < 4
    assert told == []
    assert list(tmp_path.iterdir()) == []
    for url, reason in (
        ("localhost:30000", "not the URL"),
        ("ftp://x", "not the URL"),
        ("", "not the URL"),
        ("http://x:many", "not the URL"),
        ("http://me:secret@x", "--api-key"),
        ("http://x/?key=1", "--api-key"),
    ):
        with pytest.raises(ValueError, match=reason):
            capture(PROMPTS, tmp_path / "trace.parquet", Server(url), MODEL)
    for values in ((None, 0.0, 5), (None, -1.0, 5), (None, 5.0, 0), ("a\nb", 5.0, 5)):
        with pytest.raises(ValueError, match=r"time-out|API key"):
            Server("http://x", *values).check()


def test_a_server_that_goes_away_is_waited_for(fake: FakeServer, tmp_path: Path) -> None:
    """Once it has answered it may come back; every new attempt is told."""
    told: list[str] = []
    server = Server(fake.url, attempts=3, first_wait_s=0.01, tell=told.append)
    prompts = prepare(server, [("a", "one two three")])
    fake.shutdown()
    fake.server_close()
    with pytest.raises(TraceError, match="failed 3 times; the last time the connection failed"):
        capture(prompts, tmp_path / "trace.parquet", server, MODEL)
    assert len(told) == 2
    assert told[0].startswith(f"{fake.url}: the connection failed: Connection refused; attempt 2")
    assert "attempt 3 of 3 in 0.0 s" in told[1]


def test_resume(fake: FakeServer, tmp_path: Path) -> None:
    """A second call asks only for what the first one did not get."""
    path = tmp_path / "trace.parquet"
    partial = tmp_path / "trace.parquet.partial"
    assert len(keep_two(fake, path)) == 2
    assert not path.exists()
    run(fake, path)
    assert [len(body["input_ids"]) for body in fake.requests] == [12]
    check(path)
    assert not partial.exists()


def keep_two(fake: FakeServer, path: Path) -> list[Path]:
    """Capture until the last request fails; return the files of the others."""
    with pytest.MonkeyPatch.context() as patch:
        original = Handler.generate

        def fail_for_c(self: Handler, body: dict[str, Any]) -> None:
            if len(body["input_ids"]) == 12:
                self.answer("{}", 400)
            else:
                original(self, body)

        patch.setattr(Handler, "generate", fail_for_c)
        with pytest.raises(TraceError, match=r"2 of 3 requests are kept in .*\.partial"):
            run(fake, path, concurrency=1)
    fake.requests.clear()
    return sorted(path.with_name(path.name + ".partial").iterdir())


def test_resume_after_a_crash(fake: FakeServer, tmp_path: Path) -> None:
    """A file without its end, or left half written, is captured again; a spoilt one is named."""
    path = tmp_path / "trace.parquet"
    kept = keep_two(fake, path)
    kept[0].write_bytes(b"")
    kept[0].with_name(".left-by-a-kill.rows").write_bytes(b"12345")
    run(fake, path)
    assert len(fake.requests) == 2
    check(path)
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    kept = keep_two(fake, path)
    content = kept[0].read_bytes()
    kept[0].write_bytes(b"\xff" * (len(content) - 8) + content[-8:])
    with pytest.raises(TraceError, match=r"\.rows: .*remove it") as caught:
        run(fake, path)
    assert str(kept[0]) in str(caught.value)


def test_kept_rows_that_were_cut(fake: FakeServer, tmp_path: Path) -> None:
    """Even where a row ends: the file says how many it holds."""
    path = tmp_path / "trace.parquet"
    kept = keep_two(fake, path)
    os.truncate(kept[0], 2 * MODEL.row_bytes)
    run(fake, path)
    assert len(fake.requests) == 2
    check(path)


def test_an_output_is_one_capture_s_at_a_time(fake: FakeServer, tmp_path: Path) -> None:
    """The second is told, at once, and what the first keeps stays; a link leads to the same."""
    path, link = tmp_path / "trace.parquet", tmp_path / "link.parquet"
    kept = keep_two(fake, path)
    link.symlink_to(path)
    release = locked(path.with_name("trace.parquet.partial"), "a capture")
    for target in (path, link):
        with pytest.raises(TraceError, match=r"partial is in use: a capture \(process "):
            run(fake, target)
    assert all(file.exists() for file in kept)
    assert not fake.requests
    release()
    run(fake, link)
    check(path)
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_rows_of_another_model_are_not_taken(fake: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    kept = keep_two(fake, path)
    other = replace(MODEL, name="GLM-5")
    server = Server(fake.url, first_wait_s=0.01)
    fake.faults["refused"] = 1
    with pytest.raises(TraceError, match="400"):
        capture(PROMPTS, path, server, other, max_new_tokens=NEW_TOKENS, concurrency=1)
    assert sorted(kept[0].parent.iterdir()) == kept
    capture(PROMPTS, path, server, other, max_new_tokens=NEW_TOKENS)
    assert len(fake.requests) == 4
    check(path)


def test_shared_layers(fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The types of layers come from the config, and what is captured must agree with them."""
    config = tmp_path / "config.json"
    about = {"num_hidden_layers": 3, "index_topk": 4, "indexer_types": ["full", "full", "shared"]}
    config.write_text(json.dumps(about))
    model = described("GLM-5.2", config)
    path = tmp_path / "trace.parquet"
    server = Server(fake.url)
    with pytest.raises(TraceError, match=r"layer 2, step 0 lists other positions than layer 1"):
        capture(PROMPTS, path, server, model, max_new_tokens=NEW_TOKENS)

    def shared(prompt_len: int, output: int, seed: int) -> np.ndarray:
        array: np.ndarray = topk(prompt_len, output, seed)
        array[:, 2] = array[:, 1]
        return array

    monkeypatch.setattr(fake_sglang, "topk", shared)
    capture(PROMPTS, path, server, model, max_new_tokens=NEW_TOKENS)
    trace = open_trace(path)
    assert trace.metadata.layer_types == ("full", "full", "shared")
    assert len(trace.parts) == 9


@pytest.mark.parametrize(
    ("keys", "letters"),
    [
        ({}, "FFFFFFFF"),
        ({"indexer_types": ["full", *["shared"] * 8], "index_topk_pattern": "F" * 8}, "FSSSSSSS"),
        ({"cli_factor": 3, "index_topk_pattern": "F" * 8}, "FSSFSSFS"),
        ({"index_topk_pattern": "FSFSFSFF", "index_topk_freq": 4}, "FSFSFSFF"),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, "FFFSSSFS"),
        ({"index_topk_freq": 2, "index_skip_topk_offset": None}, "FFSFSFSF"),
    ],
)
def test_layer_types_of_a_config(tmp_path: Path, keys: dict[str, Any], letters: str) -> None:
    """As the engine reads them; GLM-5.2 has every fourth layer full, from 2 on."""
    about = {"num_hidden_layers": 8, "index_topk": 2048, **keys}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": about}))
    found = read_config(tmp_path)
    assert (found.num_layers, found.top_k) == (8, 2048)
    assert "".join(kind[0].upper() for kind in found.layer_types) == letters
    with pytest.raises(ValueError, match="leave one out"):
        described("x", tmp_path, num_layers=9)


def test_bad_configs(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(TraceError, match=r"config\.json does not exist"):
        read_config(tmp_path)
    about = {"num_hidden_layers": 2, "index_topk": 4}
    for text, reason in (
        ("{", "not valid JSON"), ("[]", "no index_topk"),
        ('{"num_hidden_layers": 2}', "no index_topk"),
        ('{"index_topk": 4}', "num_hidden_layers is None"),
        (json.dumps({**about, "index_topk": 1.5}), "index_topk is 1.5"),
        (json.dumps({**about, "index_topk_freq": 0}), "index_topk_freq is 0"),
        (json.dumps({**about, "indexer_types": ["full"]}), "each of the 2 layers"),
        (json.dumps({**about, "index_topk_pattern": "SF"}), "the first full"),
        (json.dumps({**about, "indexer_types": ["full", "half"]}), "layer 1 is 'half'"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(TraceError, match=reason) as caught:
            read_config(path)
        assert str(path) in str(caught.value)


def test_prepare(fake: FakeServer) -> None:
    texts = [("a", "one three fourth"), ("b", "x " * 9)]
    prompts = prepare(Server(fake.url), texts, longest=5)
    assert prompts == [Prompt("a", (3, 5, 6)), Prompt("b", (1,) * 4)]


def test_bad_arguments(tmp_path: Path) -> None:
    server = Server("http://127.0.0.1:9")
    for prompts, options, reason in (
        ([], {}, "no prompt"),
        ([PROMPTS[0]] * 2, {}, "same id"),
        (PROMPTS, {"max_new_tokens": 1}, "at least 2"),
        (PROMPTS, {"concurrency": 0}, "at least 1"),
        (PROMPTS, {"max_new_tokens": 2**31 - 5}, "too many for a trace"),
        ([Prompt("\udc80", (1,))], {}, "not a usable name of a request"),
    ):
        with pytest.raises(TraceError, match=reason):
            capture(prompts, tmp_path / "trace.parquet", server, MODEL, **options)  # type: ignore[arg-type]
    numbers: Any
    for numbers in ((0, 4), (3, 2**31), (2**15 + 1, 4), (True, 4), (3, 1.5)):
        with pytest.raises(ValueError, match="expected a whole number"):
            Model("x", *numbers)
    (tmp_path / "trace.parquet.partial").write_text("in the way")
    with pytest.raises(TraceError, match=r"\.partial cannot be made"):
        capture(PROMPTS, tmp_path / "trace.parquet", server, MODEL)
    with pytest.raises(TraceError, match="no folder"):
        capture(PROMPTS, tmp_path / "absent" / "t.parquet", server, MODEL)


def test_estimate() -> None:
    """DeepSeek-V3.2: half a megabyte a token."""
    model = Model("DeepSeek-V3.2", 61, 2048)
    assert model.row_bytes == 499_712
    found = estimate([1000, 3000, 2000], model, 101, concurrency=2)
    assert found.answer_bytes == pytest.approx(3100 * 499_712 * 4 / 3, rel=1e-6)
    assert found.scratch_bytes == 3 * 100 * 499_712
    assert found.server_tokens == 3101 + 2101
    assert found.server_bytes == found.server_tokens * 499_712
    assert "GiB to download" in found.sentence()


def test_server_notes() -> None:
    """DeepSeek-V3.2: half a megabyte a token and rank, in 64 GiB pools of host memory."""
    lines = server_notes(131_072, 61, 2048)
    assert lines[0].startswith("host memory: 61 GiB pinned per rank, 488 GiB in all 8,")
    assert lines[1].startswith("GPU memory: 3.81 GiB per rank")
    command = server_command("x", 131_072)
    for flag in re.findall(r"(--[a-z-]+|SGLANG\w+)", command):
        if flag != "--model-path":
            assert sum(flag in line.split(":")[0] for line in lines) == 1, flag
    lines = server_notes(131_072)
    assert "1 GiB pinned per rank, 8 GiB in all 8 for every layer of the model" in lines[0]
    assert "--layers" in lines[1]


def test_server_command() -> None:
    command = server_command("deepseek-ai/DeepSeek-V3.2", 5202)
    assert command.startswith("SGLANG_DSA_FUSE_TOPK=0 ")
    assert "--enable-return-indexer-topk" in command
    assert "--max-total-tokens 6144" in command
    assert "--enable-dp-attention" in command


def test_rows_that_are_frozen_or_late_in_any_layer(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_sglang, "NEW_TOKENS", 30)
    told: list[str] = []

    def capture_spoilt(spoil: Any) -> str:
        fake.spoil, fake.output = spoil, 30
        told.clear()
        capture(
            PROMPTS, tmp_path / "t.parquet", Server(fake.url), MODEL,
            max_new_tokens=30, warn=told.append,
        )  # fmt: skip
        return "\n".join(told)

    def frozen(prompt_len: int, rows: np.ndarray) -> None:
        rows[prompt_len:, 1] = rows[prompt_len, 1]

    def late(prompt_len: int, rows: np.ndarray) -> None:
        rows[prompt_len:, 2, 0] = np.arange(prompt_len, len(rows)) - 3
        rows[prompt_len:, 2, 1:] = [0, 1, 2]

    assert "layer 1 lists the same positions in all of its 29 rows" in capture_spoilt(frozen)
    assert "layer 2 lists in 29 of 29 rows as its newest the position 3" in capture_spoilt(late)
