"""The command line: parses, calls one library function, prints.

Data goes to stdout, notes and progress to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import glob
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    import pandas as pd

    from hisparse_sim.simulator.sweeping import Progress, Sweep
    from hisparse_sim.traces import Trace

Command = TypeVar("Command", bound=Callable[..., Any])


class Group(click.Group):
    """A group that explains errors in one sentence and loads commands of other rooms when
    needed."""

    def __init__(
        self, *args: Any, elsewhere: dict[str, tuple[str, str]] | None = None, **kwargs: Any
    ):
        """`elsewhere`: name of a command -> (module:attribute, its line in the help)."""
        super().__init__(*args, **kwargs)
        self.elsewhere = elsewhere or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.elsewhere})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.elsewhere:
            return super().get_command(ctx, name)
        module, attribute = self.elsewhere[name][0].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = []
        for name in self.list_commands(ctx):
            if name in self.elsewhere:
                lines.append((name, self.elsewhere[name][1]))
            elif command := super().get_command(ctx, name):
                lines.append((name, command.get_short_help_str(limit=70)))
        with formatter.section("Commands"):
            formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> Any:
        from hisparse_sim.traces.errors import TraceError

        try:
            return super().invoke(ctx)
        except TraceError as error:
            raise click.ClickException(str(error)) from error
        except ValueError as error:
            if isinstance(error, UnicodeError):
                raise
            raise click.UsageError(str(error)) from error
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise click.ClickException(
                f"{error.filename or ''} {error.strerror or error}".strip()
            ) from error


def several(kind: type[Any]) -> Callable[..., tuple[Any, ...] | None]:
    """Return a callback for options that are repeated or hold values separated by commas."""

    def parse(
        ctx: click.Context, parameter: click.Parameter, given: Sequence[str]
    ) -> tuple[Any, ...] | None:
        if not given:
            return None
        values = []
        for text in ",".join(given).split(","):
            try:
                values.append(kind(text.strip()))
            except ValueError:
                raise click.BadParameter(f"{text!r} is not {_NAME_OF[kind]}") from None
        return tuple(dict.fromkeys(values))

    return parse


_NAME_OF = {int: "a whole number", str: "a name", float: "a number"}


def step_range(
    ctx: click.Context, parameter: click.Parameter, given: str | None
) -> tuple[int, int] | None:
    """Parse FIRST:STOP, either of which may be left out."""
    if given is None:
        return None
    first, colon, stop = given.partition(":")
    try:
        steps = int(first or 0), int(stop or 2**31 - 1)
    except ValueError:
        steps = (0, 0)
    if not colon or steps[0] >= steps[1]:
        raise click.BadParameter(f"{given!r} is not FIRST:STOP, as in 0:500 or 100:")
    return steps


def combined(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return one decorator for several options, in the order in which help shows them."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


traces_argument = click.argument("traces", nargs=-1, metavar="[TRACE]...")
provenance_option = click.option(
    "--provenance", help="Where the positions come from, for a trace that does not say."
)
selection_options = combined(
    click.option("--request", "requests", multiple=True, callback=several(str), help="Only these."),
    click.option("--layer", "layers", multiple=True, callback=several(int), help="Only these."),
    click.option(
        "--steps", callback=step_range, metavar="FIRST:STOP", help="Only steps FIRST..STOP-1."
    ),
)
replay_options = combined(
    click.option(
        "--policy",
        "policies",
        multiple=True,
        callback=several(str),
        help="Policies, see `hisparse-sim policies`; repeat or separate by commas.",
    ),
    click.option(
        "--buffer",
        "--device-buffer-size",
        "buffers",
        multiple=True,
        callback=several(int),
        help="Hot buffer sizes in slots per request and layer.  [default: top_k x 1, 2, 3]",
    ),
    click.option(
        "--start",
        type=click.Choice(["staged", "direct"]),
        default="staged",
        show_default=True,
        help="staged: prefill on the same GPU; direct: KV arrived in host memory.",
    ),
    selection_options,
    provenance_option,
    click.option("--seed", default=0, show_default=True, help="For the policy random."),
    click.option("--jobs", type=click.IntRange(1), help="Threads.  [default: all cores]"),
    click.option("--quiet", is_flag=True, help="No progress and no notes on stderr."),
)
output_options = combined(
    click.option(
        "--format",
        "form",
        type=click.Choice(["table", "csv", "json", "jsonl", "parquet"]),
        help="[default: the suffix of -o, else table]",
    ),
    click.option(
        "-o", "--output", type=click.Path(path_type=Path), help="Write to this file, not to stdout."
    ),
)

_SIMULATOR = "hisparse_sim.simulator.commands"
_TRACES = "hisparse_sim.traces.commands"


_ELSEWHERE = {
    "gpu": ("hisparse_sim.gpu_replay.commands:gpu", "Replay and measure on an NVIDIA GPU."),
    "plan": (f"{_SIMULATOR}:plan", "Choose device_buffer_size and host_to_device_ratio."),
    "reproduce": (f"{_SIMULATOR}:reproduce", "Redo published figures."),
    "serve": (f"{_SIMULATOR}:serve", "Simulate serving: throughput, latency, break-even."),
}


@click.group(
    cls=Group,
    elsewhere=_ELSEWHERE,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="hisparse-sim")
def cli() -> None:
    """Simulate the hot buffer of sparse-attention serving (HiSparse) offline.

    \b
    How many misses has my workload at this buffer size?   hisparse-sim sweep
    How do they develop as a request goes on?              hisparse-sim curve
    What is in a trace of top-k positions?                 hisparse-sim trace info
    """


@cli.command()
@traces_argument
@replay_options
@click.option("--per-layer", is_flag=True, help="One row per request and layer.")
@click.option("--no-regret", is_flag=True, help="Leave out the comparison with Belady's optimum.")
@click.option(
    "--ratio",
    "--host-to-device-ratio",
    "ratios",
    multiple=True,
    callback=several(int),
    help="host_to_device_ratio: adds what fits into memory and the bytes over the link.",
)
@click.option("--model", help="Model for bytes and memory.  [default: the trace's, else glm-5.1]")
@click.option(
    "--kv-dtype",
    type=click.Choice(["bf16", "fp8", "fp8-raw"]),
    default="bf16",
    show_default=True,
    help="KV cache entries: 1152, 656 or 576 bytes per token and layer.",
)
@click.option(
    "--device-pool-gib",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="GPU memory left for KV, per GPU.",
)
@click.option(
    "--host-gib",
    type=click.FloatRange(0, min_open=True),
    default=250.0,
    show_default=True,
    help="Host memory for the KV pool, per GPU.",
)
@click.option(
    "--output-len",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Tokens that a request still grows by after the trace, for memory.",
)
@output_options
def sweep(
    traces: tuple[str, ...],
    policies: tuple[str, ...] | None,
    buffers: tuple[int, ...] | None,
    per_layer: bool,
    no_regret: bool,
    ratios: tuple[int, ...] | None,
    form: str | None,
    output: Path | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Misses of every policy at every buffer size.

    TRACE: trace files or globs; the bundled sample if there is none.

    \b
    hisparse-sim sweep --buffer 4096 --ratio 8
    hisparse-sim sweep trace.parquet --policy lru,arc --buffer 2048,4096,6144
    hisparse-sim sweep trace.parquet --per-layer -o rows.parquet
    """
    from hisparse_sim.simulator.costs import add_costs
    from hisparse_sim.simulator.views import show_sweep

    costs = {
        name: options.pop(name)
        for name in ("kv_dtype", "device_pool_gib", "host_gib", "output_len")
    }
    model_name = options.pop("model")
    form = output_form(form, output)
    opened = open_traces(traces, options.pop("provenance"))
    model = choose_model(model_name, opened, quiet) if ratios or model_name else None
    swept = run_sweep(
        opened, policies, buffers, quiet, regret=not no_regret, per_layer=per_layer, **options
    )
    rows = swept.rows
    if model is not None:
        rows = add_costs(swept, model, ratios or (2,), **costs)
    if form == "table":
        show_sweep(rows, output)
        return
    parameters = {**{k: options[k] for k in ("requests", "layers", "steps")}}
    if model is not None:
        parameters |= costs
    write(stamped(rows, opened, options["seed"], parameters), form, output)


