"""Published figures: the data are complete, and the bars that hold stay held."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hisparse_sim.cli import cli
from hisparse_sim.simulator.serving.published import read_published
from hisparse_sim.simulator.serving.reproduce import (
    OUT,
    SHAPED,
    Reproduced,
    reproduce,
    summary,
    table,
)


@pytest.fixture(scope="module")
def rows() -> dict[str, Reproduced]:
    return {row.what: row for row in reproduce()}


def test_every_figure_has_a_source_and_an_answer(rows: dict[str, Reproduced]) -> None:
    published = read_published()
    kinds = ("memory", "serving", "step", "hidden", "steps", "decode")
    count = sum(len(published[kind]) for kind in kinds)
    count += len(published["decode"])  # end to end, too
    assert len(rows) == count
    assert all(row.how and row.source for row in rows.values())


def test_a_large_error_is_explained(rows: dict[str, Reproduced]) -> None:
    for row in rows.values():
        assert abs(row.error) <= 0.15 or row.gap, row


def test_memory_figures(rows: dict[str, Reproduced]) -> None:
    assert abs(rows["KV of a 128K request, GLM-5.1 (GB)"].error) < 0.005
    assert abs(rows["weights on a GPU, TP 8 (GB)"].error) < 0.01


def test_hisparse_at_32k_within_20_percent(rows: dict[str, Reproduced]) -> None:
    # In step it is an upper bound, out of step a lower one; the published figure lies between.
    upper, lower = rows["HiSparse, 32k/8k"], rows["HiSparse, 32k/8k, lengths vary by 10 %"]
    assert lower.ours < upper.published < upper.ours
    assert abs(upper.error) < 0.20
    assert abs(rows["HiSparse over baseline, 32k/8k"].error) < 0.20
    assert abs(rows["HiSparse over baseline, 4k context"].error) < 0.05


def test_baseline_is_a_plateau_and_hisparse_is_not(rows: dict[str, Reproduced]) -> None:
    few = rows["baseline, 32k/8k, concurrency 32, pool 10.7 GB"].ours
    many = rows["baseline, 32k/8k, concurrency 256, pool 10.7 GB"].ours
    assert many == pytest.approx(few, rel=0.05)
    assert rows["HiSparse, 32k/8k"].ours > 3 * many


def test_crossing_on_the_rtx_pro_6000(rows: dict[str, Reproduced]) -> None:
    # Published: behind the baseline (153.3, 6 running: 215.9) up to 4 requests, ahead from 8 on.
    assert rows["RTX PRO 6000, 4 requests"].ours < 153.3
    assert rows["RTX PRO 6000, 8 requests"].ours > 215.9
    for row in rows.values():
        if row.what.startswith("RTX"):
            assert abs(row.error) < 0.20


def test_gain_on_h20_grows_with_the_context_as_published(rows: dict[str, Reproduced]) -> None:
    gains = [row for row in rows.values() if "H20 disaggregated" in row.what]
    assert len(gains) == 6
    assert all(abs(row.error) < 0.3 for row in gains)
    assert gains[0].ours < gains[2].ours < gains[4].ours


def test_h20_end_to_end_is_held_back_by_one_prefill_node(rows: dict[str, Reproduced]) -> None:
    alone = [row for row in rows.values() if "H20 disaggregated" in row.what]
    whole = [row for row in rows.values() if "H20 with 1 prefill node" in row.what]
    assert [row.published for row in whole] == [row.published for row in alone]
    too_few = 0
    for one, other in zip(whole, alone, strict=True):
        assert 1.3 < one.ours < other.ours
        # What is said of prefill explains it: one node prefills fewer tokens than published.
        found = re.search(r"prefills ([\d,]+) tokens/s, .* take ([\d,]+)", one.how)
        assert found
        able, needed = (int(text.replace(",", "")) for text in found.groups())
        too_few += able < needed
    assert too_few >= 5


def test_32k_lies_between_two_publications(rows: dict[str, Reproduced]) -> None:
    for mode in ("baseline", "HiSparse"):
        paper, blog = rows[f"{mode}, 32k/8k"], rows[f"{mode}, 32k/8k, the blog's chart"]
        assert paper.published < paper.ours == blog.ours < blog.published


def test_every_figure_is_in_one_sample(rows: dict[str, Reproduced]) -> None:
    found = table(list(rows.values()))
    assert set(found["sample"]) == {SHAPED, OUT}
    assert (found["choice"] != "").all()
    shaped = set(found.loc[found["sample"] == SHAPED, "what"])
    assert "weights on a GPU, TP 8 (GB)" in shaped  # loading bytes
    assert "baseline, 32k/8k, concurrency 8, pool 10.7 GB" in shaped  # the pool
    assert "HiSparse over baseline, 32k/8k" in shaped  # keys counted once
    assert {what for what in rows if "H20 disaggregated" in what} <= shaped
    assert not any(row.shaped for row in rows.values() if row.what.startswith(("RTX", "GLM-5.2")))
    two = summary(found).set_index("sample")
    assert two["figures"].sum() == len(found)
    for sample in (SHAPED, OUT):
        errors = found.loc[found["sample"] == sample, "error"].abs()
        assert two.loc[sample, "median"] == errors.median()
        worst = rows[str(two.loc[sample, "what"])]
        assert abs(worst.error) == two.loc[sample, "worst"] == errors.max()


def test_what_is_far_off_has_causes_and_what_was_measured_a_range(
    rows: dict[str, Reproduced],
) -> None:
    for what, row in rows.items():
        if what.startswith(("GLM-5.2", "DeepSeek-V3.2,")) and "step" not in what:
            assert bool(row.causes) == (abs(row.error) > 0.25)
    far = rows["GLM-5.2, 8k/1k, H200, DP attention"].causes
    assert re.search(r"decode time x 2: [\d,]+ \([+-]\d+%\)", far)
    assert "misses" not in far  # without HiSparse there are none
    drafts = rows["GLM-5, 1k/1k at 1, B200, TP 8, MTP of 4 rows"]
    slower = re.search(r"decode time x 2: ([\d.]+) ", drafts.causes)
    assert slower
    assert float(slower[1]) < drafts.ours
    row = rows["HiSparse, 32k/8k"]
    assert row.host_low < row.ours < row.host_high
    assert "154 GB/s" not in rows["baseline, 32k/8k"].how
    assert "309 GB/s from the host are assumed; with 154 " in row.how


def test_the_page_has_these_figures(rows: dict[str, Reproduced]) -> None:
    page_path = Path(__file__).parents[1] / "docs" / "how-far-it-holds.md"
    page = page_path.read_text(encoding="utf-8")
    two = summary(table(list(rows.values()))).set_index("sample")
    for sample, name in ((SHAPED, "shaped a choice"), (OUT, "out of sample")):
        group = two.loc[sample]
        said = f"| {name} | {group['figures']} | {100 * group['median']:.0f} % | "
        assert f"{said}{100 * group['worst']:.0f} %" in page
    host = (Path(__file__).parents[1] / "docs" / "several-gpus.md").read_text(encoding="utf-8")
    row = rows["HiSparse, 32k/8k"]
    for rate in (row.host_low, row.ours, row.host_high):
        assert f"| {rate:,.0f} |" in host
    time = page_path.with_name("memory-and-time.md").read_text(encoding="utf-8")
    apart = rows["HiSparse, 32k/8k, lengths vary by 10 %"]
    assert f"falls from {row.ours:,.0f} to {apart.ours:,.0f} tokens/s" in time
    for what, row in rows.items():
        text = f"{row.ours:,.1f}" if row.ours < 100 else f"{row.ours:,.0f}"
        assert text in page or not what.startswith(("GLM-5.2", "DeepSeek-V3.2,")), what


def test_lower_bounds_count_as_met() -> None:
    row = Reproduced("x", 3.0, 3.3, True, "", "", "")
    assert row.error == 0
    assert Reproduced("x", 3.0, 2.7, True, "", "", "").error == pytest.approx(-0.1)
    assert table([row])["ours"].tolist() == [3.3]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_plan_command() -> None:
    text = run("plan", "--buffer", "4096", "--ratio", "6,8", "--concurrency", "128")
    assert "Best: device_buffer_size 4096, ratio" in text
    text = text.replace(" \\\n  ", " ")
    assert '--hisparse-config \'{"top_k": 2048, "device_buffer_size": 4096' in text
    assert "Break-even concurrency: " in text


def test_plan_data(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    run("plan", "--buffer", "4096", "--ratio", "6,8", "--candidates", "-o", str(file))
    found = json.loads(file.read_text())
    assert [row["ratio"] for row in found["candidates"]] == [6, 8]
    assert found["recommendation"]["hisparse_config"]["device_buffer_size"] == 4096
    assert found["recommendation"]["break_even"] > 0
    assert found["parameters"]["prompt"] == 32_768
    # jsonl, csv and parquet hold rows that stand for themselves.
    lines = run("plan", "--buffer", "4096", "--ratio", "6", "--format", "jsonl").splitlines()
    row = json.loads(lines[0])
    assert row["best"] is True
    assert "--enable-hisparse" in row["flags"]


def test_plan_checks_a_config() -> None:
    assert "nothing wrong" in run("plan", "--concurrency", "32", "--config", "{}")
    result = CliRunner().invoke(cli, ["plan", "--config", '{"device_buffer_size": 100}'])
    assert result.exit_code == 1
    assert "error: device_buffer_size 100 is smaller than the top-k" in result.stdout
    result = CliRunner().invoke(cli, ["plan", "--config", '{"top_k": 1}', "--format", "json"])
    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    assert [row["severity"] for row in rows] == ["warning", "error", "error", "note", "note"]
    assert rows[2]["text"] == "device_buffer_size 2 is not a multiple of the page size, 64"


def test_plan_without_a_way() -> None:
    result = CliRunner().invoke(cli, ["plan", "--buffer", "4096", "--max-tpot-ms", "1"])
    assert result.exit_code == 1
    assert "no candidate reaches 1 ms" in result.stdout
    result = CliRunner().invoke(cli, ["plan", "--hardware", "rtx-pro-6000"])
    assert result.exit_code != 0
    assert "does not fit" in result.output
    result = CliRunner().invoke(cli, ["plan", "--model", "gpt"])
    assert result.exit_code == 2
    assert "known: deepseek-v3.2, deepseek-v4-flash, glm-5.1, glm-5.2, minimax-m3" in result.output


def test_serve_command() -> None:
    load = ["--concurrency", "8", "--requests", "8", "--prompt", "9000", "--output-len", "64"]
    rows = json.loads(run("serve", *load, "--mode", "hisparse", "--format", "json"))
    assert [row["mode"] for row in rows] == ["hisparse"]
    assert rows[0]["tokens_per_s"] > 0
    text = run("serve", *load)
    assert "zero-cost" in text
    assert "glm-5.1, bf16 KV, on 8 x h200 (dp8-tp8: 8 ranks)" in text
    assert "B 4,096, ratio 4, lru" in text
    long = ["--prompt", "200000", "--range-ratio", "0.7", "--output-len", "64"]
    text = run("serve", *load[:4], *long, "--mode", "baseline")
    assert re.search(r"baseline, 8: [2-7] requests refused for length", text)
    assert "nan" not in text
    result = CliRunner().invoke(cli, ["serve", "--rate", "1", "--concurrency", "8"])
    assert result.exit_code == 2


def test_reproduce_command_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = read_published()
    few = published | {kind: published[kind][:1] for kind in ("memory", "serving", "steps")}
    monkeypatch.setattr("hisparse_sim.simulator.serving.reproduce.read_published", lambda: few)
    monkeypatch.setattr("hisparse_sim.simulator.serving.reproduce.CURVE", (8,))
    figure, data = tmp_path / "rates.svg", tmp_path / "rows.csv"
    scatter = tmp_path / "scatter.svg"
    words = ["-o", str(data), "--plot", str(figure), "--scatter", str(scatter)]
    run("reproduce", "--quiet", *words)
    assert data.read_text().startswith("what,published,ours,error,sample,choice,")
    assert "each in its own unit" in scatter.read_text()
    assert figure.read_text().startswith("<?xml")
    assert "KV of a 128K request" in run("reproduce", "--quiet")
