"""Rows of several files together: the right value, separate series, or a refusal that says why."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from make_traces import demand, drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.replay.coverage import SELECTED
from hisparse_sim.simulator.replay.curves import rolling_curves
from hisparse_sim.simulator.replay.joining import joined, joined_curves
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.serving.misses import read_miss_curve
from hisparse_sim.simulator.views import figures
from hisparse_sim.simulator.views.report.data import unpacked
from hisparse_sim.traces import TraceError

COVERAGE = ["seed", "trace_sha256", *SELECTED]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def done(*arguments: str | Path) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


class Folder:
    """A trace of two requests and two layers, and what is swept of it.

    Worked by hand (B = 3, staged: the buffer holds 0 1 2, and every row lists two positions):
    layer 0 misses one position in each step, layer 5 none, so that 4 steps of two layers miss 4 of
    16 accesses of a request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trace = write(path / "t.parquet", self.parts(), metadata(top_k=2, num_layers=6))

    @staticmethod
    def parts(requests: str = "ab") -> list[Any]:
        missing = [[0, step] for step in (5, 6, 7, 8)]
        found = [[0, 1]] * 4
        return [
            demand(rows, 10, request=request, layer=layer)
            for request in requests
            for layer, rows in ((0, missing), (5, found))
        ]

    def sweep(self, name: str, *options: str, trace: Path | None = None) -> Path:
        words = ["--policy", "lru", "--buffer", "3", "--quiet", *options]
        done("sweep", trace or self.trace, *words, "-o", self.path / name)
        return self.path / name

    def curve(self, name: str, *options: str) -> Path:
        words = ["--policy", "lru", "--buffer", "3", "--window", "2", "--quiet", *options]
        done("curve", self.trace, *words, "-o", self.path / name)
        return self.path / name

    def report(self, *files: Path, options: tuple[str, ...] = ()) -> Result:
        return run("report", *files, "-o", self.path / "page.html", "--quiet", *options)

    def page(self, *files: Path) -> str:
        pytest.importorskip("vl_convert", reason="needs the extra [report]")
        result = self.report(*files)
        assert result.exit_code == 0, result.output
        return (self.path / "page.html").read_text("utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("joining"))


def answers(page: str) -> list[tuple[str, str]]:
    """Return each trace that has an answer, and what its line on policies says."""
    return [(unescape(name), said_of(text, "Policy")[0]) for name, text in answered(page)]


def answered(page: str) -> list[tuple[str, str]]:
    head = page[page.index('<section id="answer">') : page.index('<form id="choices"')]
    parts = re.split(r'<div (?:class="wide" )?data-trace="(.*?)">', head)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def said_of(text: str, line: str) -> list[str]:
    """Return what the lines of an answer say about something."""
    found = re.findall(rf'<div data-line="{line}"><dt>.*?</dt><dd>(.*?)</dd></div>', text)
    return [unescape(said) for said in found]


def sources(page: str) -> list[str]:
    return [said for _, text in answered(page) for said in said_of(text, "Source")]


def table(page: str, name: str) -> pd.DataFrame:
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    return pd.DataFrame(unpacked(json.loads(data[1])["tables"][name]))


# What rows say of themselves


@pytest.mark.parametrize(
    ("options", "covers"),
    [
        ([], ("all", "all", "all")),
        (["--layer", "5"], ("all", "5", "all")),
        (["--layer", "5,0"], ("all", "all", "all")),  # however all of them are named
        (["--request", "b"], ('["b"]', "all", "all")),
        (["--request", "b", "--request", "a"], ("all", "all", "all")),
        (["--steps", "0:4"], ("all", "all", "all")),
        (["--steps", "1:3"], ("all", "all", "1:3")),
        (["--steps", "2:"], ("all", "all", "2:4")),
        (["--steps", ":2", "--layer", "0"], ("all", "0", "0:2")),
    ],
)
def test_rows_say_what_they_cover(
    folder: Folder, options: list[str], covers: tuple[str, ...]
) -> None:
    for more in ([], ["--per-layer"]):
        path = folder.sweep("covers.json", *options, *more, "--seed", "7", "--start", "direct")
        for row in json.loads(path.read_text()):
            assert tuple(row[name] for name in SELECTED) == covers
            assert row["trace_sha256"] == hs.open_trace(folder.trace).sha256
            assert (row["seed"], row["start"]) == (7, "direct")
            assert row["version"]
            assert isinstance(json.loads(row["parameters"]), dict)
    path = folder.curve("covers.jsonl", *options, "--seed", "7", "--skip-steps", "0")
    row = json.loads(path.read_text().splitlines()[0])
    assert tuple(row[name] for name in SELECTED) == covers
    assert (row["window"], row["skip_steps"], row["seed"], row["start"]) == (2, 0, 7, "staged")
    assert row["trace_sha256"] == hs.open_trace(folder.trace).sha256


def test_many_requests_are_named_by_a_digest(tmp_path: Path) -> None:
    parts = [drift(request=f"request-{number}", steps=2) for number in range(60)]
    path = write(tmp_path / "t.parquet", parts, metadata())
    some = [f"request-{number}" for number in range(50)]
    found = {
        hs.sweep(path, "lru", 16, requests=chosen, compare_min=False).rows["selected_requests"][0]
        for chosen in (some, some[::-1], some[:-1])
    }
    assert len(found) == 2
    assert all(re.fullmatch(r"\d\d requests, sha256 [0-9a-f]{16}", each) for each in found)


# Sweeps that are one


def assert_half_a_miss(page: str) -> None:
    """The page has one answer, and that is LRU's half a miss of two positions a step."""
    ((_, said),) = answers(page)
    assert said.startswith("LRU misses 0.5 a step with 3 slots")
    assert missed(page) == ["0.5 of 2"]


def missed(page: str) -> list[str]:
    """Return for each answer the misses of the selected positions of a step and layer."""
    ending = " selected positions per step and layer; LRU, 3 slots"
    return re.findall(rf'<span class="small">([0-9.]+ of \d+){ending}</span>', page)


def test_one_sweep_in_several_files_counts_once(folder: Folder) -> None:
    """By hand: 8 misses in 16 pairs of layer and step, half a miss a step."""
    files = [
        folder.sweep("one.csv"),
        folder.sweep("again.json"),
        folder.sweep("layers.parquet", "--per-layer"),
        folder.sweep("copy.csv"),
    ]
    for given_files in (files[:1], files[:2], files[2:3], files[:3], files, [files[0]] * 2):
        page = folder.page(*given_files)
        size = "2 layers x 8 steps" if files[2] in given_files else "16 steps, summed over layers"
        assert sources(page) == [f"t (synthetic), replayed: {size}, staged start, whole trace."]
        assert_half_a_miss(page)


def test_layers_are_listed_where_a_file_lists_them(folder: Folder) -> None:
    page = folder.page(
        folder.sweep("whole.csv", "--policy", "lru,fifo"),
        folder.sweep("listed.csv", "--per-layer"),
    )
    rows = table(page, "sweep")
    lru = rows[rows["policy"] == "lru"]
    assert lru["layer"].tolist() == [0, 5]
    assert lru["misses"].tolist() == [8, 0]
    assert rows[rows["policy"] == "fifo"]["misses"].tolist() == [8]


def test_policies_and_buffers_of_several_files_are_compared(folder: Folder) -> None:
    page = folder.page(
        folder.sweep("lru.csv"),
        folder.sweep("fifo.csv", "--policy", "fifo"),
        folder.sweep("four.csv", "--buffer", "4"),
    )
    rows = table(page, "sweep")
    places = set(zip(rows["policy"], rows["buffer"], strict=True))
    assert {("lru", 3), ("fifo", 3), ("lru", 4)} <= places
    assert set(rows["accesses"]) == {32}


def test_ratios_repeat_no_counts(tmp_path: Path) -> None:
    words = "--policy lru --buffer 4096 --layer 4 --steps 0:32 --no-min --quiet".split()
    for name, ratios in (("one.csv", "4"), ("two.csv", "4,8"), ("other.csv", "2")):
        done("sweep", *words, "--ratio", ratios, "-o", tmp_path / name)
    rows = pd.concat([pd.read_csv(tmp_path / name) for name in ("one.csv", "two.csv", "other.csv")])
    (total,) = totals(rows)["steps"]
    assert total == 32


# Sweeps that differ


DIFFERENT: dict[str, tuple[list[list[str]], str]] = {
    "two layers": ([["--layer", "0"], ["--layer", "5"]], "layers 0 and 5"),
    "swapped": ([["--layer", "5"], ["--layer", "0"]], "layers 5 and 0"),
    "all and one": ([[], ["--layer", "5", "--per-layer"]], "layers all and 5"),
    "a part of the steps": ([["--steps", "0:2"], []], "steps 0:2 and all"),
    "one request": ([[], ["--request", "a"]], 'requests all and ["a"]'),
    "two requests": ([["--request", "b"], ["--request", "a"]], 'requests ["b"] and ["a"]'),
    "another buffer": ([["--buffer", "4"], ["--layer", "5"]], "layers all and 5"),
    "three files": ([[], [], ["--steps", "1:"]], "steps all and 1:4"),
    "layers listed": (
        [["--layer", "0", "--per-layer"], ["--layer", "5", "--per-layer"]],
        "layers 0 and 5",
    ),
}


@pytest.mark.parametrize(("selections", "words"), DIFFERENT.values(), ids=DIFFERENT)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_other_parts_of_a_trace_are_refused(
    folder: Folder, selections: list[list[str]], words: str, form: str
) -> None:
    files = [
        folder.sweep(f"part{number}.{form}", *selection)
        for number, selection in enumerate(selections)
    ]
    (folder.path / "page.html").unlink(missing_ok=True)
    result = folder.report(*files)
    assert result.exit_code == 1, result.output
    assert f"cover different parts of t: {words}" in result.stderr
    assert f"part0.{form}" in result.stderr
    assert f"part{len(files) - 1}.{form}" in result.stderr
    assert not (folder.path / "page.html").exists()
    rows = pd.concat([pd.read_csv(f) if form == "csv" else pd.read_parquet(f) for f in files])
    with pytest.raises(TraceError, match="cover different parts of t"):
        totals(rows)


def test_starts_stay_apart(folder: Folder) -> None:
    """By hand: an empty buffer also misses 0 once in layer 0, and 0 and 1 once in layer 5, of two
    requests each: 8 + 2 + 4."""
    files = [folder.sweep("staged.csv"), folder.sweep("direct.csv", "--start", "direct")]
    page = folder.page(*files)
    assert [name for name, _ in answers(page)] == ["t, staged start", "t, direct start"]
    assert missed(page) == ["0.5 of 2", "0.9 of 2"]  # 8 and 14 of 16 steps
    size = "(synthetic), replayed: 16 steps, summed over layers"
    assert sources(page) == [
        f"t, {start} start {size}, {start} start, whole trace." for start in ("staged", "direct")
    ]
    rows = table(page, "sweep")
    assert dict(zip(rows["trace"], rows["misses"], strict=True)) == {
        "t, staged start": 8,
        "t, direct start": 14,
    }
    both = pd.concat([pd.read_csv(file) for file in files])
    with pytest.raises(ValueError, match="several traces or starts"):
        totals(both)
    assert totals(both, ["trace", "policy", "buffer"])["misses"].tolist() == [8, 14]
    with pytest.raises(ValueError, match="several traces or starts"):
        figures.policy_dots(both)
    axes: Any = figures.miss_ratio(both)
    assert {line.get_label(): line.get_ydata().tolist() for line in axes.lines} == {
        "LRU, t, staged start": [25.0],
        "LRU, t, direct start": [100 * 14 / 32],
    }


def test_seeds_of_random_stay_apart(folder: Folder) -> None:
    files = [
        folder.sweep(f"seed{seed}.csv", "--policy", "random,lru", "--seed", seed)
        for seed in ("1", "9223372036854775807")
    ]
    rows = table(folder.page(*files), "sweep")
    assert set(rows["policy"]) == {
        "random (seed 1)",
        "random (seed 9223372036854775807)",
        "lru",
    }
    assert (rows["policy"] == "lru").sum() == 1  # which no seed changes
    for file, seed in zip(files, ("1", "9223372036854775807"), strict=True):
        alone = pd.read_csv(file).set_index("policy")["misses"]["random"]
        assert rows.set_index("policy")["misses"][f"random (seed {seed})"] == alone
    assert set(table(folder.page(files[0]), "sweep")["policy"]) == {"random", "lru"}


def test_traces_of_one_stem_stay_apart(folder: Folder) -> None:
    (folder.path / "other").mkdir(exist_ok=True)
    other = write(
        folder.path / "other" / "t.parquet", folder.parts("abc"), metadata(top_k=2, num_layers=6)
    )
    page = folder.page(folder.sweep("mine.csv"), folder.sweep("theirs.csv", trace=other))
    digests = [hs.open_trace(path).sha256[:8] for path in (folder.trace, other)]
    names = [f"t (sha256 {digest})" for digest in digests]
    assert [text.split(" (synthetic)")[0] for text in sources(page)] == names
    assert [name for name, _ in answers(page)] == names
    rows = table(page, "sweep")
    assert rows["misses"].tolist() == [8, 12]
    assert rows["trace"].nunique() == 2


def test_a_copy_under_another_name_is_the_same_trace(folder: Folder) -> None:
    copy = folder.path / "copy.parquet"
    copy.write_bytes(folder.trace.read_bytes())
    page = folder.page(folder.sweep("first.csv"), folder.sweep("second.csv", trace=copy))
    assert len(sources(page)) == 1
    assert_half_a_miss(page)


def test_several_traces_of_one_sweep_are_not_summed(folder: Folder, tmp_path: Path) -> None:
    other = write(tmp_path / "u.parquet", folder.parts("c")[:1], metadata(top_k=2, num_layers=6))
    words = ["--policy", "lru", "--buffer", "3", "--quiet"]
    done("sweep", folder.trace, other, *words, "-o", tmp_path / "rows.csv")
    page = folder.page(tmp_path / "rows.csv")
    assert missed(page) == ["0.5 of 2", "1.0 of 2"]
    wanted = [("t", "LRU misses 0.5 a step"), ("u", "LRU misses 1.0 a step")]
    assert [(name, said.split(" with ")[0]) for name, said in answers(page)] == wanted
    assert 'type="radio" name="trace" value="t" checked' in page


# Rows of older versions


def old(path: Path) -> Path:
    """Rows as they were before they said what they cover."""
    rows = pd.read_csv(path)
    rows.drop(columns=[name for name in SELECTED if name in rows]).to_csv(path, index=False)
    return path


def test_old_rows_are_read_alone(folder: Folder) -> None:
    page = folder.page(old(folder.sweep("old.csv")))
    assert_half_a_miss(page)
    assert "the file does not say which requests, layers and steps it covers" in page


@pytest.mark.parametrize("both", [True, False])
def test_old_rows_are_joined_with_none(folder: Folder, both: bool) -> None:
    files = [old(folder.sweep("old.csv", "--layer", "0")), folder.sweep("new.csv")]
    if both:
        old(files[1])
    result = folder.report(*files)
    assert result.exit_code == 1
    assert "old.csv" in result.stderr
    assert "does not say which requests, layers and steps of t it covers" in result.stderr
    assert result.stderr.count("new.csv") == 1


def test_an_old_file_given_twice_is_one(folder: Folder) -> None:
    file = old(folder.sweep("old.csv"))
    copy = folder.path / "copied.csv"
    copy.write_bytes(file.read_bytes())
    assert_half_a_miss(folder.page(file, copy))


def test_an_old_file_of_another_trace_stands_beside(folder: Folder, tmp_path: Path) -> None:
    other = write(tmp_path / "u.parquet", folder.parts("c"), metadata(top_k=2, num_layers=6))
    files = [folder.sweep("new.csv"), old(folder.sweep("old.csv", trace=other))]
    assert len(answers(folder.page(*files))) == 2


# Rows that somebody has changed


def test_rows_that_contradict_each_other(folder: Folder, tmp_path: Path) -> None:
    file = folder.sweep("rows.csv")
    rows = pd.read_csv(file)
    other = tmp_path / "edited.csv"
    rows.assign(misses=rows["misses"] + 1).drop(columns="miss_rate").to_csv(other, index=False)
    result = folder.report(file, other)
    assert result.exit_code == 1
    assert "rows.csv and edited.csv contradict each other: different counts of lru" in result.stderr
    listed = folder.sweep("listed.csv", "--per-layer")
    result = folder.report(listed, other)
    assert result.exit_code == 1
    assert "contradict each other" in result.stderr


def test_rows_that_were_left_out(folder: Folder, tmp_path: Path) -> None:
    """All policies replay the same accesses; a file where they do not lacks rows."""
    rows = pd.read_csv(folder.sweep("rows.csv", "--policy", "lru,fifo", "--per-layer"))
    cut = tmp_path / "cut.csv"
    rows.drop(index=rows.index[(rows["policy"] == "fifo") & (rows["layer"] == 5)]).to_csv(
        cut, index=False
    )
    result = folder.report(cut)
    assert result.exit_code == 1
    assert "cut.csv cannot be compared: they hold different numbers of accesses" in result.stderr


def test_two_sweeps_in_one_file(folder: Folder, tmp_path: Path) -> None:
    """Joined by hand, rows still say what they cover."""
    parts = [folder.sweep(f"{layer}.csv", "--layer", layer) for layer in ("0", "5")]
    pd.concat(map(pd.read_csv, parts)).to_csv(tmp_path / "both.csv", index=False)
    result = folder.report(tmp_path / "both.csv")
    assert result.exit_code == 1
    assert "the rows of both.csv cover different parts of t: layers 0 and 5" in result.stderr
    apart = [folder.sweep("s.csv"), folder.sweep("d.csv", "--start", "direct")]
    pd.concat(map(pd.read_csv, apart)).to_csv(tmp_path / "starts.csv", index=False)
    page = folder.page(tmp_path / "starts.csv")
    assert len(answers(page)) == 2
    assert page.count("hisparse-sim sweep t.parquet") == 2  # each is redone by its own command
    assert "--start direct" in page


# Curves


def drawn(page: str) -> dict[str, list[float]]:
    points = table(page, "curve")
    assert not points.duplicated(["trace", "policy", "buffer", "step"]).any()
    return {name: list(own["misses_per_step"]) for name, own in points.groupby("trace")}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (([], []), ["t"]),
        (([], ["--buffer", "4"]), ["t"]),
        (([], ["--window", "3"]), ["t, window 2", "t, window 3"]),
        (([], ["--start", "direct"]), ["t, direct start", "t, staged start"]),
        (([], ["--layer", "0"]), ["t, all layers", "t, layers 0"]),
        (([], ["--request", "a"]), ["t, all requests", 't, requests ["a"]']),
        (([], ["--steps", "0:3"]), ["t, all steps", "t, steps 0:3"]),
        (([], ["--skip-steps", "1"]), ["t, 0 steps skipped", "t, 1 steps skipped"]),
        (
            (["--window", "3"], ["--start", "direct"]),
            ["t, direct start, window 2", "t, staged start, window 3"],
        ),
    ],
)
def test_curves_of_other_things_are_other_lines(
    folder: Folder, options: tuple[list[str], list[str]], names: list[str]
) -> None:
    files = [folder.curve(f"c{number}.csv", *more) for number, more in enumerate(options)]
    page = folder.page(folder.sweep("rows.csv"), *files)
    assert sorted(drawn(page)) == names
    captions = re.findall(r"<figcaption>(.*?)<span", page)
    for name in names:
        escaped = name.replace('"', "&quot;")
        assert sum(caption.startswith(f"{escaped}: ") for caption in captions) == 1


