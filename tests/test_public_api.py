"""`import hisparse_sim as hs`: what it offers, that functions and commands agree, what is said
about a wrong argument, and how results look in a notebook."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import import_module
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import drift, metadata, several, table, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.traces import trace_from_frame
from hisparse_sim.traces.commands.options import in_options
from hisparse_sim.traces.notebook import MOST_ROWS, shown

ROOT = Path(__file__).parents[1]
TINY = trace_from_frame(table(several(requests=1, steps=60)), top_k=8, name="tiny")


def test_every_name_is_there_and_seen_by_type_checkers() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (for_types,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name
        for node in for_types.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(hs.__all__) == typed | {"policies", "__version__"} == {*hs._MODULE_OF, "__version__"}
    assert dir(hs) == sorted(hs.__all__)
    assert all(getattr(hs, name) is not None for name in hs.__all__)
    assert hs.__version__ == version("hisparse-sim")
    with pytest.raises(AttributeError, match="has no attribute 'swepp'"):
        hs.swepp  # noqa: B018


def test_importing_it_loads_nothing_else() -> None:
    heavy = "numpy pandas pyarrow numba matplotlib click rich torch".split()
    program = f"import sys, hisparse_sim; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n"


# --- functions and commands ----------------------------------------------------------------------

# What only a command line has, and what only a function has.
TERMINAL = {"scatter", "form", "output", "quiet", "provenance", "force", "plot", "config"}
TERMINAL |= {"scheduler", "workers"}  # an executor, in Python
PROGRAM = {"jobs", "executor", "progress", "keep", "say"}
RENAMED = {"no_min": "compare_min"}


def command(name: str) -> click.Command:
    found: Any = cli
    for part in name.split():
        found = found.get_command(click.Context(found), part)
    assert isinstance(found, click.Command)
    return found


def arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function takes, with defaults; that of a scenario is a deployment's options."""
    found = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    if "scenario" in inspect.signature(function).parameters:
        found |= {name: field.default for name, field in Scenario.__dataclass_fields__.items()}
    return found


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("sweep", [hs.sweep]),
        ("curve", [hs.curve]),
        ("mrc", [hs.mrc, hs.sampled_mrc]),
        ("budget", [hs.budget]),
        ("study", [hs.study]),
        ("plan", [hs.plan]),
        ("serve", [hs.serve]),
        ("reproduce", [hs.reproduce]),
        ("trace capture hf", [hs.capture_hf]),
    ],
)
def test_functions_have_the_options_of_their_command(
    name: str, functions: list[Callable[..., Any]]
) -> None:
    taken = {key: value for each in functions for key, value in arguments(each).items()}
    words = ["--model", "m"] if name == "trace capture hf" else []
    options = command(name).make_context(name, words, help_option_names=["-h", "--help"]).params
    traces = {"trace", "traces"}
    assert set(taken) - PROGRAM - traces - set(RENAMED.values()) - {"output"} == (
        set(options) - TERMINAL - traces - set(RENAMED) - PROGRAM
    )
    assert traces & set(taken) or name == "trace capture hf"
    for key, value in options.items():
        if key in taken and key not in traces | PROGRAM | {"output", "model"}:
            assert taken[key] == (None if value in ((), "") else value), key
    assert taken.get("model") in (options.get("model"), inspect.Parameter.empty)


def test_sweep_is_the_command(tmp_path: Path) -> None:
    """Policies, buffers, the model and its notes, without a word about any of them."""
    written = tmp_path / "rows.csv"
    words = "sweep --ratio 4,8 --link h200-pcie5 --steps 0:40 -o".split()
    done = CliRunner().invoke(cli, [*words, str(written)])
    assert done.exit_code == 0, done.output
    swept = hs.sweep(ratios=[4, 8], link="h200-pcie5", steps=(0, 40))
    of_command = pd.read_csv(written)[swept.rows.columns]
    of_function = pd.read_csv(StringIO(swept.rows.to_csv(index=False)))
    pd.testing.assert_frame_equal(of_command, of_function)
    (said,) = swept.notes
    assert said.replace("`model`", "--model") in done.stderr


