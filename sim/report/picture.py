"""What becomes of a plot? A picture as PNG, for notebooks and mail, and as SVG, for papers; the same figure gives the same bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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

    def __repr__(self) -> str:
        return f"<a picture: {len(self.png)} bytes of PNG, {len(self.svg)} of SVG>"

    def _repr_png_(self) -> bytes:
        return self.png


def figure(rows: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of *size* (inches) and its *rows* axes, one above the other."""
    from matplotlib.figure import Figure

    empty = Figure(figsize=size, layout="constrained")
    return empty, [empty.add_subplot(rows, 1, row + 1) for row in range(rows)]


class Named(NamedTuple):
    """A point with its name, in the units of the axes; *bold* ones are named first."""

    x: float
    y: float
    name: str
    bold: bool = False


_BESIDE = ((5, 4, "left"), (5, -9, "left"), (-5, 4, "right"), (-5, -9, "right"), (7, -3, "left"), (-7, -3, "right"))
"""Where a name may stand: points to the right and up, and which end of it is there."""


def name_points(axes: Axes, points: Sequence[Named], size: float = 7) -> None:
    """Write the names of *points* beside them where there is room, neither over other names nor beyond the axes.

    Called when all else is drawn and no limit of the axes changes any more.
    """
    from matplotlib.transforms import Bbox

    figure: Any = axes.figure
    figure.draw_without_rendering()
    inside, taken = axes.get_window_extent(), list[Bbox]()
    for point in sorted(points, key=lambda point: not point.bold):
        for across, up, end in _BESIDE:
            weight = "bold" if point.bold else "normal"
            text = axes.annotate(
                point.name, (point.x, point.y), (across, up), textcoords="offset points", fontsize=size, fontweight=weight, ha=end
            )
            text.set_in_layout(False)
            box = text.get_window_extent()
            if inside.containsx(box.x0) and inside.containsx(box.x1) and inside.containsy(box.y1) and not box.count_overlaps(taken):
                taken.append(box)
                break
            text.remove()


def plain_logarithm(axis: Any) -> None:
    """Let a logarithmic *axis* write 0.5, 1, 2 and 5, not powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


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
