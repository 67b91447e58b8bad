"""Does the picture of residuals show every fitted subject? Oracle: the text of its SVG, for records made from known constants."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from calibration.machines.fit_run import collective_fits
from calibration.machines.machine_fit import Fit, fits, merge_records
from calibration.machines.residuals import residual_picture
from calibration.measure.machine_record import MachineRecord, write_record
from sim.spec.yaml import SpecError
from tests.calibration.machine_records import cpu_record, gpu_record


def fit_record(folder: Path, record: MachineRecord) -> dict[str, Fit]:
    write_record(folder / "record.json", record)
    measured = merge_records([folder / "record.json"])
    return fits(measured) | collective_fits(measured)


def texts(svg: bytes) -> list[str | None]:
    return [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize(("record", "panels"), [(cpu_record(0.05), {"gemm", "all_reduce"}), (gpu_record(1, 0.05), {"memory", "host_copy"})])
def test_every_subject_of_several_points_is_drawn(tmp_path: Path, record: MachineRecord, panels: set[str]) -> None:
    subjects = fit_record(tmp_path, record)
    shown = set(texts(residual_picture(subjects).svg))
    assert {fit.subject for fit in subjects.values() if len(fit.times) > 1} | panels | {"one number each"} <= shown


def test_no_points_are_no_picture() -> None:
    with pytest.raises(SpecError, match="--plot: the records contain no points to plot"):
        residual_picture({})


def test_close_fits_have_ticks_on_both_sides_of_one(tmp_path: Path) -> None:
    """Products that lie within 1% of their fit, alone."""
    gemm = {name: fit for name, fit in fit_record(tmp_path, cpu_record(0.001)).items() if fit.probe == "gemm"}
    numbers = [float(text) for text in texts(residual_picture(gemm).svg) if text and text.replace(".", "").isdigit()]
    assert min(numbers) < 1.0 < max(numbers) and len(numbers) >= 3
