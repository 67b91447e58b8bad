"""Machines and the workload may be typed in either order. Oracle: the answer to the documented order, machines first."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cli import main
from sim.commands.order import workload_last

BOX = "extends: p3.2xlarge\nname: my-box\n"
JOB = "extends: alexnet\nname: my-job\n"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a machine and a workload of one's own."""
    (tmp_path / "box.yaml").write_text(BOX)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "names",
    [
        ["p3.2xlarge", "alexnet"],
        ["p3.2xlarge", "p3.8xlarge", "alexnet"],
        ["p3.2xlarge", "p3.8xlarg", "alexnet"],  # a misspelled machine
        ["p3.2xlarge", "p3.8xlarge", "alexnett"],  # a misspelled workload
        ["box.yaml", "p3.8xlarge", "job.yaml"],
        ["P3.2XLARGE", "ResNet50"],
    ],
)
def test_the_workload_is_found_wherever_it_is_typed(desk: Path, names: list[str]) -> None:
    *machines, workload = names
    for place in range(len(names)):
        assert workload_last([*machines[:place], workload, *machines[place:]]) == names


@pytest.mark.parametrize(
    "names", [["alexnet", "vgg16"], ["p3.2xlarge", "p3.8xlarge"], ["no-box", "no-job"], ["alexnet", "vgg16", "p3.2xlarge"]]
)
def test_unclear_names_stay_as_they_are(names: list[str]) -> None:
    assert workload_last(names) == names


@pytest.mark.parametrize(
    "words",
    [
        "run HW WL --fast",
        "compare HW p3.8xlarge WL",
        "whatif HW WL",
        "recommend HW WL --budget-hours 9 --nodes 1",
        "goodput HW WL --days 1 --trials 9",
    ],
)
def test_both_orders_get_the_same_answer(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for hardware, workload in (("p3.2xlarge", "alexnet"), ("alexnet", "p3.2xlarge")):
        typed = [{"HW": hardware, "WL": workload}.get(word, word) for word in words.split()]
        assert main(typed) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("run alexnett p3.2xlarge", "alexnett is not in the catalog (workloads/); did you mean alexnet?"),
        ("run alexnet p3.2xlarg", "p3.2xlarg is not in the catalog (hardware/); did you mean p3.2xlarge"),
        ("compare alexnet p3.2xlarg p3.8xlarge", "p3.2xlarg is not in the catalog (hardware/); did you mean p3.2xlarge"),
        ("run p3.2xlarge p3.8xlarge", "p3.2xlarge and p3.8xlarge are machines; write a workload too, such as resnet50: run HW WL\n"),
        ("compare p3.2xlarge", "p3.2xlarge is a machine; write a workload too, such as resnet50: compare [HW...] WL\n"),
        ("compare alexnet vgg16", "alexnet and vgg16 are workloads; write a machine too, such as p3.16xlarge: compare [HW...] WL\n"),
        ("show resnet50 --layers 3", "3 is not in the catalog (workloads/); "),
    ],
)
def test_a_wrong_name_is_told_as_what_it_was_meant_to_be(words: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr().err.startswith(named)


def test_a_jobs_file_is_found_in_either_order(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for names in (["p3.16xlarge", "resnet18-and-vgg16"], ["resnet18-and-vgg16", "p3.16xlarge"]):
        assert main(["share", *names, "--policy", "even"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""
