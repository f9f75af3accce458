"""How well the latency model predicts what it was not fitted to, as numbers and as a figure.

    python benchmarks/swap_in_model.py -o docs/swap-in-model.png

Reads benchmarks/results: the fitted points, held-out points, and single steps of real traces.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.bench.results import read_rows
from hisparse_sim.simulator.serving.latency import KERNELS, Link, load_link, swap_in_us
from hisparse_sim.traces import atomic_path

RESULTS = Path(__file__).with_name("results")
SETS = ("fitted points", "held-out points", "steps of traces")
Floats = NDArray[np.float64]


def of_points(rows: list[dict[str, Any]], link: Link, kernel: str) -> tuple[Floats, Floats]:
    """Measured and modelled us of benchmark points."""
    names = ("batch", "misses", "buffer", "entry_bytes")
    arguments = [np.array([row[name] for row in rows]) for name in names]
    measured = np.array([row[f"{kernel}_us"] for row in rows])
    return measured, swap_in_us(link, kernel, *arguments)


def of_traces(runs: list[dict[str, Any]], link: Link, kernel: str) -> tuple[Floats, Floats]:
    """Measured and modelled us of every step of the replayed traces."""
    chosen = [run for run in runs if run["kernel"] == kernel]
    predicted = [
        swap_in_us(
            link,
            kernel,
            run["batch"],
            np.array(run["misses"]) / run["batch"],
            run["buffer"],
            run["entry_bytes"],
            np.array(run["peak_misses"]),
        )
        for run in chosen
    ]
    return np.concatenate([np.array(run["us"]) for run in chosen]), np.concatenate(predicted)


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(output: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    link = load_link("h200-pcie5")
    fitted = read_rows(RESULTS / "swap-in-h200.json")
    held_out = read_rows(RESULTS / "held-out-points-h200.json")
    runs = read_rows(RESULTS / "trace-replay-h200.json")
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.4), sharex=True, sharey=True)
    for kernel, panel in zip(KERNELS, panels, strict=True):
        found = (
            of_points(fitted, link, kernel),
            of_points(held_out, link, kernel),
            of_traces(runs, link, kernel),
        )
        looks = (
            {"color": "0.35", "marker": "x", "s": 18, "linewidth": 0.9, "zorder": 3},
            {"color": "#d95f02", "marker": "D", "s": 22, "zorder": 4},
            {"color": "#1b9e77", "marker": ".", "s": 5, "alpha": 0.25, "linewidth": 0, "zorder": 2},
        )
        for name, (measured, predicted), look in zip(SETS, found, looks, strict=True):
            error = np.abs(predicted / measured - 1)
            median, high = np.median(error), np.quantile(error, 0.95)
            click.echo(f"{kernel:7} {name:16} {len(error):5}  median {median:.1%}  95th {high:.1%}")
            panel.scatter(measured, predicted, label=name, **look)
        line = np.array([5.0, 2000.0])
        panel.plot(line, line, color="black", linewidth=0.8, zorder=1)
        panel.fill_between(line, line * 0.8, line * 1.2, color="0.9", zorder=0, label="±20 %")
        panel.set(xscale="log", yscale="log", title=kernel, xlabel="measured, µs per step")
        panel.set(xlim=line, ylim=line)
        panel.set_aspect("equal")
    panels[0].set_ylabel("modelled, µs per step")
    panels[0].legend(loc="upper left", frameon=False, fontsize=8, markerscale=1.3)
    figure.suptitle("Swap-in of one layer, H200 over PCIe 5", fontsize=11)
    figure.tight_layout()
    with atomic_path(output) as path:
        figure.savefig(path, dpi=130)
    click.echo(f"Wrote {output}", err=True)


if __name__ == "__main__":
    main()
