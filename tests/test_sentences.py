"""What commands say of options and traces that do not go together: the cause, and what there is."""

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.views.locality_view import locality
from hisparse_sim.traces import open_trace
from hisparse_sim.traces.drafts import drafted, first_queries
from hisparse_sim.traces.terminal import counted


def run(*words: object) -> tuple[int, str, str]:
    """Return the exit code, stdout, and stderr on one line."""
    done = CliRunner().invoke(cli, [str(word) for word in words])
    return done.exit_code, done.stdout, " ".join(done.stderr.split())


@pytest.fixture
def sharing(tmp_path: Path) -> Path:
    """Layers 0 and 1 have an index, 2 repeats 1."""
    about = metadata(
        num_layers=3, layer_types=("full", "full", "shared"), provenance="synthetic", top_k=8
    )
    parts = [drift(steps=40, layer=layer, seed=layer) for layer in (0, 1)]
    return write(tmp_path / "sharing.parquet", parts, about)


@pytest.fixture
def drafts(tmp_path: Path) -> Path:
    """Three queries a step, two accepted; top_k 8."""
    parts = [drafted(drift(steps=80, first_seq_len=60, layer=layer), 3, 2.0) for layer in (0, 1)]
    return write(tmp_path / "drafts.parquet", parts, metadata(draft_tokens=3))


@pytest.mark.parametrize("command", ["sweep", "curve"])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--engine vllm-0.33 --draft-tokens 2 --policy epoch-clock", "these are the rules of vLLM"),
        ("--draft-tokens 1 --policy epoch-clock", "give at least 2 --draft-tokens"),
        ("--policy epoch-clock", "give at least 2 --draft-tokens"),
        ("--engine vllm-0.33 --start staged", "always has a direct start: leave --start staged"),
        ("--engine vllm-0.33 --start warm", "always has a direct start: leave --start warm"),
        ("--draft-tokens 2 --start warm", "without drafts, resident tokens and vLLM's rules"),
        ("--layer 2", "sharing.parquet has no layer 2, which selects what layer 1 does; it has 0"),
    ],
)
def test_refusals_name_the_cause(
    sharing: Path, command: str, options: str, sentence: str, tmp_path: Path
) -> None:
    output = tmp_path / "out.csv"
    window = ["--window", 5] if command == "curve" else []
    code, _, said = run(command, sharing, "--buffer", 32, *window, *options.split(), "-o", output)
    assert code in (1, 2)
    assert sentence in said
    assert not output.exists()


def test_the_start_of_vllm(sharing: Path) -> None:
    for start in ([], ["--start", "direct"]):
        words = [sharing, "--buffer", 32, "--window", 5, "--engine", "vllm-0.33", *start]
        code, out, said = run("curve", *words, "--format", "json")
        assert code == 0, said
        for row in json.loads(out):
            assert row["start"] == json.loads(row["parameters"])["start"] == "direct"


def test_a_study_says_what_other_layers_are_worth(sharing: Path, tmp_path: Path) -> None:
    words = ["--policy", "lru", "--buffer", 16, "--budget", 2]
    code, out, said = run("study", sharing, *words, "--prefetch", "shared-index,previous-layer")
    assert code == 0, said
    assert "independent of each other" in said
    assert "says nothing about shared-index and previous-layer" in said
    assert "not SGLang's prefetch for layers that share one" in said
    assert "2 parts, 1 request" in out
    code, out, said = run("study", sharing, *words, "--prefetch", "slash", "--layer", 0)
    assert code == 0, said
    assert "independent" not in said
    assert "not SGLang's" not in said
    assert "1 part, 1 request" in out
    real = [drift(steps=40, layer=layer, seed=layer) for layer in (0, 1)]
    real_path = write(tmp_path / "real.parquet", real, metadata(provenance="dsa-serving"))
    _, _, said = run("study", real_path, *words, "--prefetch", "shared-index")
    assert "independent" not in said
    assert "not SGLang's" not in said


def test_the_locality_of_drafts_is_that_of_the_first_queries(drafts: Path, tmp_path: Path) -> None:
    trace = open_trace(drafts)
    parts = [first_queries(trace.read(part, {"row"})) for part in trace.parts]
    firsts = write(tmp_path / "firsts.parquet", parts, metadata())
    found = locality(drafts).drop(columns="trace")
    pd.testing.assert_frame_equal(found, locality(firsts).drop(columns="trace"))
    code, out, said = run("trace", "info", drafts, "--full")
    assert code == 0, said
    assert "of every step only the first query is measured" in said
    assert "overlap %" in out


@pytest.mark.parametrize("options", ["", "--ratio 8", "--model glm-5.1", "--link h200-pcie5"])
def test_tables_and_files_have_the_same_costs(options: str) -> None:
    words = ["sweep", "--layer", 9, "--steps", "0:64", "--policy", "lru", "--buffer", 4096]
    _, table, _ = run(*words, *options.split())
    _, rows, _ = run(*words, *options.split(), "--format", "csv")
    for heading, column in (
        ("Memory, ", "requests_per_gpu"),
        ("ratio ", "host_to_device_ratio"),
        ("MB/step", "bytes_per_step"),
        ("swap-in us", "swap_in_us"),
    ):
        assert (heading in table) == (column in rows.splitlines()[0].split(","))


def test_numbers_in_prose(sharing: Path) -> None:
    assert counted(1, "part") == "1 part"
    assert counted(0, "part") == "0 parts"
    assert counted(1024, "part") == "1,024 parts"
    swept = hs.sweep(sharing, "lru", 32, resident_tokens=4096, compare_min=False)
    assert set(swept.rows["rules"]) == {"sglang, 4,096 resident tokens"}
    assert any("buffer 1,030 is not" in note for note in hs.sweep(sharing, "lru", 1030).notes)
