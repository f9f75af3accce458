"""The documents: references are those of the program, commands run, the site builds strictly."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import make_workloads
import numpy as np
import pytest
from click.testing import CliRunner

from hisparse_sim.cli import cli
from hisparse_sim.policies import POLICIES
from hisparse_sim.traces import sample_path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), ROOT / "notebooks" / "README.md"]
# Commands that a test cannot run, by how they begin.
NOT_RUN = {
    "gpu": "needs a GPU",
    "engine run": "needs a server; tests/test_engine_run.py runs a stand-in",
    "engine check": "needs a recording; tests/test_engine_run.py makes one",
    "trace capture": "needs a server or a model",
    "trace convert answers.jsonl": "needs the answers of a server",
    "trace synth": "takes long; tests/test_synth.py makes smaller ones",
    "sweep smollm2.parquet": "needs a captured trace",
    "explore rows.parquet": "serves until it is stopped; tests/test_explore.py runs it",
    "sweep trace.parquet --workers": "needs a cluster; tests/test_cluster.py has one",
    "sweep trace.parquet --scheduler": "needs a cluster",
    "sweep 's3://": "needs a store; tests/test_remote.py has one",
    "observe": "needs the counters of a server; tests/test_observe.py has some",
    "sweep like-ours.parquet": "needs what is fitted to them",
    "reproduce": "takes long; tests/test_reproduce.py runs it",
}
REFERENCE = runpy.run_path(str(DOCS / "make_reference.py"))


def commands(page: Path) -> list[str]:
    """Return the hisparse-sim commands in the code blocks of a page, without their first word."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    shown = "\n".join(code for language, code in blocks if language in ("", "console"))
    found = []
    for line in shown.replace("\\\n", " ").splitlines():
        if "hisparse-sim" not in line:
            continue
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            if words[:1] == ["hisparse-sim"]:
                found.append(shlex.join(words[1:]))
    return found


def why_not(command: str) -> str | None:
    return next((why for start, why in NOT_RUN.items() if command.startswith(start)), None)


EVERY = [(page, command) for page in PAGES for command in commands(page)]


