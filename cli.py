"""The command line: `hisparse-sim COMMAND`, each command loaded from its package when it is called.

Data goes to stdout, notes and progress to stderr. Exit codes: see `traces/commands/group.py`.
"""

import click

from hisparse_sim.traces.commands.group import Group
from hisparse_sim.traces.commands.version import show_version, wanted_verbose

_GPU = "hisparse_sim.gpu_replay.commands"
_SIMULATOR = "hisparse_sim.simulator.commands"
_TRACES = "hisparse_sim.traces.commands"

_COMMANDS = {
    "budget": (f"{_SIMULATOR}.budget:budget", "Choose a buffer size per layer."),
    "curve": (
        f"{_SIMULATOR}.curve:curve",
        "Draw the misses of decode steps, or their time, as a rolling mean.",
    ),
    "engine": (
        f"{_GPU}.engine:engine",
        "Count, record and speed up swap-ins inside a running SGLang.",
    ),
    "explore": (f"{_SIMULATOR}.explore:explore", "Serve the report with live controls."),
    "gpu": (f"{_GPU}.gpu:gpu", "Replay and measure on an NVIDIA GPU."),
    "mrc": (f"{_SIMULATOR}.mrc:mrc", "Count misses at all buffer sizes in one pass."),
    "policies": (f"{_SIMULATOR}.policies:list_policies", "List the policies, one line each."),
    "observe": (
        f"{_SIMULATOR}.observe:observe",
        "Compare the counters of a running vLLM with a simulation.",
    ),
    "plan": (
        f"{_SIMULATOR}.plan:plan",
        "Choose device_buffer_size and host_to_device_ratio.",
    ),
    "plot": (f"{_SIMULATOR}.plot:plot", "Draw a result as a figure, also for a paper."),
    "profiles": (
        f"{_SIMULATOR}.profiles:list_profiles",
        "Show models, machines, links, engines and step times.",
    ),
    "report": (f"{_SIMULATOR}.report:report", "Write one HTML page of results."),
    "reproduce": (
        f"{_SIMULATOR}.reproduce:reproduce",
        "Compare published figures with the model's.",
    ),
    "serve": (
        f"{_SIMULATOR}.serve:serve",
        "Simulate serving: throughput, latency, break-even.",
    ),
    "study": (
        f"{_SIMULATOR}.study:study",
        "Compare policies and prefetchers with LRU and with lower bounds.",
    ),
    "sweep": (f"{_SIMULATOR}.sweep:sweep", "Count the misses of policies at several buffer sizes."),
}
_TRACE_COMMANDS = {
    "capture": (f"{_TRACES}.capture:capture", "Capture a trace from a running engine or a model."),
    "convert": (f"{_TRACES}.convert:convert", "Make a trace file from what other tools saved."),
    "export": (f"{_TRACES}.convert:export", "Write a trace in the formats of other simulators."),
    "info": (
        f"{_SIMULATOR}.trace_info:info",
        "Describe a trace: its contents and how local its accesses are.",
    ),
    "sample": (f"{_TRACES}.check:sample", "Cut a trace by request, layer and step."),
    "synth": (f"{_SIMULATOR}.trace_synth:synth", "Make a synthetic trace."),
    "validate": (
        f"{_TRACES}.check:validate",
        "Read whole files and report what is wrong with them.",
    ),
}


@click.group(
    cls=Group,
    elsewhere=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=show_version,
    help="Show the version; with --verbose all that a bug report needs.",
)
@click.option(
    "--verbose",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=wanted_verbose,
    hidden=True,
)
def cli() -> None:
    """Simulate the hot buffer of sparse-attention serving (HiSparse) offline.

    \b
    How many misses does my workload have at a buffer size?   hisparse-sim sweep
    And at every other size?                                  hisparse-sim mrc
    How do misses change over decode steps?                   hisparse-sim curve
    What is in a trace of top-k positions?                    hisparse-sim trace info

    Numbers may be written 64k (65,536), lists of them 0-5 or 2048:8192:1024. To complete commands,
    policies and profiles, put `eval "$(_HISPARSE_SIM_COMPLETE=bash_source hisparse-sim)"` into
    ~/.bashrc (for zsh and fish see docs/cli.md).
    """


@cli.group(cls=Group, elsewhere=_TRACE_COMMANDS)
def trace() -> None:
    """Describe, check, cut, capture and convert trace files."""


if __name__ == "__main__":
    cli()
