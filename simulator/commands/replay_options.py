"""Options that sweep and curve share, and how a long sweep is run: with progress, with its finished
work kept beside the output, and with an orderly end on Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hisparse_sim.simulator.commands.setting_options import known_policies, policy_name
from hisparse_sim.traces.commands.group import Interrupted
from hisparse_sim.traces.commands.options import (
    any_start_option,
    combined,
    expand,
    in_options,
    open_traces,
    provenance_option,
    quiet_option,
    selection_options,
)
from hisparse_sim.traces.commands.values import Name, Number, Real, Seed, given, several
from hisparse_sim.traces.file.metadata import MOST_QUERIES
from hisparse_sim.traces.files import is_file, work_of
from hisparse_sim.traces.terminal import note, wrote

if TYPE_CHECKING:
    from hisparse_sim.simulator.replay.kept import Kept
    from hisparse_sim.simulator.replay.sweeping import Progress
    from hisparse_sim.simulator.replay.swept import Sweep
    from hisparse_sim.simulator.study.studying import Study
    from hisparse_sim.traces import Trace


def _swept_policies() -> Iterable[str]:
    from hisparse_sim.simulator.replay.mode_names import EPOCH_CLOCK

    return (*known_policies(), EPOCH_CLOCK)  # of drafts


traces_argument = click.argument("traces", nargs=-1, metavar="[TRACE]...")
cluster_options = combined(
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="In place of threads: the Dask cluster at this address, such as tcp://host:8786.",
    ),
    click.option(
        "--workers",
        type=Number(1),
        help="In place of threads: so many processes, a Dask cluster on this machine.",
    ),
)
workers_options = combined(
    click.option("--jobs", type=Number(1), help="Threads.  [default: all cores]"),
    cluster_options,
)


def replay_options(
    known: Callable[[], Iterable[str]] = _swept_policies,
    sizes: str = "1, 2 and 3",
    otherwise: str = "; with drafts, resident tokens or vLLM the engine's default",
    every: str = "lru, or with drafts the engine's",
) -> Callable[[Any], Any]:
    """Return the options of what is replayed: `known` policies, by default `every`; by default
    buffers of `sizes` times the top_k, `otherwise` others."""
    return combined(
        click.option(
            "--policy",
            "policies",
            type=Name(lambda: (*known(), "all"), listed=True),
            multiple=True,
            callback=several(policy_name),
            help="Policies, see `hisparse-sim policies`, or FILE.py:NAME of your own, with "
            "parameters as NAME:FIELD=VALUE,FIELD=VALUE; repeat, or separate by commas. all: those "
            f"that apply to every trace.  [default: {every}]",
        ),
        click.option(
            "--buffer",
            "--device-buffer-size",
            "buffers",
            multiple=True,
            callback=several(int, least=1),
            help="Hot buffer sizes in slots per request and layer, such as 4096,6k or "
            f"2048:8192:1024 (k is 1,024).  [default: {sizes} times the largest top_k of the "
            f"traces{otherwise}]",
        ),
        any_start_option,
        selection_options,
        provenance_option,
        click.option(
            "--seed",
            type=Seed(0),
            default=0,
            show_default=True,
            help="Seed of policies that draw at random.",
        ),
        workers_options,
        quiet_option,
    )


# Whose rules were replayed, in what is written.
MODE = ("engine", "draft_tokens", "acceptance_length", "resident_tokens")
mode_options = combined(
    click.option(
        "--draft-tokens",
        type=Number(1, MOST_QUERIES),
        help="Queries of a step, for speculative decoding (vLLM: num_speculative_tokens + 1); a "
        "trace of one a step is regrouped.  [default: those of the trace]",
    ),
    click.option(
        "--acceptance-length",
        type=Real(1, MOST_QUERIES),
        help="With --draft-tokens: mean tokens accepted a step, of a trace that does not say it.  "
        "[default: all]",
    ),
    click.option(
        "--resident-tokens",
        type=Number(0, 2**31 - 1),
        default=0,
        show_default=True,
        help="Tokens of a request that stay on the GPU, in front of its hot buffer: by SGLang's "
        "rules the newest, by vLLM's the pages that it would lose last.",
    ),
)


def refuse_start(start: str, engine: str) -> None:
    """Raise UsageError if --start was given and is not how a buffer starts by the rules of the
    engine."""
    from hisparse_sim.simulator.replay.modes import RULES
    from hisparse_sim.simulator.serving.engines import load_engine

    rules = RULES[load_engine(engine).rules]
    if rules.start not in (None, start) and given("--start"):
        raise click.UsageError(
            f"by the rules of {rules.engine} a buffer always has a {rules.start} start: leave"
            f" --start {start} out"
        )


def open_traces_or_facts(patterns: Sequence[str], provenance: str | None) -> "list[Trace]":
    """Open the files that paths and globs name: traces or facts files."""
    from hisparse_sim.simulator.mrc.counted import as_traces_or_facts, counted_only
    from hisparse_sim.simulator.mrc.facts import is_facts

    paths = expand(patterns)
    if not any(is_facts(path) for path in paths):
        return open_traces(patterns, provenance)
    opened = as_traces_or_facts(paths)
    counted_only(opened)
    return opened


def kept_beside(output: Path | None) -> "Kept | None":
    """Return the file that keeps the work of a sweep until `output` is written, held until the
    command ends."""
    from hisparse_sim.simulator.replay.kept import Kept

    if output is None or not is_file(output):
        return None
    return click.get_current_context().with_resource(Kept(work_of(output)))


@contextmanager
def at_workers(options: dict[str, Any]) -> Iterator[None]:
    """Put an executor in the place of --scheduler or --workers."""
    scheduler, workers = options.pop("scheduler"), options.pop("workers")
    options["executor"] = None
    if scheduler is None and workers is None:
        yield
        return
    if options.get("jobs") is not None or None not in (scheduler, workers):
        raise click.UsageError("give only one of --jobs, --scheduler and --workers")
    from hisparse_sim.simulator.replay.workers import cluster

    with cluster(scheduler, workers) as found:
        options["executor"], options["jobs"] = found
        yield


@contextmanager
def long_work(keep: "Kept | None", quiet: bool) -> Iterator["Callable[[Progress], None] | None"]:
    """Say that kept work is used, and show progress: yields the function that a sweep reports
    to."""
    from hisparse_sim.simulator.views.progress import progress

    if keep is not None and keep.holds_work:
        note(f"resuming from the finished work in {keep.path}", quiet)
    with progress(quiet) as report:
        yield report


def judge(swept: "Sweep | Study", keep: "Kept | None", quiet: bool) -> None:
    """Print the notes of a sweep; fail if it was interrupted and has nothing to show, or has a file
    from which the same command resumes."""
    for each in swept.notes:
        note(in_options(each, click.get_current_context().command), quiet)
    if swept.interrupted and (keep is not None or swept.rows.empty):
        way = ""
        if keep is not None:
            way = f"; {keep.path} keeps the work, and the same command resumes it"
        raise Interrupted(_interrupted(swept) + way)


def end(
    swept: "Sweep | Study", keep: "Kept | None", quiet: bool, output: Path | None = None
) -> None:
    """Say that `output` is written and remove the kept work; exit with 130 if Ctrl-C ended the
    sweep, whose finished rows are on stdout by then."""
    if keep is not None:
        _finish()
    wrote(output, quiet)
    if keep is not None and keep.remove():
        note(
            f"{keep.path} still keeps the finished work of another run with this output; delete"
            " it if that is not needed",
            quiet,
        )
    if swept.interrupted:
        raise Interrupted(
            f"{_interrupted(swept)} and are all that is shown; with -o FILE an interrupted sweep"
            " can be resumed"
        )


def _finish() -> None:
    """Ignore Ctrl-C until the program ends: its result is written."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        root = click.get_current_context().find_root()
        root.call_on_close(lambda: signal.signal(signal.SIGINT, handler))


def _interrupted(swept: "Sweep | Study") -> str:
    return f"interrupted: {swept.finished} of {swept.parts} {swept.counted} were finished"


def selection(swept: "Sweep | Study", options: dict[str, Any]) -> dict[str, Any]:
    """Return which part of the traces the rows are about."""
    chosen = {name: options[name] for name in ("requests", "layers", "steps")}
    if swept.interrupted:
        chosen["interrupted"] = f"{swept.finished} of {swept.parts} parts"
    return chosen
