"""The tutorial: its commands run in order, and every figure it shows is one that they print."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from hisparse_sim.cli import cli

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
# With decimals, with thousands, or of three digits and more; names such as H200 are none.
FIGURE = re.compile(r"\b(?:\d[\d,]*\.\d+|\d{1,3}(?:,\d{3})+|\d{3,})\b")


def printed(page: str, folder: Path) -> str:
    """Run the console blocks of a page in a folder and return what they print on stdout."""
    out = []
    for block in re.findall(r"^```console\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            words = shlex.split(line)
            assert words[0] == "hisparse-sim"
            result = CliRunner().invoke(cli, words[1:])
            assert result.exit_code == 0, f"{line}: {result.output}"
            out.append(result.stdout)
    assert {"plan.json", "serve.csv", "report.html"} <= {file.name for file in folder.iterdir()}
    return "\n".join(out)


def test_the_tutorial_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    out = printed(page, tmp_path)
    words = set(re.findall(r"[\d.,]*\d", out))
    prose = re.sub(r"^```console\n.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    shown = FIGURE.findall(prose)
    assert len(shown) > 40
    assert [figure for figure in shown if figure not in words] == []
    # Rows of tables are shown as printed, but for the spaces that align columns.
    lines = {" ".join(line.split()) for line in out.splitlines()}
    (table,) = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert {" ".join(line.split()) for line in table.splitlines()} <= lines
    labels = re.findall(r"`([A-Z][^`]*\b(?:\d|misses|ranks)\b[^`]*)`", prose)
    assert len(labels) == 3
    assert [label for label in labels if label not in out] == []
