"""The commands that make traces, as a user types them."""

import json
from pathlib import Path

import make_traces
import numpy as np
import pytest
from click.testing import CliRunner, Result
from fake_sglang import MODEL, FakeServer, fake, topk
from longbench_items import ROWS

from hisparse_sim.cli import cli
from hisparse_sim.traces import open_trace
from hisparse_sim.traces.importers import IMPORTERS
from hisparse_sim.traces.synth.generator import profiles
from hisparse_sim.traces.synth.shapes import SHAPES

__all__ = ["fake"]  # a fixture


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["trace", *map(str, arguments)])


def test_help_names_every_choice() -> None:
    synth = run("synth", "--help").output
    assert all(name in synth for name in [*profiles(), *SHAPES])
    converted = run("convert", "--help").output
    assert all(name in converted for name in IMPORTERS)


def test_synth(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    found = run(
        "synth", "--profile", "glm-5.1", "--context", 600, "--steps", 5, "--top-k", 32,
        "--layer", "3,5", "--seed", 4, "-o", path,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert f"wrote {path}" in found.stderr
    trace = open_trace(path)
    assert trace.layers == (3, 5)
    assert trace.metadata.top_k == 32
    found = run(
        "synth", "--shape", "cyclic", "--top-k", 8, "--context", 99, "--distinct", 40,
        "--steps", 3, "-o", path, "--quiet", "--force",
    )  # fmt: skip
    assert (found.exit_code, found.output) == (0, "")
    assert open_trace(path).rows == 3


def test_convert_and_export(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.int32).reshape(3, 2, 4) % 9
    np.save(tmp_path / "rows.npy", array)
    path = tmp_path / "t.parquet"
    found = run("convert", tmp_path / "rows.npy", "-o", path, "--prompt-len", 20)
    assert found.exit_code == 1
    assert "--provenance" in found.stderr
    found = run(
        "convert", tmp_path / "rows.npy", "-o", path, "--prompt-len", 20, "--layer", "4,9",
        "--provenance", "dsa-serving", "--model", "m", "--request", "r",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    trace = open_trace(path)
    assert (trace.layers, trace.requests, trace.metadata.model) == ((4, 9), ("r",), "m")
    found = run("export", path, "--layer", 9, "-o", tmp_path / "t.csv")
    assert f"wrote {tmp_path / 't.csv'}: 12 accesses" in found.stderr
    found = run("export", path, "-o", tmp_path / "t.oracleGeneral")
    assert (tmp_path / "t.oracleGeneral").stat().st_size == 24 * 24


def test_capture_sglang(tmp_path: Path, fake: FakeServer) -> None:
    path = tmp_path / "t.parquet"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"request": "x", "text": "a bb ccc dddd"}\n{"text": "dddd e f g h"}\n')
    common = (
        "capture", "sglang", "--url", fake.url, "--model", "m", "--layers", MODEL.num_layers,
        "--top-k", MODEL.top_k, "--max-new-tokens", 6, "-o", path,
    )  # fmt: skip
    found = run(*common, "--prompts", prompts)
    assert found.exit_code == 0, found.output
    assert "2 requests" in found.stderr
    trace = open_trace(path)
    assert trace.metadata.prompt_len == {"x": 4, "2": 5}
    demand = trace.read(trace.parts[0])
    assert demand.row(0).tolist() == topk(4, 6, 10)[4, 0].tolist()
    (tmp_path / "lb.json").write_text(json.dumps(ROWS))
    found = run(
        *common, "--longbench", tmp_path / "lb.json", "--length", "long", "--count", 2,
        "--longest", 12, "--force",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    trace = open_trace(path)
    assert trace.metadata.dataset == "LongBench v2"
    assert set(trace.metadata.prompt_len.values()) == {12}
    path.unlink()
    found = run(*common, "--prompts", prompts, "--estimate")
    assert "to download" in found.stdout
    assert not path.exists()
    found = run("capture", "sglang", "--model", "m", "--longest", 1000, "--print-server-command")
    assert "--enable-return-indexer-topk --max-total-tokens 4096" in found.stdout
    assert len(found.stdout.splitlines()) == 1
    assert "host memory: 32.0 MiB pinned per rank, 256.0 MiB in all 8 for every" in found.stderr
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"num_hidden_layers": 61, "index_topk": 2048}))
    for shape in (["--layers", 61], ["--config", config]):
        found = run(
            "capture", "sglang", "--model", "m", "--longest", 1000, "--print-server-command", *shape
        )
        assert "host memory: 1.91 GiB pinned per rank, 15.2 GiB in all 8, " in found.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("synth", "-o", "x"), 2, "choose one of --profile, --fit and --shape"),
        (("synth", "--profile", "x", "-o", "x"), 2, "known are glm-5.1"),
        (("synth", "--profile", "qsa", "--distinct", "3", "-o", "x"), 2, "--distinct"),
        (("synth", "--profile", "qsa", "--layer", "12", "-o", "x"), 1, "there is no layer 12"),
        (("synth", "--shape", "x", "-o", "x"), 2, "known are cyclic"),
        (("synth", "--shape", "cyclic", "--layer", "1", "-o", "x"), 2, "one request"),
        (("convert", "absent.json", "-o", "x"), 1, "absent.json"),
        (("convert", "absent.json", "--from", "x", "-o", "x"), 2, "known are sglang"),
        (("export", "absent.parquet", "-o", "x"), 1, "does not exist"),
        (("capture", "sglang", "--model", "m", "-o", "x"), 2, "--layers"),
        (("capture", "sglang", "--model", "m", "--layers", "3"), 2, "-o"),
        (("capture", "sglang", "--model", "m", "--layers", "3", "-o", "x"), 2, "--longbench"),
        (("capture", "sglang", "--model", "m", "--layers", "3", "-o", "x", "--url", "y"), 2, "URL"),
    ],
)
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int,
    reason: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    found = run(*arguments)
    assert found.exit_code == code, found.output
    assert reason in found.stderr
    assert "Traceback" not in found.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("p.jsonl", b"{", "line 1 is not JSON"),
        ("p.jsonl", b'\n{"text": 3}', "line 2 has no text"),
        ("p.jsonl", b"\n", "holds no prompts"),
        ("p.txt", b" ", "is empty"),
        ("p.txt", b"\xff", "is not UTF-8"),
    ],
)
def test_spoilt_prompts(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    found = run(
        "capture", "sglang", "--model", "m", "--layers", 3, "-o", tmp_path / "x", "--prompts",
        tmp_path / name,
    )  # fmt: skip
    assert found.exit_code == 1
    assert reason in found.stderr


def test_full_info(tmp_path: Path) -> None:
    """The whole table for a trace small enough to be worked by hand, and the tidy rows."""
    demands = [
        make_traces.demand([[0, 1], [1, 2], [1, 9]], 20, layer=2),
        make_traces.demand([[0, 1], [0, 1], [0, 1]], 20, layer=3),
    ]
    path = make_traces.write(tmp_path / "t.parquet", demands)
    text = run("info", path, "--full").stdout
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.split()}
    assert lines["2"] == ["50.0", "-", "-", "-", "4", "50.0", "83.3", "100.0"]
    # Layer 2 lists 0, 1 and 1, 2 and 1, 9: four of the six demands of layer 3.
    assert lines["3"] == ["100.0", "-", "66.7", "-", "2", "0.0", "100.0", "100.0"]
    assert lines["all"][:3] == ["75.0", "-", "66.7"]
    found = json.loads(run("info", path, "--full", "--format", "json").stdout)
    (overlap,) = [
        row["value"]
        for row in found
        if (row["layer"], row["measure"], row["at"]) == (2, "overlap", 1)
    ]
    assert overlap == 0.5
    assert {row["provenance"] for row in found} == {"synthetic"}


def test_info_says_that_a_fit_is_not_this_file_s(tmp_path: Path) -> None:
    changed, cut = tmp_path / "t.parquet", tmp_path / "cut.parquet"
    made = run(
        "synth", "--profile", "glm-5.1", "--context", 600, "--steps", 5, "--top-k", 32,
        "--layer", 3, "-o", changed,
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    assert run("sample", changed, "--steps", "1:", "-o", cut).exit_code == 0
    for path in (changed, cut):
        for full in ([], ["--full"]):
            shown = run("info", path, *full).stdout
            assert "not for this file: its shape differs from the fitted one" in shown
    assert "not for this file" not in run("info").stdout


def test_recent_tokens_are_as_many_everywhere() -> None:
    assert "last 256 %" in run("info").stdout
    assert "recent: the last 256" in run("info", "--full").stdout
