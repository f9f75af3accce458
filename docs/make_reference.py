"""Writes cli.md and api.md from the program: `python docs/make_reference.py`.

The command line comes from its own help texts; the Python names from the source, read and not
imported, so that the text does not depend on the Python version."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import click

DOCS = Path(__file__).parent
WIDTH = 96
# The essentials: the names of `hisparse_sim`, by what they are for.
ESSENTIALS = {
    "Traces": (
        "Every function takes paths, opened traces, or traces in memory; without any it takes the "
        "sample that ships with the package.",
        "open_trace trace_from_array trace_from_frame capture_hf sample_path Trace TraceError",
    ),
    "Misses": (
        "Results hold their rows as a DataFrame and show themselves in a notebook.",
        "sweep mrc sampled_mrc budget curve study replay Sweep Replay locality",
    ),
    "Policies": (
        "A policy's name, `FILE.py:NAME` or a `Policy` goes wherever a policy is asked for.",
        "policies Policy Setup Step hook lift PolicyError",
    ),
    "Deployments": (
        "Models, machines, links and engines have the names that `profiles` lists.",
        "plan serve check_config reproduce swap_in_us measured_swap_ins profiles",
    ),
}
# Shown below the name, and run by tests/test_docs.py in this order.
EXAMPLES = {
    "open_trace": "trace = hs.open_trace(hs.sample_path())\ntrace.layers, trace.metadata.top_k",
    "trace_from_array": (
        "# Three decode steps of one layer, two positions each, behind a prompt of nine tokens.\n"
        "mine = hs.trace_from_array([[3, 9], [4, 3], [5, 11]], prompt_len=9)\n"
        'mine.save("mine.parquet")'
    ),
    "trace_from_frame": (
        'frame = pd.read_parquet("mine.parquet")  # request, layer, step, seq_len, positions\n'
        'mine = hs.trace_from_frame(frame, provenance="synthetic")'
    ),
    "capture_hf": 'hs.capture_hf("smollm2.parquet", model="smollm2", steps=128)',
    "sample_path": "hs.sample_path()",
    "sweep": (
        'swept = hs.sweep(policies=["lru", "belady"], buffers=[4096, 6144], ratios=8)\n'
        'swept.rows[["policy", "buffer", "miss_rate", "excess_over_min", "requests_per_gpu"]]'
    ),
    "mrc": "curves = hs.mrc(layers=4)  # misses at every buffer size, from one pass",
    "sampled_mrc": "hs.sampled_mrc(layers=4, sample_steps=0.5)  # low and high: 95 % intervals",
    "budget": "hs.budget(buffer=6144).rows",
    "curve": (
        'curves = hs.curve(buffers=[2048, 4096], window=100, link="h200-pcie5")\n'
        "hs.figures.rolling_misses(curves.rows)"
    ),
    "study": (
        'study = hs.study(policies=["lru", "clock"], buffers=4096, prefetchers=(), layers=[4, 9])\n'
        'study.rows[["policy", "miss_rate", "change", "p_value", "lru_slots", "fetch_regret_us"]]'
    ),
    "replay": 'hs.replay(hs.sample_path(), "arc", 4096, layers=4).misses  # of every step',
    "locality": "hs.figures.locality_page(hs.locality(layers=[4, 9]))",
    "policies": "hs.policies()",
    "plan": (
        'plan = hs.plan(model="glm-5.1", hardware="h200", concurrency=256)\nplan.best, plan.flags'
    ),
    "serve": 'hs.serve(modes=["baseline", "hisparse"], concurrencies=[8, 64]).rows',
    "check_config": 'hs.check_config(\'{"device_buffer_size": 4096, "host_to_device_ratio": 8}\')',
    "reproduce": "hs.reproduce()  # takes some minutes",
    "swap_in_us": (
        'hs.swap_in_us("h200-pcie5", "sglang", batch=[1, 64], misses=512, buffer=4096, '
        "entry_bytes=1152)"
    ),
    "measured_swap_ins": 'hs.measured_swap_ins().query("batch == 64")',
    "profiles": 'hs.profiles(table="links")',
}
FIGURES = "hisparse_sim.simulator.views.figures"
# The internals, by module: for contributors, and for those who need a part on its own.
INTERNALS = (
    "hisparse_sim.traces",
    "hisparse_sim.traces.locality.measure",
    "hisparse_sim.simulator.replay",
    "hisparse_sim.simulator.replay.totals",
    "hisparse_sim.simulator.mrc",
    "hisparse_sim.simulator.serving.scenario",
    "hisparse_sim.simulator.serving.latency",
    "hisparse_sim.simulator.serving.plan",
    "hisparse_sim.simulator.serving.prediction",
    "hisparse_sim.simulator.views.locality_view",
    "hisparse_sim.simulator.views.report",
)


def command_line() -> str:
    """Return the page of all commands with their help."""
    from hisparse_sim.cli import cli

    parts = [
        "# Command line",
        "Made from the program's own help. Data goes to stdout, notes and progress to stderr; exit "
        "codes are 0 (done), 1 (failed), 2 (wrong usage) and 128 + the number of the signal that "
        "ended it (130: Ctrl-C). Options that take several values are repeated or separated by "
        "commas, of another given twice the last counts; numbers may be written 64k (65,536), "
        "lists of them 0-5 or 2048:8192:1024 (both ends count). Written by click "
        + click_version()
        + ".",
        "Shells complete commands, options, policies and profiles. For bash, zsh or fish, add the "
        "line of yours to its start-up file:",
        "```console\n"
        'eval "$(_HISPARSE_SIM_COMPLETE=bash_source hisparse-sim)"\n'
        'eval "$(_HISPARSE_SIM_COMPLETE=zsh_source hisparse-sim)"\n'
        "_HISPARSE_SIM_COMPLETE=fish_source hisparse-sim | source\n"
        "```",
    ]
    root = click.Context(
        cli, info_name="hisparse-sim", terminal_width=WIDTH, **cli.context_settings
    )
    for context in contexts(root):
        title = context.command_path
        text = context.get_help().rstrip()
        level = "#" * min(3, title.count(" ") + 2)
        parts.append(f"{level} {title}\n\n```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def click_version() -> str:
    """Return the first two parts of click's version: others lay help out in another way."""
    return ".".join(version("click").split(".")[:2])


def contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield the context of a command and those of all below it."""
    yield context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                inner = click.Context(below, parent=context, info_name=name, terminal_width=WIDTH)
                yield from contexts(inner)


def python() -> str:
    """Return the page of all public names with their signatures and docstrings."""
    parts = [
        "# Python",
        "`import hisparse_sim as hs` is all that the examples need (and pandas as pd). Functions "
        "take the options of the [commands](cli.md), with the same defaults; an option that may be "
        "repeated is a plural argument and takes one value or several. Tables are pandas "
        "DataFrames, their columns in [Columns and formulas](metrics.md). A wrong argument raises "
        "ValueError, a bad trace its subclass TraceError: one sentence each.",
    ]
    told: set[str] = set()
    for title, (summary, names) in ESSENTIALS.items():
        parts.append(f"## {title}\n\n{summary}")
        for name in names.split():
            told.add(name)
            parts.append(_essential(name))
        if title == "Deployments":
            told.add("Scenario")
            scenario = _definition("hisparse_sim.simulator.serving.scenario", "Scenario")
            assert scenario is not None
            parts.append(_described(scenario))
    parts.append(
        "## Figures\n\n`hs.figures` draws tidy tables: each function takes rows, draws into "
        "`axes` or a new figure, and returns the matplotlib Axes. `hs.figures.save(drawn, path)` "
        "writes it."
    )
    parts += _module(FIGURES, told)
    parts.append(
        "# Internals\n\nThe parts behind the functions above, for contributors; the page "
        "[Internals](internals.md) shows how they fit together. They may change between releases."
    )
    for path in INTERNALS:
        parts.append(f"## {path}\n\n{_text(ast.get_docstring(_tree(path)) or '')}")
        parts += _module(path, told)
    return "\n\n".join(parts) + "\n"


def _essential(name: str) -> str:
    """Return what a name of `hisparse_sim` is, with its example."""
    import hisparse_sim as hs

    if name == "policies":  # a package that can be called
        node = _definition("hisparse_sim.policies", "table")
        assert node is not None
        node.name = name
    else:
        home = import_module(f"hisparse_sim.{hs._MODULE_OF[name]}")
        node = _definition(getattr(getattr(home, name), "__module__", ""), name)
        assert node is not None, name
    example = f"\n\n```python\n{EXAMPLES[name]}\n```" if name in EXAMPLES else ""
    return _described(node) + example


def _module(path: str, told: set[str]) -> list[str]:
    """Return the public functions and classes of a module, or what a package passes on, that are
    not told yet."""
    module = import_module(path)
    if hasattr(module, "__all__"):
        homes = {
            name: getattr(getattr(module, name), "__module__", None) for name in module.__all__
        }
        found = [_definition(home, name) for name, home in homes.items() if home]
        nodes = [node for node in found if node is not None]
    else:
        nodes = [
            node
            for node in _tree(path).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node)
        ]
    nodes = [node for node in nodes if not node.name.startswith("_") and node.name not in told]
    told |= {node.name for node in nodes}
    return [_described(node) for node in nodes]


def _tree(module: str) -> ast.Module:
    source = import_module(module).__file__
    assert source is not None
    return ast.parse(Path(source).read_text(encoding="utf-8"))


def _definition(module: str, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    return None


def _described(node: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.FunctionDef):
        shown = _signature(node)
    else:
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        shown = f"class {node.name}({bases})" if bases else f"class {node.name}"
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_"):
                shown += f"\n    {ast.unparse(item)}"
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
                shown += f"\n    {_signature(item, 4)}"
    text = _text(ast.get_docstring(node) or "")
    return f"### {node.name}\n\n```py\n{shown}\n```\n\n{text}".rstrip()


def _signature(node: ast.FunctionDef, indent: int = 0) -> str:
    arguments = _arguments(node.args)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    short = f"def {node.name}({', '.join(arguments)}){returns}"
    if any(ast.unparse(one) == "property" for one in node.decorator_list):
        return f"{node.name}{returns.replace(' ->', ':')}"
    if indent + len(short) <= WIDTH:
        return short
    inner = ",\n".join(" " * (indent + 4) + one for one in arguments)
    return f"def {node.name}(\n{inner},\n{' ' * indent}){returns}"


def _arguments(given: ast.arguments) -> list[str]:
    """Return the arguments one by one, as a formatter writes them."""
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    shown = [_argument(one, value) for one, value in zip(positional, defaults, strict=True)]
    if given.vararg:
        shown.append("*" + ast.unparse(given.vararg))
    elif given.kwonlyargs:
        shown.append("*")
    shown += [
        _argument(one, value)
        for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return shown + (["**" + ast.unparse(given.kwarg)] if given.kwarg else [])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(argument)
    return f"{ast.unparse(argument)} = {ast.unparse(default)}"


def _text(docstring: str) -> str:
    """Return a docstring as Markdown: its underlined headings bold, its term lists as lists."""
    docstring = re.sub(r"^(\w[\w ]*)\n-+$", r"**\1**\n", docstring, flags=re.MULTILINE)
    heads = r"^(\w+(?:, (?:\w+|\.\.\.))*)\n    (?=\S)"  # a name, or several that are told together
    return re.sub(heads, r"- `\1`: ", docstring, flags=re.MULTILINE)


if __name__ == "__main__":
    (DOCS / "cli.md").write_text(command_line(), encoding="utf-8")
    (DOCS / "api.md").write_text(python(), encoding="utf-8")