def test_captions_of_curves_are_their_own(folder: Folder) -> None:
    files = [
        folder.curve("c1.csv"),
        folder.curve("c2.csv", "--window", "3", "--start", "direct", "--layer", "0"),
    ]
    page = folder.page(folder.sweep("rows.csv"), *files)
    assert "trailing mean of 2 steps; staged start, whole trace;" in page
    assert "trailing mean of 3 steps; direct start, layers 0." in page  # one layer: no band


def test_old_curves_are_other_lines(folder: Folder) -> None:
    path = folder.curve("old.csv")
    rows = pd.read_csv(path).drop(columns=["window", "skip_steps", *SELECTED])
    rows.to_csv(path, index=False)
    page = folder.page(folder.sweep("rows.csv"), path, folder.curve("new.csv"))
    assert len(drawn(page)) == 2
    assert any("old.csv" in name for name in drawn(page))


def test_curves_that_contradict_each_other(folder: Folder) -> None:
    path = folder.curve("c.csv")
    rows = pd.read_csv(path)
    rows.assign(misses_per_step=rows["misses_per_step"] + 1).to_csv(
        folder.path / "edited.csv", index=False
    )
    result = folder.report(folder.sweep("rows.csv"), path, folder.path / "edited.csv")
    assert result.exit_code == 1
    assert "two curves of t that cover the same steps differ: lru at 3 slots" in result.stderr


