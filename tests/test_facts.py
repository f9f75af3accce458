"""Facts files: what a pass found, kept, merged and used in place of a trace."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import make_traces
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.mrc.counted import CountedTrace, as_traces_or_facts
from hisparse_sim.simulator.mrc.facts import KEY, is_facts, merge_facts, read_facts, write_facts
from hisparse_sim.simulator.mrc.names import ONE_PASS
from hisparse_sim.simulator.serving.misses import layer_misses, read_miss_curve
from hisparse_sim.simulator.views.report import read_results
from hisparse_sim.traces import TraceError, open_trace

SAMPLE = hs.sample_path()


@pytest.fixture(scope="module")
def sample_facts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Facts of three layers of the bundled trace, in windows of 64 steps."""
    curves = hs.mrc(SAMPLE, ONE_PASS, layers=[4, 14, 29], window=64)
    return write_facts(curves, tmp_path_factory.mktemp("facts") / "facts.parquet")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return make_traces.write(tmp_path / "small.parquet", make_traces.several(top_k=8))


def facts_of(trace: Path, path: Path, **options: Any) -> Path:
    return write_facts(hs.mrc(trace, ONE_PASS, **({"window": 5} | options)), path)


def test_what_is_written_is_read(small: Path, tmp_path: Path) -> None:
    curves = hs.mrc(small, [*ONE_PASS, "lru"], window=5)
    path = write_facts(curves, tmp_path / "facts.parquet")
    assert is_facts(path)
    assert not is_facts(small)
    found = read_facts(path)
    pd.testing.assert_frame_equal(found.rows, curves.rows)
    pd.testing.assert_frame_equal(hs.mrc(path).rows, hs.mrc(small, [*ONE_PASS, "lru"]).rows)
    rows = pq.read_table(path).to_pandas()  # plain columns, for other programs
    line = rows[(rows["policy"] == "belady") & (rows["request"] == "request-1")].iloc[0]
    assert len(line["sizes"]) == len(line["misses"]) == len(range(8, 65))


def test_facts_are_small(sample_facts: Path) -> None:
    assert sample_facts.stat().st_size < SAMPLE.stat().st_size / 2 / 40  # half of its layers


def test_merged_in_any_order_the_file_is_the_same(small: Path, tmp_path: Path) -> None:
    other = make_traces.write(tmp_path / "other.parquet", make_traces.several(top_k=8, seed=3))
    files = [
        facts_of(small, tmp_path / "a.parquet", layers=[0, 1]),
        facts_of(small, tmp_path / "b.parquet", layers=[1, 3], largest=40),  # one layer twice
        facts_of(other, tmp_path / "c.parquet"),
        facts_of(small, tmp_path / "d.parquet", start="direct"),
    ]
    wanted = merge_facts(files, tmp_path / "all.parquet").read_bytes()
    for order in itertools.permutations(files):
        assert merge_facts(order, tmp_path / "again.parquet").read_bytes() == wanted
    first = merge_facts(files[:2], tmp_path / "first.parquet")
    rest = merge_facts(files[2:], tmp_path / "rest.parquet")
    assert merge_facts([rest, first], tmp_path / "again.parquet").read_bytes() == wanted
    assert merge_facts([first, *files], tmp_path / "again.parquet").read_bytes() == wanted
    staged = read_facts(tmp_path / "all.parquet", "staged").select(layers=[0, 1])
    pd.testing.assert_frame_equal(
        staged.of_trace(open_trace(small).sha256).summed(["request", "layer"]).rows,
        hs.mrc(files[0], per_layer=True, largest=40).rows,
    )


