"""What all commands have in common: how numbers are read, mistakes answered, files announced."""

import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from make_traces import drift, metadata, write

from hisparse_sim.cli import cli
from hisparse_sim.policies import POLICIES
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.profiles import read_profiles
from hisparse_sim.simulator.views.tables import print_table
from hisparse_sim.traces.commands.values import Number, several, step_range, whole, wholes
from hisparse_sim.traces.synth.generator import get_profile, profiles


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def done(*arguments: object) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = [drift(layer=layer, steps=60) for layer in range(3)]
    return write(tmp_path_factory.mktemp("line") / "small.parquet", parts, metadata())


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [("4096", 4096), ("4_096", 4096), ("64k", 65_536), ("4K", 4096), (" 2m ", 2_097_152)],
)
def test_numbers_are_read(text: str, number: int) -> None:
    assert whole(text) == number
    assert Number(1).convert(text, None, None) == number


@pytest.mark.parametrize("text", ["", "k", "4.5k", "1e3", "many", "0x10", "4kk", "4,096"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        whole(text)
    with pytest.raises(click.BadParameter, match="is not a whole number"):
        Number(1).convert(text, None, None)


def test_ranges_hold_both_ends() -> None:
    assert list(wholes("0-5")) == [0, 1, 2, 3, 4, 5]
    assert list(wholes("2048:8192:1024")) == [2048, 3072, 4096, 5120, 6144, 7168, 8192]
    assert list(wholes("2k:8k:3k")) == [2048, 5120, 8192]
    assert list(wholes("1:6:2")) == [1, 3, 5]
    assert list(wholes("7-7")) == [7]
    assert list(wholes("-3")) == [-3]
    for empty in ("5-0", "1:5:0", "9:1:1"):
        with pytest.raises(ValueError, match="is an empty range"):
            wholes(empty)
    with pytest.raises(ValueError, match="1,000,001 numbers"):
        wholes("0-1000000")


def test_lists_and_steps() -> None:
    context = click.Context(cli)
    option = click.Option(["--x"])
    assert several(int)(context, option, ["1k,0-2", "1,7"]) == (1024, 0, 1, 2, 7)
    assert several(int, distinct=False)(context, option, ["0-1,1"]) == (0, 1, 1)
    with pytest.raises(click.BadParameter, match="0 is not at least 1"):
        several(int, least=1)(context, option, ["0-3"])
    assert step_range(context, option, "1k:2k") == (1024, 2048)
    assert step_range(context, option, ":1k") == (0, 1024)


def options(group: click.Group) -> list[tuple[str, click.Option]]:
    """Return every option of every command below `group`."""
    found = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += [(f"{name} {inner}", option) for inner, option in options(command)]
        found += [(name, each) for each in command.params if isinstance(each, click.Option)]
    return found


def test_no_command_reads_numbers_in_a_way_of_its_own() -> None:
    """Every whole number is a `Number` or goes through `several`, but for seeds."""
    for command, option in options(cli):
        if option.name != "seed":
            plain = isinstance(option.type, type(click.INT) | click.IntRange)
            assert not plain or isinstance(option.type, Number), (command, option.name)


def test_numbers_on_the_command_line(path: Path) -> None:
    plain = done("sweep", path, "--policy", "lru", "--buffer", "8,16,24", "--layer", "0,1,2")
    short = done("sweep", path, "--policy", "lru", "--buffer", "8:24:8", "--layer", "0-2")
    assert plain.stdout == short.stdout
    few = ("--concurrency", "2", "--requests", "2", "--output-len", "16", "--mode", "baseline")
    text = done("serve", *few, "--prompt", "8k").stdout
    assert "prompts of 8,192 tokens" in text
    assert "64k is 65,536" in " ".join(done("plan", "--help").stdout.split())


# --- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("swep", "no command 'swep'; did you mean sweep?"),
        ("trace inof", "no command 'inof'; did you mean info?"),
        ("gpu bnech", "no command 'bnech'; did you mean bench?"),
        ("zzz", f"no command 'zzz'; known: {', '.join(cli.list_commands(None))}"),
        ("sweep --polcy lru", "--policy"),
        ("plan --promt 64k", "--prompt"),
    ],
)
def test_a_mistyped_name_gets_a_suggestion(arguments: str, words: str) -> None:
    result = run(*arguments.split())
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("sweep {} -o {}/rows.xlsx", "ends in .xlsx; choose one of .txt, .csv, .json"),
        ("curve {} -o {}/rows.xlsx", "ends in .xlsx; choose one of .png, .svg, .pdf, .csv"),
        ("plan --trace {} -o {}/plan.yaml", "ends in .yaml; choose one of .txt, .csv"),
        ("serve --trace {} -o {}/run.xml", "ends in .xml; choose one of .txt, .csv"),
        ("reproduce --trace {} -o {}/all.doc", "ends in .doc; choose one of .txt, .csv"),
        ("reproduce --trace {} --plot {}/all.jpg", "ends in .jpg; choose one of .png"),
        ("trace info {} -o {}/info.pq", "ends in .pq; choose one of .txt, .csv"),
        ("trace info {} --full --plot {}/info.gif", "ends in .gif; choose one of .png"),
        ("trace sample {} -o {}/part.csv", "ends in .csv; choose one of .parquet, .arrow"),
        ("trace convert {} -o {}/part.json", "ends in .json; choose one of .parquet, .arrow"),
        ("trace export {} -o {}/part.txt", "ends in .txt; choose one of .csv, .oraclegeneral"),
        ("report {} -o {}/page.pdf", "ends in .pdf; choose one of .html"),
        ("gpu replay {} -o {}/steps.csv", "ends in .csv; choose one of .json, .parquet"),
        ("gpu calibrate --from {} -o {}/link.json", "ends in .json; choose .toml"),
    ],
)
def test_an_unknown_suffix_is_refused(
    path: Path, tmp_path: Path, arguments: str, words: str
) -> None:
    result = run(*(word.format(path if word == "{}" else tmp_path) for word in arguments.split()))
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("sweep {} --batch 8", "--batch belongs to --link"),
        ("sweep {} --kernel native --batch 1", "--kernel and --batch belong to --link"),
        ("sweep {} --output-len 64", "--output-len belongs to --ratio"),
        ("sweep {} --host-gib 9 --link h200-pcie5", "--host-gib belongs to --ratio"),
        ("sweep {} --hardware h20", "--hardware belongs to --ratio"),
        ("sweep {} --kv-dtype fp8", "--kv-dtype belongs to --ratio or --link"),
        ("curve {} --batch 8", "--batch belongs to --link"),
        ("curve {} --model glm-5.1", "--model belongs to --link"),
        ("plan --config {{}} --buffer 4096", "--buffer belongs to a plan, not to --config"),
        ("trace capture hf --model {} --train-steps 9", "--train-steps belongs to --indexer train"),
        ("trace capture hf --model {} --temperature 2", "--temperature belongs to --sample"),
    ],
)
def test_no_option_is_ignored(path: Path, arguments: str, words: str) -> None:
    result = run(*(word.format(path) for word in arguments.split()))
    assert result.exit_code == 2, result.output
    assert words in result.stderr