def test_a_figure_draws_curves_apart(folder: Folder) -> None:
    one = rolling_curves(hs.sweep(folder.trace, "lru", 3, compare_min=False), 2)
    two = rolling_curves(hs.sweep(folder.trace, "lru", 3, "direct", compare_min=False), 2)
    axes: Any = figures.rolling_misses(pd.concat([one, two]), window=2, provenance="t")
    named = {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}
    assert list(named) == ["B = 3\nt, staged start", "B = 3\nt, direct start"]
    for curve, entry in zip((one, two), named.values(), strict=True):
        values = curve["misses_per_step"].tolist()
        assert len(values) == 3
        (line,) = [line for line in axes.lines if list(line.get_ydata()) == values]
        assert line._dash_pattern == entry._dash_pattern
    assert len({str(entry._dash_pattern) for entry in named.values()}) == 2
    longer = rolling_curves(hs.sweep(folder.trace, "lru", 3, compare_min=False), 3)
    with pytest.raises(ValueError, match="windows of 2 and 3 steps, not of 2"):
        figures.rolling_misses(pd.concat([one, longer]), window=2, provenance="t")


def test_a_heat_map_is_of_one_sweep(folder: Folder) -> None:
    steps = [hs.sweep(folder.trace, "lru", 3, start, compare_min=False).steps for start in
             ("staged", "direct")]  # fmt: skip
    with pytest.raises(ValueError, match="one sweep"):
        figures.layer_step_map(pd.concat(steps))


