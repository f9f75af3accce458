"""What swap-in costs when several GPUs of one host pull at once: the table and figure of the docs.

    python benchmarks/several_gpus.py -o docs/several-gpus.png

Reads results of `hisparse-sim gpu bench --gpus 1,2,...`, by default those in benchmarks/results,
and prints the memory of the pools and one line for each kernel and point.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np

from hisparse_sim.gpu_replay.bench.lines import together_line
from hisparse_sim.gpu_replay.bench.results import read_rows
from hisparse_sim.simulator.views.figures.style import COLOURS, HATCHES, STYLE
from hisparse_sim.traces import atomic_path

RESULTS = Path(__file__).with_name("results")
Row = dict[str, Any]
Series = dict[tuple[Any, ...], dict[int, Row]]


def series(rows: list[Row]) -> Series:
    """Rows by (what, entry_bytes, batch, misses, buffer, host_pool), then by GPUs at once."""
    found: Series = {}
    for row in rows:
        if row["what"] != "pools":
            names = ("what", "entry_bytes", "batch", "misses", "buffer", "host_pool")
            found.setdefault(tuple(row.get(name, 0) for name in names), {})[row["gpus"]] = row
    return found


def line_of(key: tuple[Any, ...], by_gpus: dict[int, Row]) -> str:
    """One line of the table: total GB/s, us of the slowest GPU, and what it lost to the others."""
    what, item, batch, misses, _, pool = key
    alone, most = by_gpus[min(by_gpus)], by_gpus[max(by_gpus)]
    sums = " | ".join(f"{by_gpus[gpus]['sum_gb_s']:.1f}" for gpus in sorted(by_gpus))
    lost = max(most["us"]) / alone["us"][0] - 1
    place = f"{item:,} | {batch} | {misses}" if batch else " |  | "
    return (
        f"| {what} | {place} | {pool} | {sums} |"
        f" {alone['us'][0]:,.1f} | {max(most['us']):,.1f} | {lost:+.1%} |"
    )


def label_of(key: tuple[Any, ...]) -> str:
    """What stands at a pair of bars: the copy, or item size and batch."""
    _, item, batch, _, _, _ = key
    return f"{item:,} B, batch {batch}" if batch else "large copy"


def draw(panel: Any, found: Series, title: str) -> None:
    """Bars of the summed GB/s, one for each number of GPUs at once."""
    counts = sorted({gpus for by_gpus in found.values() for gpus in by_gpus})
    height = 0.8 / len(counts)
    places = np.arange(len(found))
    for i, gpus in enumerate(counts):
        sums = [by_gpus[gpus]["sum_gb_s"] for by_gpus in found.values()]
        bars = panel.barh(
            places + i * height, sums, height,
            color=COLOURS[i], hatch=HATCHES[i], edgecolor="white",
            label=f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs at once",
        )  # fmt: skip
        panel.bar_label(bars, [f"{rate:.0f}" for rate in sums], padding=2, fontsize=7)
    panel.set_yticks(places + 0.4 - height / 2, [label_of(key) for key in found])
    panel.set(title=title, xlabel="total GB/s from one host")
    panel.margins(x=0.15, y=0.02)


@click.command()
@click.argument("results", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(results: tuple[Path, ...], output: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    files = results or [
        RESULTS / f"several-gpus-h200x4-{name}.json" for name in ("private", "shared")
    ]
    found: dict[str, Series] = {}
    for file in files:
        rows = read_rows(file)
        click.echo(together_line(next(row for row in rows if row["what"] == "pools")))
        all_of_it = series(rows)
        for key, by_gpus in all_of_it.items():
            click.echo(line_of(key, by_gpus))
        for kernel in sorted({key[0] for key in all_of_it} - {"copy"}):
            one = {key: all_of_it[key] for key in all_of_it if key[0] in ("copy", kernel)}
            found[f"{kernel}, {next(iter(one))[5]} host pools"] = one
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1, len(found), figsize=(2.7 * len(found), 4.2), squeeze=False, sharex=True, sharey=True
        )
        for (title, one), panel in zip(found.items(), panels[0], strict=True):
            draw(panel, one, title)
        panels[0][0].invert_yaxis()
        figure.legend(
            *panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=8
        )
        with atomic_path(output) as path:
            figure.savefig(path, dpi=130)
    click.echo(f"Wrote {output}", err=True)


if __name__ == "__main__":
    main()