def test_curve_is_the_command(tmp_path: Path) -> None:
    written = tmp_path / "curve.csv"
    words = "curve --steps 0:120 --layer 4 -o".split()
    done = CliRunner().invoke(cli, [*words, str(written)])
    assert done.exit_code == 0, done.output
    curves = hs.curve(steps=(0, 120), layers=4)
    of_function = pd.read_csv(StringIO(curves.rows.to_csv(index=False)))
    pd.testing.assert_frame_equal(pd.read_csv(written)[curves.rows.columns], of_function)
    assert curves.rows["buffer"].unique().tolist() == [2048, 4096, 6144]
    assert curves.rows["step"].tolist()[:2] == [99, 100]


def test_serve_is_the_command(tmp_path: Path) -> None:
    written = tmp_path / "served.csv"
    words = "serve --concurrency 8 --requests 16 --prompt 4096 --output-len 64 -o".split()
    done = CliRunner().invoke(cli, [*words, str(written)])
    assert done.exit_code == 0, done.output
    served = hs.serve(concurrencies=[8], requests=16, prompt=4096, output_len=64)
    of_function = pd.read_csv(StringIO(served.rows.to_csv(index=False)))
    pd.testing.assert_frame_equal(pd.read_csv(written)[served.rows.columns], of_function)


def test_profiles_name_the_kind_and_source_of_every_figure() -> None:
    known = hs.profiles()
    assert {"models", "blocks", "hardware", "links", "step_times", "engines"} == set(known["table"])
    (top_k,) = known.query("name == 'glm-5.1' and figure == 'top_k'").to_dict("records")
    assert (top_k["value"], top_k["kind"]) == (2048, "published")
    assert top_k["source"].startswith("https://huggingface.co/zai-org/GLM-5.1")
    figures = known[known["kind"].notna()]
    assert set(figures["kind"]) <= {"measured", "published", "modelled"}
    assert (figures["source"].str.len() > 5).all()
    assert not known.duplicated(["table", "name", "figure"]).any()


