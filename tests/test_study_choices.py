"""What a study takes in place of names, and what it says of a single part."""

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import drift, metadata, several, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import POLICIES, STANDARD, Policy
from hisparse_sim.simulator.serving.curves import CURVE_POLICIES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    parts = [drift(layer=layer, steps=30) for layer in (0, 1)]
    return write(tmp_path / "t.parquet", parts, metadata())


def asks(policy: Policy) -> bool:
    return policy.needs_ranks or policy.needs_scores or policy.needs_next


def test_a_single_part_has_no_intervals(path: Path) -> None:
    words = ["study", str(path), "--layer", "0", "--policy", "clock", "--buffer", "16"]
    words += ["--prefetch", "none", "--quiet"]
    done = CliRunner().invoke(cli, [*words, "--format", "json"])
    for row in json.loads(done.stdout):
        assert row["parts"] == 1
        for name in ("miss_rate", "change", "gap_closed"):
            assert row[name] is not None
            assert row[f"{name}_low"] is None
            assert row[f"{name}_high"] is None
    said = " ".join(CliRunner().invoke(cli, words).stdout.split())
    assert ": 1 part, 1 request," in said
    assert "without intervals, which a single part has not" in said


def test_none_is_no_prefetcher(path: Path) -> None:
    without = hs.study(path, "clock", 16, prefetchers=()).rows
    for none in ("none", ["none"]):
        found = hs.study(path, "clock", 16, prefetchers=none).rows
        pd.testing.assert_frame_equal(found, without)
    with pytest.raises(ValueError, match="none of `prefetchers` stands alone"):
        hs.study(path, "clock", 16, prefetchers=["none", "slash"])


def test_all_policies_are_those_that_apply(path: Path, tmp_path: Path) -> None:
    """In studies, sweeps and curves, and beside one of one's own."""
    lacking = [each.name for each in POLICIES.values() if asks(each)]
    others = [name for name in POLICIES if name not in lacking]
    assert lacking
    note = f"left out, since they do not apply to every trace: {', '.join(lacking)}"
    sweep = hs.sweep(path, "all", 16, layers=0)
    assert sweep.rows["policy"].tolist() == others
    assert note in sweep.notes
    curve = hs.curve(path, ["random", "ALL"], 16, layers=0, window=5)
    assert curve.rows["policy"].unique().tolist() == list(dict.fromkeys(["random", *others]))
    assert note in curve.swept.notes
    study = hs.study(path, "all", 16, layers=0, prefetchers="none")
    assert set(study.rows["policy"]) == set(others)
    assert note in study.notes
    drafts = hs.sweep(path, "all", 48, layers=0, draft_tokens=2)
    assert drafts.rows["policy"].tolist()[0] == "epoch-clock"
    assert set(drafts.rows["policy"]) == {"epoch-clock", *others}
    words = ["sweep", str(path), "--policy", "all", "--buffer", "16", "--format", "json"]
    done = CliRunner().invoke(cli, words)
    assert [row["policy"] for row in json.loads(done.stdout)] == others
    assert note in done.stderr
    (tmp_path / "own.py").write_text(
        "from dataclasses import replace\nfrom hisparse_sim.policies import POLICIES\n"
        "OWN = replace(POLICIES['lru'], name='all')\n"
    )
    with pytest.raises(ValueError, match="'all' is taken"):
        hs.sweep(path, f"{tmp_path}/own.py:OWN", 16)


def test_the_help_names_the_default_policies() -> None:
    for command, default in (
        ("sweep", ",".join(STANDARD)),
        ("curve", ",".join(CURVE_POLICIES)),
        ("study", "all"),
    ):
        said = "".join(CliRunner().invoke(cli, [command, "--help"]).stdout.split())
        policy = said.partition("--policyTEXT")[2].partition("--buffer")[0]
        assert f"[default:{default}" in policy


def test_traces_of_models_without_profiles_share_the_default(tmp_path: Path) -> None:
    several_models = [
        write(tmp_path / f"{name}.parquet", several(requests=1, layers=(0,)), metadata(model=name))
        for name in ("small", "smaller", "deepseek-v3.2")
    ]
    found = hs.study(several_models[:2], "lru", 16, prefetchers="none")
    assert any("glm-5.1 (small and smaller have no profile" in note for note in found.notes)
    with pytest.raises(ValueError, match="of several models; choose one with `model`"):
        hs.study(several_models[1:3], "lru", 16, prefetchers="none")
