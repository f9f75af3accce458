"""What plan and serve refuse: buffers in part pages, loads of which nothing runs, bad files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hisparse_sim import serve
from hisparse_sim.cli import cli
from hisparse_sim.simulator.serving.load_and_targets import not_met
from hisparse_sim.simulator.serving.prediction import CannotRun

PART_PAGE = "device_buffer_size 4097 is not a multiple of the page size, 64"


def run(words: str) -> Result:
    return CliRunner().invoke(cli, words.split())


@pytest.mark.parametrize("command", ["plan --ratio 4", "serve", "sweep --ratio 4"])
def test_a_buffer_in_part_pages_is_refused_alike(command: str) -> None:
    done = run(f"{command} --buffer 4097")
    assert done.exit_code == 2
    assert PART_PAGE in " ".join(done.stderr.split())
    checked = CliRunner().invoke(cli, ["plan", "--config", '{"device_buffer_size": 4097}'])
    assert PART_PAGE in checked.stdout


@pytest.mark.parametrize("command", ["plan --ratio 4", "serve"])
def test_a_buffer_below_the_top_k_is_refused_before_a_replay(command: str) -> None:
    done = run(f"{command} --buffer 64")
    assert done.exit_code == 2
    assert "choose 2048 or more" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--output-len 99999999", "exceed the context of 202,752"),
        ("--output-len 170000 --requests 10", "none of 10 requests can run: prompt and output"),
        ("--device-pool-gib 0.001", "is longer than 0, the longest that the device pool"),
        ("--max-total-tokens 1", "the longest that the device pool of 0 allows"),
        ("--ratio 1000", "is longer than"),
    ],
)
def test_a_load_of_which_nothing_can_run_says_why(options: str, reason: str) -> None:
    begun = time.process_time()
    done = run(f"serve --mode hisparse --format json {options}")
    assert time.process_time() - begun < 20
    assert (done.exit_code, done.stdout) == (1, "")
    assert reason in " ".join(done.stderr.split())


def test_a_mode_that_refuses_all_is_named_beside_the_others() -> None:
    done = run("serve --ratio 1000 --concurrency 8 --mode baseline,zero-cost --format json")
    assert done.exit_code == 0, done.stderr
    baseline, other = json.loads(done.stdout)
    assert baseline["tokens_per_s"] > 0 == other["tokens_per_s"]
    assert "zero-cost: none of 32 requests can run: the prompt" in " ".join(done.stderr.split())


def test_from_python_it_is_a_value_error() -> None:
    with pytest.raises(CannotRun, match=r"^baseline: none of 4 requests can run: .*context"):
        serve(modes="baseline", output_len=500_000, requests=4)
    assert issubclass(CannotRun, ValueError)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--disaggregated --prefill-instances 1000000000", "not in the range 1<=x<=1000"),
        ("--decode-instances 1001", "not in the range 1<=x<=1000"),
        ("--mode hisparse --prefetch-recall 0.5", "--prefetch-recall is for the modes prefetch-"),
        ("--prefetch-recall nan", "nan is not in the range 0<=x<=1"),
        ("--range-ratio nan", "nan is not in the range 0<x<=1"),
        ("--profiles EMPTY", "holds no profile: give tables like ["),
        ("--model nope", "known: deepseek-v3.2, deepseek-v4-flash, glm-5.1, glm-5.2, minimax-m3"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "serve"])
def test_what_would_be_ignored_or_cannot_be_is_refused(
    command: str, options: str, reason: str, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.toml"
    empty.touch()
    done = run(f"{command} {options.replace('EMPTY', str(empty))}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert reason in " ".join(done.stderr.split())


def test_instances_from_python_have_a_bound() -> None:
    with pytest.raises(ValueError, match="decode_instances must be at least 1 and at most 1000"):
        serve(decode_instances=10**9)


def test_no_more_is_resident_than_a_request_has() -> None:
    load = "--prompt 8192 --output-len 64 --concurrency 8 --requests 8 --mode hisparse"
    begun = time.process_time()
    done = run(f"serve {load} --format json --resident-tokens 1000000")
    assert time.process_time() - begun < 20
    assert "resident tokens of 1,000,000: a whole request has 8,256 at most" in done.stderr
    whole = run(f"serve {load} --format json --resident-tokens 8256")
    assert "at most" not in whole.stderr
    rows = [json.loads(each.stdout)[0]["tokens_per_s"] for each in (done, whole)]
    assert rows[0] == rows[1] > 0


def test_one_token_is_not_several() -> None:
    done = run("serve --prompt 1 --output-len 8 --concurrency 1 --mode baseline")
    assert "prompts of 1 token, 8 out" in done.stdout


def test_what_is_missed_is_said_of_targets() -> None:
    assert not_met("TPOT") == "TPOT target not met"
    assert not_met("length, TPOT, TTFT") == (
        "TPOT and TTFT targets not met, requests refused for length"
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--buffer 2048:8192:1", "6,145 buffers, each of which is replayed: try 200 at most"),
        ("--ratio 1-100000", "500,000 pairs of buffer and ratio: try 5,000 at most"),
    ],
)
def test_a_plan_of_too_many_candidates_is_refused(options: str, reason: str) -> None:
    done = run(f"plan {options}")
    assert done.exit_code == 2
    assert reason in " ".join(done.stderr.split())
