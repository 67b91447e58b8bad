"""Are there pictures of every job and size? Oracle: names and texts of the SVG files."""

from __future__ import annotations

from xml.etree import ElementTree

from sim.causes import COLORS
from sim.report.plots import pictures
from tests.report.page.cases import case_answer


def texts(svg: bytes) -> str:
    return " ".join("".join(element.itertext()) for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"))


def test_a_run_has_a_picture_a_job() -> None:
    run = case_answer("several jobs").run
    drawn = pictures([run], False)
    assert set(drawn) == {f"stalls-{number}.{kind}" for number in (0, 1) for kind in ("png", "svg")}
    for number, job in enumerate(run.jobs):
        said = texts(drawn[f"stalls-{number}.svg"])
        assert job.job.workload.name in said and "warm epoch" in said and "milliseconds of one warm step" in said


def test_every_color_is_in_the_key() -> None:
    """Oracle: colors of the drawing's shapes; the key lists what the bars and the timeline show, and nothing else."""
    run = case_answer("exchange").run
    drawn = pictures([run], False)["stalls.svg"].decode()
    key = set(texts(drawn.encode()).split())
    for cause, color in COLORS.items():
        assert (color in drawn) == (cause.value in key), cause


def test_sizes_have_a_bar_each() -> None:
    runs = [case_answer("exchange").run, case_answer("NVSwitch").run]
    said = texts(pictures(runs, True)["stalls.svg"])
    assert all(f"{run.jobs[0].job.ranks} GPUs" in said for run in runs)
