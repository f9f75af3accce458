"""What plan and serve refuse: buffers in part pages, loads of which nothing runs, bad files."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner, Result

from hisparse_sim import serve
from hisparse_sim.cli import cli
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