# Plans and serving runs


PLAN = {"buffer": 4096, "ratio": 4, "requests": 9, "batch": 8, "tokens_per_s": 100.0,
        "tpot_ms": 50.0, "host_gb": 300.0, "limit": "host", "meets": True, "best": True,
        "flags": "--x"}  # fmt: skip


def plan_of(folder: Folder, name: str, digest: str, **options: Any) -> Path:
    document = {
        "trace": "t",
        "trace_sha256": digest,
        "parameters": {"model": "glm-5.1", **options},
        "candidates": [{**PLAN, "tokens_per_s": float(options.get("concurrency", 100))}],
    }
    (folder.path / name).write_text(json.dumps(document))
    return folder.path / name


def test_a_plan_of_another_trace_says_so(folder: Folder) -> None:
    digest = hs.open_trace(folder.trace).sha256
    rows = folder.sweep("rows.csv")
    page = folder.page(rows, plan_of(folder, "own.json", digest))
    assert "another trace" not in page
    page = folder.page(rows, plan_of(folder, "foreign.json", "f" * 64))
    of = "t (provenance not told, sha256 ffffffff)."
    assert page.count(f"Its misses are those of another trace, {of}") == 1
    (source,) = sources(page)
    assert source.startswith("Misses: t (synthetic), replayed: ")
    assert source.endswith(f" Rates, load and verdict: the misses of {of}")