def page_file(name: str) -> str:
    """Return a file that the pages on adding one write, under a name that is free even where it
    was added."""
    text = "".join((DOCS / f"add-a-{kind}.md").read_text() for kind in ("policy", "prefetcher"))
    (code,) = re.findall(
        rf"^`{name}\.py` .*?^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    )
    assert code.count(f'name="{name}"') == 1
    return str(code.replace(f'name="{name}"', f'name="own-{name}"'))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the documents name."""
    shutil.copy(sample_path(), tmp_path / "sample.parquet")
    for name in ("mru", "popular"):
        (tmp_path / f"{name}.py").write_text(page_file(name))
    (tmp_path / "book.txt").write_text("A long time ago.")
    (tmp_path / "docs").mkdir()
    make_workloads.mooncake(tmp_path / "conversation_trace.jsonl", 150)
    np.save(tmp_path / "rows.npy", np.sort(np.arange(24).reshape(3, 8) * 7, axis=1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run_in_order(page: Path, folder: Path) -> None:
    if page.name == "tutorial.md":
        pytest.skip("tests/test_tutorial.py runs it, and reads what it prints")
    printed = ""
    for command in commands(page):
        if why_not(command):
            continue
        if command.startswith("report ") and find_spec("vl_convert") is None:
            pytest.skip("the rest of the page needs the extra [report]")
        result = CliRunner().invoke(cli, shlex.split(command))
        assert result.exit_code == 0, f"{command}: {result.output}"
        printed += result.stdout
    if page.name == "how-to-size.md":
        figures = set(re.findall(r"\b\d{1,3}(?:,\d{3})+\b", page.read_text()))
        assert len(figures) > 10
        assert figures <= set(re.findall(r"[\d,]*\d", printed))


@pytest.mark.parametrize(
    ("page", "command"),
    [(page, command) for page, command in EVERY if why_not(command)],
    ids=lambda value: value.name if isinstance(value, Path) else value[:50],
)
def test_commands_that_cannot_run_are_parsed(page: Path, command: str, folder: Path) -> None:
    for name in ("smollm2.parquet", "answers.jsonl"):
        (folder / name).touch()
    words = shlex.split(command)
    context = click.Context(cli, **cli.context_settings)
    while isinstance(context.command, click.Group):
        below = context.command.get_command(context, words[0])
        assert below is not None, command
        if isinstance(below, click.Group):
            context, words = click.Context(below, parent=context), words[1:]
        else:
            # Raises for an option that there is not.
            context = below.make_context(words[0], words[1:], parent=context)
    pytest.skip(f"parsed, not run: {why_not(command)}")


def test_there_are_commands_and_reasons() -> None:
    assert len(EVERY) > 15
    used = {start for start in NOT_RUN for _, command in EVERY if command.startswith(start)}
    assert used == set(NOT_RUN)


def test_the_command_line_reference_is_the_program_s() -> None:
    page = (DOCS / "cli.md").read_text()
    written = re.search(r"Written by click ([0-9.]+)\.", page)
    assert written is not None
    if written[1] != REFERENCE["click_version"]():
        pytest.skip(f"help was written by click {written[1]}, which breaks lines in another way")
    assert page == REFERENCE["command_line"](), "run python docs/make_reference.py"


def test_the_python_reference_is_the_source_s() -> None:
    page = (DOCS / "api.md").read_text()
    assert page == REFERENCE["python"](), "run python docs/make_reference.py"
    assert "### miss_ratio\n" in page
    assert "### make_plan\n" in page
    assert "- `concurrency, rate, requests" in page
    assert re.search(r"^\w+(, [\w.]+)*\n    \S", page, re.MULTILINE) is None  # all are list items


def test_the_examples_of_the_python_reference_run(folder: Path) -> None:
    """One after the other, as somebody would try them; the names of each are the next one's."""
    import pandas as pd

    import hisparse_sim as hs

    names = {"hs": hs, "pd": pd}
    ran = 0
    for name, code in REFERENCE["EXAMPLES"].items():
        if name not in ("capture_hf", "reproduce"):  # a model, minutes
            exec(code, names)
            ran += 1
    assert ran > 15
    told = {name for _, group in REFERENCE["ESSENTIALS"].values() for name in group.split()}
    assert told | {"POLICIES", "__version__", "figures"} == set(hs.__all__)


def test_every_policy_is_described() -> None:
    page = (DOCS / "choose-a-policy.md").read_text()
    described = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert sorted(described) == sorted(POLICIES)


WRITTEN = [page for page in DOCS.glob("*.md") if page.name not in ("api.md", "cli.md")]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_a_page_is_short_and_opens_with_its_point(page: Path) -> None:
    """At most 1,200 words, and a long table comes behind a paragraph that says what it shows."""
    text = page.read_text()
    assert len(text.split()) <= 1200
    for table in re.finditer(r"(?:^\|.*\n){15,}", text, re.MULTILINE):
        before = re.sub(r"^[#|].*$", "", text[: table.start()], flags=re.MULTILINE)
        assert len(before.split()) > 20, table[0][:80]


def test_every_page_is_in_one_place_of_the_contents() -> None:
    kinds = (ROOT / ".ci" / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    named = re.findall(r"[\w-]+\.md", kinds)
    assert sorted(named) == sorted(page.name for page in DOCS.glob("*.md"))
    assert re.findall(r"^  - ([\w-]+):", kinds, re.MULTILINE) == [
        "Start", "Tutorial", "How-to", "Reference", "Explanation",
    ]  # fmt: skip


def test_the_glossary_has_each_term_once() -> None:
    terms = re.findall(r"^\| (.+?) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    terms = [term for term in terms if term != "term"]
    assert len(terms) > 40
    assert len(set(terms)) == len(terms)


def test_nothing_is_said_to_be_on_an_index() -> None:
    """Until it is, pages, notebooks and messages install from a clone: `pip install '.[hf]'`."""
    folders = ("traces", "policies", "simulator", "gpu_replay", "benchmarks", "docs", "notebooks")
    texts = [
        ROOT / "README.md",
        ROOT / "cli.py",
        *(path for folder in folders for path in (ROOT / folder).rglob("*.*")),
    ]
    for path in texts:
        if path.suffix in (".py", ".md", ".ipynb"):
            found = re.search(r"pip install (-\S+ )*['\"]?hisparse[-_]sim", path.read_text())
            assert found is None, f"{path}: {found}"


def test_the_proof_names_files_that_exist() -> None:
    page = (DOCS / "how-we-know.md").read_text()
    named = re.findall(r"`((?:tests|benchmarks)/[^`]*)`", page)
    assert len(named) > 6
    assert all((ROOT / name).exists() for name in named)


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra [docs]")
    pytest.importorskip("material", reason="needs the extra [docs]")
    command = [sys.executable, *"-m mkdocs build --strict -q -f .ci/mkdocs.yml -d".split()]
    built = subprocess.run(
        [*command, str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    for page in DOCS.glob("*.md"):
        name = "index.html" if page.stem == "index" else f"{page.stem}/index.html"
        assert (tmp_path / "site" / name).exists()