def test_profiles_of_ones_own_win(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[[links.mine.figures]]\nkind = "measured"\nsource = "here"\nlink_gb_s = 7\n')
    (row,) = hs.profiles(own).query("name == 'mine'").to_dict("records")
    assert (row["table"], row["value"], row["source"]) == ("links", 7, "here")


# --- wrong arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words", "in_python", "in_terminal"),
    [
        (
            lambda: hs.sweep(buffers=1024),
            "sweep --buffer 1024",
            "choose `buffer` 2048 or more",
            "choose --buffer 2048 or more",
        ),
        (
            lambda: hs.curve(window=9000),
            "curve --window 9000",
            "choose a smaller `window`",
            "choose a smaller --window",
        ),
        (
            lambda: hs.sweep(link="sneakernet"),
            "sweep --link sneakernet",
            "in a file given with `profiles`",
            "in a file given with --profiles",
        ),
        (
            lambda: hs.sweep(ratios=2**21),
            f"sweep --ratio {2**21}",
            "`ratio` is 2097152; it must be between 1 and 1048576",
            "--ratio is 2097152; it must be between 1 and 1048576",
        ),
        (
            lambda: hs.serve(rate=1.0, concurrencies=[8]),
            "serve --rate 1 --concurrency 8",
            "give concurrencies (closed loop) or a rate (open loop), not both",
            "give --concurrency (closed loop) or --rate (open loop), not both",
        ),
    ],
)
def test_a_wrong_argument_is_named_as_it_was_given(
    call: Callable[[], Any], words: str, in_python: str, in_terminal: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    assert in_python in str(caught.value)
    assert "--" not in str(caught.value)
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code in (1, 2)
    assert in_terminal in " ".join(done.stderr.split())
    assert "`" not in done.stderr


@pytest.mark.parametrize("function", [hs.plan, hs.serve, hs.check_config])
def test_an_unknown_option_of_a_scenario_is_told_with_the_known(
    function: Callable[..., Any],
) -> None:
    config = ("{}",) if function is hs.check_config else ()
    with pytest.raises(TypeError, match="unknown argument 'modle'; a scenario has model, hardware"):
        function(*config, modle="glm-5.1")


def test_a_trace_without_provenance(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [drift()], metadata())
    rows = pd.read_parquet(path)
    rows.to_parquet(path)
    with pytest.raises(hs.TraceError, match="the origin of its positions with `provenance`"):
        hs.open_trace(path)
    done = CliRunner().invoke(cli, ["sweep", str(path)])
    assert "the origin of its positions with --provenance (dsa-serving" in done.stderr


def test_names_of_arguments_become_options() -> None:
    """By the name of the argument first, by the spelling of the option second; others stay."""
    convert = command("trace convert")
    assert in_options("`layers`, `num_layers`, `prompt_len`, `x`", convert) == (
        "--layer, --layers, --prompt-len, `x`"
    )
    assert in_options("`buffer` and `buffers`", command("sweep")) == "--buffer and --buffer"


# --- in a notebook -------------------------------------------------------------------------------


class Cells(HTMLParser):
    """The text of a piece of HTML, and its header cells; an unknown or unclosed tag is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        assert tag in "p b br table thead tbody tr th td".split()
        self.open += [tag] * (tag != "br")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        self.headings += [data] * ("th" in self.open)


RESULTS: dict[str, tuple[Callable[[], Any], str, set[str]]] = {
    "trace": (lambda: TINY, "Trace tiny: synthetic, model unknown1 requests, 3 layers", set()),
    "sweep": (lambda: hs.sweep(TINY, ["lru", "fifo"], [12, 16]), "Sweep of tiny", {"policy"}),
    "replay": (lambda: hs.replay(TINY, "lru", 12), "misses in 1,440 accesses", {"layer"}),
    "curve": (lambda: hs.curve(TINY, buffers=12, window=10), "over 10 steps", {"step"}),
    "mrc": (lambda: hs.mrc(TINY), "Miss-ratio curves of tiny: ", {"buffer"}),
    "budget": (lambda: hs.budget(TINY), "of the misses of 16 slots each", {"misses"}),
    "plan": (lambda: hs.plan(buffers=[4096], ratios=[4, 8]), "Plan: device_buffer", {"ratio"}),
    "serve": (lambda: hs.serve(concurrencies=[2], requests=2), "Serving", {"mode"}),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_shows_itself(name: str) -> None:
    make, text, headings = RESULTS[name]
    result = make()
    shown = Cells(result._repr_html_())
    assert text in shown.text
    assert headings <= set(shown.headings)
    if name != "trace":  # in one line, since it stands in the repr of other results
        lines = repr(result).splitlines()
        assert lines[0] in shown.text
        assert headings <= set(" ".join(lines).split())
        assert len(lines) < 150


def test_what_is_alike_is_said_once_and_nothing_is_markup() -> None:
    rows = pd.DataFrame({"a": ["<i>", "<i>"], "b": [1.23456, 2345.6], "c": [None, None]})
    cells = Cells(shown("<b>", ["&", ""], rows))
    assert cells.text.split("\n")[0] == "<b>&a <i>"
    assert cells.headings == ["b"]
    assert "1.235" in cells.text
    assert "2,346" in cells.text
    long = Cells(shown("t", [], pd.DataFrame({"a": range(1000)})))
    assert len(re.findall(r"^\s*\d+$", long.text, re.MULTILINE)) == MOST_ROWS
    assert Cells(shown("t", ["n"], rows.iloc[:0])).text == "tn"


@pytest.mark.parametrize(
    "rows",
    [
        lambda: hs.sweep(TINY, "lru", 12).rows,
        lambda: hs.sweep(TINY, "lru", 12, per_layer=True).rows,
        lambda: hs.sweep(TINY, "lru", 12).steps,
        lambda: hs.replay(TINY, "lru", 12).rows,
        lambda: hs.mrc(TINY).rows,
        lambda: hs.mrc(TINY, per_layer=True).rows,
        lambda: hs.budget(TINY).rows,
        lambda: hs.locality(TINY),
    ],
)
def test_layer_is_a_nullable_integer_everywhere(rows: Callable[[], pd.DataFrame]) -> None:
    assert rows()["layer"].dtype == "Int64"


# --- what is written about it --------------------------------------------------------------------


def test_documents_show_no_import_from_inside() -> None:
    """But of a whole package where the page is about it, and for files that become part of one;
    notebooks: see test_notebooks."""
    inside = re.compile(r"^ *(?:from|import) (hisparse_sim\.[\w.]+)", re.MULTILINE)
    packages = {
        "hisparse_sim.gpu_replay.engine",
        "hisparse_sim.gpu_replay.kernels.native",
        "hisparse_sim.simulator.prefetch",
        "hisparse_sim.traces",
    }
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        if path.name not in ("api.md", "add-a-policy.md", "add-a-prefetcher.md"):
            assert set(inside.findall(path.read_text(encoding="utf-8"))) <= packages, path.name


def test_modules_exist() -> None:
    for module in hs._MODULE_OF.values():
        import_module(f"hisparse_sim.{module}")