# --- files, progress, tables --------------------------------------------------------------------

_FEW = ("--concurrency", "2", "--output-len", "16", "--prompt", "9000")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("sweep", "{}", "--policy", "lru"), "rows.csv"),
        (("sweep", "{}", "--policy", "lru"), "table.txt"),
        (("curve", "{}", "--buffer", "16", "--window", "9"), "curve.svg"),
        (("curve", "{}", "--buffer", "16", "--window", "9"), "curve.json"),
        (("plan", *_FEW, "--buffer", "4096", "--ratio", "4"), "plan.json"),
        (("plan", "--config", "{{}}"), "findings.csv"),
        (("serve", *_FEW, "--requests", "2", "--mode", "baseline"), "run.jsonl"),
        (("policies",), "policies.csv"),
        (("profiles", "hardware"), "profiles.json"),
        (("trace", "info", "{}"), "info.json"),
        (("trace", "info", "{}", "--full"), "full.csv"),
        (("trace", "sample", "{}", "--layer", "1"), "part.parquet"),
        (("trace", "export", "{}", "--layer", "1"), "part.csv"),
        (("trace", "synth", "--shape", "cyclic", "--top-k", "8", "--context", "99",
          "--distinct", "40", "--steps", "3"), "made.parquet"),
    ],
)  # fmt: skip
def test_what_is_written_is_said(
    path: Path, tmp_path: Path, arguments: tuple[str, ...], name: str
) -> None:
    given = [word.format(path) for word in arguments]
    said = done(*given, "-o", tmp_path / name)
    assert f"wrote {tmp_path / name}" in said.stderr
    assert said.stdout == ""
    assert [file.name for file in tmp_path.iterdir()] == [name]
    force = ["--force"] * (arguments[:2] in {("trace", "sample"), ("trace", "synth")})
    assert done(*given, "-o", tmp_path / name, "--quiet", *force).stderr == ""


