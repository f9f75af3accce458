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
# The public names, by the module to import them from.
ROOMS = {
    "hisparse_sim": "The names most used, from one place: `import hisparse_sim as hs`.",
    "hisparse_sim.traces": "Trace files: reading, writing, checking, making.",
    "hisparse_sim.policies": "Who is evicted.",
    "hisparse_sim.simulator.replay": "Replay and sweeps.",
    "hisparse_sim.simulator.views.figures": "Figures of tidy tables.",
    "hisparse_sim.simulator.views.report": "The report page.",
}
MODULES = (
    "hisparse_sim.simulator.replay.totals",
    "hisparse_sim.simulator.views.locality_view",
    "hisparse_sim.simulator.serving.latency",
    "hisparse_sim.simulator.serving.plan",
    "hisparse_sim.simulator.serving.prediction",
    "hisparse_sim.traces.locality.measure",
)


def command_line() -> str:
    """Return the page of all commands with their help."""
    from hisparse_sim.cli import cli

    parts = [
        "# Command line",
        "Made from the program's own help. Data goes to stdout, notes and progress to stderr; exit "
        "codes are 0 (done), 1 (failed), 2 (wrong usage) and 128 + the number of the signal that "
        "ended it (130: Ctrl-C). Options that take several values are repeated or separated by "
        "commas; numbers may be written 64k (65,536), lists of them 0-5 or 2048:8192:1024 (both "
        "ends count). Written by click " + click_version() + ".",
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
        "Made from the docstrings. Tables are pandas DataFrames, their columns in "
        "[Columns and formulas](metrics.md).",
    ]
    told: dict[str, str] = {}
    for room, summary in ROOMS.items():
        parts.append(f"## {room}\n\n{summary}")
        module = import_module(room)
        again = []
        for name in module.__all__:
            home = getattr(getattr(module, name), "__module__", None)
            node = _definition(home, name) if home else None
            if node is None:
                continue
            if name in told:
                again.append(f"`{name}` (see {told[name]})")
                continue
            told[name] = room
            parts.append(_described(node))
        if again:
            parts.append("Also " + ", ".join(again) + ".")
    for path in MODULES:
        tree = _tree(path)
        parts.append(f"## {path}\n\n{_text(ast.get_docstring(tree) or '')}")
        parts += [
            _described(node)
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and node.name not in told
            and ast.get_docstring(node)
        ]
    return "\n\n".join(parts) + "\n"


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
    return re.sub(r"^(\w+)\n    (?=\S)", r"- `\1`: ", docstring, flags=re.MULTILINE)


if __name__ == "__main__":
    (DOCS / "cli.md").write_text(command_line(), encoding="utf-8")
    (DOCS / "api.md").write_text(python(), encoding="utf-8")
