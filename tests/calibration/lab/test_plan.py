"""Is a plan read as written? Oracles: the product of its lists by hand, and the sentences a wrong plan must get."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from calibration import HARDWARE
from calibration.cli import main
from calibration.lab.plan import MOST_HOSTS, LabPoint, plan_points, read_plan
from calibration.lab.score import PLAN
from sim.spec.yaml import SpecError

GOOD = """\
name: small
hardware: lab-two-cores
models:
  mlp: {model: "calibration.lab.models:mlp", inputs: ["784"], workload: lab-mlp}
points:
  - {model: mlp, batch: [8, 16], hosts: [1, 2], rate: [100 Mbps, 1 Gbps], delay: 0 s}
  - {model: mlp, batch: 8, hosts: 2, rate: 100 Mbps, role: network}
  - {model: mlp, batch: 8, hosts: 2, rate: 100 Mbps, delay: 5 ms, disk: 2 MB/s, workers: 1}
"""


def plan(folder: Path, text: str) -> Path:
    path = folder / "plan.yaml"
    path.write_text(text)
    return path


def test_lists_are_multiplied_out(tmp_path: Path) -> None:
    points = plan_points(read_plan(plan(tmp_path, GOOD)))
    alone = {LabPoint("mlp", batch, 1, None, 0.0, None, 0): "compute" for batch in (8, 16)}
    joined = {LabPoint("mlp", batch, 2, rate, 0.0, None, 0): "prediction" for batch in (8, 16) for rate in (12.5e6, 125e6)}
    slow = {LabPoint("mlp", 8, 2, 12.5e6, 0.005, 2e6, 1): "prediction"}
    assert points == alone | joined | slow
    assert next(iter(slow)).text == "mlp, batch 8, 2 hosts, 100 Mbps, 5 ms one way, disk 2 MB/s, 1 workers"


def test_an_earlier_block_decides_the_role(tmp_path: Path) -> None:
    lines = GOOD.splitlines()
    points = plan_points(read_plan(plan(tmp_path, "\n".join([*lines[:5], lines[6], lines[5]]))))
    assert points[LabPoint("mlp", 8, 2, 12.5e6, 0.0, None, 0)] == "network"
    assert sum(role == "network" for role in points.values()) == 1


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        (
            "model: mlp, batch: [8",
            "model: mpl, batch: [8",
            r"plan\.yaml:6:6: points\.0\.model: there is no model 'mpl'.*; it has mlp",
        ),
        ("rate: [100 Mbps", "rate: [100 MB", r"plan\.yaml:6:\d+: .*rate.*expected a bandwidth"),
        ("rate: [100 Mbps", "rate: [100", r"plan\.yaml:6:\d+: .*rate"),
        ("hosts: [1, 2]", "hosts: [1, 99]", rf"plan\.yaml:6:5: points\.0: 99 hosts are more than the {MOST_HOSTS}"),
        ("rate: [100 Mbps, 1 Gbps], ", "", r"plan\.yaml:6:5: points\.0: several hosts need a network; set its rate"),
        ("disk: 2 MB/s, workers", "workers", r"plan\.yaml:8:5: points\.2: workers read from a disk"),
        ("batch: [8, 16]", "batchs: [8, 16]", r"plan\.yaml:6:\d+: .*did you mean 'batch'\?"),
        ("role: network", "role: train", "role"),
        ("hosts: [1, 2]", "hosts: []", r"plan\.yaml:6:\d+: points\.0\.hosts: is empty"),
        ("hardware: lab-two-cores", "hardware: nosuch", r"plan\.yaml:2:1: hardware: nosuch is not in the catalog"),
        ("hardware: lab-two-cores", "hardware: lab-two-core", "in the folders given: lab-two-cores"),
        ("workload: lab-mlp", "workload: lab-mpl", r"plan\.yaml:4:\d+: models\.mlp\.workload: lab-mpl is not in the catalog.*lab-mlp"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, was: str, now: str, said: str) -> None:
    assert was in GOOD
    with pytest.raises(SpecError, match=said):
        read_plan(plan(tmp_path, GOOD.replace(was, now, 1)))


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("models:nothing", r"plan\.yaml:4:\d+: models\.mlp\.model: models:nothing: there is no module 'models'; install it"),
        ("calibration.lab.models:mpl", r"calibration\.lab\.models has no 'mpl'; did you mean 'mlp'\?"),
    ],
)
def test_a_model_that_is_not_there_is_said_before_anything_is_listed(
    tmp_path: Path, named: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    path = plan(tmp_path, GOOD.replace("calibration.lab.models:mlp", named))
    assert main(["lab", str(path), "--list"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and re.search(said, shown.err) and "internal error" not in shown.err


def test_all_that_a_plan_names_wrongly_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        read_plan(plan(tmp_path, GOOD.replace("lab-two-cores", "nosuch").replace("model: mlp, batch: 8", "model: mpl, batch: 8")))
    assert [problem.partition(": ")[0].rpartition("plan.yaml:")[2] for problem in error.value.problems] == ["2:1", "7:6", "8:6"]


def test_points_are_listed_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert len(plan_points(read_plan(plan(tmp_path, GOOD)))) == 7


def test_a_missing_plan_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        read_plan(tmp_path / "none.yaml")


def test_the_committed_plan_says_what_calibrates() -> None:
    """One model over one rate without delay may calibrate; at least three other models, other rates, delays and hosts are predicted."""
    lab_plan = read_plan(PLAN)
    roles = plan_points(lab_plan)
    network = [point for point, role in roles.items() if role == "network"]
    predicted = [point for point, role in roles.items() if role == "prediction"]
    assert len({(point.model, point.rate, point.delay, point.hosts) for point in network}) == 1
    assert len({point.model for point in predicted} - {network[0].model}) >= 3
    assert {point.rate for point in predicted} >= {50e6 / 8, 5e9 / 8}
    assert {point.delay for point in predicted} >= {0.0, 0.02}
    assert {point.hosts for point in predicted} >= {2, 3, 4}
    assert (HARDWARE / f"{lab_plan.hardware}.yaml").is_file()
