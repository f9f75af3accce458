"""`hisparse-sim engine`: parses, calls one function of this package, prints."""

import tempfile
from pathlib import Path
from typing import Any

import click

from hisparse_sim.traces.commands.group import Group
from hisparse_sim.traces.commands.options import output_option, quiet_option
from hisparse_sim.traces.commands.values import Number, Output, Real, several
from hisparse_sim.traces.terminal import note, wrote


class EngineGroup(Group):
    """A group that says in one sentence why an engine cannot be watched."""

    def invoke(self, ctx: click.Context) -> Any:
        from hisparse_sim.gpu_replay.engine.releases import EngineError

        try:
            return super().invoke(ctx)
        except EngineError as error:
            raise click.ClickException(self.said(ctx, error)) from error


@click.group(cls=EngineGroup)
def engine() -> None:
    """Count, record and speed up swap-ins inside a running SGLang server."""


@engine.command(context_settings={"ignore_unknown_options": True})
@click.option("--count", is_flag=True, help="Count hits, misses and bytes, as metrics and JSON.")
@click.option(
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write trace files of what is selected into this folder. Counts as well.",
)
@click.option(
    "--kernel", type=click.Choice(["native"]), help="Our swap-in kernel for the engine's."
)
@click.option(
    "--layer",
    "layers",
    multiple=True,
    callback=several(int, least=0),
    help="Layers to record, such as 0-5.  [default: all with an indexer of their own]",
)
@click.option(
    "--share",
    type=Real(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Part of the requests to record, chosen by their ids.",
)
@click.option("--requests", type=Number(1), help="Most requests to record.")
@click.option(
    "--max-gib",
    type=Real(0, min_open=True),
    default=16.0,
    show_default=True,
    help="Most GiB to write.",
)
@click.option(
    "--device-ring-mib", type=Number(1), default=128, show_default=True, help="Ring on the GPU."
)
@click.option(
    "--host-ring-mib",
    type=Number(1),
    default=256,
    show_default=True,
    help="Ring in pinned host memory.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, path_type=Path),
    help="config.json of the model, or its folder: which layers share their positions.  "
    "[default: in the folder of --model-path]",
)
@output_option(Output(".json", ""), "File for the summary.")
@quiet_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(
    count: bool,
    record: Path | None,
    kernel: str | None,
    layers: tuple[int, ...] | None,
    share: float,
    requests: int | None,
    max_gib: float,
    device_ring_mib: int,
    host_ring_mib: int,
    config: Path | None,
    output: Path | None,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run a server command with counters, a recorder or our kernel in it.

    COMMAND stands behind --. No file of the engine is changed. The exit status is the command's.

    \b
    hisparse-sim engine run --count -- python3 -m sglang.launch_server --enable-hisparse ...
    hisparse-sim engine run --record traces --share 0.1 -- python3 -m sglang.launch_server ...
    """
    from hisparse_sim.gpu_replay.engine.launching import (
        check_server,
        keep_summary,
        record_folder,
        run_server,
    )
    from hisparse_sim.gpu_replay.engine.options import MIB, Options
    from hisparse_sim.gpu_replay.engine.summary import lines

    if not (count or record or kernel):
        raise click.UsageError("say what to do: --count, --record DIR or --kernel native")
    server = check_server(command)
    if server.doubt:
        note(f"warning: {server.doubt}", False)
    with tempfile.TemporaryDirectory(prefix="hisparse-sim-") as scratch:
        options = Options(
            folder=str(record_folder(record) if record else Path(scratch).resolve()),
            count=count,
            record=record is not None,
            kernel=kernel or "",
            layers=layers,
            share=share,
            requests=requests,
            device_ring_bytes=device_ring_mib * MIB,
            host_ring_bytes=host_ring_mib * MIB,
        )
        status, summary = run_server(
            server, options, config=config, most_bytes=int(max_gib * 2**30)
        )
        for line in lines(summary):
            note(line, quiet)
        if output is not None:
            keep_summary(summary, output)
            wrote(output, quiet)
    raise SystemExit(status)


@engine.command()
@click.argument("folder", type=click.Path(path_type=Path))
def check(folder: Path) -> None:
    """Replay what was recorded in FOLDER and compare it with what the server counted.

    Exits with 1 if one call differs.

    Example: hisparse-sim engine check traces
    """
    from hisparse_sim.gpu_replay.engine.checking import check_folder, checked_line, verdict

    found = []
    for checked in check_folder(folder):
        click.echo(checked_line(checked))
        found.append(checked)
    click.echo(verdict(found))
    if any(checked.differing for checked in found):
        raise SystemExit(1)
