"""Capture from a small server that speaks SGLang's protocol, also when it misbehaves."""

import time
from pathlib import Path
from typing import Any

import pytest
from fake_sglang import MODEL, NEW_TOKENS, PROMPTS, FakeServer, Handler, fake, topk

from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.capture_sglang import (
    Model,
    Prompt,
    capture,
    estimate,
    prepare,
    server_command,
)
from hisparse_sim.traces.sglang_server import Server

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


@pytest.mark.parametrize("fault", ["error", "cut", "damaged", "no json", "chunks"])
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
        ("wide", "check --layers and --top-k"),
        ("narrow", "check --layers and --top-k"),
        ("no flag", "--enable-return-indexer-topk"),
        ("null", "--enable-return-indexer-topk"),
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
    assert len(fake.requests) == (3 if fault in ("error", "cut") else 1)


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


def test_absent_server(tmp_path: Path) -> None:
    server = Server("http://127.0.0.1:9", attempts=2, first_wait_s=0.01)
    with pytest.raises(TraceError, match="failed 2 times; the last time the connection failed"):
        capture(PROMPTS, tmp_path / "trace.parquet", server, MODEL)
    for url in ("localhost:30000", "ftp://x", ""):
        with pytest.raises(ValueError, match="no URL"):
            capture(PROMPTS, tmp_path / "trace.parquet", Server(url), MODEL)


def test_resume(fake: FakeServer, tmp_path: Path) -> None:
    """A second call asks only for what the first one did not get."""
    path = tmp_path / "trace.parquet"
    partial = tmp_path / "trace.parquet.partial"
    run(fake, path)
    path.unlink()
    fake.requests.clear()

    original = Handler.generate

    def fail_for_c(self: Handler, body: dict[str, Any]) -> None:
        if len(body["input_ids"]) == 12:
            self.answer("{}", 400)
        else:
            original(self, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "generate", fail_for_c)
        with pytest.raises(TraceError, match=r"2 of 3 requests are kept in .*\.partial"):
            run(fake, path, concurrency=1)
    assert not path.exists()
    assert len(list(partial.iterdir())) == 2
    fake.requests.clear()
    run(fake, path)
    assert [len(body["input_ids"]) for body in fake.requests] == [12]
    check(path)
    assert not partial.exists()


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
    ):
        with pytest.raises(TraceError, match=reason):
            capture(prompts, tmp_path / "trace.parquet", server, MODEL, **options)  # type: ignore[arg-type]
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


def test_server_command() -> None:
    command = server_command("deepseek-ai/DeepSeek-V3.2", 5202)
    assert command.startswith("SGLANG_DSA_FUSE_TOPK=0 ")
    assert "--enable-return-indexer-topk" in command
    assert "--max-total-tokens 6144" in command
    assert "--enable-dp-attention" in command
