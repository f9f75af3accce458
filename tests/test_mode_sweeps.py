"""Sweeps by an engine's rules: rows, golden counts on the bundled sample, resuming, the command."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from make_traces import drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import STANDARD
from hisparse_sim.simulator.replay.kept import Kept
from hisparse_sim.simulator.serving.memory import hot_buffer_bytes
from hisparse_sim.simulator.serving.misses import layer_misses
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.traces import TraceError, open_trace, sample_path
from hisparse_sim.traces.drafts import drafted

# (misses, resident accesses) of layers 9 and 20 of the sample. They change only together with a
# line in CHANGELOG.md that says why.
GOLDEN: dict[str, tuple[int, int]] = {
    "sglang 4096": (167287, 5269),
    "sglang 6144 direct": (87909, 4162),
    "sglang 8192 lru": (52265, 5269),
    "sglang resident": (43843, 1389486),
    "vllm": (159823, 89626),
    "vllm drafts": (51500, 118343),
    "vllm resident": (136686, 285627),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "sglang 4096": {
        "draft_tokens": 4,
        "acceptance_length": 2.7,
        "buffers": 4096,
        "policies": "epoch-clock",
    },
    "sglang 6144 direct": {
        "draft_tokens": 3,
        "acceptance_length": 2.2,
        "buffers": 6144,
        "policies": "epoch-clock",
        "start": "direct",
    },
    "sglang 8192 lru": {
        "draft_tokens": 4,
        "acceptance_length": 2.7,
        "buffers": 8192,
        "policies": "lru",
    },
    "sglang resident": {"resident_tokens": 4096, "buffers": 4096, "policies": "lru"},
    "vllm": {"engine": "vllm-0.33", "policies": "lru"},
    "vllm drafts": {
        "engine": "vllm-0.33",
        "draft_tokens": 3,
        "acceptance_length": 2.2,
        "policies": "lru",
    },
    "vllm resident": {"engine": "vllm-0.33", "resident_tokens": 8192, "policies": "lru"},
}


def two_layers() -> list[int]:
    return list(open_trace(sample_path()).layers[1:3])


@pytest.mark.parametrize("name", SETTINGS)
def test_golden_counts(name: str) -> None:
    rows = hs.sweep(None, layers=two_layers(), compare_min=False, **SETTINGS[name]).rows
    (row,) = rows.to_dict("records")
    found = (row["misses"], row["resident_accesses"])
    assert found == GOLDEN.get(name), f"now: {name!r}: {found},"


def made(path: Path, draft_tokens: int = 3, **about: Any) -> Path:
    parts = [
        drafted(drift(steps=40, layer=layer, first_seq_len=90), draft_tokens, 2) for layer in (0, 1)
    ]
    return write(path, parts, metadata(draft_tokens=draft_tokens, **about))


def test_rows_of_a_trace_with_drafts(tmp_path: Path) -> None:
    swept = hs.sweep(made(tmp_path / "t.parquet"), buffers=32)
    rows = swept.rows
    assert rows["policy"].iloc[0] == "epoch-clock"
    assert set(rows["policy"]) == {"epoch-clock", *STANDARD}
    assert (rows["rules"] == "sglang, 3 draft tokens").all()
    assert (rows["draft_tokens"] == 3).all()
    assert (rows["accepted_per_step"] == 2).all()
    assert (rows["steps"] == 2 * 19).all()
    np.testing.assert_allclose(rows["misses_per_token"], rows["misses_per_step"] / 2)
    assert (rows["selected_steps"] == "all").all()
    own = rows.set_index("policy")
    assert own.loc["belady", "misses"] <= own["misses"].drop(index=["epoch-clock"]).min()
    assert len(swept.steps) == 2 * 19 * len(rows)


def test_a_plain_sweep_has_no_columns_of_a_mode() -> None:
    rows = hs.sweep(None, "lru", 4096, layers=two_layers()[:1], compare_min=False).rows
    assert not {"rules", "draft_tokens", "anchor_misses", "resident_accesses"} & set(rows)


def test_a_part_of_the_steps(tmp_path: Path) -> None:
    path = made(tmp_path / "t.parquet")
    rows = hs.sweep(path, "lru", 32, steps=(4, 9), compare_min=False).rows
    assert rows["steps"].tolist() == [10]
    assert rows["selected_steps"].tolist() == ["4:9"]


def test_layers_that_share_an_index(tmp_path: Path) -> None:
    """Layer 1 repeats layer 0, and so does 2, of which the trace has no rows; 3 has its own."""
    parts = [drift(steps=30, first_seq_len=60, layer=layer) for layer in (0, 3)]
    parts.insert(1, replace(parts[0], layer=1))
    types = ("full", "shared", "shared", "full")
    path = write(tmp_path / "t.parquet", parts, metadata(layer_types=types))
    each = hs.sweep(path, "lru", 16, per_layer=True, compare_min=False).rows.set_index("layer")
    row = hs.sweep(path, "lru", 16, compare_min=False).rows.iloc[0]
    assert each["anchor_misses"].tolist() == [each.loc[0, "misses"], 0, each.loc[3, "misses"]]
    assert each["replayed_misses"].tolist() == [2 * each.loc[0, "misses"], 0, 0]
    assert row["anchor_misses"] == each.loc[0, "misses"] + each.loc[3, "misses"]
    assert row["replayed_misses"] == 2 * each.loc[0, "misses"]
    assert each["anchor_accesses"].tolist() == [each.loc[0, "accesses"], 0, each.loc[3, "accesses"]]
    assert each["replayed_accesses"].tolist() == [2 * each.loc[0, "accesses"], 0, 0]
    assert row["anchor_accesses"] + row["replayed_accesses"] == 4 * each.loc[0, "accesses"]
    # Bytes are those of the two counts, which 30 steps of 4 layers have together.
    for costs in ({"ratios": 2}, {"resident_tokens": 8, "model": "glm-5.1"}):
        for layers in (None, (0, 3)):
            (priced,) = hs.sweep(path, "lru", 16, layers=layers, **costs).rows.to_dict("records")
            counted = priced["anchor_misses"] + priced["replayed_misses"]
            assert priced["bytes_per_step"] == pytest.approx(counted / 30 / 4 * 78 * 1152)
            assert counted / 4 != priced["misses"] / (3 if layers is None else 2)
    counted = row["anchor_misses"] + row["replayed_misses"]
    found = layer_misses(path, "lru", 16, warm_up_steps=0)
    assert found.mean == pytest.approx(counted / 30 / 4)


def test_more_on_the_gpu_means_fewer_misses() -> None:
    layers = two_layers()[:1]
    for engine in ("sglang-0.5.23", "vllm-0.33"):
        misses = [
            int(
                hs.sweep(
                    None,
                    "lru",
                    4096,
                    engine=engine,
                    layers=layers,
                    compare_min=False,
                    resident_tokens=tokens,
                )
                .rows["misses"]
                .iloc[0]
            )
            for tokens in (0, 8192, 40_000)
        ]
        assert misses[0] > misses[1] > misses[2] == 0


def test_finished_work_is_that_of_its_rules(tmp_path: Path) -> None:
    path, keep = made(tmp_path / "t.parquet"), tmp_path / "kept"
    first = hs.sweep(path, "epoch-clock", 32, keep=keep, compare_min=False).rows
    with Kept(keep) as kept:
        assert kept.holds_work
        again = hs.sweep(path, "epoch-clock", 32, keep=kept, compare_min=False).rows
        other = hs.sweep(path, "lru", 32, engine="vllm-0.33", keep=kept, compare_min=False).rows
        others = hs.sweep(path, "lru", 32, keep=kept, compare_min=False).rows
    assert again.equals(first)
    assert other["misses"].iloc[0] != others["misses"].iloc[0]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["sweep", *arguments], catch_exceptions=False)


def test_the_command(tmp_path: Path) -> None:
    path = made(tmp_path / "t.parquet", model="glm-5.1")
    found = run(str(path), "--buffer", "32", "--policy", "epoch-clock,lru", "--format", "json")
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)
    rows = rows["rows"] if isinstance(rows, dict) else rows
    assert [row["rules"] for row in rows] == ["sglang, 3 draft tokens"] * 2
    shown = run(str(path), "--buffer", "32", "--policy", "lru", "--engine", "vllm-0.33").output
    assert "Rules of vllm, 3 draft tokens" in shown
    assert "per token" in shown
    assert "direct start" in shown


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--draft-tokens", "2"], "has 3 draft tokens a step, not 2: leave --draft-tokens out"),
        (["--buffer", "16", "--policy", "lru"], "choose a larger one, or the engine's epoch-clock"),
        (["--ratio", "2"], "this replay has drafts: leave --ratio out"),
        (["--engine", "vllm-0.33", "--buffer", "16"], "wants a buffer of at least 24 slots"),
    ],
)
def test_what_cannot_be_replayed(tmp_path: Path, options: list[str], sentence: str) -> None:
    found = run(str(made(tmp_path / "t.parquet")), *options)
    assert found.exit_code in (1, 2)
    assert sentence in " ".join(found.output.split())


def test_epoch_clock_wants_drafts() -> None:
    found = run("--policy", "epoch-clock")
    assert found.exit_code in (1, 2)
    assert "give at least 2 --draft-tokens, or choose lru" in found.output


def test_notes_say_what_is_assumed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [drift(steps=40, first_seq_len=90)])
    swept = hs.sweep(path, buffers=64, draft_tokens=4, engine="sglang-0.5.20")
    said = " ".join(swept.notes)
    assert "sglang-0.5.20 has no swap-in for drafts" in said
    assert "also where a draft is not accepted" in said
    assert "drafts of 2 to 4 tokens a step, and a top_k of at least 1,024" in said
    assert "not compared with MIN" in " ".join(hs.sweep(path, buffers=16, draft_tokens=4).notes)


# --- bytes ---------------------------------------------------------------------------------------


def test_bytes_of_drafts(tmp_path: Path) -> None:
    """3 queries of 2,048 at 4,096 slots: a scratch area of 2,048 tokens and a page beside them."""
    path = made(tmp_path / "t.parquet")
    (row,) = hs.sweep(path, "epoch-clock", 32, model="glm-5.1").rows.to_dict("records")
    assert row["bytes_per_step"] == pytest.approx(row["misses_per_step"] * 78 * 1152)
    assert row["bytes_per_token"] == pytest.approx(row["misses_per_token"] * 78 * 1152)
    assert "requests_per_gpu" not in row
    plain = write(tmp_path / "p.parquet", [drift(steps=40, first_seq_len=90)])
    (row,) = hs.sweep(plain, "epoch-clock", 4096, draft_tokens=3, model="glm-5.1").rows.to_dict(
        "records"
    )
    assert row["hot_buffer_bytes"] == (4096 + 64 + 2048) * 78 * 1152


def test_bytes_of_resident_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "p.parquet", [drift(steps=40, first_seq_len=900)])
    for engine, beside in (("sglang-0.5.23", 64 + 640), ("vllm-0.33", 128 + 640)):
        rows = hs.sweep(
            path, "lru", 64, engine=engine, resident_tokens=640, model="glm-5.1", kv_dtype="fp8"
        ).rows
        assert rows["hot_buffer_bytes"].tolist() == [(64 + beside) * 78 * 656]
        # A request of 939 tokens has 15 pages at most, however many may stay.
        whole = hs.sweep(path, "lru", 64, engine=engine, resident_tokens=10**6, model="glm-5.1")
        assert whole.rows["hot_buffer_bytes"].tolist() == [960 * 78 * 1152]


@pytest.mark.parametrize(
    ("model", "unit", "layers", "entry_bytes"),
    [("qsa", "block4", 12, 8192), ("MiniMax-M3", "block128", 57, 262_144)],
)
def test_bytes_of_blocks(
    tmp_path: Path, model: str, unit: str, layers: int, entry_bytes: int
) -> None:
    """K and V of a block in all heads, in the layers that select: the others hold none."""
    path = write(tmp_path / "b.parquet", [drift(steps=40)], metadata(unit=unit))
    (row,) = hs.sweep(path, "lru", 16, model=model).rows.to_dict("records")
    assert row["bytes_per_step"] == pytest.approx(row["misses_per_step"] * layers * entry_bytes)
    tokens = load_model(model).position_tokens  # a page, or a block that is larger, is reserved
    assert row["hot_buffer_bytes"] == (16 + max(64 // tokens, 1)) * layers * entry_bytes
    (some,) = hs.sweep(path, "lru", 16, model=model, resident_tokens=256).rows.to_dict("records")
    assert some["hot_buffer_bytes"] == hot_buffer_bytes(load_model(model), "bf16", 16, 256)
    half = hs.sweep(path, "lru", 16, model=model, kv_dtype="fp8").rows["bytes_per_step"].iloc[0]
    assert half == row["bytes_per_step"] / 2
    shown = run(str(path), "--policy", "lru", "--buffer", "16", "--model", model)
    assert shown.exit_code == 0, shown.output
    assert "MB/step" in shown.output


def test_bytes_of_compressed_groups(tmp_path: Path) -> None:
    path = write(tmp_path / "g.parquet", [drift(steps=40)], metadata(unit="c4"))
    (row,) = hs.sweep(path, "lru", 16, model="deepseek-v4-flash").rows.to_dict("records")
    assert row["bytes_per_step"] == pytest.approx(row["misses_per_step"] * 21 * 584)
    with pytest.raises(hs.TraceError, match="compressed groups of 4 tokens, and minimax-m3"):
        hs.sweep(path, "lru", 16, model="minimax-m3")


def test_blocks_of_another_model(tmp_path: Path) -> None:
    path = write(tmp_path / "b.parquet", [drift(steps=40)], metadata(unit="block4"))
    with pytest.raises(hs.TraceError, match="counts blocks of 4 tokens, and minimax-m3 selects"):
        hs.sweep(path, "lru", 16, model="minimax-m3")
    with pytest.raises(hs.TraceError, match=r"of 4 tokens, and glm-5\.1 selects token"):
        hs.sweep(path, "lru", 16, model="glm-5.1")
    with pytest.raises(hs.TraceError, match="no profile, from which costs follow"):
        hs.sweep(path, "lru", 16, ratios=2)


@pytest.mark.parametrize(
    ("unit", "options", "sentence"),
    [
        ("block4", {"engine": "vllm-0.33"}, "blocks of 4 tokens, and vLLM 0.33's rules are of"),
        ("c4", {"draft_tokens": 2}, "compressed groups of 4 tokens, and drafts are of models that"),
    ],
)
def test_rules_of_tokens_refuse_blocks(
    tmp_path: Path, unit: str, options: dict[str, Any], sentence: str
) -> None:
    path = write(tmp_path / "t.parquet", [drift()], metadata(unit=unit))
    with pytest.raises(TraceError, match=sentence):
        hs.sweep(path, "lru", 32, compare_min=False, **options)


def test_resident_tokens_of_blocks_are_counted_in_tokens(tmp_path: Path) -> None:
    """24 tokens are six blocks of four."""
    parts = [drift(steps=40)]
    blocks = write(tmp_path / "b.parquet", parts, metadata(unit="block4"))
    tokens = write(tmp_path / "t.parquet", parts, metadata())
    found = [
        hs.sweep(path, "lru", 16, compare_min=False, resident_tokens=resident).rows.iloc[0]
        for path, resident in ((blocks, 24), (tokens, 6), (tokens, 24))
    ]
    assert found[0]["misses"] == found[1]["misses"] > found[2]["misses"]
    assert found[0]["resident_accesses"] == found[1]["resident_accesses"]
