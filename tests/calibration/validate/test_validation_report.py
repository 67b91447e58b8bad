"""Can the plot of a validation be read, of one point as of many clusters? Oracle: boxes of what is drawn."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calibration.cli import main
from calibration.validate.validation_report import explanation, validation_figure, validation_plot
from tests.shown import ROOT


def validation(clusters: int, first: float, last: float, points: int) -> Any:
    """What a plot reads of a validation: steps from *first* to *last* (s), predicted 5% too long."""
    steps = [first * (last / first) ** (number / max(1, points - 1)) for number in range(points)]
    rows = [SimpleNamespace(question=SimpleNamespace(step_time=step), predictions={"calibrated": 1.05 * step}) for step in steps]
    outcomes = [SimpleNamespace(name=f"a-cluster-of-number-{number}", scored_rows=rows) for number in range(clusters)]
    return SimpleNamespace(clusters=outcomes, scored_rows=rows * clusters)


@pytest.mark.parametrize(("clusters", "first", "last", "points"), [(1, 0.25, 0.25, 1), (1, 0.175, 0.185, 4), (46, 0.003, 30.0, 20)])
def test_names_and_ticks_leave_room_for_the_points(clusters: int, first: float, last: float, points: int) -> None:
    figure = validation_figure(validation(clusters, first, last, points))
    figure.draw_without_rendering()
    [axes], [legend] = figure.axes, figure.legends
    plot = axes.get_window_extent()
    assert plot.width > 4.5 * figure.dpi and not plot.overlaps(legend.get_window_extent())
    assert len(legend.get_texts()) == clusters
    for labels in (axes.get_xticklabels(which="both"), axes.get_yticklabels(which="both")):
        boxes = [label.get_window_extent() for label in labels if label.get_text()]
        assert len(boxes) >= 2 and all(not one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])
    low, high = axes.get_xlim()
    assert low < first and 1.05 * last < high and axes.get_ylim() == (low, high)


def test_clusters_look_different() -> None:
    [axes] = validation_figure(validation(46, 0.1, 1.0, 2)).axes
    looks = {(tuple(drawn.get_facecolor()[0]), drawn.get_paths()[0].vertices.tobytes()) for drawn in axes.collections}
    assert len(looks) == 46


def test_nothing_scored_is_an_empty_plot() -> None:
    assert validation_plot(validation(0, 1.0, 1.0, 1)).startswith(b"\x89PNG")


def test_zero_shot_is_not_from_descriptions_alone() -> None:
    """`calibration.validate.validation`: *zero_shot* uses the compute rows, *calibrated* the network rows as well."""
    text = explanation(validation(0, 1.0, 1.0, 1))
    assert re.search(
        r"^  zero-shot +error .* from descriptions and how fast each job computes \(rows of role compute\)$", text, re.MULTILINE
    )
    assert re.search(r"^  calibrated +error if the rows of role network calibrate the network as well$", text, re.MULTILINE)


RUNS = "machine,model,nodes,batch_size_per_gpu,step_time_ms\np3.8xlarge,resnet18,1,32,100\np3.8xlarge,resnet18,2,32,120\n"


def test_every_column_of_the_table_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also the share within the interval; and where to read more exists."""
    (tmp_path / "runs.csv").write_text(RUNS)
    assert main(["validate", str(tmp_path / "runs.csv")]) == 0
    table, legend = capsys.readouterr().out.split("columns:\n")
    first, second = next(pair for pair in pairwise(table.splitlines()) if "zero-shot" in pair[0])
    titles = set(re.sub("exposed rows", "", first).split())
    assert titles == {"rows", "zero-shot", "calibrated", "skill", "tau", "free", "closed", "copy", "within"} and second.endswith(" 95%")
    explained = re.findall(r"^  (\S+(?: \S+)*)  ", legend, re.MULTILINE)
    assert {"exposed rows", "within 95%"} <= set(explained)
    assert all(any(title in names for names in explained) for title in titles)
    assert (ROOT / legend.splitlines()[-1].split()[0]).is_file()