def test_several_plans_each_have_their_own_words(folder: Folder) -> None:
    files = [plan_of(folder, f"plan{number}.json", "", concurrency=number) for number in (64, 256)]
    page = folder.page(folder.sweep("rows.csv"), *files)
    for number in (64, 256):
        assert f"For model glm-5.1, concurrency {number}: {number} tokens/s" in page
        assert f"<h3>plan{number}.json</h3>" in page
        (said,) = re.findall(rf"<h3>plan{number}.json</h3>(.*?)</div>", page)
        assert f": {number} tokens/s at 50.0 ms" in said
    (chosen,) = said_of(page, "Buffer")  # the head is of the first, and says so
    assert "the choice of plan64.json: " in chosen
    assert "(64 tokens/s, 50.0 ms per token)" in chosen
    assert table(page, "plan")["tokens_per_s"].tolist() == [64]
    assert table(page, "plan-2")["tokens_per_s"].tolist() == [256]


def test_serving_runs_of_other_settings_are_other_charts(folder: Folder) -> None:
    def runs(name: str, loads: list[str], **options: Any) -> Path:
        rows = [
            {"mode": "hisparse", "load": load, "tokens_per_s": float(load), "tpot_p50_ms": 2.0,
             "seed": 0, "parameters": json.dumps(options)}
            for load in loads
        ]  # fmt: skip
        (folder.path / name).write_text(json.dumps(rows))
        return folder.path / name

    rows = folder.sweep("rows.csv")
    one = runs("one.json", ["8", "16"], prompt=100)
    more = runs("more.json", ["16", "32"], prompt=100)
    other = runs("other.json", ["8"], prompt=200)
    page = folder.page(rows, one, more, other)
    assert table(page, "serve")["concurrency"].tolist() == [8, 16, 32]
    assert table(page, "serve-2")["concurrency"].tolist() == [8]
    assert "one.json, more.json: modelled serving, closed loop, for prompt 100." in page
    assert "other.json: modelled serving, closed loop, for prompt 200." in page
    differs = json.loads(more.read_text())
    differs[0]["tokens_per_s"] = 1.0
    more.write_text(json.dumps(differs))
    result = folder.report(rows, one, more)
    assert result.exit_code == 1
    assert "one.json and more.json give different figures for one setting" in result.stderr


