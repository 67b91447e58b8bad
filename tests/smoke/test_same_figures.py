"""Does one question have one answer, whichever command is asked?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from sim.cli import main

Capture = pytest.CaptureFixture[str]
HOUR = 3600.0


def asked(capsys: Capture, *words: str) -> Any:
    """Return the JSON document of the command *words*."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_whatif_pays_for_the_nodes_that_the_job_uses(capsys: Capture) -> None:
    """Oracle: `run`, which rents one of the two nodes."""
    job = ["2x-p3.8xlarge", "alexnet", "--placement", "4"]
    of_run, whatif = asked(capsys, "run", *job, "--fast"), asked(capsys, "whatif", *job)
    assert whatif["cost_per_epoch_usd"] == pytest.approx(of_run["cost_per_epoch_usd"])
    assert whatif["price_usd_per_h"] == pytest.approx(of_run["price"]["usd_per_h"]) == 12.24
    twice = whatif["resources"][0]["twice"]
    assert twice["cost_per_epoch_usd"] == pytest.approx(12.24 / HOUR * twice["epoch_time_s"])


@pytest.mark.parametrize(("stack", "servers"), [([], 0), (["--stack", "tf-parameter-server"], 1)])
def test_all_commands_rent_the_servers_that_the_job_uses(capsys: Capture, stack: list[str], servers: int) -> None:
    """By hand: eight workers at 0.723 USD/h, and each server in use at 0.1428 USD/h; the machine has two servers."""
    machine, usd_per_h = "cm-dare-k80", 8 * 0.723 + servers * 0.1428
    of_run = asked(capsys, "run", machine, "resnet15-cifar", "--epochs", "40", "--fast", *stack)
    assert of_run["price"]["usd_per_h"] == pytest.approx(usd_per_h)
    assert asked(capsys, "whatif", machine, "resnet15-cifar", *stack)["price_usd_per_h"] == pytest.approx(usd_per_h)
    compared = asked(capsys, "compare", "resnet15-cifar", machine, "--epochs", "40", "--jobs", "1", *stack)
    assert compared["rows"][0]["whole_job"]["cost_usd"] == pytest.approx(of_run["whole_job"]["cost_usd"])
    renting = ["--epochs", "40", "--nodes", "8", "--batch", "128", "--budget-usd", "100", "--on-demand", "--jobs", "1"]
    candidate = asked(capsys, "recommend", "resnet15-cifar", machine, *renting, *stack)["candidates"][0]
    assert candidate["total_cost_usd"] == pytest.approx(of_run["whole_job"]["cost_usd"])
    on_demand = asked(capsys, "spot", machine, "resnet15-cifar", "--epochs", "4000", *stack)["on_demand"]
    assert on_demand["cost_usd"] == pytest.approx(usd_per_h / HOUR * on_demand["time_s"], rel=0.02)  # without the time to boot
