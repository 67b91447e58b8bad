"""What becomes of a plot? A picture as PNG, for notebooks and mail, and as SVG, for papers; the same figure gives the same bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.report.files import write_file
from sim.spec.yaml import SpecError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SVG: Any = {"svg.hashsalt": "stallsim", "svg.fonttype": "none"}
"""Names of clip paths from the drawing alone, and text as text."""


@dataclass(frozen=True)
class Picture:
    """A plot that a notebook shows; `save` writes it to a file."""

    png: bytes
    svg: bytes

    def files(self, name: str) -> dict[str, bytes]:
        """Return both files by name."""
        return {f"{name}.png": self.png, f"{name}.svg": self.svg}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture to *path* (.png or .svg). Raise `SpecError` where that fails."""
        kinds = {".png": self.png, ".svg": self.svg}
        if (suffix := Path(path).suffix) not in kinds:
            raise SpecError(f"{path}: a picture in a file '*{suffix}'; write .png or .svg")
        write_file(Path(path), kinds[suffix])

    def _repr_png_(self) -> bytes:
        return self.png


def figure(rows: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of *size* (inches) and its *rows* axes, one above the other."""
    from matplotlib.figure import Figure

    empty = Figure(figsize=size, layout="constrained")
    return empty, [empty.add_subplot(rows, 1, row + 1) for row in range(rows)]


def picture(figure: Figure) -> Picture:
    """Return the finished *figure* as a picture."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    png, svg = io.BytesIO(), io.BytesIO()
    FigureCanvasAgg(figure).print_png(png)  # type: ignore[no-untyped-call]
    with rc_context(_SVG):
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None, "Creator": "stallsim"})  # type: ignore[no-untyped-call]
    return Picture(png.getvalue(), svg.getvalue())
