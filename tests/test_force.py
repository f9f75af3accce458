"""A trace may have taken hours: no command that writes one replaces another unless told to."""

import os
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from fake_sglang import MODEL, NEW_TOKENS, FakeServer, fake
from make_traces import drift, metadata, write

from hisparse_sim.cli import cli
from hisparse_sim.traces import open_trace

__all__ = ["fake"]  # a fixture
OUT = "out.parquet"
# Every command that writes a trace, or beside traces; URL stands for that of a server.
COMMANDS = {
    "synth": "synth --shape cyclic --top-k 8 --context 99 --distinct 40 --steps 3",
    "convert": "convert rows.npy --prompt-len 20 --provenance synthetic",
    "sample": "sample in.parquet --steps 0:5",
    "export": "export in.parquet --to oraclegeneral",
    "capture sglang": f"capture sglang --url URL --model m --layers {MODEL.num_layers} --top-k "
    f"{MODEL.top_k} --max-new-tokens {NEW_TOKENS} --prompts prompts.txt",
}
HF = "capture hf --model absent/model --text x"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.arange(24, dtype=np.int32).reshape(3, 2, 4) % 9 + 1)
    Path("prompts.txt").write_text("a bb ccc dddd")
    write("in.parquet", [drift(steps=9)], metadata())
    write(OUT, [drift(steps=9, seed=1)], metadata())
    return tmp_path


def run(command: str, url: str = "http://127.0.0.1:9", *more: str) -> Result:
    words = command.replace("URL", url).split()
    return CliRunner().invoke(cli, ["trace", *words, "-o", OUT, *more])


@pytest.mark.parametrize("command", [*COMMANDS.values(), HF], ids=[*COMMANDS, "capture hf"])
def test_refused_before_any_work(command: str, folder: Path) -> None:
    before, there = Path(OUT).read_bytes(), sorted(folder.iterdir())
    found = run(command)
    assert found.exit_code == 2, found.output
    assert found.stderr.splitlines()[-1] == (
        f"Error: {OUT} is an existing trace: name another file, or overwrite it with --force"
    )
    assert Path(OUT).read_bytes() == before
    assert sorted(folder.iterdir()) == there


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("kind", ["trace", "broken trace", "empty", "text"])
def test_replaced_when_told_to_or_when_it_is_no_trace(
    name: str, kind: str, folder: Path, fake: FakeServer
) -> None:
    if kind == "broken trace":
        Path(OUT).write_bytes(Path(OUT).read_bytes()[:-9])
    elif kind != "trace":
        Path(OUT).write_text("" if kind == "empty" else "no trace")
    before = Path(OUT).read_bytes()
    force = ["--force"] if "trace" in kind else []
    if force:
        assert run(COMMANDS[name], fake.url).exit_code == 2
        assert fake.requests == []
    found = run(COMMANDS[name], fake.url, *force)
    assert found.exit_code == 0, found.output
    assert Path(OUT).read_bytes() != before
    if name != "export":
        assert open_trace(OUT).rows > 0


def test_an_input_is_never_replaced(folder: Path) -> None:
    for force in ([], ["--force"]):
        arguments = ["trace", "sample", "in.parquet", "-o", "./in.parquet", *force]
        found = CliRunner().invoke(cli, arguments)
        assert found.exit_code == 1
        assert "it is read for this" in found.stderr


def test_pipes_and_links(folder: Path) -> None:
    """A link to a trace stands for it; what goes into a pipe replaces nothing."""
    Path("link.parquet").symlink_to(OUT)
    arguments = ["trace", "sample", "in.parquet", "-o"]
    assert CliRunner().invoke(cli, [*arguments, "link.parquet"]).exit_code == 2
    os.mkfifo("pipe")
    from hisparse_sim.traces.files import holds_trace

    assert not holds_trace("pipe")
    assert not holds_trace(folder)


def test_a_resumed_capture_resumes(folder: Path, fake: FakeServer) -> None:
    Path(OUT).unlink()
    Path("prompts.jsonl").write_text('{"text": "a bb ccc"}\n{"text": "a bb ccc dddd e"}\n')
    command = COMMANDS["capture sglang"].replace("prompts.txt", "prompts.jsonl")
    command += " --concurrency 1"
    fake.faults["none"] = 1  # the first request passes
    fake.faults["refused"] = 9
    assert "1 of 2 requests are kept" in run(command, fake.url).stderr
    fake.faults.clear()
    found = run(command, fake.url)
    assert found.exit_code == 0, found.output
    assert len(fake.requests) == 3
    assert open_trace(OUT).requests == ("1", "2")


def test_every_command_that_writes_a_trace_is_here() -> None:
    group = cli.get_command(click.Context(cli), "trace")
    assert isinstance(group, click.Group)
    forced = set()
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        below = command.commands if isinstance(command, click.Group) else {name: command}
        forced |= {
            name
            for each in below.values()
            # That of `info`, which the command does not see, is for results behind URLs.
            if each is not None
            and any("--force" in option.opts and option.expose_value for option in each.params)
        }
    assert forced == {name.split()[0] for name in COMMANDS}
