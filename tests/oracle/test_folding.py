"""Oracle: every rank simulated by itself. On the catalog's machines folding changes nothing, cold or warm, disk-bound or not."""

from __future__ import annotations

import pytest

from sim.study.scenario import Scenario, answer

SCENES = [
    ("p2.8xlarge", "alexnet", ("node.host.memory=20 GiB",), None),
    pytest.param("p4d.24xlarge", "vgg16", ("node.host.memory=40 GiB",), 2, marks=pytest.mark.nightly),
    ("p3.16xlarge", "resnet50", (), 2),
    ("dgx-2", "resnet18", ("input.num_workers=1",), None),
]


@pytest.mark.parametrize(("hardware", "workload", "overrides", "nodes"), SCENES)
def test_folded_equals_unfolded(hardware: str, workload: str, overrides: tuple[str, ...], nodes: int | None) -> None:
    folded, unfolded = (answer(Scenario(hardware, workload, overrides, nodes=nodes, fold=fold)).run.jobs[0] for fold in (True, False))
    for one, other in ((folded.first, unfolded.first), (folded.warm, unfolded.warm)):
        assert one.step_time == pytest.approx(other.step_time, rel=1e-9)
        assert dict(one.stalls) == pytest.approx(dict(other.stalls), abs=1e-9 * other.step_time)
