"""How far does each measured point lie from its fit? A panel for each probe swept over sizes, and one for all subjects of a single value.

Points of a sweep are plotted over their size. A subject of a single value (a launch, a rate of the disk, a factor of layers or steps) has
one row, on which each measurement is plotted relative to the fitted value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from calibration.machines.machine_fit import Fit
from sim.report.picture import Picture, picture, plain_logarithm
from sim.spec.yaml import SpecError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS: Final = 3
_LEAST_REACH: Final = 1.2
"""Least range of an axis, as a factor, so that the small deviations of a close fit do not look large."""
_UNITS: Final = {"gemm": "FLOP", "convolution": "FLOP"}
"""Units of the sizes of a probe; others are in bytes."""


def residual_picture(fitted: Mapping[str, Fit]) -> Picture:
    """Return a picture of measured over fitted values of all points. Raise SpecError if no subject has several points."""
    from matplotlib.figure import Figure

    several = [fit for fit in fitted.values() if len(fit.times) > 1]
    if not several:
        raise SpecError("--plot: the records contain no points to plot; profile --only gemm,all_reduce")
    sweeps = [fit for fit in several if is_sweep(fit)]
    repeated = [fit for fit in several if not is_sweep(fit)]
    probes = list(dict.fromkeys(fit.probe for fit in sweeps))
    rows = -(-len(probes) // COLUMNS)
    heights = [3.2] * rows + ([0.9 + 0.26 * len(repeated)] if repeated else [])
    figure = Figure(figsize=(4.6 * COLUMNS, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), COLUMNS, height_ratios=heights)
    for number, probe in enumerate(probes):
        _sweep(figure.add_subplot(grid[divmod(number, COLUMNS)]), probe, [fit for fit in sweeps if fit.probe == probe])
    if repeated:
        _repeated(figure.add_subplot(grid[rows, :]), repeated)
    return picture(figure)


def is_sweep(fit: Fit) -> bool:
    """Return whether *fit* has several sizes."""
    return len(set(fit.sizes.tolist())) > 1


def _sweep(axes: Axes, probe: str, fits: Sequence[Fit]) -> None:
    for fit in fits:
        axes.plot(fit.sizes, _ratio(fit), "o", markersize=3.5, alpha=0.7, label=fit.subject)
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    reach = _axis_factor(fits)
    axes.set(xscale="log", yscale="log", ylim=(1 / reach, reach))
    plain_logarithm(axes.xaxis, _UNITS.get(probe, "B"))
    plain_logarithm(axes.yaxis)
    axes.set_title(probe, fontsize=10)
    axes.set_ylabel("measured / fitted", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=6.5, frameon=False)


def _repeated(axes: Axes, fits: Sequence[Fit]) -> None:
    for place, fit in enumerate(fits):
        axes.plot(_ratio(fit), [place] * len(fit.times), "o", markersize=3.5, alpha=0.4)
    axes.axvline(1.0, color="0.6", linewidth=0.8)
    reach = _axis_factor(fits)
    axes.set(xscale="log", xlim=(1 / reach, reach), ylim=(len(fits) - 0.5, -0.5))
    plain_logarithm(axes.xaxis)
    axes.set_yticks(range(len(fits)), [fit.subject for fit in fits])
    axes.set_title("one number each", fontsize=10)
    axes.set_xlabel("measured / fitted", fontsize=8)
    axes.tick_params(labelsize=7)


def _axis_factor(fits: Sequence[Fit]) -> float:
    """Return the largest factor, either way, between points and *fits*, with a margin."""
    return 1.15 * max(_LEAST_REACH, *(float(max(_ratio(fit).max(), 1 / _ratio(fit).min())) for fit in fits))


def _ratio(fit: Fit) -> Any:
    import numpy as np

    return np.exp(fit.posterior.residuals)
