"""Small plots in tables: right in height, and only where a terminal shows them."""

import os
import pty
import subprocess
import sys
from math import nan

import pandas as pd
import pytest

from hisparse_sim.simulator.views import tables
from hisparse_sim.simulator.views.sparks import bar, sparkline


def test_sparkline() -> None:
    assert sparkline([0, 1, 4, 8]) == "▁▂▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([1, nan, 1]) == "█ █"
    assert sparkline([]) == ""
    assert sparkline([1, 3, 8, 8], longest=2) == "▃█"


def test_bar() -> None:
    assert bar(8, 8) == "████████"
    assert bar(1, 8) == "█"
    assert bar(0.5, 8) == "▌"
    assert bar(1.125, 8) == "█▏"
    assert bar(1e-9, 8) == "▏"  # something, not nothing
    assert bar(0, 8) == bar(nan, 8) == bar(1, 0) == ""


ROWS = pd.DataFrame({"name": ["a", "b"], "value": [4.0, 1.0]})
COLUMNS = {"name": ("name", str), "value": ("value", str)}


def test_bars_behind_the_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.print_table(ROWS, COLUMNS, bars="value")
    assert "█" not in capsys.readouterr().out  # no terminal
    monkeypatch.setattr(tables, "drawable", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    tables.print_table(ROWS, COLUMNS, bars="value")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("████████")
    assert lines[2].endswith("1.0  ██")
    monkeypatch.setenv("COLUMNS", "15")  # the figures come first
    tables.print_table(ROWS, COLUMNS, bars="value")
    assert "█" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("environment", "drawn"),
    [
        ({"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}, True),
        ({"TERM": "dumb", "PYTHONIOENCODING": "utf-8"}, False),
        ({"TERM": "xterm", "PYTHONIOENCODING": "ascii"}, False),
    ],
)
def test_what_a_terminal_can_show(environment: dict[str, str], drawn: bool) -> None:
    code = "from hisparse_sim.simulator.views.sparks import drawable; print(drawable())"
    own, terminal = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", code], stdout=terminal, env=os.environ | environment, check=True
        )
        assert os.read(own, 100).decode().strip() == str(drawn)
    finally:
        os.close(own)
        os.close(terminal)
