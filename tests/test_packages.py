"""The packages: no import runs upwards, there are no import cycles, commands hold no logic."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "hisparse_sim"
TOPS = ("policies", "traces", "simulator", "gpu_replay")

# What each package may import besides itself, from the bottom to the top. Files that lie directly
# in `traces/` are at the bottom: all its packages may import them.
_FILE = {"traces", "traces/file"}
_REPLAY = {*_FILE, "policies"}
_SERVING = {*_REPLAY, "simulator/replay"}
_VIEWS = {*_SERVING, "simulator/mrc", "simulator/serving", "traces/locality"}
_KERNELS = {"traces", "gpu_replay"}
_HARNESS = {*_SERVING, *_KERNELS, "gpu_replay/kernels"}
_BENCH = {*_HARNESS, "gpu_replay/harness", "simulator/serving"}
MAY_IMPORT: dict[str, set[str]] = {
    "policies": set(),
    "traces": set(),
    "traces/file": {"traces"},
    "traces/importers": _FILE,
    "traces/synth": _FILE,
    "traces/locality": _FILE,
    "traces/capture": {*_FILE, "traces/importers"},
    "traces/commands": {
        *_FILE,
        *(f"traces/{package}" for package in ("importers", "synth", "capture", "locality")),
    },
    "simulator/replay": _REPLAY,
    "simulator/mrc": _SERVING,
    "simulator/prefetch": _SERVING,
    # mrc: facts in place of a trace; synth: the demand of a model without a trace.
    "simulator/serving": {*_SERVING, "simulator/mrc", "traces/synth"},
    "simulator/study": {*_VIEWS, "simulator/prefetch"} - {"traces/locality"},
    "simulator/views": {*_VIEWS, "simulator/study", "simulator/prefetch"},
    "simulator/commands": {
        *_VIEWS,
        *(f"simulator/{package}" for package in ("study", "prefetch", "views")),
        "traces/commands",
        "traces/synth",  # `trace synth` shapes what it draws like a model that serving prices
    },
    "gpu_replay/kernels": _KERNELS,
    "gpu_replay/harness": _HARNESS,
    "gpu_replay/bench": _BENCH,
    "gpu_replay/engine": {*_SERVING, *_KERNELS, "gpu_replay/kernels"},
    "gpu_replay/commands": {
        *_BENCH,
        "gpu_replay/bench",
        "gpu_replay/engine",
        "traces/commands",
    },
}
LONGEST_FILE = 300  # lines
REASON = "one file"  # how the docstring of a longer one begins to say why


class Import(NamedTuple):
    target: str  # a module of the package, or the first part of another's name
    line: int
    for_types: bool  # only a type checker sees it


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    files = [ROOT / "__init__.py", ROOT / "cli.py"]
    files += [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]
    found = {}
    for path in files:
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join([PACKAGE, *parts])] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def nodes(within: ast.AST, for_types: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Every import statement, also inside functions, and whether it is for types only."""
    for node in ast.iter_child_nodes(within):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, for_types
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from nodes(node, for_types=True)
        else:
            yield from nodes(node, for_types)


def home(module: str, name: str) -> str:
    """The module that `from module import name` is about: the one that defines the name, where a
    package only passes it on."""
    if f"{module}.{name}" in modules():
        return f"{module}.{name}"
    if modules()[module].name == "__init__.py":
        for node, _ in nodes(tree(module)):
            if isinstance(node, ast.ImportFrom) and name in (one.name for one in node.names):
                return home(node.module or "", name)
    return module


