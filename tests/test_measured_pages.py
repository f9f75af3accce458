"""Tables of measured times on pages are those of the result files that they name."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {page: (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines() for page in (
    "swap-in-kernels.md", "fast-slow-kernel.md", "policy-study.md",
)}  # fmt: skip


def rows(file: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = json.loads((RESULTS / file).read_text())["rows"]
    return found


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table whose heading begins so."""
    lines = PAGES[page]
    first = next(i for i, line in enumerate(lines) if line.startswith(heading)) + 2
    cells = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        cells.append([cell.strip().replace(",", "") for cell in line.strip("|").split("|")])
    return cells


def test_points_of_three_kernels() -> None:
    points = {
        (row["batch"], row["misses"]): row
        for row in rows("swap-in-vllm-h200.json")
        if row["buffer"] == 4096 and row["entry_bytes"] == 1152
    }
    listed = table("swap-in-kernels.md", "| batch | misses")
    assert len(listed) == 9
    names = ("sglang_us", "native_us", "vllm_us", "vllm_plan_us", "gather_us")
    for batch, misses, *times in listed:
        point = points[int(batch), int(misses)]
        for name, time in zip(names, times, strict=True):
            rounded = 0.051 if "." in time else 0.51
            assert not time or float(time) == pytest.approx(point[name], abs=rounded)


def test_sizes_of_the_table_of_vllm() -> None:
    points = {row["batch"]: row for row in rows("vllm-table-h200.json")}
    names = ("sglang", "native", "vllm 2049", "vllm 4097", "vllm 8193")
    for batch, *times in table("swap-in-kernels.md", "| batch | `sglang` | `native` | vLLM, 2,049"):
        measured = [points[int(batch)][f"{name} plan_us"] for name in names]
        assert list(map(float, times)) == pytest.approx(measured, abs=0.51)


def test_fast_slow_beside_lru() -> None:
    points = {(row["buffer"], row["batch"]): row for row in rows("fast-slow-sample-h200.json")}
    saved = {4096: -12, 6144: -3}
    for slots, batch, plan, swap_in, rest in table("fast-slow-kernel.md", "| slots | batch"):
        point = points[int(slots), int(batch)]
        kinds = [(rule, what) for what in ("plan", "swap_in") for rule in ("lru", "fast-slow")]
        measured = [point[f"{rule} {what}_mean_us"] for rule, what in kinds]
        # In one cell "6.9, 8.1": without the comma here.
        assert [*map(float, plan.split()), *map(float, swap_in.split())] == pytest.approx(
            measured, abs=0.051
        )
        lru, other = measured[2] - measured[0], measured[3] - measured[1]
        assert float(rest) == pytest.approx(100 * (other / lru - 1), abs=0.6)
        misses = point["fast-slow misses"] / point["lru misses"]
        assert 100 * (misses - 1) == pytest.approx(saved[int(slots)], abs=2)


def test_the_second_capture() -> None:
    sizes = json.loads((RESULTS / "policy-study-second.json").read_text())["by_buffer"]
    listed = table("policy-study.md", "| slots (top-k")
    assert [int(cells[0]) for cells in listed] == [2560, 3072, 4096, 6144, 8192]
    for slots, lru, fast_slow, least, closed, fewer, needed in listed:
        rates = sizes[slots]
        for policy, rate in (("lru", lru), ("fast-slow", fast_slow), ("belady", least)):
            assert float(rate) == pytest.approx(rates[policy]["miss_percent"], abs=0.0051)
        found = rates["fast-slow"]
        assert float(closed) == found["closed_percent"]
        change = 100 * (1 - found["miss_percent"] / rates["lru"]["miss_percent"])
        assert float(fewer.split()[0]) == pytest.approx(change, abs=0.051)
        assert not needed or float(needed) == found["lru_slots"]
