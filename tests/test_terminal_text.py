"""Texts of unknown origin on a terminal and in figures: control characters are written out, and a
dollar sign is one."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from make_traces import drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.views import figures
from hisparse_sim.simulator.views.tables import print_table
from hisparse_sim.traces.terminal import escaped, note, printable

EVIL = "a\x1b[31mred\r\n\x07\u202egpj.\x9b2J"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_what_is_written_out() -> None:
    assert escaped("a\x1bb\nc\rd\x00e\x7ff\x9bg") == r"a\x1bb\nc\rd\x00e\x7ff\x9bg"
    assert escaped("\u202e\u2066\u2028\ufeff\ud800") == r"\u202e\u2066\u2028\ufeff\ud800"
    assert escaped("ünï - 漢字 \\n\xa0") == "ünï - 漢字 \\n\xa0"
    assert escaped("two\nlines\r", lines=True) == "two\nlines\\r"
    assert printable("x\x1b\udcff.parquet") == r"x\x1b\xff.parquet"


@given(st.text(st.characters(codec=None)))
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    said = escaped(text)
    assert escaped(said) == said
    assert len(said.splitlines()) <= 1
    said.encode()


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pd.DataFrame({"request": [EVIL, "plain"], "misses": [1, 2]})
    columns = {"request": ("request\x1b", str), "misses": ("misses", str)}
    print_table(rows, columns, before=f"title {EVIL[:1]}\x1b\nbelow", after="\x07end")
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 2 + 3 + 1
    assert shown.replace("\n", "").isprintable()
    assert escaped(EVIL) in shown


def test_notes(capsys: pytest.CaptureFixture[str]) -> None:
    note(f"the server says: {EVIL}", quiet=False)
    assert capsys.readouterr().err == f"the server says: {escaped(EVIL)}\n"


def test_commands_show_no_control_characters(tmp_path: Path) -> None:
    """Ids, models and file names as they may come from anybody."""
    about = metadata(model=f"model {EVIL}", source=f"source {EVIL}", dataset=f"data {EVIL}")
    parts = [drift(request=f"{EVIL}{number}", steps=20) for number in range(2)]
    path = write(tmp_path / "t\x1b[2J\n.parquet", parts, about)
    few = ("--policy", "lru", "--buffer", "16")
    for words in (
        ("sweep", path, *few, "--per-layer"),
        ("sweep", path, *few),
        ("trace", "info", path),
        ("trace", "info", path, "--full"),
        ("trace", "validate", path),
        ("sweep", path, *few, "--request", "none"),
        ("sweep", path, *few, "--layer", "77"),
        ("sweep", tmp_path / "no\x1b[2J\nsuch.parquet"),
        ("report", tmp_path / "no\x1b[2J\nsuch.csv"),
        ("plan", "--miss-curve", tmp_path / "no\x1b[2J\nsuch.csv"),
        ("plan", "--profiles", tmp_path / "no\x1b[2J\nsuch.toml"),
    ):
        result = run(*words)
        assert result.exit_code in (0, 1, 2), result.exception
        said = result.stdout + result.stderr
        assert said
        assert said.replace("\n", "").isprintable(), words
    assert escaped(EVIL)[:20] in run("sweep", path, *few, "--per-layer").stdout


@pytest.mark.parametrize("name", [r"cost$\frac$", "$", "a$b$c", r"$\$", "100$ $x^{2}$", "$_$"])
def test_a_dollar_sign_in_a_name(name: str, tmp_path: Path) -> None:
    path = write(
        tmp_path / f"{name}.parquet",
        [drift(layer=layer, steps=20) for layer in (0, 3)],
        metadata(),
    )
    for words in (
        ("trace", "info", "--full", "--plot", tmp_path / "info.svg", path),
        ("curve", path, "--buffer", "16", "--window", "5", "-o", tmp_path / "curve.svg"),
    ):
        result = run(*words)
        assert result.exit_code == 0, result.output
    for file in ("info.svg", "curve.svg"):  # as comments, since glyphs are paths
        assert f"trace {name}" in (tmp_path / file).read_text("utf-8").replace("&amp;", "&")
    rows = hs.sweep(path, ["lru", "belady"], [8, 16]).rows
    drawn: Any
    for draw in (figures.miss_ratio, figures.policy_dots):
        drawn = draw(rows)
        figures.save(drawn, tmp_path / "figure.pdf")
        assert drawn.figure.get_supxlabel() == f"synthetic trace {name}"