def test_progress_stays_out_of_pipes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hisparse_sim.cli", "reproduce", "-o", "r.csv"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    lines = [line for line in found.stderr.splitlines() if "compiling" not in line]
    assert lines == ["wrote r.csv"]
    assert found.stdout == ""


def test_nothing_fits_has_no_empty_table() -> None:
    result = run("plan", "--prompt", "150k", "--host-gib", "1", "--device-pool-gib", "1")
    assert result.exit_code == 1
    assert "nothing fits:" in result.stdout
    assert "tok/s" not in result.stdout


def test_wide_tables_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    import pandas as pd

    rows = pd.DataFrame({f"c{i}": [10.0**i, 1.0] for i in range(12)}).assign(name=["one", "two"])
    columns = {name: (f"column {name}", lambda value: f"{value}") for name in rows}
    print_table(rows, columns, keys=["name"], before="word " * 40, after="label  " + "x " * 60)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert all(text.count(f"column c{i}\n") + text.count(f"column c{i} ") for i in range(12))
    assert text.count("column name") == text.count("one") == text.count("two") > 1
    after = [line for line in lines if line.strip().startswith("x")]
    assert after
    assert all(line.startswith("       x") for line in after)  # below the first word


def long_named(folder: Path, name: str, **kind: str) -> Path:
    parts = [drift(layer=layer, steps=40, request="r" * 30) for layer in (0, 2)]
    return write(folder / f"{name}.parquet", parts, metadata(**kind))


def test_every_command_fits_80_columns(path: Path, tmp_path: Path) -> None:
    other = long_named(tmp_path, "a trace with a long name of many words", provenance="dsa-serving")
    both = ("sweep", path, other, "--quiet")
    cost = ("--link", "h200-pcie5", "--batch", "8", "--model", "glm-5.1", "--ratio", "4")
    commands = [
        both,
        (*both, "--per-layer", "--no-min"),
        (*both, *cost, "--buffer", "2048", "--per-layer"),
        ("trace", "info", path, "--full"),
        ("trace", "info", path, other, "--full"),
        ("trace", "info", "sample"),
        ("trace", "info", "sample", "--full"),
        ("policies",),
        ("profiles",),
        ("profiles", "hardware", "h20"),
        ("profiles", "engines"),
        ("plan", *_FEW, "--buffer", "4096", "--ratio", "4,8"),
        ("plan", "--disaggregated", "--hardware", "h20", *_FEW, "--buffer", "2048"),
        ("serve", *_FEW, "--requests", "2"),
    ]
    for command in commands:
        lines = done(*command).stdout.splitlines()
        assert len(lines) > 2, command
        assert [line for line in lines if len(line) > 80] == [], command


def test_reproduce_fits_80_columns() -> None:
    assert max(map(len, done("reproduce").stdout.splitlines())) <= 80


