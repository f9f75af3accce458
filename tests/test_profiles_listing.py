"""hisparse-sim profiles and hs.profiles(): one table, every figure with its kind and source."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.serving.engines import ENGINES
from hisparse_sim.simulator.serving.hardware import hardware_names, load_hardware
from hisparse_sim.simulator.serving.latency import load_link
from hisparse_sim.simulator.serving.models import model_names
from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.simulator.serving.steptimes import shipped_tables


def names(table: str) -> set[str]:
    return set(hs.profiles(table=table)["name"])


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["profiles", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_everything_is_there() -> None:
    assert names("models") | names("blocks") == set(model_names())
    assert names("hardware") == set(hardware_names())
    assert names("engines") == set(ENGINES)
    assert names("step_times") == set(shipped_tables())
    assert {"h200-pcie5", "gh200-c2c"} <= names("links")
    every = hs.profiles()
    figures = every[every["kind"].notna()]
    assert set(figures["kind"]) == {"measured", "published", "modelled"}
    assert figures["source"].str.len().gt(10).all()


def test_figures_are_those_that_the_models_use() -> None:
    rows = hs.profiles(table="hardware", name="h20-3e")  # an alias
    assert set(rows["name"]) == {"h20"}
    assert rows.set_index("figure")["value"]["prefill_scale"] == load_hardware("h20").prefill_scale
    derived = hs.profiles(table="links", name="gh200-c2c").set_index("figure")
    link = load_link("gh200-c2c")
    assert derived["value"]["sglang_miss_ns"] == link.kernels["sglang"].miss_ns
    assert derived["kind"]["link_gb_s"] == "modelled"
    old = hs.profiles(table="engines", name="sglang-0.5.16").set_index("figure")
    assert old["value"]["budgets_every_key"] is False
    assert old["source"]["budgets_every_key"].startswith("only from 0.5.17 on: ")
    assert "pull/31992" in old["source"]["budgets_every_key"]


def test_the_command_prints_the_same_table() -> None:
    plain = hs.profiles().astype(object)
    assert json.loads(run("--format", "json")) == plain.where(plain.notna(), None).to_dict(
        "records"
    )
    read = pd.read_csv(StringIO(run("engines", "sglang-0.5.23", "--format", "csv")))
    assert list(read["figure"]) == list(
        hs.profiles(table="engines", name="sglang-0.5.23")["figure"]
    )


def test_parquet_has_values_as_text(tmp_path: Path) -> None:
    run("--format", "parquet", "-o", str(tmp_path / "all.parquet"))
    read = pd.read_parquet(tmp_path / "all.parquet")
    assert list(read["value"]) == [str(value) for value in hs.profiles()["value"]]


def test_terminal() -> None:
    text = run()
    assert max(map(len, text.splitlines())) <= 80
    for part in ("glm-5.2", "57 of them share an indexer", "h20-96gb", "gb200-c2c", "0.5.22"):
        assert part in text
    assert "deepseek-v3.2 on h100: dp16-ep16 (bf16, fp8)" in text
    figures = run("hardware", "h20")
    assert "gpu_bytes               150,754,820,096" in figures
    assert "variants: h20-96gb" in figures
    assert "      published: H20-3e: 141 GB" in figures


def test_own_profiles(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        '[links.mine]\nkernels_of = "h200-pcie5"\n[[links.mine.figures]]\nkind = "measured"\n'
        'source = "my own bench"\nbulk_gb_s = 100\nround_trip_ns = 700\n'
    )
    assert "my own bench" in run("links", "mine", "--profiles", str(file))
    assert "mine" in run("links", "--profiles", str(file))


@pytest.mark.parametrize(
    ("table", "name", "message"),
    [
        ("cars", None, "unknown table 'cars'; known: models, blocks, hardware, links, engines"),
        ("engines", "sglang-0.4", "unknown name 'sglang-0.4' in engines; known: sglang-0.5.12"),
        ("links", "string", "unknown link 'string'; known: gb200-c2c"),
        (None, "h200", "name the table of 'h200'"),
        ("models", "minimax-m3", "'minimax-m3' is in the table blocks, not in models"),
        ("blocks", "glm-5.1", "'glm-5.1' is in the table models, not in blocks"),
    ],
)
def test_unknown_ones(table: str | None, name: str | None, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        hs.profiles(table=table, name=name)