def test_a_sweep_of_facts_has_the_rows_of_a_replay(sample_facts: Path) -> None:
    sizes = [2048, 4096, 6144]
    layers = [4, 14, 29]
    for per_layer in (False, True):
        found = hs.sweep(sample_facts, "belady", sizes, per_layer=per_layer).rows
        wanted = hs.sweep(SAMPLE, "belady", sizes, layers=layers, per_layer=per_layer).rows
        unknown = ["p50", "p95", "max"]
        assert found[unknown].isna().all(axis=None)
        pd.testing.assert_frame_equal(
            found.drop(columns=unknown), wanted.drop(columns=unknown), check_dtype=False
        )
    part = hs.sweep(sample_facts, "belady", 4096, layers=[14], steps=(0, 128)).rows
    wanted = hs.sweep(SAMPLE, "belady", 4096, layers=[14], steps=(0, 128)).rows
    assert part["misses"].tolist() == wanted["misses"].tolist()
    lru = hs.sweep(sample_facts, None, 4096).rows.set_index("policy")["miss_rate"]
    engine = hs.sweep(SAMPLE, "lru", 4096, layers=layers).rows["miss_rate"].iloc[0]
    assert lru["textbook-lru"] == pytest.approx(engine, abs=0.001)


def test_costs_of_facts(sample_facts: Path) -> None:
    options: dict[str, Any] = {"model": "glm-5.1", "ratios": 8, "output_len": 100}
    found = hs.sweep(sample_facts, "belady", 4096, **options).rows.iloc[0]
    wanted = hs.sweep(SAMPLE, "belady", 4096, layers=[4, 14, 29], **options).rows.iloc[0]
    for column in ("bytes_per_step", "bytes_per_request", "request_tokens", "requests_per_gpu"):
        assert found[column] == wanted[column]
    with pytest.raises(ValueError, match="misses of every step"):
        hs.sweep(sample_facts, "belady", 4096, link="h200-pcie5")


def test_a_rolling_curve_of_facts(sample_facts: Path) -> None:
    found = hs.curve(sample_facts, "belady", 4096, window=128, skip_steps=64).rows
    wanted = hs.curve(
        SAMPLE, "belady", 4096, window=128, skip_steps=64, layers=[4, 14, 29]
    ).rows.set_index("step")
    assert found["step"].tolist() == [191, 255, 319, 383, 447, 511]
    at = wanted.loc[found["step"]]
    # The optimum of a whole request may miss in one step or another; LRU may not.
    assert found["misses_per_step"].tolist() == pytest.approx(at["misses_per_step"], rel=0.02)
    assert (found["layers"] == 3).all()
    whole = hs.curve(sample_facts, None, 4096, window=512).rows
    rows = hs.mrc(SAMPLE, "textbook-lru", layers=[4, 14, 29]).rows.set_index("buffer")
    assert whole["misses_per_step"].tolist() == pytest.approx([rows["misses_per_step"][4096]])
    with pytest.raises(ValueError, match="counted in windows of 64 steps"):
        hs.curve(sample_facts, None, 4096, window=100)


def test_plan_takes_facts(sample_facts: Path) -> None:
    context = 32_768.0
    curve = read_miss_curve(sample_facts, "lru", context, 2048)
    rows = hs.mrc(sample_facts, "textbook-lru").rows.set_index("buffer")["miss_rate"]
    assert curve("lru", 6144).mean == pytest.approx(rows[6144] * 2048)
    (trace,) = as_traces_or_facts(sample_facts)
    found = layer_misses(trace, "lru", 4096)
    late = hs.mrc(SAMPLE, "textbook-lru", layers=[4, 14, 29], per_layer=True, skip_steps=64)
    means = late.rows[late.rows["buffer"] == 4096]["misses_per_step"]
    assert found.per_layer == pytest.approx(means.tolist())
    assert found.selected == 2048
    assert found.context == pytest.approx(32768 + 64 + 224, abs=1)
    replayed = layer_misses(SAMPLE, "lru", 4096, warm_up_steps=64)
    assert found.per_layer[0] == pytest.approx(replayed.per_layer[0], rel=0.02)
    with pytest.raises(TraceError, match="for fifo and the start staged give the trace itself"):
        layer_misses(trace, "fifo", 4096)


def test_report_takes_facts(sample_facts: Path) -> None:
    (result,) = read_results([sample_facts])
    assert result.kind == "sweep"
    assert set(result.rows["buffer"]) == {2048, 3072, 4096, 6144, 8192, 12288, 16384}
    assert set(result.rows["policy"]) == {"textbook-lru", "belady"}