def test_memory_of_two_models_is_told_apart(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    words = "--policy lru --buffer 4096 --layer 4 --steps 0:32 --no-min --quiet --ratio 4".split()
    for name, more in (("bf16.csv", []), ("fp8.csv", ["--kv-dtype", "fp8"])):
        done("sweep", *words, "--model", "glm-5.1", *more, "-o", tmp_path / name)
    done("report", tmp_path / "bf16.csv", tmp_path / "fp8.csv", "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "a token, all 78 layers of glm-5.1 (bf16 KV); " in page
    fits = "glm-5.1 (bf16 KV), ratio 4, limited by indexer keys; glm-5.1 (fp8 KV): 20<"
    assert f'<span class="value">14</span><span class="small">of 32,800 tokens, {fits}' in page
    (said,) = said_of(page, "Buffer")
    assert "14 requests of glm-5.1 (bf16 KV) and 20 requests of glm-5.1 (fp8 KV) fit a rank" in said
    assert re.findall(r'<td class="text">(bf16|fp8)</td>', page) == ["bf16", "fp8"]
    assert "Rows with glm-5.1 fp8 are left out here" in page


# Miss curves for plans


def curve_of(folder: Folder, *files: Path) -> Path:
    path = folder.path / "miss.csv"
    pd.concat([pd.read_csv(file) for file in files]).to_csv(path, index=False)
    return path


def test_a_miss_rate_is_misses_over_accesses(tmp_path: Path) -> None:
    """By hand: requests of 1 and 9 steps that miss 2 of 2 and 0 of 18 positions: 0.1, not 0.5."""
    trace = write(
        tmp_path / "t.parquet",
        [
            demand([[5, 6]], 10, request="short"),
            demand([[0, 1]] * 9, 10, request="long"),
        ],
        metadata(top_k=2, num_layers=6),
    )
    for more in ([], ["--per-layer"]):
        words = ["--policy", "lru", "--buffer", "3", "--quiet", *more]
        done("sweep", trace, *words, "-o", tmp_path / "m.csv")
        found = read_miss_curve(tmp_path / "m.csv", "lru", 100.0, 2)
        assert found("lru", 3).rate == pytest.approx(0.1)
        assert found.origin == ("t", "synthetic", hs.open_trace(trace).sha256)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("", "row 1: miss_rate is missing"),
        ("nan", "miss_rate is 'nan', not a number from 0 to 1"),
        ("NaN", "miss_rate is 'NaN'"),
        ("-1", "miss_rate is '-1'"),
        ("-0.001", "miss_rate is '-0.001'"),
        ("1.001", "miss_rate is '1.001'"),
        ("2", "miss_rate is '2'"),
        ("inf", "miss_rate is 'inf'"),
        ("1e400", "miss_rate is '1e400'"),
        ("5 %", "miss_rate is '5 %'"),
        ("0,1", "cannot be read as csv"),
    ],
)
def test_what_is_no_rate_is_refused(cell: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text(f"buffer,miss_rate\n4096,{cell}\n")
    for command in ("plan", "serve"):
        result = run(command, "--miss-curve", file, "--buffer", "4096", "--ratio", "8")
        assert result.exit_code == 1, result.output
        assert words in result.stderr
        assert len(result.stderr.splitlines()) == 1
    good = tmp_path / "good.csv"
    for rate in ("0", "1", "0.05"):
        good.write_text(f"buffer,miss_rate\n4096,{rate}\n")
        assert read_miss_curve(good, "lru", 1.0, 2048)("lru", 4096).rate == float(rate)


def test_one_curve_is_asked_for(folder: Folder) -> None:
    staged, direct = folder.sweep("s.csv"), folder.sweep("d.csv", "--start", "direct")
    layer, seeds = folder.sweep("l.csv", "--layer", "0"), [
        folder.sweep(f"r{seed}.csv", "--policy", "random", "--seed", seed) for seed in ("1", "2")
    ]  # fmt: skip
    with pytest.raises(TraceError, match=r"not a single miss curve.*layers all and 0"):
        read_miss_curve(curve_of(folder, staged, layer), "lru", 1.0, 2)
    with pytest.raises(TraceError, match=r"several seeds \(random \(seed 1\), random \(seed 2\)\)"):
        read_miss_curve(curve_of(folder, *seeds), "random", 1.0, 2)
    both = curve_of(folder, staged, direct)
    assert read_miss_curve(both, "lru", 1.0, 2)("lru", 3).rate == 8 / 32
    assert read_miss_curve(both, "lru", 1.0, 2, "direct")("lru", 3).rate == 14 / 32
    other = write(folder.path / "u.parquet", folder.parts("c"), metadata(top_k=2, num_layers=6))
    two = curve_of(folder, staged, folder.sweep("u.csv", trace=other))
    with pytest.raises(TraceError, match=r"several traces or starts \(t, u\)"):
        read_miss_curve(two, "lru", 1.0, 2)
    with pytest.raises(TraceError, match="no rows of arc; it has lru"):
        read_miss_curve(staged, "arc", 1.0, 2)


def test_rates_without_counts_are_one_at_a_buffer(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("buffer,miss_rate\n8,0.5\n8,0.5\n16,0.25\n")
    assert read_miss_curve(file, "lru", 1.0, 2).rates == {8: 0.5, 16: 0.25}
    file.write_text("buffer,miss_rate\n8,0.5\n8,0.4\n")
    with pytest.raises(TraceError, match="several rates at buffer 8"):
        read_miss_curve(file, "lru", 1.0, 2)


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("trace", "good", "other"),
        ("trace_sha256", "ab", "cd"),
        ("selected_layers", "all", "9"),
        ("selected_steps", "all", "0:20"),
        ("start", "direct", "cold"),  # neither is the one that is asked for
        ("seed", 0, 7),
    ],
)
def test_rates_of_different_runs_are_no_curve(
    name: str, left: Any, right: Any, tmp_path: Path
) -> None:
    file = tmp_path / "m.csv"
    file.write_text(f"{name},buffer,miss_rate\n{left},8,0.5\n{right},16,0.25\n")
    with pytest.raises(TraceError, match=f"not a single miss curve: {name} is {left}, {right}"):
        read_miss_curve(file, "lru", 1.0, 2)
    file.write_text(f"{name},buffer,miss_rate\n{left},8,0.5\n{left},16,0.25\n")
    assert read_miss_curve(file, "lru", 1.0, 2).rates == {8: 0.5, 16: 0.25}


