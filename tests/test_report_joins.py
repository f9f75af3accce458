"""What a report makes of several files: none is dropped, none is mixed with another."""

from pathlib import Path

import pandas as pd
import pytest

import hisparse_sim as hs
from hisparse_sim.simulator.serving.misses import read_miss_curve
from hisparse_sim.simulator.views.report import facts, findings
from hisparse_sim.simulator.views.report.results import Result
from hisparse_sim.simulator.views.report.series import Series
from hisparse_sim.traces import TraceError


def test_plans_of_two_traces_are_two() -> None:
    rows = pd.DataFrame({"trace": ["a"], "trace_sha256": ["00"], "parameters": ['{"ratio": 4}']})
    one = Result(Path("one.csv"), "plan", rows)
    two = Result(Path("two.csv"), "plan", rows.assign(trace="b", trace_sha256="11"))
    again = Result(Path("again.csv"), "plan", rows)
    assert findings.plans_of([one, two, again]) == [one, two]


def test_figures_that_were_reproduced_twice_are_refused() -> None:
    rows = pd.DataFrame({"what": ["x", "y"], "source": ["paper", "paper"], "ours": [1.0, 2.0]})
    one = Result(Path("one.csv"), "reproduce", rows)
    assert len(findings.published_of([one, Result(Path("copy.csv"), "reproduce", rows)])) == 2
    other = Result(Path("other.csv"), "reproduce", rows.assign(ours=3.0))
    with pytest.raises(TraceError, match=r"one.csv and other.csv reproduce the same"):
        findings.published_of([one, other])


def test_runs_of_two_traces_are_not_one_line() -> None:
    rows = pd.DataFrame(
        {
            "mode": "hisparse",
            "load": ["8", "16"],
            "tokens_per_s": [1.0, 2.0],
            "trace_sha256": ["00", "11"],
        }
    )
    with pytest.raises(ValueError, match="several settings"):
        hs.figures.throughput(rows)


def test_a_bound_is_not_the_best_policy() -> None:
    rows = pd.DataFrame(
        {
            "trace": "t",
            "policy": ["lru", "fifo", "compulsory"],
            "buffer": 8,
            "layer": None,
            "steps": 10,
            "accesses": 80,
            "misses": [20, 30, 5],
            "provenance": "synthetic",
            "start": "staged",
        }
    )
    (said,) = (
        one.said
        for one in facts.of_choice(Series.of(rows), "lru", 8, True)
        if one.about == "Policy"
    )
    assert said == "LRU misses 2.0 a step with 8 slots, fewer than FIFO."


def test_a_miss_curve_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("buffer,miss_rate\n")
    with pytest.raises(TraceError, match="has no rows"):
        read_miss_curve(tmp_path / "empty.csv", "lru", 1000, 2048)
