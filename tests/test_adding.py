"""The pages on adding a policy and a prefetcher, followed to the letter in a copy of the package.

What they add to the copy is held to the contract of all that is there: equal to its plain form on
random streams, with every slot checked, and found by the command line and from Python.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from make_traces import metadata, several, write

import hisparse_sim as hs

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
PACKAGE = Path(hs.__file__ or "").parent
COPIED = ("__init__.py", "cli.py", "gpu_replay", "policies", "simulator", "traces")

# Run with the copy as `hisparse_sim`, uncompiled; the page's plain form follows.
IN_THE_COPY = """
import json
import sys
from pathlib import Path

import hypothesis
import pytest
from click.testing import CliRunner
from reference import replay
from streams import cases, demand_of

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import POLICIES, get_policy

copy, trace = sys.argv[1:]
assert Path(hs.__file__).parent == Path(copy)

def run(*words):
    done = CliRunner().invoke(cli, [*words, "--format", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)
"""

POLICY = """
from test_policies import expected, records
from hisparse_sim.simulator.replay import replay_part

@hypothesis.settings(max_examples=60, deadline=None, database=None)
@hypothesis.given(cases())
def contract(case):
    stream, size = case
    for start in ("staged", "direct"):
        least = replay_part(demand_of(stream), "belady", size, start)
        for name, plain in (("mru", Mru(size)), ("mru:every=3", Mru(size, 3))):
            fast = replay_part(demand_of(stream), get_policy(name), size, start, victims=True)
            found = records(stream, size, start, fast.misses, fast.victims)
            assert found == expected(replay(stream, plain, size, start))
            assert fast.misses.sum() >= least.misses.sum()

contract()
listed = run("policies")
assert listed[-1]["parameters"] == "every=1 (from 1 to 1024)"
with pytest.raises(ValueError, match="mru: every cannot be 0"):
    get_policy("mru:every=0")
assert listed[-1]["policy"] == "mru" and listed[-1]["summary"] == "most recently used first"
rows = run("sweep", trace, "--policy", "lru,mru", "--buffer", "16,20", "--quiet")
misses = {(row["policy"], row["buffer"]): row["misses"] for row in rows}
again = hs.sweep(trace, "mru", [16, 20]).rows
assert again["misses"].tolist() == [misses["mru", 16], misses["mru", 20]]
assert misses["mru", 16] > misses["mru", 20] > 0 and misses["mru", 16] != misses["lru", 16]
assert len(hs.figures.looks(["lru", "mru"])) == 2
assert "mru" in hs.policies()["policy"].tolist()

import test_docs, test_golden, test_queues

with pytest.raises(AssertionError):
    test_docs.test_every_policy_is_described()
assert "mru" in POLICIES and not any(policy == "mru" for policy, _, _ in test_golden.GOLDEN)
assert not any(policy == "mru" for policy, _ in test_queues.RULES)
with pytest.raises(ValueError, match="the name 'mru' is taken"):
    get_policy(f"{copy}/policies/mru.py:MRU")
Path("mru.py").write_text(test_docs.page_file("mru"))  # what commands of the pages are tried with
assert get_policy("mru.py:MRU:every=16").parameters.every == 16
"""

PREFETCHER = """
from test_prefetch import counts, reference
from hisparse_sim.simulator.prefetch import get_prefetcher
from hisparse_sim.simulator.prefetch.prefetching import Prefetch, no_hints, prefetch_part

@hypothesis.settings(max_examples=60, deadline=None, database=None)
@hypothesis.given(cases(), hypothesis.strategies.integers(1, 4))
def contract(case, budget):
    stream, size = case
    part = demand_of(stream)
    for start in ("staged", "direct"):
        wanted = reference(
            stream, "lru", size + budget, start, budget, budget, budget, Popular(stream.rows)
        )
        mode = Prefetch(get_prefetcher("popular"), budget)
        found = prefetch_part(part, no_hints(part), mode, get_policy("lru"), size + budget, start)
        assert counts(found) == wanted

contract()
listed = run("policies", "--prefetchers")
assert listed[-1]["prefetcher"] == "popular"
words = ["--policy", "lru", "--buffer", "16", "--budget", "4", "--prefetch", "popular", "--quiet"]
(row,) = [row for row in run("study", trace, *words) if row["prefetcher"] == "popular"]
assert row["useful_per_step"] > 0
rows = hs.study(trace, "lru", 16, prefetchers="popular", budgets=4).rows
assert rows["prefetcher"].tolist().count("popular") == 1
"""


def blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "room", "name", "program"),
    [
        ("add-a-policy.md", "policies", "mru", POLICY),
        ("add-a-prefetcher.md", "simulator/prefetch", "popular", PREFETCHER),
    ],
    ids=["policy", "prefetcher"],
)
def test_one_file_and_one_line(
    page: str, room: str, name: str, program: str, tmp_path: Path
) -> None:
    code, line, plain = blocks(page)
    copy = tmp_path / "hisparse_sim"
    copy.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for each in COPIED:
        place = PACKAGE / each
        if place.is_dir():
            shutil.copytree(place, copy / each, ignore=ignored)
        else:
            shutil.copy(place, copy / each)
    (copy / room / f"{name}.py").write_text(code)
    registry = copy / room / "__init__.py"
    before, mark, after = registry.read_text().partition("# isort: on\n")
    assert mark
    assert line.count("\n") == 1
    registry.write_text(before + line + mark + after)
    trace = write(tmp_path / "t.parquet", several(requests=2, layers=(0, 1)), metadata())
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_COPY + plain + program, str(copy), str(trace)],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{TESTS}", "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_pages_are_found() -> None:
    """From the front page, from Internals and from the notebook."""
    places = ("docs/index.md", "docs/internals.md", "notebooks/6-write-a-policy.ipynb", "README.md")
    for place in places:
        text = (TESTS.parent / place).read_text()
        assert {"add-a-policy.md", "add-a-prefetcher.md"} <= set(re.findall(r"[\w-]+\.md", text))