def test_what_facts_do_not_know(sample_facts: Path, small: Path, tmp_path: Path) -> None:
    for arguments, sentence in (
        (("lru", 4096), "to replay lru give the trace itself"),
        (("belady", 4100), "has no belady at 4,100 slots; its sizes go from 2,048 to 16,384"),
        (("belady", 4096, "direct"), "counted for the start staged, not direct"),
    ):
        with pytest.raises(TraceError, match=sentence):
            hs.sweep(sample_facts, *arguments)
    with pytest.raises(ValueError, match="a sweep from step 64 on"):
        hs.sweep(sample_facts, "belady", 4096, steps=(64, 128))
    with pytest.raises(ValueError, match="step 100 is inside a window"):
        hs.sweep(sample_facts, "belady", 4096, steps=(0, 100))
    with pytest.raises(TraceError, match="cannot be swept together with traces"):
        hs.sweep([sample_facts, SAMPLE], "belady", 4096)
    (trace,) = as_traces_or_facts(sample_facts)
    assert isinstance(trace, CountedTrace)
    with pytest.raises(TraceError, match="facts and no positions"):
        trace.read(trace.parts[0])
    with pytest.raises(ValueError, match="facts are about single requests"):
        write_facts(hs.mrc(small), tmp_path / "no.parquet")
    with pytest.raises(TraceError, match="is not a facts file"):
        read_facts(small)
    one = facts_of(small, tmp_path / "one.parquet", window=5)
    two = facts_of(small, tmp_path / "two.parquet", window=4)
    with pytest.raises(TraceError, match="overlap"):
        merge_facts([one, two], tmp_path / "both.parquet")


def test_damaged_facts_are_refused(small: Path, tmp_path: Path) -> None:
    path = facts_of(small, tmp_path / "facts.parquet")
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[KEY])

    def written(rows: pa.Table, changed: Any = about) -> Path:
        pq.write_table(rows.replace_schema_metadata({KEY: json.dumps(changed)}), path)
        return path

    empty = pa.array([[]] * len(table), table.schema.field("sizes").type)
    for rows, changed in (
        (table, about | {"version": 2}),
        (table, {"version": 1}),
        (table, about | {"parts": {}}),
        (table.slice(0, 0), about),
        (table.drop_columns(["misses"]), about),
        (table.set_column(table.schema.names.index("sizes"), "sizes", empty), about),
        (table.set_column(0, "trace", pa.nulls(len(table), pa.string())), about),
    ):
        with pytest.raises(TraceError, match="cannot be read as a facts file"):
            read_facts(written(rows, changed))
    whole = facts_of(small, path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError):
        read_facts(path)


def changed(path: Path, out: Path, column: str, change: Any) -> Path:
    """Write facts with other values in one column."""
    table = pq.read_table(path)
    rows = table.to_pandas()
    rows[column] = rows[column].map(change)
    pq.write_table(pa.Table.from_pandas(rows, table.schema, preserve_index=False), out)
    return out


@pytest.mark.parametrize(
    ("column", "change", "sentence"),
    [
        ("misses", lambda misses: misses * 100, "more misses than accesses"),
        ("misses", lambda misses: misses * 0 - 1, "misses are negative"),
        ("accesses", lambda _: 0, "more misses than accesses"),
        ("steps", lambda _: 0, "steps is below 1"),
        ("unit", lambda _: "zzz", "its unit is zzz"),
    ],
)
def test_values_that_no_trace_has_are_refused(
    small: Path, tmp_path: Path, column: str, change: Any, sentence: str
) -> None:
    facts = facts_of(small, tmp_path / "facts.parquet")
    with pytest.raises(TraceError, match=sentence):
        read_facts(changed(facts, tmp_path / "wrong.parquet", column, change))


