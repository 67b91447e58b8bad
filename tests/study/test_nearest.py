"""Is a machine named that could run what others cannot? Oracle: trying each machine of the catalogue by itself."""

from __future__ import annotations

import pytest

from sim.cli import main
from sim.spec.listing import hardware_rows
from sim.spec.yaml import SpecError
from sim.study.nearest import nearest_that_runs
from sim.study.scenario import Scenario, prepare


def test_it_is_the_smallest_that_fits() -> None:
    said = nearest_that_runs(Scenario("", "resnet50", batch=300), ["p2.xlarge"])
    name = said.removeprefix("nearest that can: ").partition(",")[0]
    memory = {str(row["name"]): float(row["gpu_memory"] or 0) for row in hardware_rows()[0]}
    assert prepare(Scenario(name, "resnet50", batch=300)).hardware.name == name
    for other in (other for other, size in memory.items() if size < memory[name] and not other.startswith("cm-dare")):
        with pytest.raises(SpecError):
            prepare(Scenario(other, "resnet50", batch=300))


def test_where_nothing_fits_it_says_what_is_missing() -> None:
    said = nearest_that_runs(Scenario("", "resnet50", batch=100_000), [])
    assert said.startswith("nor can the machine with the largest GPUs") and "the largest batch that fits is" in said


def test_recommend_says_why_and_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "resnet50", "p2.xlarge", "--batch", "300", "--budget-usd", "5", "--nodes", "1"]) == 1
    said = capsys.readouterr().out
    assert "No rentable machine in the catalogue can run resnet50." in said and "K80 has 12 GiB" in said and "nearest that can: " in said