def test_each_trace_is_named_with_its_provenance(path: Path, tmp_path: Path) -> None:
    other = long_named(tmp_path, "captured", provenance="dsa-serving")
    text = done("sweep", path, other, "--buffer", "16", "--policy", "lru").stdout
    assert "small (synthetic)\n" in text
    assert "captured (dsa-serving)\n" in text
    text = done("trace", "info", path, other, "--full").stdout
    assert "small (synthetic)" in text
    assert "captured (dsa-serving)" in text
    rows = tmp_path / "rows.csv"
    done("sweep", path, other, "--buffer", "16", "--policy", "lru", "-o", rows)
    page = tmp_path / "page.html"
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    done("report", rows, "-o", page)
    text = page.read_text(encoding="utf-8")
    assert "small (synthetic), replayed: " in text
    assert "captured (dsa-serving), replayed: " in text


# --- names and completion -----------------------------------------------------------------------


def test_profiles_have_the_same_names_everywhere() -> None:
    """A name or alias of a model that has both kinds of profile is known to synth and to plan."""
    both = [profile for name, profile in profiles().items() if name in read_profiles("models")]
    assert {profile.name for profile in both} == {"glm-5.1", "deepseek-v3.2"}
    for profile in both:
        names = (profile.name, *profile.aliases, *read_profiles("models")[profile.name].aliases)
        for name in names:
            assert load_model(name).name == get_profile(name).name == profile.name
    assert get_profile("v3.2").name == load_model("V3.2").name == "deepseek-v3.2"


def completed(*words: str) -> list[str]:
    shell = ShellComplete(cli, {}, "hisparse-sim", "_HISPARSE_SIM_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_the_shell_completes_names() -> None:
    assert completed("sw") == ["sweep"]
    # epoch-clock: for drafts.
    assert set(completed("sweep", "--policy", "")) == {
        *POLICIES,
        "min",
        "epoch-clock",
        "all",
    }
    assert completed("sweep", "--policy", "lru,ar") == ["lru,arc"]
    assert completed("plan", "--policy", "be") == ["belady"]
    assert completed("plan", "--model", "glm") == ["glm-5.1", "glm-5.2"]
    machines = {name for name in read_profiles("hardware") if name.startswith("h")}
    assert set(completed("serve", "--hardware", "h")) == machines > {"h200"}
    assert "h200-pcie5" in completed("curve", "--link", "h200")
    assert set(completed("trace", "synth", "--profile", "")) == set(profiles())
    assert completed("trace", "synth", "--shape", "cy") == ["cyclic"]


def test_completion_is_documented_as_it_works() -> None:
    page = (Path(__file__).parents[1] / "docs" / "cli.md").read_text(encoding="utf-8")
    for shell in ("bash", "zsh", "fish"):
        variable = f"_HISPARSE_SIM_COMPLETE={shell}_source"
        assert variable in page
    environment = {**os.environ, "_HISPARSE_SIM_COMPLETE": "zsh_source"}
    command = [
        sys.executable,
        "-c",
        "from hisparse_sim.cli import cli; cli(prog_name='hisparse-sim')",
    ]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "compdef" in found.stdout


def test_min_is_called_belady_in_results(path: Path) -> None:
    rows = json.loads(done("sweep", path, "--policy", "min,MIN", "--format", "json").stdout)
    assert {row["policy"] for row in rows} == {"belady"}


def test_help_starts_quickly() -> None:
    command = [sys.executable, "-m", "hisparse_sim.cli", "--help"]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    base = [sys.executable, "-c", "import click, tempfile, pathlib"]
    start = time.perf_counter()
    subprocess.run(base, check=True)
    assert min(times) < max(0.3, 3 * (time.perf_counter() - start))


def test_the_version_tells_what_a_bug_report_needs() -> None:
    short = CliRunner().invoke(cli, ["--version"])
    assert short.stdout == f"hisparse-sim, version {version('hisparse-sim')}\n"
    for order in (["--version", "--verbose"], ["--verbose", "--version"]):
        found = CliRunner().invoke(cli, order)
        assert found.exit_code == 0
        assert found.stdout.startswith(short.stdout)
        assert f"\nnumba {version('numba')}\n" in found.stdout
        assert "\nPython 3." in found.stdout
    assert CliRunner().invoke(cli, ["--verbose", "policies"]).exit_code == 2