def test_facts_that_are_not_of_one_replay_are_not_merged(small: Path, tmp_path: Path) -> None:
    def refused(sentence: str, *files: Path) -> None:
        for order in (files, files[::-1]):
            with pytest.raises(TraceError, match=sentence):
                merge_facts(order, tmp_path / "merged.parquet")
        assert not (tmp_path / "merged.parquet").exists()

    whole = facts_of(small, tmp_path / "whole.parquet")
    half = changed(whole, tmp_path / "half.parquet", "misses", lambda misses: misses // 2)
    refused("contradict each other: request", whole, half)
    more = changed(whole, tmp_path / "more.parquet", "accesses", lambda count: count + 1)
    refused("contradict each other in accesses", whole, more)
    early = facts_of(small, tmp_path / "early.parquet", steps=(0, 10))
    late = facts_of(small, tmp_path / "late.parquet", steps=(10, 20))
    refused("from step 0 on and from step 10 on", early, late)
    layer = facts_of(small, tmp_path / "layer.parquet", layers=[0])
    other = facts_of(small, tmp_path / "other.parquet", layers=[1], window=4)
    refused("several sizes", layer, other)


def test_one_trace_is_counted_once(small: Path, tmp_path: Path) -> None:
    whole = facts_of(small, tmp_path / "whole.parquet")
    layer = facts_of(small, tmp_path / "layer.parquet", layers=[0])
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(small.read_bytes())
    for given in ((whole, layer), (small, copy)):
        with pytest.raises(TraceError, match="are of one trace, whose misses would count twice"):
            hs.mrc(given, "belady")


def test_facts_keep_their_seed(small: Path, tmp_path: Path) -> None:
    facts = tmp_path / "facts.parquet"
    run("mrc", small, "--policy", "random", "--buffer", 16, "--seed", 7, "-o", facts)
    for command in ("sweep", "mrc"):
        rows = json.loads(
            run(command, facts, "--policy", "random", "--buffer", 16, "--format", "json")
        )
        assert {row["seed"] for row in rows} == {7}


def test_skipped_steps_are_not_those_of_a_sweep_that_begins_later(small: Path) -> None:
    (later,) = hs.sweep(small, "belady", 16, steps=(5, 10)).rows["selected_steps"]
    steps = hs.mrc(small, "belady", steps=(0, 10), skip_steps=5).rows["selected_steps"]
    assert later == "5:10"
    assert set(steps) == {"5:10 (first 5 replayed)"}
    refused = CliRunner().invoke(cli, ["mrc", str(small), "--skip-steps", "64", "-o", "f.parquet"])
    assert refused.exit_code == 2
    assert "--skip-steps does not apply to facts" in refused.output


def run(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [*map(str, arguments), "--quiet"])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_commands(small: Path, tmp_path: Path) -> None:
    facts, both = tmp_path / "facts.parquet", tmp_path / "both.parquet"
    run("mrc", small, "--window", 5, "-o", facts)
    assert is_facts(facts)
    run("mrc", facts, facts, "-o", both)
    assert both.read_bytes() == facts.read_bytes()
    assert "textbook-lru  belady  compulsory" in run("mrc", facts)
    rows = json.loads(run("sweep", facts, "--buffer", 16, "--format", "json"))
    assert [row["policy"] for row in rows] == ["textbook-lru", "belady"]
    assert rows[0]["p50"] is None
    assert "over MIN" in run("sweep", facts, "--buffer", 16, "--policy", "textbook-lru")
    run("curve", facts, "--buffer", 16, "--window", 10, "-o", tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").exists()


def test_plan_takes_facts_where_a_trace_is_meant(sample_facts: Path) -> None:
    few = ("--buffer", 4096, "--ratio", 4, "--output-len", 64, "--concurrency", 8)
    assert sample_facts.name in run("plan", "--trace", sample_facts, *few)


def test_report_takes_facts_where_a_trace_is_meant(sample_facts: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    run("report", sample_facts, "-o", tmp_path / "page.html")
    assert "textbook-lru" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_trace_tells_what_its_misses_are_made_of(small: Path) -> None:
    """Compulsory, capacity and order add up to the misses of the engine's LRU."""
    found = run("trace", "info", small, "--full")
    told = found[found.index("misses of LRU at 16 slots:") :].split(":")[1]
    engine, *shares = (float(each.replace(" ", "")) for each in re.findall(r"-? ?\d+\.\d+", told))
    lru, least = hs.sweep(small, ["lru", "belady"], 16).rows["miss_rate"]
    first = hs.mrc(small, "compulsory", largest=16).rows["miss_rate"].iloc[-1]
    assert engine == pytest.approx(100 * lru, abs=0.006)
    assert shares[:2] == pytest.approx([100 * first, 100 * (least - first)], abs=0.011)
    assert sum(shares) == pytest.approx(engine, abs=0.025)
    assert shares[1] > 0.02
