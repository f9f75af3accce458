"""Fits the latency model of `simulator.latency` to measured points, and writes a link profile.

The link is fitted to the copies without decisions, then each kernel to its own points.
Both minimise the squared relative error.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from reprlib import repr as clipped
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.bench.results import read_machine, read_rows
from hisparse_sim.simulator.serving.latency import KERNELS, KernelCost, Link, swap_in_us
from hisparse_sim.traces import TraceError, atomic_path

Floats = NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]

# What `gpu calibrate` measures: few points, spread over both regimes.
BATCHES = (1, 8, 32)
MISSES = (0, 32, 128, 512, 1024)
BUFFERS = (2048, 4096, 6144)
ENTRY_BYTES = (656, 1152)

_MACHINE = ("gpu", "pcie_generation", "pcie_width", "driver", "sglang", "host_to_device_gb_s")
_COLUMNS = ("batch", "misses", "buffer", "entry_bytes", "sglang_us", "native_us")


def least_squares(
    residuals: Callable[[Floats], Floats], start: Floats, rounds: int = 200
) -> Floats:
    """Parameters >= 0 with the least sum of squared residuals, by damped Gauss-Newton steps."""
    best, damping = start.astype(np.float64), 1e-2
    now = residuals(best)
    for _ in range(rounds):
        shifts = 1e-5 * np.maximum(best, 1e-3)
        slopes = np.stack(
            [(residuals(best + shift) - now) / shift.sum() for shift in np.diag(shifts)],
            axis=1,
        )
        normal = slopes.T @ slopes
        normal += damping * np.diag(np.diag(normal) + 1e-12)
        step = np.linalg.solve(normal, -slopes.T @ now)
        tried = np.maximum(best + step, 0.0)
        then = residuals(tried)
        if then @ then < now @ now:
            best, now, damping = tried, then, damping / 3
        else:
            damping *= 3
    return best


def _column(rows: Rows, name: str) -> Floats:
    return np.array([row[name] for row in rows], np.float64)


def fit_link(rows: Rows) -> tuple[float, float]:
    """ns per KV entry whatever its size, and GB/s besides, from the copies without decisions.

    Uses points whose copy takes long enough that a launch does not count: 2,048 KV entries or more.
    """
    chosen = [r for r in rows if "gather_us" in r and r["batch"] * r["misses"] >= 2048]
    if len({row["entry_bytes"] for row in chosen}) < 2:
        raise ValueError(
            "fitting the link needs two entry sizes, each with 2,048 entries or more per step"
        )
    items = _column(chosen, "batch") * _column(chosen, "misses") / 1e3
    bytes_ = items * _column(chosen, "entry_bytes")
    times = _column(chosen, "gather_us")

    def residuals(figures: Floats) -> Floats:
        launch_us, entry_ns, byte_ns = figures
        result: Floats = (launch_us + items * entry_ns + bytes_ * byte_ns) / times - 1
        return result

    _, entry_ns, byte_ns = least_squares(residuals, np.array([3.0, 5.0, 0.02]))
    return float(entry_ns), float(1 / byte_ns)


def fit_kernel(rows: Rows, kernel: str, entry_ns: float, link_gb_s: float) -> KernelCost:
    """The costs of one kernel, given the link's."""

    def residuals(figures: Floats) -> Floats:
        cost = KernelCost(*figures)
        link = Link("", "", "", "", entry_ns, link_gb_s, link_gb_s, {kernel: cost})
        return relative_errors(rows, link, kernel)

    return KernelCost(*map(float, least_squares(residuals, np.array([8.0, 1e-3, 3.0, 20.0, 0.01]))))


def fit_profile(rows: Rows, name: str, description: str, source: str, bulk_gb_s: float) -> Link:
    """A link profile from the result rows of a benchmark with both kernels and the gather."""
    entry_ns, link_gb_s = fit_link(rows)
    kernels = {kernel: fit_kernel(rows, kernel, entry_ns, link_gb_s) for kernel in KERNELS}
    return Link(name, description, "measured", source, entry_ns, link_gb_s, bulk_gb_s, kernels)


