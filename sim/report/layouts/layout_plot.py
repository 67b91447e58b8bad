"""How is a step of a layout plotted? Its time by cause, and below the memory of each stage."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sim.causes import COLORS
from sim.events import LAYOUT_STALLS
from sim.mesh import LayoutRun
from sim.report.page.words import unbroken
from sim.report.picture import Picture, figure, picture
from sim.report.plots import LINE, draw_stacked, is_visible
from sim.units import pluralized

if TYPE_CHECKING:
    from matplotlib.axes import Axes

USES: Final[Mapping[str, str]] = {
    "weights": "#4477aa", "gradients": "#66ccee", "optimizer_state": "#228833", "activations": "#ccbb44", "gathered": "#ee6677",
    "workspace": "#aa3377", "cached": "#dddddd", "communication_buffers": "#bbbbbb", "context": "#777777",
}  # fmt: skip
"""Color of each use of a GPU's memory, in the order of ``memory_by_stage``."""
_USES_IN_A_ROW: Final = 6
"""Number of uses in a row of their key: nine would leave the picture."""


def layout_plot(run: LayoutRun, document: Mapping[str, Any]) -> Picture:
    """Return a plot of a step's time by cause, and of the memory of one rank of each stage."""
    stages = document["memory_by_stage"]
    drawn, axes = figure(2, (10, 4.5 + 0.35 * len(stages)))
    expected = document["expected_error"] or {}
    draw_stacked(axes[0], ["step"], [run.stalls], [float(expected.get("p90", 0.0))], LAYOUT_STALLS)
    _key(axes[0], {cause.value: COLORS[cause] for cause in LAYOUT_STALLS if is_visible(cause, [run.stalls])})
    says = textwrap.fill(unbroken(document["verdict"]), LINE)
    title = f"{document['workload']} on {document['hardware']}, {pluralized(document['gpus'], 'GPU')}"
    axes[0].set_title(f"{title}\n{says}", fontsize=11, loc="left", pad=22)
    _memory(axes[1], stages, run.hardware.groups[0].node.gpu.memory)
    return picture(drawn)


def _memory(axes: Axes, stages: list[dict[str, Any]], capacity: float) -> None:
    """Draw a bar for each of *stages* by use, and a line at *capacity* (bytes)."""
    names = [f"stage {stage['stage']}" for stage in reversed(stages)]
    left = [0.0] * len(stages)
    for use, color in USES.items():
        widths = [stage[use] / 2**30 for stage in reversed(stages)]
        axes.barh(names, widths, left=left, color=color, edgecolor="white", linewidth=0.5)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.axvline(capacity / 2**30, color="black", linewidth=1, linestyle="--")
    axes.set_xlim(left=0, right=1.03 * max(*left, capacity / 2**30))
    axes.set_xlabel("GiB of one rank; dashed: memory of the GPU")
    _key(axes, {use.replace("_", " "): color for use, color in USES.items() if any(stage[use] for stage in stages)}, _USES_IN_A_ROW)
    axes.spines[["top", "right"]].set_visible(False)


def _key(axes: Axes, colors: Mapping[str, str], columns: int = 9) -> None:
    """Draw the key of *colors*, *columns* in a row, above the bars of *axes*."""
    from matplotlib.patches import Patch

    patches = [Patch(color=color, label=name) for name, color in colors.items()]
    axes.legend(handles=patches, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, fontsize=8, frameon=False, columnspacing=1.2)
