"""How is Stash's characterization plotted? Stalls by machine and batch, communication by layers and gradients, and costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from calibration.studies.stash2022.study import FAMILIES, InstanceFamily, StashRow, StashStudy
from sim.analysis import differential
from sim.causes import COLORS
from sim.events import Cause
from sim.report.picture import NamedPoint, Picture, figure, name_points, picture, plain_logarithm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PALETTE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")


def study_plots(study: StashStudy) -> dict[str, bytes]:
    """Return image files by name."""
    drawn = {
        "interconnect": _stalls(study, "interconnect stall, % of RUN1", _interconnect),
        "network": _stalls(study, "time over the network / time on one machine", lambda row: row.network),
        "prep": _stalls(study, "processor stall, % of RUN3", lambda row: 100 * differential.prep_stall(row.times).share),
        "fetch": _stalls(study, "disk stall, % of RUN2", lambda row: 100 * differential.fetch_stall(row.times).share),
        "cost": _stalls(study, "USD of a warm epoch", lambda row: row.cost),
        "layers": _layers(study),
    }
    return {name: content for title, made in drawn.items() for name, content in made.files(title).items()}


def _interconnect(row: StashRow) -> float | None:
    return 100 * row.interconnect if row.nodes == 1 and row.gpus > 1 else None


def _stalls(study: StashStudy, title: str, cell: Callable[[StashRow], float | None]) -> Picture:
    """Return a picture with a panel per family, in which each model and batch has a group of bars, one per machine."""
    drawn, axes = figure(len(FAMILIES), (13, 3.6 * len(FAMILIES)))
    for place, family in zip(axes, FAMILIES, strict=True):
        _bars(place, study, family, cell)
        place.set_ylabel(title, fontsize=8)
        place.set_title(f"Stash's cases on {family.name}, simulated", fontsize=10, loc="left")
    return picture(drawn)


def _bars(axes: Axes, study: StashStudy, family: InstanceFamily, cell: Callable[[StashRow], float | None]) -> None:
    cases = [(model, batch) for model, batches in family.batches.items() for batch in batches]
    shown: Mapping[str, dict[tuple[str, int], float]] = {
        machine: {(row.case.model, row.case.batch): value for row in study.rows_on(machine) if (value := cell(row)) is not None}
        for machine in family.machines
    }
    machines = [machine for machine, values in shown.items() if any(values.values())]
    width = 0.8 / max(1, len(machines))
    for index, machine in enumerate(machines):
        places = [place - 0.4 + (index + 0.5) * width for place, case in enumerate(cases) if case in shown[machine]]
        values = [shown[machine][case] for case in cases if case in shown[machine]]
        axes.bar(places, values, width, color=_PALETTE[index % len(_PALETTE)], label=machine)
    axes.set_xticks(range(len(cases)), [f"{model} {batch}" for model, batch in cases], rotation=60, ha="right", fontsize=7)
    axes.legend(fontsize=7, frameon=False, ncols=len(machines) or 1)
    axes.spines[["top", "right"]].set_visible(False)


def _layers(study: StashStudy) -> Picture:
    """Return a picture of the time that communication adds to a step, over gradient tensors and over gradient bytes."""
    drawn, axes = figure(2, (9, 8))
    causes: dict[str, Callable[[StashRow], float]] = {
        "gradient tensors": lambda row: row.tensors,
        "gradient MB": lambda row: row.gradient_bytes / 1e6,
    }
    for place, (label, cause) in zip(axes, causes.items(), strict=True):
        named: list[NamedPoint] = []
        for nodes, color in ((1, COLORS[Cause.INTERCONNECT]), (2, COLORS[Cause.NETWORK])):
            rows = [row for row in study.micro if row.nodes == nodes]
            if not rows:
                continue
            places = [(cause(row), 1e3 * row.communication) for row in rows]
            place.scatter(*zip(*places, strict=True), color=color, label=rows[0].case.machine)
            named += [NamedPoint(*at, row.case.model) for row, at in zip(rows, places, strict=True) if "_" not in row.case.model]
        place.set_xlabel(label)
        place.set_ylabel("ms that communication adds to a step", fontsize=8)
        place.set_xscale("log")
        place.set_yscale("log")
        plain_logarithm(place.xaxis)
        plain_logarithm(place.yaxis)
        place.grid(alpha=0.3, which="both")
        place.legend(fontsize=8, frameon=False, loc="lower right")
        name_points(place, named, 6)
    axes[0].set_title("Micro study: 32 samples per GPU, 8 V100", fontsize=10, loc="left")
    return picture(drawn)