def test_rates_by_other_rules_are_no_curve(tmp_path: Path) -> None:
    """Of drafts they are over the positions of several queries, and cost other times."""
    file = tmp_path / "m.csv"
    file.write_text('rules,buffer,miss_rate\n"sglang, 4 draft tokens, 2.7 accepted",8,0.5\n')
    with pytest.raises(TraceError, match="by the rules of sglang, 4 draft tokens"):
        read_miss_curve(file, "lru", 1.0, 2)
    file.write_text("rules,buffer,miss_rate\n,8,0.5\n")
    assert read_miss_curve(file, "lru", 1.0, 2).rates == {8: 0.5}


def test_a_miss_curve_without_rows(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("buffer,miss_rate\n")
    with pytest.raises(TraceError, match=r"m\.csv has no rows"):
        read_miss_curve(file, "lru", 1.0, 2)


def test_misses_come_from_one_place(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("trace,buffer,miss_rate\nmine,4096,0.05\n")
    few = ("--buffer", "4096", "--ratio", "8", "--quiet")
    result = run("plan", "--miss-curve", file, "--trace", "sample", *few)
    assert result.exit_code == 2
    assert "--trace or --miss-curve, not both" in result.stderr
    document = json.loads(done("plan", "--miss-curve", file, *few, "--format", "json").stdout)
    assert document["trace"] == "mine"
    assert document["provenance"] == "given"
    assert not document["trace_sha256"]


# Miss-ratio curves


def test_windows_of_steps_count_once(folder: Folder) -> None:
    """`mrc` writes rows by window; equal counts of two windows are two, and their sum is one more
    way to say the same."""
    paths = []
    for number, more in enumerate(([], ["--window", "2"], ["--window", "2", "--per-layer"])):
        paths.append(folder.path / f"mrc{number}.csv")
        words = ["--policy", "textbook-lru", "--largest", "4", "--quiet", *more]
        done("mrc", folder.trace, *words, "-o", paths[-1])
    tables = [pd.read_csv(path) for path in paths]
    wanted = totals(tables[0])
    assert wanted["accesses"].tolist() == [32] * len(wanted)
    for rows in (tables[1], tables[2], pd.concat(tables), pd.concat(tables[:2])):
        found = totals(rows).sort_values("buffer", ignore_index=True)
        pd.testing.assert_frame_equal(found[wanted.columns], wanted, check_dtype=False)
    edited = tables[1].copy()
    edited.loc[edited.index[:1], "misses"] += 1
    with pytest.raises(TraceError, match="contradict each other"):
        totals(pd.concat([tables[0], edited]))


def test_what_is_replayed_goes_before_what_is_interpolated() -> None:
    row = {"trace": "t", "policy": "arc", "buffer": 8, "steps": 10, "accesses": 80}
    between = row | {"misses": 21, "method": "interpolated"}
    exact = row | {"misses": 20, "method": "replay"}
    swept = row | {"misses": 20}
    assert totals(pd.DataFrame([between, exact, swept]))["misses"].tolist() == [20]
    assert totals(pd.DataFrame([between]))["misses"].tolist() == [21]


# Against a sum over steps that is obviously right


@settings(max_examples=30, deadline=None)
@given(
    chosen=st.lists(
        st.tuples(
            st.sampled_from([None, ["a"], ["b"]]),
            st.sampled_from([None, [0], [5]]),
            st.sampled_from([None, (0, 2), (1, 4)]),
            st.booleans(),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_a_total_is_that_of_one_selection_or_none(folder: Folder, chosen: list[Any]) -> None:
    tables = [
        hs.sweep(folder.trace, "lru", 3, requests=requests, layers=layers, steps=steps,
                 per_layer=per_layer).rows
        for requests, layers, steps, per_layer in chosen
    ]  # fmt: skip
    sets = {(str(requests), str(layers), str(steps)) for requests, layers, steps, _ in chosen}
    try:
        found = totals(pd.concat(tables))
    except TraceError:
        assert len(sets) > 1
        return
    assert len(sets) == 1
    requests, layers, steps, _ = chosen[0]
    misses = hs.replay(folder.trace, "lru", 3, requests=requests, layers=layers, steps=steps).misses
    assert found["misses"].tolist() == [misses.sum()]
    assert found["steps"].tolist() == [len(misses)]


def test_naming_twice_changes_nothing(folder: Folder) -> None:
    rows = pd.concat(
        [
            hs.sweep(folder.trace, ["lru", "random"], 3, start, seed=seed).rows
            for start in ("staged", "direct")
            for seed in (1, 2)
        ],
        ignore_index=True,
    )
    once = joined(rows)
    assert once["trace"].nunique() == 2
    assert once["policy"].nunique() == 3
    pd.testing.assert_frame_equal(joined(once), once)
    curves = rolling_curves(hs.sweep(folder.trace, "lru", 3, compare_min=False), 2)
    longer = rolling_curves(hs.sweep(folder.trace, "lru", 3, compare_min=False), 3)
    apart = joined_curves(pd.concat([curves, longer], ignore_index=True))
    assert sorted(set(apart["trace"])) == ["t, window 2", "t, window 3"]
    pd.testing.assert_frame_equal(joined_curves(apart), apart)


def test_a_trace_that_is_called_like_a_series(folder: Folder) -> None:
    rows = hs.sweep(folder.trace, "lru", 3).rows
    direct = hs.sweep(folder.trace, "lru", 3, "direct").rows
    odd = rows.assign(trace="t, direct start", trace_sha256="0" * 64)
    named = joined(pd.concat([odd, rows, direct], ignore_index=True))
    assert named["trace"].nunique() == 3
    assert np.array_equal(totals(named, ["trace", "policy", "buffer"])["misses"], [8, 8, 14])
