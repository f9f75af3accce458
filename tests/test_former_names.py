"""Files, options and values with the names of earlier versions still mean the same."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.gpu_replay.bench.results import read_rows
from hisparse_sim.policies import POLICIES, get_policy
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.serving.latency import load_link
from hisparse_sim.simulator.serving.misses import layer_misses, read_miss_curve
from hisparse_sim.simulator.views.report.results import read_results


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    path = write(tmp_path_factory.mktemp("former") / "t.parquet", [drift()], metadata())
    return hs.sweep(path, ["lru", "belady"], [8, 16]).rows


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "parquet"])
def test_an_old_sweep_is_read_like_a_new_one(
    swept: pd.DataFrame, tmp_path: Path, suffix: str
) -> None:
    old = swept.rename(columns={"excess_over_min": "regret"})
    path = tmp_path / f"old.{suffix}"
    writers = {
        "csv": lambda: old.to_csv(path, index=False),
        "json": lambda: old.to_json(path, orient="records"),
        "jsonl": lambda: old.to_json(path, orient="records", lines=True),
        "parquet": lambda: old.to_parquet(path, index=False),
    }
    writers[suffix]()
    (read,) = read_results([path])
    assert read.kind == "sweep"
    assert "regret" not in read.rows
    assert np.allclose(read.rows["excess_over_min"], swept["excess_over_min"])
    assert swept["excess_over_min"].max() > 0
    pd.testing.assert_frame_equal(totals(read.rows), totals(swept), check_dtype=False)
    pd.testing.assert_frame_equal(totals(old), totals(swept))
    rate = read_miss_curve(path, "lru", 64, 8)("lru", 16).rate
    assert rate == pytest.approx(swept[swept["policy"] == "lru"]["miss_rate"].iloc[1])


def test_old_serving_and_bench_rows(swept: pd.DataFrame, tmp_path: Path) -> None:
    swept.to_csv(tmp_path / "rows.csv", index=False)
    served = {"mode": "oracle", "load": "8", "tokens_per_s": 1.0, "tpot_p50_ms": 2.0}
    (tmp_path / "serve.json").write_text(json.dumps([served]))
    point = {"batch": 1, "misses": 64, "buffer": 4096, "item_bytes": 1152, "timer_us": 2.0}
    bench = {"machine": {"gpu": "H200"}, "parameters": {}, "rows": [point]}
    (tmp_path / "bench.json").write_text(json.dumps(bench))
    _, read, measured = read_results(
        [tmp_path / name for name in ("rows.csv", "serve.json", "bench.json")]
    )
    assert list(read.rows["mode"]) == ["zero-cost"]
    assert measured.kind == "bench"
    assert list(measured.rows["entry_bytes"]) == [1152]
    assert read_rows(tmp_path / "bench.json")[0]["entry_bytes"] == 1152


def test_an_old_link_profile(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    figures = {"item_ns": 3.5, "link_gb_s": 50, "bulk_gb_s": 55}
    names = ("plan_us", "plan_slot_us", "first_us", "miss_ns", "miss_byte_ns")
    figures |= {f"{kernel}_{name}": 1.0 for kernel in ("sglang", "native") for name in names}
    lines = [f"{name} = {value}" for name, value in figures.items()]
    head = ["[links.mine]", "[[links.mine.figures]]", 'kind = "measured"', 'source = "here"']
    path.write_text("\n".join([*head, *lines]))
    assert load_link("mine", path).entry_ns == 3.5


def test_old_options() -> None:
    few = ("sweep", "--policy", "lru", "--buffer", "4096", "--layer", "4", "--steps", "0:8")
    new, old = run(*few, "--no-min"), run(*few, "--no-regret")
    assert new == old != run(*few)
    assert "over MIN" not in new
    load = ("--concurrency", "2", "--requests", "2", "--prompt", "9000", "--output-len", "8")
    served = ("serve", *load, "--format", "csv", "--mode")
    assert run(*served, "oracle") == run(*served, "zero-cost")
    for command in (("sweep",), ("serve",), ("plan",), ("gpu", "bench"), ("gpu", "replay")):
        shown = run(*command, "--help")
        assert "no-regret" not in shown
        assert "item-bytes" not in shown
        assert "|oracle" not in shown


def test_min_names_beladys_policy(tmp_path: Path) -> None:
    assert get_policy("min") is get_policy("MIN") is POLICIES["belady"]
    path = write(tmp_path / "t.parquet", [drift()], metadata())
    assert list(hs.sweep(path, ["min", "belady"], 8).rows["policy"]) == ["belady"]
    assert layer_misses(path, "min", 8).policy == "belady"
