"""The command line: what it prints, where, and how it fails."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import click
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from make_traces import demand, drift, metadata
from make_traces import write as write_trace

from hisparse_sim.cli import cli
from hisparse_sim.policies import POLICIES, STANDARD


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def done(*arguments: str | Path) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = [drift(layer=layer, steps=120) for layer in (0, 2)]
    return write_trace(tmp_path_factory.mktemp("cli") / "small.parquet", parts, metadata())


def commands(group: click.Group, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((*prefix, name))
        if isinstance(command, click.Group):
            found += commands(command, (*prefix, name))
    return found


@pytest.mark.parametrize("names", commands(cli), ids=" ".join)
def test_every_command_has_help(names: tuple[str, ...]) -> None:
    text = done(*names, "--help").output
    assert "Usage:" in text
    assert len(text.split("\n\n")[1].strip()) > 10  # says what it does


def test_jsonl_is_one_object_a_line_with_the_agreed_columns() -> None:
    result = done(
        *"sweep --policy lru --buffer 4096 --start staged --per-layer --format jsonl".split()
    )
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["layer"] for row in rows] == [4, 9, 14, 19, 24, 29]
    agreed = (
        "trace provenance request layer policy buffer start steps accesses misses miss_rate "
        "misses_per_step p50 p95 max excess_over_min"
    ).split()
    assert list(rows[0])[: len(agreed)] == agreed
    assert rows[0]["trace"] == "sample"
    assert rows[0]["accesses"] == 512 * 2048
    assert rows[0]["misses"] == 44501


def test_table_of_a_sweep_fits_80_columns(path: Path) -> None:
    text = done("sweep", path, "--buffer", "16,32", "--quiet").stdout
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[0] for line in lines[2:]] == [name for name in STANDARD for _ in "ab"]


def test_ratio_adds_bytes_and_memory() -> None:
    result = done(*"sweep --policy lru --buffer 4096 --ratio 4,8 --layer 4 --steps 0:64".split())
    assert "glm-5.1" in result.stderr  # the trace's model has no profile
    assert "MB/step" in result.stdout
    assert "14.8 GiB of a GPU and 231.7 GiB of its host" in result.stdout
    eight = "buffer 4,096, ratio 8: 15 requests per GPU, limited by: prefill headroom"
    assert eight in result.stdout
    assert "ratio 4: 14 requests per GPU, limited by: indexer keys" in result.stdout


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--hardware h20 --start direct",
        "--hardware b200 --kv-dtype fp8",
        "--engine sglang-0.5.16",
    ],
)
def test_sweep_and_plan_agree_on_requests(options: str) -> None:
    asked = "--policy lru --buffer 4096,6144 --ratio 2,4,8,12"
    swept = done(
        *f"sweep {asked} --no-min --layer 4 --output-len 7680 --model glm-5.1 {options}".split(),
        *"--format csv".split(),
    )
    # 32,768 tokens of prompt and 512 steps are in the sample.
    same = options.replace("--start direct", "--prefill-instances 1")
    planned = done(*f"plan {asked} --quiet --candidates --format csv {same}".split())
    left, right = (pd.read_csv(StringIO(result.stdout)) for result in (swept, planned))
    pairs = left.merge(
        right, left_on=["buffer", "host_to_device_ratio"], right_on=["buffer", "ratio"]
    )
    assert len(pairs) == 8
    assert list(pairs["requests_per_gpu"]) == list(pairs["requests"])
    assert set(left["limit"]) - {"host"}


def test_costs_by_hand() -> None:
    options = "sweep --policy lru --buffer 4096 --ratio 8 --model deepseek-v3.2 --kv-dtype fp8"
    result = done(*options.split(), "--output-len", "1000", "--format", "json")
    (row,) = json.loads(result.stdout)
    assert row["bytes_per_step"] == pytest.approx(row["misses"] / row["steps"] * 656 * 61)
    assert row["bytes_per_request"] == pytest.approx(row["bytes_per_step"] * 512)
    assert row["hot_buffer_bytes"] == (4096 + 64) * 656 * 61
    pages = -(-(33280 + 1000) // 64) * 64
    assert row["host_bytes_per_request"] == pages * 656 * 61
    pool = int(row["device_pool_gib"] * 2**30) // (61 * (656 + 132 * 8)) // 64 * 64
    # The prompt's pages and one more, and 4,160 slots and 1,512 / 2 promised tokens of each other.
    beside = (pool - 32_768 - 64) // (4160 + 756) + 1
    keys = (pool * 8 - 32_768 - 64) // (-(-(32_768 + 756) // 64) * 64 + 756) + 1
    assert row["requests_per_gpu"] == min(beside, keys, 60)
    assert row["limit"] in ("prefill headroom", "indexer keys", "max-running-requests")


def test_swap_in_time_is_the_mean_over_steps() -> None:
    from hisparse_sim import replay, sample_path
    from hisparse_sim.simulator.serving.latency import swap_in_us

    options = "--policy lru --buffer 4096 --layer 4,9 --link h200-pcie5 --kernel native --batch 3"
    for extra in ("", " --per-layer"):
        result = done("sweep", *f"{options} --kv-dtype fp8 --format json{extra}".split())
        for row in json.loads(result.stdout):
            layers = [4, 9] if row["layer"] is None else [row["layer"]]
            misses = replay(sample_path(), "lru", 4096, layers=layers).misses
            times = swap_in_us("h200-pcie5", "native", 3, misses, 4096, 656)
            assert row["swap_in_us"] == pytest.approx(times.mean())
            assert (row["link"], row["batch"]) == ("h200-pcie5", 3)
            assert "bytes_per_step" not in row
    table = done("sweep", *f"{options} --ratio 8".split()).stdout
    assert max(map(len, table.split("\n\n")[0].splitlines())) <= 80


def test_profiles_of_ones_own(tmp_path: Path) -> None:
    from hisparse_sim.simulator.serving import profiles

    shipped = Path(profiles.__file__).with_name("links.toml").read_text()
    own = tmp_path / "mine.toml"
    own.write_text(shipped.replace("h200-pcie5", "my-link"))
    options = "--policy lru --buffer 4096 --layer 4 --format json --link"
    mine = done("sweep", *options.split(), "my-link", "--profiles", own)
    theirs = done("sweep", *options.split(), "h200-pcie5")
    (one,), (two,) = json.loads(mine.stdout), json.loads(theirs.stdout)
    assert one["swap_in_us"] == two["swap_in_us"]
    assert one["link"] == "my-link"


def test_curve_of_swap_in_time(tmp_path: Path) -> None:
    options = "--policy lru --buffer 4096 --layer 4 --window 50 --link h200-pcie5"
    done("curve", *options.split(), "-o", tmp_path / "time.csv")
    time = pd.read_csv(tmp_path / "time.csv")
    assert time["swap_in_us"].between(time["p10"], time["p90"]).all()  # one layer: all alike
    assert "misses_per_step" not in time
    done("curve", *options.split(), "-o", tmp_path / "time.svg")
    text = (tmp_path / "time.svg").read_text()
    assert "sglang kernel over h200-pcie5, batch 1" in text


@pytest.mark.parametrize("form", ["csv", "json", "jsonl", "parquet"])
def test_every_format_holds_the_same_rows(path: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / f"rows.{form}"
    done("sweep", path, "--policy", "lru,fifo", "--buffer", "16", "-o", out)
    readers = {
        "csv": pd.read_csv,
        "json": pd.read_json,
        "jsonl": lambda file: pd.read_json(file, lines=True),
        "parquet": pd.read_parquet,
    }
    rows = readers[form](out)
    assert rows["policy"].tolist() == ["lru", "fifo"]
    assert rows["seed"].tolist() == [0, 0]
    assert rows["trace_sha256"].str.len().tolist() == [64, 64]
    assert rows["version"].tolist()[0]
    wanted = json.loads(done("sweep", path, "--policy", "lru,fifo", "--buffer", "16",
                             "--format", "json").stdout)  # fmt: skip
    assert rows["misses"].tolist() == [row["misses"] for row in wanted]
    assert [file.name for file in tmp_path.iterdir()] == [out.name]


def test_a_table_can_go_to_a_file(path: Path, tmp_path: Path) -> None:
    printed = done("sweep", path, "--policy", "lru").stdout
    done("sweep", path, "--policy", "lru", "-o", tmp_path / "table.txt")
    assert (tmp_path / "table.txt").read_text() == printed


def test_buffers_default_to_multiples_of_top_k(path: Path) -> None:
    rows = json.loads(done("sweep", path, "--policy", "lru", "--format", "json").stdout)
    assert [row["buffer"] for row in rows] == [8, 16, 24]


def test_notes_go_to_stderr_and_quiet_ends_them(path: Path) -> None:
    assert "not a multiple of 64" in done("sweep", path, "--policy", "lru").stderr
    assert done("sweep", path, "--policy", "lru", "--quiet").stderr == ""


def test_globs(path: Path) -> None:
    pattern = path.with_name("*.parquet")
    assert done("sweep", pattern, "--policy", "lru").stdout.count("lru") == 3
    result = run("sweep", path.with_name("*.nothing"))
    assert result.exit_code == 2
    assert "no file matches" in result.stderr


def test_curve_writes_a_figure_or_data(path: Path, tmp_path: Path) -> None:
    figure, data = tmp_path / "curve.svg", tmp_path / "curve.csv"
    done("curve", path, "-o", figure)
    assert "synthetic trace small" in figure.read_text()
    done("curve", path, "--policy", "lru,belady", "--buffer", "16", "--window", "10", "-o", data)
    rows = pd.read_csv(data)
    assert rows.groupby("policy")["step"].agg(["min", "max"]).values.tolist() == [[9, 119]] * 2
    assert rows["provenance"].unique().tolist() == ["synthetic"]


def test_policies_lists_all() -> None:
    rows = json.loads(done("policies", "--format", "json").stdout)
    assert [row["policy"] for row in rows] == list(POLICIES)
    assert all(row["summary"] and row["reference"] for row in rows)
    assert all(name in done("policies").stdout for name in POLICIES)


def test_trace_info_describes_layers_and_all(path: Path) -> None:
    text = done("trace", "info", path).stdout
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "synthetic" in text
    rows = json.loads(done("trace", "info", path, "--format", "json").stdout)
    assert [row["layer"] for row in rows] == [0, 2, None]
    assert rows[2]["rows"] == 240
    assert "SmolLM2" in done("trace", "info").stdout


def test_trace_validate_names_what_is_wrong(path: Path, tmp_path: Path) -> None:
    assert done("trace", "validate", path).stdout == f"{path}: ok\n"
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(path.read_bytes()[:-100])
    result = run("trace", "validate", path, broken)
    assert result.exit_code == 1
    assert f"{path}: ok" in result.stdout
    assert str(broken) in result.stderr


def test_trace_sample_cuts(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "part.parquet"
    done("trace", "sample", path, "--layer", "2", "--steps", "10:20", "-o", out)
    assert pq.read_table(out)["step"].to_pylist() == list(range(10, 20))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("sweep nothing.parquet", 1, "nothing.parquet does not exist"),
        ("sweep --policy lur", 2, "unknown policy 'lur'; known are lru"),
        ("sweep --buffer 1024", 1, "choose --buffer 2048 or more"),
        ("sweep --buffer 32768", 2, "not in 1..32767"),
        ("sweep --buffer many", 2, "'many' is not a whole number"),
        ("sweep --start cold", 2, "not one of 'staged', 'direct'"),
        ("sweep --layer 5", 1, "has no layer 5; it has 4, 9"),
        ("sweep --steps 9", 2, "is not FIRST:STOP"),
        ("sweep --steps 9:3", 2, "is not FIRST:STOP"),
        ("sweep --format parquet", 2, "name a file with -o"),
        ("sweep --policy lru -o no/such/folder.csv", 1, "there is no folder"),
        ("sweep --ratio 8 --model gpt", 2, "unknown model 'gpt'"),
        ("sweep --ratio 0", 2, "ratio"),
        ("sweep --link isa", 2, "unknown link"),
        ("sweep --ratio 8 --host-gib 0", 2, "host-gib"),
        ("sweep --policy lru --layer 4 --ratio 8 --host-gib inf", 2, "host-gib"),
        ("curve --window 1000", 2, "choose a smaller --window"),
        ("curve -o curve.tiff", 2, "choose one of .png, .svg, .pdf"),
        ("curve -o no/such/folder.png", 1, "there is no folder"),
        ("trace info nothing.parquet", 1, "does not exist"),
        ("trace validate", 2, "Missing argument"),
        ("trace sample x.parquet", 2, "Missing option"),
    ],
)
def test_errors_are_one_sentence(
    arguments: str, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments.split())
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_bad_row_is_named(path: Path, tmp_path: Path) -> None:
    from make_traces import table, write_table

    bad = demand([[1, 2], [1, 1]], 8, request="r", layer=3)
    file = write_table(tmp_path / "bad.parquet", table([bad]), metadata())
    result = run("sweep", file, "--buffer", "16")
    assert result.exit_code == 1
    assert "bad.parquet" in result.stderr
    assert "layer 3" in result.stderr
    assert "step 1" in result.stderr


def test_help_starts_without_the_heavy_libraries() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from hisparse_sim.cli import cli; "
        "CliRunner().invoke(cli, ['--help']); CliRunner().invoke(cli, ['sweep', '--help']); "
        "heavy = {'numba', 'numpy', 'pandas', 'pyarrow', 'matplotlib', 'torch', 'rich'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize(
    "command",
    ["sweep {} --policy lru -o {}", "curve {} --format csv -o {}", "trace info {} -o {}"],
)
def test_the_input_is_never_overwritten(path: Path, tmp_path: Path, command: str) -> None:
    copy = tmp_path / "in.parquet"
    copy.write_bytes(path.read_bytes())
    result = run(*command.format(copy, copy).split())
    assert result.exit_code == 1
    assert "it is read for this" in result.stderr
    assert copy.read_bytes() == path.read_bytes()


def test_two_outputs_are_two_files(path: Path, tmp_path: Path) -> None:
    one, same = tmp_path / "one.svg", tmp_path / "." / "." / "one.svg"
    result = run("trace", "info", str(path), "-o", str(one), "--plot", str(same), "--format", "csv")
    assert result.exit_code == 1
    assert "two different things would go there" in result.stderr
    assert not one.exists()


def test_a_table_never_loses_a_column() -> None:
    options = "--policy lru,clock --buffer 2048 --ratio 2 --per-layer --layer 4 --steps 0:30"
    text = done("sweep", *options.split(), "--link", "h200-pcie5", "--quiet").stdout
    lines = text.splitlines()
    assert lines[1].split()[:2] == ["layer", "policy"]
    assert [line.split()[1] for line in lines[2:4]] == ["lru", "clock"]


def test_it_runs_without_a_home(path: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    environment = {**os.environ, "HOME": str(blocked), "TMPDIR": str(tmp_path)}
    environment.pop("XDG_CACHE_HOME", None)
    environment.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-m", "hisparse_sim.cli", "trace", "validate", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert found.stdout == f"{path}: ok\n", found.stderr


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="the shell is one of Unix")
@pytest.mark.parametrize("command", ["trace info {}", "trace info {} --format csv", "policies"])
def test_closed_stdout_is_no_failure(path: Path, command: str) -> None:
    program = f"{sys.executable} -m hisparse_sim.cli {command.format(path)} >&-"
    found = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_too_little_memory_is_one_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr("hisparse_sim.traces.info", exhausted)
    result = run("trace", "info", str(path))
    assert result.exit_code == 1
    assert "more memory than there is (Unable to allocate 9 GiB): ask for less" in result.stderr


def test_no_colours_in_a_pipe(path: Path) -> None:
    command = [sys.executable, "-m", "hisparse_sim.cli", "sweep", str(path), "--policy", "lru"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "\x1b" not in found.stdout
    assert "lru" in found.stdout
