"""Is a machine named that could run what others cannot? Oracle: trying each machine of the catalog by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.cli import main
from sim.spec.library import load_hardware
from sim.spec.listing import hardware_rows
from sim.spec.yaml import SpecError
from sim.study.layout import layout_answer
from sim.study.layout_options import layout_of
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


@pytest.mark.parametrize(("model", "fields"), [
    pytest.param("llama-3.1-8b", "pp=2", marks=pytest.mark.nightly),
    pytest.param("llama-3.1-8b", "shard=parameters", marks=pytest.mark.nightly),
    ("llama-3.2-1b", "tp=4,shard=parameters"),
])  # fmt: skip
def test_a_layout_fits_where_it_is_said_to_and_on_no_smaller_gpu(model: str, fields: str) -> None:
    given = Scenario("", model, layout=layout_of([fields]))
    name = nearest_that_runs(given, []).removeprefix("nearest that can: ").partition(",")[0]
    rows = {str(row["name"]): row for row in hardware_rows()[0] if row["gpus"]}
    assert layout_answer(replace(given, hardware=name)).run.memory_verdict != "does_not_fit"
    smaller = [other for other in rows if float(rows[other]["gpu_memory"] or 0) < float(rows[name]["gpu_memory"] or 0)]
    able = [other for other in smaller if runs(replace(given, hardware=other))]
    assert all(load_hardware(other).spec.hypothetical for other in able)


def runs(given: Scenario) -> bool:
    try:
        layout_answer(given)
    except SpecError:
        return False
    return True


def test_where_nothing_fits_it_says_what_is_missing() -> None:
    said = nearest_that_runs(Scenario("", "resnet50", batch=100_000), [])
    assert said.startswith("the catalog machine with the largest GPUs cannot either") and "the largest batch that fits is" in said


@pytest.mark.parametrize(("limit", "can"), [("204 W", False), ("207 W", True)])
def test_a_power_limit_is_that_of_the_changed_job(limit: str, can: bool) -> None:
    """Oracle: `run` on the first machine with enough memory; in fp32 its GPU draws more than in the workload's own bf16."""
    name, job = "1h200.141s.44v", ["llama-3.2-1b", "--precision", "fp32", "--batch", "3", "--fast"]
    assert main(["run", name, *job, "--power-cap", limit]) == (0 if can else 2)
    said = nearest_that_runs(Scenario("", "llama-3.2-1b", precision="fp32", batch=3, power_cap=limit), [])
    assert said.startswith(f"nearest that can: {name}") == can


def test_recommend_says_why_and_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "resnet50", "p2.xlarge", "--batch", "300", "--budget-usd", "5", "--nodes", "1"]) == 1
    said = capsys.readouterr().out
    assert "None of these machines can be rented to run resnet50." in said and "K80 has 12 GiB" in said and "nearest that can: " in said


@pytest.mark.nightly
@pytest.mark.parametrize("command", [
    "compare llama-3.1-70b p3.8xlarge",
    "recommend llama-3.1-70b g5.xlarge --tokens 1M --budget-usd 100 --nodes 1",
])  # fmt: skip
def test_a_machine_that_runs_it_in_a_layout_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: `plan` finds a layout on the machine that is named."""
    assert main(command.split()) == 1
    said = capsys.readouterr().out
    assert "cannot either" not in said
    name = said.lower().partition("nearest that can: ")[2].partition(",")[0]
    assert main(["plan", name, "llama-3.1-70b", "--simulate", "1"]) == 0