def relative_errors(rows: Rows, link: Link, kernel: str) -> Floats:
    """Predicted / measured - 1 for every row."""
    predicted = swap_in_us(
        link,
        kernel,
        _column(rows, "batch"),
        _column(rows, "misses"),
        _column(rows, "buffer"),
        _column(rows, "entry_bytes"),
        _column(rows, "peak_misses") if "peak_misses" in rows[0] else None,
    )
    errors: Floats = predicted / _column(rows, f"{kernel}_us") - 1
    return errors


def profile_text(link: Link) -> str:
    """The profile as TOML, as links.toml holds it."""
    figures = {
        "link_gb_s": link.link_gb_s,
        "entry_ns": link.entry_ns,
        "bulk_gb_s": link.bulk_gb_s,
    }
    for kernel, cost in link.kernels.items():
        figures |= {f"{kernel}_{name}": value for name, value in vars(cost).items()}
    lines = [
        f"[links.{link.name}]",
        f'description = "{link.description}"',
        "",
        f"[[links.{link.name}.figures]]",
        f'kind = "{link.kind}"',
        f'source = "{link.source}"',
    ]
    lines += [f"{name} = {value:.6g}" for name, value in figures.items()]
    return "\n".join(lines) + "\n"


def write_profile(link: Link, path: Path) -> None:
    """Write the profile to a file that `--profiles` takes."""
    with atomic_path(path) as temporary:
        temporary.write_text(profile_text(link), encoding="utf-8")


def _quality(rows: Rows, link: Link) -> dict[str, tuple[float, float]]:
    """Median and 95th percentile of the relative error over the fitted points, per kernel."""
    errors = {kernel: np.abs(relative_errors(rows, link, kernel)) for kernel in KERNELS}
    return {k: (float(np.median(e)), float(np.quantile(e, 0.95))) for k, e in errors.items()}


def calibrate_from(path: Path, name: str) -> tuple[Link, dict[str, tuple[float, float]]]:
    """Fit a result file of `gpu bench`; returns the profile and its errors per kernel."""
    machine = read_machine(path, _MACHINE)
    rows = read_rows(path, _COLUMNS)
    bulk_gb_s = machine["host_to_device_gb_s"]
    if isinstance(bulk_gb_s, bool) or not isinstance(bulk_gb_s, int | float) or bulk_gb_s <= 0:
        raise TraceError(f"{path}: host_to_device_gb_s is {clipped(bulk_gb_s)}, expected a rate")
    link = fit_profile(rows, name, *_provenance(machine), float(bulk_gb_s))
    return link, _quality(rows, link)


def calibrate_here(name: str) -> tuple[Link, dict[str, tuple[float, float]]]:
    """Measure a small grid on this GPU and fit it; returns the profile and its errors."""
    from hisparse_sim.gpu_replay.bench.grid import CONTENDERS, run_grid
    from hisparse_sim.gpu_replay.harness.machine import describe_machine

    machine = describe_machine()
    kernels = {kernel: CONTENDERS[kernel] for kernel in KERNELS}
    rows = list(run_grid(BATCHES, MISSES, BUFFERS, ENTRY_BYTES, contenders=kernels, repeats=15))
    link = fit_profile(rows, name, *_provenance(machine), float(machine["host_to_device_gb_s"]))
    return link, _quality(rows, link)


def _provenance(machine: Mapping[str, Any]) -> tuple[str, str]:
    """Description of the link, and source of its figures."""
    described = (
        f"{machine['gpu']}, PCIe {machine['pcie_generation']} x{machine['pcie_width']} to the host"
    )
    source = (
        f"hisparse-sim gpu calibrate on {machine['gpu']}, driver {machine['driver']}, "
        f"sglang {machine['sglang']}"
    )
    return described, source
