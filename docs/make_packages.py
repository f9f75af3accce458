"""Draws packages.svg, the picture of the page Internals: `python docs/make_packages.py`.

The table below places every package; tests/test_packages.py checks that these are the folders, and
that every import runs downwards in the picture."""

from pathlib import Path
from xml.sax.saxutils import escape

# Package, column (in quarters of one of three), width in quarters, level from the top, what it
# holds, and its place in the flow of data.
PACKAGES = (
    ("traces/commands", 0, 4, 1, "trace info, convert, ...", 0),
    ("simulator/commands", 4, 4, 1, "sweep, curve, plan, ...", 0),
    ("gpu_replay/commands", 8, 4, 1, "gpu replay, bench, ...", 0),
    ("simulator/views", 4, 4, 2, "tables, figures, report", 6),
    ("gpu_replay/bench", 8, 2, 2, "grids, calibration", 0),
    ("gpu_replay/engine", 10, 2, 2, "in a server", 0),
    ("simulator/study", 4, 4, 3, "policies and prefetch against what is least", 0),
    ("simulator/serving", 4, 4, 4, "memory, time, plan, serve", 5),
    ("simulator/mrc", 4, 2, 5, "every buffer size", 0),
    ("simulator/prefetch", 6, 2, 5, "fetched ahead", 0),
    ("gpu_replay/harness", 8, 4, 3, "replay on a GPU", 0),
    ("traces/capture", 0, 4, 5, "from engines and models", 0),
    ("simulator/replay", 4, 4, 6, "compiled loop, sweeps, rows", 3),
    ("gpu_replay/kernels", 8, 4, 4, "swap-in: the engine's, ours", 0),
    ("traces/importers", 0, 1.4, 6, "other formats", 0),
    ("traces/synth", 1.4, 1.3, 6, "synthetic", 0),
    ("traces/locality", 2.7, 1.3, 6, "measures", 0),
    ("traces/file", 0, 4, 7, "read, check, write", 1),
    ("policies", 4, 4, 8, "which slot is evicted", 0),
    ("traces", 0, 4, 8, "used by all: accesses, errors, files", 2),
)
LABELS = {"traces": "the files in traces/ itself", "policies": "policies/"}
WAY = ("trace", "accesses", "replay", "rows", "cost", "view")
QUARTER, HIGH, GAP, TOP = 76, 56, 10, 70
COLOURS = {
    "traces": "#D7E8F5",
    "policies": "#FBE3CC",
    "simulator": "#D5EDE3",
    "gpu_replay": "#EBDDEC",
}
FONT = "font-family='system-ui, sans-serif'"


def text(x: float, y: float, words: str, size: int = 13, more: str = "") -> str:
    return f"<text x='{x:g}' y='{y:g}' font-size='{size}' {more}>{escape(words)}</text>"


def picture() -> str:
    """Return the picture as SVG."""
    width, bottom = 12 * QUARTER + 2 * GAP, TOP + 9 * (HIGH + GAP) + 26
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {bottom + 60}' {FONT}>",
        f"<rect width='{width}' height='{bottom + 60}' fill='white'/>",
        f"<rect x='{GAP}' y='{TOP}' width='{width - 2 * GAP}' height='{HIGH - 20}' rx='6' "
        "fill='#EEEEEE'/>",
        text(2 * GAP, TOP + 23, "hisparse_sim, cli.py: names and commands, nothing else"),
        text(GAP, 30, "Imports run downwards only", 17, "font-weight='bold'"),
        text(GAP, 52, "The numbers follow a trace from the file to the figure."),
    ]
    for name, column in (("traces/", 0), ("simulator/", 4), ("gpu_replay/", 8)):
        parts.append(text(GAP + column * QUARTER + 6, TOP + 62, name, 15, "fill='#555555'"))
    for package, column, wide, level, holds, step in PACKAGES:
        x, y = GAP + column * QUARTER, TOP + level * (HIGH + GAP) + 6
        label = LABELS.get(package, package.split("/")[-1])
        parts.append(
            f"<g data-package='{package}' data-level='{level}'>"
            f"<rect x='{x + 2:g}' y='{y}' width='{wide * QUARTER - 4:g}' height='{HIGH}' rx='6' "
            f"fill='{COLOURS[package.split('/')[0]]}'/>"
            + text(x + 10, y + 23, label, 14, "font-weight='bold'")
            + text(x + 10, y + 42, holds, 11)
            + "</g>"
        )
        if step:
            numbers = {3: "3 4"}.get(step, str(step))
            right = x + wide * QUARTER - 16
            parts.append(text(right, y + 22, numbers, 15, "text-anchor='end' fill='#B3261E'"))
    way = "   →   ".join(f"{number} {name}" for number, name in enumerate(WAY, 1))
    parts.append(text(GAP, bottom + 20, way, 17, "fill='#B3261E'"))
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "packages.svg").write_text(picture(), encoding="utf-8")
