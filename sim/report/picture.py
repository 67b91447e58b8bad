"""How is a plot saved? As PNG for notebooks and mail, and as SVG for papers; the same figure always gives the same bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sim.report.files import file_due
from sim.spec.whole_file import write_file
from sim.spec.yaml import SpecError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ERROR_BARS: Final = "error bars: 90% of similar predictions were within them"
"""What error bars mean, for the title of the axis along which they are."""
_SVG: Any = {"svg.hashsalt": "stallsim", "svg.fonttype": "none"}
"""Derive the names of clip paths only from the drawing, and keep text as text."""


@dataclass(frozen=True)
class Picture:
    """A plot that a notebook shows; `save` writes it to a file."""

    png: bytes
    svg: bytes

    def files(self, name: str) -> dict[str, bytes]:
        """Return the PNG and SVG files by file name."""
        return {f"{name}.png": self.png, f"{name}.svg": self.svg}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture to *path* (.png or .svg). Raise `SpecError` if that fails."""
        _require_kind(Path(path))
        write_file(Path(path), {".png": self.png, ".svg": self.svg}[Path(path).suffix])

    def __repr__(self) -> str:
        return f"<a picture: {len(self.png)} bytes of PNG, {len(self.svg)} of SVG>"

    def _repr_png_(self) -> bytes:
        return self.png


def picture_due(path: Path | None) -> Path | None:
    """Return *path* if a picture can be written there. Raise SpecError otherwise, before anything is computed."""
    if path is not None:
        _require_kind(path)
    return file_due(path)


def _require_kind(path: Path) -> None:
    if path.suffix not in (".png", ".svg"):
        raise SpecError(f"{path}: a picture in a file '*{path.suffix}'; write .png or .svg")


def figure(rows: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of *size* (inches) and its *rows* axes, one above the other."""
    from matplotlib.figure import Figure

    empty = Figure(figsize=size, layout="constrained")
    return empty, [empty.add_subplot(rows, 1, row + 1) for row in range(rows)]


class NamedPoint(NamedTuple):
    """A point with its name, in the units of the axes; *bold* points are labeled first."""

    x: float
    y: float
    name: str
    bold: bool = False


_NAME_OFFSETS = ((5, 4, "left"), (5, -9, "left"), (-5, 4, "right"), (-5, -9, "right"), (7, -3, "left"), (-7, -3, "right"))
"""Possible positions of a name: offset to the right and up in points, and which end of the name is there."""


def name_points(axes: Axes, points: Sequence[NamedPoint], size: float = 7) -> None:
    """Write the names of *points* next to them if they fit there without covering other names or leaving the axes.

    Call this after everything else is drawn and the limits of the axes are final.
    """
    from matplotlib.transforms import Bbox

    figure: Any = axes.figure
    figure.draw_without_rendering()
    inside, occupied = axes.get_window_extent(), list[Bbox]()
    for point in sorted(points, key=lambda point: not point.bold):
        for across, up, end in _NAME_OFFSETS:
            weight = "bold" if point.bold else "normal"
            text = axes.annotate(
                point.name, (point.x, point.y), (across, up), textcoords="offset points", fontsize=size, fontweight=weight, ha=end
            )
            text.set_in_layout(False)
            box = text.get_window_extent()
            if inside.containsx(box.x0) and inside.containsx(box.x1) and inside.containsy(box.y1) and not box.count_overlaps(occupied):
                occupied.append(box)
                break
            text.remove()


def plain_logarithm(axis: Any, unit: str = "") -> None:
    """Label a logarithmic *axis* with a few round numbers, not powers of ten; with an SI *unit* they have prefixes: 250 ms.

    Call this after the limits of the axis are final.
    """
    from matplotlib.ticker import EngFormatter, FixedLocator, NullFormatter, NullLocator

    axis.set_major_locator(FixedLocator(log_ticks(*sorted(axis.get_view_interval()))))
    axis.set_major_formatter(EngFormatter(unit) if unit else lambda value, _: f"{value:,g}")
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


_MOST_TICKS: Final = 7


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from *low* to *high* (above 0) for a logarithmic axis, as many as stay readable.

    They are equal steps over a small range, else 1, 2 and 5 (or 1 and 3) of each decade, else decades, else every few decades.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = range(first, last + 1)
    sets = [[digit * 10.0**power for power in decades for digit in digits] for digits in ((1, 2, 5), (1, 3), (1,))]
    sets += [[10.0**power for power in decades if power % stride == 0] for stride in range(2, len(decades) + 2)]
    if high < 5 * low:
        sets = [_steps(low, high), *sets]
    inside = [[value for value in ticks if low <= value <= high] for ticks in sets]
    return next(ticks for ticks in inside if len(ticks) <= _MOST_TICKS)


def _steps(low: float, high: float) -> list[float]:
    """Return the multiples between *low* and *high* of the smallest round step (1, 2 or 5 times a power of ten) that gives few of them."""
    power = 10.0 ** math.floor(math.log10((high - low) / _MOST_TICKS))
    step = next(size * power for size in (2, 5, 10, 20) if (high - low) / (size * power) < _MOST_TICKS - 1)
    return [float(f"{number * step:.12g}") for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


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
