"""Oracle: the descriptions as they are loaded, and values set by hand."""

from __future__ import annotations

import json

from sim.report.inputs import inputs
from sim.spec.sections import blocks
from sim.study.scenario import Scenario, answer
from sim.units import parse


def test_every_value_is_there_in_its_unit() -> None:
    run = answer(Scenario("p3.16xlarge", "vgg16")).run
    hardware, workload = inputs(run)["hardware"], inputs(run)["workload"]
    node = run.node()
    assert hardware["node.gpu.name"] == "V100-SXM2-16GB" and workload["training.batch"] == 64
    assert hardware["node.nic.bandwidth"] == "25 Gbps" and hardware["node.gpu.memory"] == "16 GiB"
    assert parse(hardware["node.gpu.peak.fp32"], "compute rate") == node.gpu.peak["fp32"]
    assert parse(workload["training.stack.bucket_cap"], "size") == run.jobs[0].job.workload.training.stack.exchange.bucket_cap
    assert parse(hardware["price.on_demand"], "price") == run.hardware.groups[0].price.on_demand  # type: ignore[union-attr]
    names = {".".join(map(str, key)).removeprefix("groups.0.") for key, _ in blocks(run.hardware) if key}
    assert {name for name in names if name.startswith("node.") and not any(key.startswith(name) for key in hardware)} == {
        "node.topology.sockets.1"  # all devices are elsewhere, and it says nothing
    }
    assert json.loads(json.dumps(inputs(run))) == inputs(run)


def test_an_override_changes_its_key_and_no_other() -> None:
    for key, value in {"node.nic.bandwidth": "40 Gbps", "input.num_workers": 7, "node.gpu.efficiency.gemm.fp32": 0.5}.items():
        old, new = (inputs(answer(Scenario("p3.2xlarge", "resnet18", texts)).run) for texts in ((), (f"{key}={value}",)))
        changed = {name for kind in old for name in {**old[kind], **new[kind]} if old[kind].get(name) != new[kind].get(name)}
        assert changed and all(name.startswith(key) for name in changed)


def test_of_several_groups_each_has_its_number() -> None:
    run = answer(Scenario("cm-dare-k80", "resnet32-cifar", stack="tf-parameter-server")).run
    assert {"groups.0.node.gpu.name", "groups.1.role"} <= set(inputs(run)["hardware"])
