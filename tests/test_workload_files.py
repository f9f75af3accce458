"""Recorded loads: every format by hand, what is refused, and how they are served."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import make_workloads
import numpy as np
import pytest
from click.testing import CliRunner, Result

from hisparse_sim.cli import cli
from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.prefixes import cached_tokens
from hisparse_sim.simulator.serving.workload import Blocks, Requests
from hisparse_sim.simulator.serving.workload_files import read_workload
from hisparse_sim.simulator.serving.workload_formats import FORMATS
from hisparse_sim.simulator.views.report import redo
from hisparse_sim.simulator.views.report.results import read_results
from hisparse_sim.traces import TraceError

AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:02.500000+00:00,300,30
2024-05-10 00:00:00.009930+00:00,100,10
2024-05-10 00:00:01+00:00,200,20
"""
BURST = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Log Type
5,a,1.5,ChatGPT,472,18,Conversation log
45,b,2.0,GPT-4,300,0,API log
118,c,2.5,GPT-4,417,276,Conversation log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}

{"timestamp": 1500, "input_length": 1600, "output_length": 7, "hash_ids": [1, 2, 4, 5]}
"""
BENCH = {"backend": "sglang", "completed": 2, "input_lens": [10, 20], "output_lens": [3, 0]}


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_formats_by_hand(tmp_path: Path) -> None:
    found = read_workload(written(tmp_path / "a.csv", AZURE_2024))
    assert (found.format, found.prompt_len.tolist()) == ("azure", [100, 200, 300])  # in time order
    assert found.due_s is not None
    assert found.due_s.tolist() == pytest.approx([0, 0.99007, 2.49007])
    found = read_workload(written(tmp_path / "b.csv", BURST))
    assert (found.format, found.output_len.tolist(), found.left_out) == ("burstgpt", [18, 276], 1)
    assert found.due_s is not None
    assert found.due_s.tolist() == [0, 113]
    found = read_workload(written(tmp_path / "c.jsonl", MOONCAKE))
    assert (found.format, found.output_len.tolist()) == ("mooncake", [5, 7])
    assert found.due_s is not None
    assert found.due_s.tolist() == [0, 1.5]
    assert found.blocks is not None
    assert [found.blocks.row(i) for i in range(2)] == [[1, 2, 3], [1, 2, 4, 5]]
    found = read_workload(written(tmp_path / "d", json.dumps(BENCH)))
    assert (found.format, found.prompt_len.tolist(), found.due_s) == ("bench_serving", [10], None)
    found = read_workload(written(tmp_path / "e", "num_prefill_tokens,num_decode_tokens\n7,2\n"))
    assert (found.format, found.longest, found.due_s) == ("vidur", (7, 2), None)
    text = '{"prompt_len": 7, "output_len": 2, "arrival_s": 3}\n'
    found = read_workload(written(tmp_path / "f", text))
    assert (found.format, found.prompt_len.tolist()) == ("lengths", [7])


def test_made_loads_have_the_published_lengths(tmp_path: Path) -> None:
    make_workloads.azure(tmp_path / "azure.csv", 4000)
    azure = read_workload(tmp_path / "azure.csv")
    medians = (np.median(azure.prompt_len), np.median(azure.output_len))
    assert medians == pytest.approx(make_workloads.AZURE_MEDIANS, rel=0.1)
    assert azure.rate_per_s == pytest.approx(5, rel=0.1)
    make_workloads.mooncake(tmp_path / "mooncake.jsonl", 4000)
    mooncake = read_workload(tmp_path / "mooncake.jsonl")
    assert mooncake.mean == pytest.approx(make_workloads.MOONCAKE_MEANS, rel=0.1)
    make_workloads.burstgpt(tmp_path / "burst.csv", 100)
    assert read_workload(tmp_path / "burst.csv").left_out == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read as CSV"),
        ("a,b\n1,2\n", "has the columns of no known format"),
        ("prompt_len,output_len\n", "has no request"),
        ("prompt_len,output_len\n1,2\n3,x\n", "request 2: output_len is 'x', not a number"),
        ("prompt_len,output_len\n1,\n", "request 1: output_len is 'nan', not a number"),
        ("prompt_len,output_len\n-1,2\n", "prompt_len is -1, not a number of tokens"),
        ("prompt_len,output_len\n1.5,2\n", "prompt_len is 1.5, not a number of tokens"),
        ("prompt_len,output_len\n1e30,2\n", "prompt_len is 1e+30, not a number of tokens"),
        ("prompt_len,output_len,arrival_s\n1,2,inf\n", "arrival_s is 'inf', not a number"),
        ("prompt_len,output_len,arrival_s\n1,2,1e20\n", "arrival_s is out of range"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,2\n", "request 1: TIMESTAMP is no date"),
        ('{"prompt_len": 1, "output_len": true}\n', "output_len holds values that are no numbers"),
        ('{"prompt_len": 1, "output_len": 2}\n{', "line 2 is not valid JSON"),
        ('{"prompt_len": 1, "output_len": 2}\n[1]', "line 2 is no JSON object"),
        ('{"prompt_len": 1, "output_len": 2, "output_len": 3}', "the key 'output_len' twice"),
        ('{"prompt_len": 1, "output_len": 2}\n{"prompt_len": 1}', "output_len is 'nan'"),
        ("[" * 10, "is one JSON list: if it holds texts"),
        ('{"input_lens": [1], "output_lens": 2}', "run bench_serving with --output-details"),
        (json.dumps(BENCH) + "\n" + json.dumps(BENCH), "line 2 is a second run"),
        (MOONCAKE.replace("[1, 2, 3]", '"x"'), "request 1: hash_ids is no list of whole numbers"),
        (MOONCAKE.replace("3]", f"{2**70}]"), "hash_ids holds an id of over 64 bits"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=r"w\.csv") as found:
        read_workload(written(tmp_path / "w.csv", text))
    assert message in str(found.value)


def test_a_sample_keeps_times_and_order(tmp_path: Path) -> None:
    make_workloads.mooncake(tmp_path / "w", 300)
    whole = read_workload(tmp_path / "w")
    part = whole.sampled(100, seed=3)
    again, other = whole.sampled(100, seed=3), whole.sampled(100, seed=4)
    assert part.prompt_len.tolist() == again.prompt_len.tolist() != other.prompt_len.tolist()
    assert whole.due_s is not None
    assert part.due_s is not None
    gaps = set(np.subtract.outer(whole.due_s, whole.due_s).ravel().tolist())
    assert set(part.due_s.tolist()) <= gaps
    assert part.rate_per_s == pytest.approx(whole.rate_per_s / 3, rel=0.1)
    assert part.blocks is not None
    assert len(part.blocks.row(99)) == -(-int(part.prompt_len[99]) // 512)
    assert whole.sampled(None, 0) is whole.sampled(1000, 0) is whole


def test_paces(tmp_path: Path) -> None:
    recorded = read_workload(written(tmp_path / "c.jsonl", MOONCAKE))

    def load(pace_given: bool, **more: Any) -> Requests:
        found = Aim(1, 1, 8, **more).of_recorded(recorded, pace_given).load
        assert isinstance(found, Requests)
        return found

    timed = load(False, time_scale=2.0)
    assert (timed.arrival_s.tolist(), timed.concurrency) == ([0, 3], None)
    closed = load(True)
    assert (closed.arrival_s.tolist(), closed.concurrency) == ([0, 0], 8)
    drawn = load(True, rate_per_s=0.5)
    assert drawn.concurrency is None
    assert drawn.arrival_s[1] > drawn.arrival_s[0] > 0
    assert load(False, requests=1).prompt_len.tolist() in ([1100], [1600])
    with pytest.raises(ValueError, match="give no range_ratio"):
        load(False, range_ratio=0.5)
    with pytest.raises(ValueError, match="time_scale must be above 0"):
        load(False, time_scale=0.0)


def test_cached_prefixes_by_hand() -> None:
    # Blocks of 10 tokens on one rank: the second prompt finds two blocks, the third its whole
    # prompt less the last token; the fourth has a block in the middle, which does not count.
    blocks = Blocks(np.array([1, 2, 3, 1, 2, 9, 1, 2, 7, 2]), np.cumsum([0, 3, 3, 2, 2]), 10)
    prompts = np.array([30, 25, 20, 20])
    assert cached_tokens(blocks, prompts, 1, 1000).tolist() == [0, 20, 19, 0]
    # In turn over two ranks, each sees every other prompt.
    assert cached_tokens(blocks, prompts, 2, 1000).tolist() == [0, 0, 19, 0]
    # A pool of one block keeps the beginning of the last prompt only.
    assert cached_tokens(blocks, prompts, 1, 19).tolist() == [0, 10, 10, 0]


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--quiet"])


def rows(*words: str) -> dict[str, dict[str, Any]]:
    done = run(*words, "--format", "json")
    assert done.exit_code == 0, done.output
    return {row["mode"]: row for row in json.loads(done.stdout)}


def test_serve_with_and_without_a_prefix_cache(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    make_workloads.mooncake(file, 80, families=1)
    words = ["serve", "--workload", str(file), "--mode", "baseline", "--mode", "hisparse"]
    found, none = rows(*words), rows(*words, "--no-prefix-cache")
    assert found["baseline"]["prefix_hits"] > 0.1
    assert found["hisparse"]["prefix_hits"] == none["baseline"]["prefix_hits"] == 0
    assert found["baseline"]["prefill"] < none["baseline"]["prefill"]
    assert found["hisparse"] == {**none["hisparse"], "parameters": found["hisparse"]["parameters"]}
    # Prefill instances have no HiSparse: both modes find the same there.
    apart = rows(*words, "--disaggregated")
    assert apart["hisparse"]["prefix_hits"] == apart["baseline"]["prefix_hits"] > 0.1
    shown = run(*words, "-o", str(tmp_path / "rows.csv"))
    swept = tmp_path / "swept.csv"
    run("sweep", *"--policy lru --buffer 4096 --layer 4 --steps 0:8 -o".split(), str(swept))
    again = read_results([swept, tmp_path / "rows.csv"])[1]
    redone = shlex.split(redo.command(again))
    assert redone[redone.index("--workload") + 1] == str(file)
    assert not {"--concurrency", "--prompt", "--time-scale"} & set(redone)
    shown = run(*words)
    text = " ".join(shown.output.split())
    assert "HiSparse requires --disable-radix-cache" in text
    assert "80 of the 80 requests of m.jsonl (mooncake)" in text
    assert "of the prompt tokens were in the prefix cache" in text


def test_plan_serves_the_recorded_requests(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    make_workloads.azure(file, 200)
    words = ["--workload", str(file), "--requests", "60", "--seed", "5"]
    done = run("plan", *words, "--buffer", "2048,4096", "--ratio", "2", "--format", "json")
    assert done.exit_code == 0, done.output
    planned = json.loads(done.stdout)
    best = planned["recommendation"]
    served = rows(*shlex.split(planned["serve"])[1:])["hisparse"]
    for name in ("tokens_per_s", "tpot_p99_ms", "ttft_p50_s"):
        assert best[name] == served[name]
    assert best["load"].endswith("/s recorded")
    closed = rows("serve", *words, "--mode", "baseline", "--concurrency", "8")["baseline"]
    assert (closed["load"], closed["running"] + closed["waiting"] <= 8.01) == ("8", True)


def test_options_that_exclude_a_workload(tmp_path: Path) -> None:
    file = written(tmp_path / "c.jsonl", MOONCAKE)
    for words, message in (
        (["--workload", str(file), "--prompt", "1k"], "--prompt belongs to requests with drawn"),
        (["--time-scale", "2"], "--time-scale belongs to a --workload"),
        (["--workload", str(tmp_path / "none")], "none does not exist"),
    ):
        done = run("serve", *words)
        assert done.exit_code in (1, 2)
        assert message in " ".join(done.output.split())
    done = run("plan", "--config", "{}", "--workload", str(file))
    assert "--workload belongs to a plan" in " ".join(done.output.split())


def test_every_format_is_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "workloads.md").read_text(encoding="utf-8")
    for kind in FORMATS.values():
        assert f"`{kind.prompt}`" in page
        assert f"`{kind.output}`" in page


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    for head in ("prompt_len,output_len,prompt_len", "arrival_s,prompt_len,output_len,arrival_s"):
        row = ",".join("1" * len(head.split(",")))
        file = written(tmp_path / "a.csv", f"{head}\n{row}\n")
        with pytest.raises(TraceError, match=r"a.csv has the column \w+ twice: leave one"):
            read_workload(file)
    twice = written(tmp_path / "b.csv", "prompt_len,output_len,note,note\n5,6,a,b\n")
    assert read_workload(twice).prompt_len.tolist() == [5]  # it is not read


@pytest.mark.parametrize("time", ["inf", "nan", "-inf", "later"])
@pytest.mark.parametrize(
    "head", ["arrival_s,prompt_len,output_len", "TIMESTAMP,ContextTokens,GeneratedTokens"]
)
@pytest.mark.filterwarnings("error")
def test_a_time_that_is_none_is_refused(tmp_path: Path, head: str, time: str) -> None:
    file = written(tmp_path / "a.csv", f"{head}\n{time},100,10\n")
    with pytest.raises(TraceError, match=r"request 1: (arrival_s is '.*', not a|TIMESTAMP is no)"):
        read_workload(file)


def test_times_in_another_column_are_missed_aloud(tmp_path: Path) -> None:
    rows = "".join(f"{i},64,8\n" for i in range(40))
    file = written(tmp_path / "a.csv", "timestamp,prompt_len,output_len\n" + rows)
    words = ["serve", "--workload", str(file), "--concurrency", "8", "--mode", "baseline"]
    done = CliRunner().invoke(cli, [*words, "--format", "csv"])
    said = " ".join(done.stderr.split())
    assert "no times were read from a.csv: the format lengths has them in arrival_s, and" in said
    assert "the file has timestamp" in said
    assert "load: 32 of the 40 requests of a.csv (lengths), drawn at random, four times" in said
    assert read_workload(written(tmp_path / "b.csv", BURST)).unread == ()