@cache
def imports(module: str) -> tuple[Import, ...]:
    found = []
    for node, for_types in nodes(tree(module)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0, f"{module}: a relative import"
            named = [(node.module, alias.name) for alias in node.names]
        else:
            assert isinstance(node, ast.Import)
            named = [(alias.name, "") for alias in node.names]
        for target, name in named:
            ours = target == PACKAGE or target.startswith(PACKAGE + ".")
            full = home(target, name) if ours else target.split(".")[0]
            found.append(Import(full, node.lineno, for_types))
    return tuple(found)


def package(module: str) -> str:
    """The folder of a module, two levels deep at most; "" for the package itself and its cli."""
    folders = modules()[module].parent.relative_to(ROOT).parts
    return "/".join(folders[:2])


def test_every_folder_is_a_known_package() -> None:
    folders = {package(name) for name in modules()} - {"", "simulator", "gpu_replay", "traces/data"}
    assert folders == set(MAY_IMPORT)


def test_no_import_runs_upwards() -> None:
    wrong = []
    for module, path in modules().items():
        for target, line, _ in imports(module):
            if target not in modules() or package(module) == "":
                continue
            here, there = package(module), package(target)
            passes_on = path.name == "__init__.py" and there.startswith(here + "/")
            if here == there or passes_on or there in MAY_IMPORT.get(here, set()):
                continue
            wrong.append(f"{path.relative_to(ROOT)}:{line} ({here}) imports {target} ({there})")
    assert not wrong, "\n".join(wrong)


def test_the_packages_are_in_an_order() -> None:
    """The table above has no cycle, so that no import among packages can make one."""
    TopologicalSorter(MAY_IMPORT).prepare()


def test_there_are_no_import_cycles() -> None:
    graph = {
        module: {target for target, _, _ in imports(module) if target in modules()} - {module}
        for module in modules()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_commands_are_at_the_top_and_compute_nothing() -> None:
    """They import click and the package, no library that computes, draws or reads data; and only
    the command line imports them."""
    wrong = []
    for module in modules():
        within = package(module).endswith("/commands")
        for target, line, for_types in imports(module):
            place = f"{modules()[module].relative_to(ROOT)}:{line}"
            if target in modules():
                commands = package(target).endswith("/commands")
                if commands and not within and module != f"{PACKAGE}.cli":
                    wrong.append(f"{place} imports the command line")
            elif within and not for_types and target not in {*sys.stdlib_module_names, "click"}:
                wrong.append(f"{place} imports {target}: that is work for the library")
    assert not wrong, "\n".join(wrong)


def test_the_package_itself_only_points() -> None:
    """`hisparse_sim` imports nothing when it is imported but the standard library."""
    at_once = {target for target, _, for_types in imports(PACKAGE) if not for_types}
    assert at_once <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", modules())
def test_a_long_file_says_why_it_is_one(module: str) -> None:
    lines = len(modules()[module].read_text(encoding="utf-8").splitlines())
    reason = " ".join((ast.get_docstring(tree(module)) or "").split())
    assert lines <= LONGEST_FILE or REASON in reason.lower(), (
        f"{lines} lines: split it, or say in its docstring why it is {REASON}"
    )


# --- the page Internals --------------------------------------------------------------------------


def drawn() -> dict[str, int]:
    """The packages of the picture, by how far down they stand."""
    text = (ROOT / "docs" / "packages.svg").read_text(encoding="utf-8")
    found = re.findall(r"data-package='([^']+)' data-level='(\d+)'", text)
    assert len(found) == len(dict(found))
    return {name: int(level) for name, level in found}


def test_the_picture_shows_these_packages_above_what_they_import() -> None:
    levels = drawn()
    assert set(levels) == set(MAY_IMPORT)
    for module in modules():
        for target, line, _ in imports(module):
            if target in modules() and package(module) in levels and package(target) in levels:
                here, there = package(module), package(target)
                passes_on = modules()[module].name == "__init__.py" and there.startswith(here)
                options = here.endswith("/commands") and there.endswith("/commands")
                assert here == there or passes_on or options or levels[here] < levels[there], (
                    f"{module}:{line} imports {target}"
                )


def test_the_picture_is_drawn_anew() -> None:
    spec = spec_from_file_location("make_packages", ROOT / "docs" / "make_packages.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (ROOT / "docs" / "packages.svg").read_text(encoding="utf-8") == script.picture()


def test_the_page_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
    for row in (line for line in text.splitlines() if line.startswith("|")):
        folders = [""]
        for name in re.findall(r"`([\w/.]+(?:\.py|\.toml|/))`", row):
            name = name.removesuffix("NAME.py")
            near = [ROOT / folder / name for folder in folders]
            assert any(path.exists() for path in near), f"{name} in: {row}"
            folders.append(str(Path(name).parent))


def test_names_that_a_package_passes_on_lead_home() -> None:
    assert home("hisparse_sim.traces", "Trace") == "hisparse_sim.traces.file.reader"
    assert home("hisparse_sim.simulator.replay", "sweep") == (
        "hisparse_sim.simulator.replay.sweeping"
    )
    assert home("hisparse_sim.policies", "LRU") == "hisparse_sim.policies.lru"