@cli.command()
@traces_argument
@replay_options
@click.option("--window", type=click.IntRange(1), default=100, show_default=True, help="Steps.")
@click.option(
    "--skip-steps",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Leave out the first steps of every request (the start-up burst).",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "json", "jsonl", "parquet"]),
    help="Data instead of a figure.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Figure (.png, .svg, .pdf) or data file (.csv, .json, .jsonl, .parquet).  "
    "[default: curve.png; with --format: stdout]",
)
def curve(
    traces: tuple[str, ...],
    policies: tuple[str, ...] | None,
    buffers: tuple[int, ...] | None,
    window: int,
    skip_steps: int,
    form: str | None,
    output: Path | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Draw misses per step, smoothed by a rolling window.

    One line per policy and buffer, the mean over layers, with a band over them. The default policy
    is lru.

    \b
    hisparse-sim curve -o curve.svg
    hisparse-sim curve trace.parquet --policy lru,belady --buffer 4096 --format csv
    """
    from hisparse_sim.simulator import figures
    from hisparse_sim.simulator.curves import rolling_curves

    form = output_form(form, output)
    path = output or Path("curve.png")
    if form == "table":
        figures.check_suffix(path)
        output_form(None, path)
    opened = open_traces(traces, options.pop("provenance"))
    if len(opened) > 1:
        raise click.UsageError("curve takes one trace")
    swept = run_sweep(opened, policies or ("lru",), buffers, quiet, regret=False, **options)
    curves = rolling_curves(swept, window, skip_steps)
    if form != "table":
        parameters = {"window": window, "skip_steps": skip_steps, "start": options["start"]}
        write(stamped(curves, opened, options["seed"], parameters), form, output)
        return
    metadata = opened[0].metadata
    origin = f"{metadata.provenance} trace {opened[0].name} ({metadata.model}); simulated"
    figures.save(figures.rolling_misses(curves, window=window, provenance=origin), path)
    note(f"wrote {path}", quiet)


@cli.command("policies")
@output_options
def list_policies(form: str | None, output: Path | None) -> None:
    """List the policies: name, what it does, reference."""
    import pandas as pd

    from hisparse_sim.policies import POLICIES
    from hisparse_sim.simulator.views import show_policies

    rows = pd.DataFrame(
        [
            {"policy": policy.name, "summary": policy.summary, "reference": policy.reference}
            for policy in POLICIES.values()
        ]
    )
    form = output_form(form, output)
    if form == "table":
        show_policies(rows, output)
    else:
        write(rows, form, output)


_CAPTURE = {
    "capture": (f"{_TRACES}:capture", "Capture a trace from a running engine or a model."),
    "convert": (f"{_TRACES}:convert", "Make a trace file of what other tools saved."),
    "export": (f"{_TRACES}:export", "Write a trace in the formats of other simulators."),
    "synth": (f"{_TRACES}:synth", "Make a synthetic trace."),
}


@cli.group(cls=Group, elsewhere=_CAPTURE)
def trace() -> None:
    """Look into, check, cut, capture and convert trace files."""


@trace.command()
@click.argument("path", metavar="[TRACE]", required=False)
@provenance_option
@output_options
def info(path: str | None, provenance: str | None, form: str | None, output: Path | None) -> None:
    """Describe a trace: what it holds and how local its demand is, per layer and in all.

    \b
    hisparse-sim trace info
    hisparse-sim trace info trace.parquet --format json
    """
    from dataclasses import asdict

    import pandas as pd

    from hisparse_sim.simulator.views import show_trace_info
    from hisparse_sim.traces import info as describe

    form = output_form(form, output)
    described = describe(open_traces([path] if path else [], provenance)[0])
    if form == "table":
        show_trace_info(described, output)
        return
    rows = pd.DataFrame([asdict(layer) for layer in (*described.per_layer, described.total)])
    rows = rows.astype({"layer": "Int64"})
    rows.insert(0, "trace", described.path.stem)
    rows.insert(1, "provenance", described.metadata.provenance)
    rows["trace_sha256"] = described.sha256
    write(rows, form, output)


@trace.command()
@click.argument("paths", metavar="TRACE...", nargs=-1, required=True)
@provenance_option
def validate(paths: tuple[str, ...], provenance: str | None) -> None:
    """Read whole files and say what is wrong with them; exit code 1 if anything is.

    \b
    hisparse-sim trace validate captured/*.parquet
    """
    from hisparse_sim.traces import validate as check

    failed = False
    for path in expand(paths):
        found = check(path, provenance)
        for warning in found.warnings:
            click.echo(f"warning: {warning}", err=True)
        for problem in found.problems:
            click.echo(f"error: {problem}", err=True)
        if not found.complete:
            click.echo(f"error: {path}: gave up after {len(found.problems)} problems", err=True)
        failed = failed or not found.ok
        click.echo(f"{path}: {'ok' if found.ok else 'cannot be used'}")
    if failed:
        raise click.exceptions.Exit(1)


@trace.command()
@click.argument("path", metavar="TRACE")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The new trace file."
)
@selection_options
@provenance_option
def sample(path: str, output: Path, provenance: str | None, **selection: Any) -> None:
    """Cut a trace by request, layer and step.

    \b
    hisparse-sim trace sample trace.parquet --layer 0,20,40 --steps 0:256 -o small.parquet
    """
    from hisparse_sim.traces import sample as cut

    opened = open_traces([path], provenance)[0]
    cut(opened, output, **selection)
    note(f"wrote {output}", quiet=False)


def expand(patterns: Sequence[str]) -> list[str]:
    """Return the files that paths and globs name, each once."""
    paths = []
    for pattern in patterns:
        found = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
        if not found:
            raise click.UsageError(f"no file matches {pattern}")
        paths.extend(found)
    return list(dict.fromkeys(paths))


def open_traces(patterns: Sequence[str], provenance: str | None) -> list["Trace"]:
    """Open the files that paths and globs name; the bundled sample if there are none."""
    from hisparse_sim.traces import open_trace, sample_path

    if not patterns:
        return [open_trace(sample_path())]
    return [open_trace(path, provenance) for path in expand(patterns)]


def choose_model(name: str | None, opened: Sequence["Trace"], quiet: bool) -> Any:
    """Return the profile of the model: the one named, else the trace's, else glm-5.1 with a
    note."""
    from hisparse_sim.simulator.models import load_model

    if name is not None:
        return load_model(name)
    try:
        return load_model(opened[0].metadata.model)
    except ValueError:
        model = load_model("glm-5.1")
        traced = opened[0].metadata.model or "the trace"
        note(
            f"bytes and memory are those of {model.name} ({traced} has no profile; --model)", quiet
        )
        return model


def run_sweep(
    opened: Sequence["Trace"],
    policies: Sequence[str] | None,
    buffers: Sequence[int] | None,
    quiet: bool,
    **options: Any,
) -> "Sweep":
    """Sweep with progress on stderr; say so if it was interrupted."""
    from hisparse_sim.policies import POLICIES
    from hisparse_sim.simulator import sweep as run

    top_k = max(trace.metadata.top_k for trace in opened)
    buffers = buffers or (top_k, 2 * top_k, 3 * top_k)
    for size in buffers:
        if size % 64:
            note(f"buffer {size} is no multiple of 64, which the engine requires", quiet)
    with progress(quiet) as report:
        swept = run(opened, policies or tuple(POLICIES), buffers, progress=report, **options)
    if swept.interrupted:
        note(
            f"interrupted: the rows cover {swept.finished} of {swept.parts} (request, layer) parts",
            quiet=False,
        )
        if not swept.finished:
            raise click.exceptions.Exit(1)
    return swept


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[["Progress"], None] | None]:
    """Show a bar with rate and remaining time on stderr, if that is a terminal."""
    from threading import Timer

    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBar

    # Loading compiled loops takes a moment; longer than that, it is the first run and they are
    # made.
    compiling = Timer(1.0, note, ("compiling the replay loops (first run only)", quiet))
    compiling.daemon = True
    compiling.start()
    bar = ProgressBar(
        TextColumn("replaying"),
        BarColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("", total=None, rate="")

        def report(now: "Progress") -> None:
            compiling.cancel()
            elapsed = bar.tasks[0].elapsed or 0
            rate = f"{now.accesses / elapsed / 1e6:.0f} M accesses/s" if elapsed else ""
            bar.update(task, completed=now.steps, total=now.total_steps, rate=rate)

        try:
            yield report
        finally:
            compiling.cancel()


def output_form(form: str | None, output: Path | None) -> str:
    """Return the format asked for, else that of the file's suffix, else table.

    Refuses at once what could not be written after the work.
    """
    from hisparse_sim.traces.files import refuse_unwritable

    if output is not None:
        refuse_unwritable(output)
    elif form == "parquet":
        raise click.UsageError("parquet is binary: name a file with -o")
    suffix = output.suffix.lower().lstrip(".") if output else ""
    return form or (suffix if suffix in ("csv", "json", "jsonl", "parquet") else "table")


def stamped(
    rows: "pd.DataFrame", opened: Sequence["Trace"], seed: int, parameters: dict[str, Any]
) -> "pd.DataFrame":
    """Add to every row what is needed to get it again."""
    from importlib.metadata import version

    digests = {trace.name: trace.sha256 for trace in opened}
    only = opened[0].sha256 if len(opened) == 1 else None
    return rows.assign(
        seed=seed,
        parameters=json.dumps({k: v for k, v in parameters.items() if v is not None}),
        trace_sha256=only or rows["trace"].map(digests),
        version=version("hisparse-sim"),
    )


def write(rows: "pd.DataFrame", form: str, output: Path | None) -> None:
    """Write rows as data."""
    from hisparse_sim.simulator.tables import write_rows

    write_rows(rows, form, output)


def note(text: str, quiet: bool) -> None:
    """Say something beside the data, on stderr."""
    if not quiet:
        click.echo(text, err=True)


if __name__ == "__main__":
    cli()
