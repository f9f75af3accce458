"""What a reader of a figure cannot read: texts that leave the paper, and texts that touch."""

from itertools import combinations
from typing import Any
from unittest.mock import patch

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def unreadable(figure: Any) -> list[str]:
    """Draw a figure and return a sentence per text that is cut or overlaps another."""
    drawn: dict[int, tuple[str, Bbox, float]] = {}
    draw = Text.draw

    def recorded(self: Text, renderer: Any) -> None:
        draw(self, renderer)
        if self.get_visible() and self.get_text().strip():
            # Without the arrow, which is part of the extent of an annotation.
            extent = Text.get_window_extent(self, renderer)
            drawn[id(self)] = (self.get_text(), extent, self.get_rotation())

    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # lays out; what is drawn meanwhile stands in other places
    with patch.object(Text, "draw", recorded):
        canvas.draw()
    paper = figure.bbox.padded(1)
    faults = [
        f"{text!r} is cut"
        for text, extent, _ in drawn.values()
        if not all(paper.contains(*corner) for corner in extent.corners())
    ]
    straight = [(text, extent) for text, extent, turned in drawn.values() if turned % 90 == 0]
    for (one, here), (other, there) in combinations(straight, 2):
        if here.padded(-1).overlaps(there.padded(-1)):
            faults.append(f"{one!r} and {other!r} overlap")
    return faults
