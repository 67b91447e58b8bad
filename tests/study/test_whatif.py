"""What would more of a resource bring? Oracles: closed forms of toy jobs, machines described as faster, runs at the break-even price."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.analysis.cost import cost
from sim.cluster.build import place
from sim.events import Cause
from sim.report.page.whatif import whatif_page
from sim.report.whatif import has_effect, ineffective_lines, whatif_document, whatif_text
from sim.simulate import Run, simulate
from sim.spec.hardware import Hardware
from sim.spec.workload import Workload
from sim.study import whatif as module
from sim.study.faster import INFINITE, faster
from sim.study.scenario import CheckedScenario, Scenario, answer, prepare
from sim.study.whatif import Upgrade, UpgradeUnit, WhatIf, _ResourceTrials, _unit, break_even, whatif
from sim.training.job import Job
from tests.harness import cluster, machine, run, toy_node, toy_workload, volume
from tests.study.scenes import COMPUTE, scene

LIKE_STASH = ("training.stack=apex-per-tensor",)


def whatif_of(monkeypatch: pytest.MonkeyPatch, hardware: Hardware, workload: Workload) -> WhatIf:
    """Return the what-if of descriptions that no file holds."""
    job = run(hardware, workload).jobs[0].job
    monkeypatch.setattr(module, "prepare", lambda scenario: CheckedScenario(hardware, [job], {}, []))
    return whatif(Scenario("toy", "toy"))


def by_name(what_if: WhatIf) -> dict[str, Upgrade]:
    return {upgrade.resource: upgrade for upgrade in what_if.upgrades}


def test_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed form: a DALI job that reads a batch in 1 s beside 0.3 s of compute: T(k) = max(0.3, 1/k), so 3.3 disks are enough."""
    what_if = whatif_of(monkeypatch, machine(1, disk=volume(bandwidth=1e6)), toy_workload(loader="dali_cpu", sample=1e6))
    disk = by_name(what_if)["disk"]
    assert what_if.upgrades[0] is disk
    assert what_if.now.step_time == pytest.approx(1.0, rel=1e-6)
    assert disk.twice.step_time == pytest.approx(0.5, rel=1e-6)
    assert disk.infinite.step_time == pytest.approx(COMPUTE, rel=1e-6)
    assert disk.shadow_price == pytest.approx(1 - 1 / 1.01, rel=1e-4)
    assert disk.on_path == pytest.approx(101 * disk.shadow_price, rel=1e-4)
    assert disk.enough == pytest.approx(1 / (1.01 * COMPUTE), rel=0.011)  # bisected to 1%
    assert disk.unit is not None
    assert disk.unit.name == "MB/s"
    assert disk.unit.amount == pytest.approx(1.0)
    assert disk.unit.shadow_price == pytest.approx(disk.shadow_price / 0.01)
    assert disk.bound(1.0) == pytest.approx((1.0, 1.0), rel=1e-4)
    gpu = by_name(what_if)["gpu"]
    assert (gpu.twice, gpu.shadow_price, gpu.on_path, gpu.enough) == (what_if.now, 0.0, 0.0, 1.0)
    assert not [upgrade for upgrade in what_if.upgrades if upgrade.on_edge(1.0)]


@pytest.mark.parametrize(("bandwidth", "longer"), [(1e6, "epoch 2 min; first epoch: 6.67 min"), (1e9, "epoch 2 min")])
def test_a_longer_first_epoch_is_told(monkeypatch: pytest.MonkeyPatch, bandwidth: float, longer: str) -> None:
    """Closed form: 400 samples of 1 MB in 1 s each from the disk, then in 0.3 s each from memory."""
    workload = toy_workload(loader="pytorch", inputs={"num_workers": 2})
    what_if = whatif_of(monkeypatch, machine(1, memory=1e9, disk=volume(bandwidth)), workload)
    assert what_if.first_epoch_time == pytest.approx(400 * max(1e6 / bandwidth, COMPUTE), rel=0.01)
    document = whatif_document(what_if)
    assert document["first_epoch_time_s"] == what_if.first_epoch_time
    assert whatif_text(document).splitlines()[0].endswith(longer)
    assert ("first: " in whatif_page(document)) == ("first" in longer)


def test_the_knife_edge_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed form: reading and decoding take 1 s each beside one another: 5% less of either delays the step, 5% more saves nothing."""
    workload = toy_workload(loader="dali_cpu", sample=1e6, prep=1.0, inputs={"num_threads": 1})
    what_if = whatif_of(monkeypatch, machine(1, disk=volume(bandwidth=1e6)), workload)
    edges = {upgrade.resource for upgrade in what_if.upgrades if upgrade.on_edge(what_if.now.step_time)}
    assert edges == {"disk", "cpu"}
    assert by_name(what_if)["disk"].bound(what_if.now.step_time) == pytest.approx((1.0, 0.0), abs=1e-3)
    warnings = whatif_document(what_if)["warnings"]
    assert len(warnings) == 2
    assert "5% slower makes the step 5.0% longer, 5% faster 0.0% shorter" in warnings[0]


@pytest.mark.parametrize("factor", [0.5, 2.0, 7.0])
def test_a_gpu_so_many_times_as_fast(factor: float) -> None:
    """Scaling law: a real GPU that never waits takes 1/k of its time, whatever its efficiency curves say."""
    scenario = Scenario("p3.2xlarge", "resnet50", ("input.loader=synthetic", "training.stack.launch_cpu=0 s", "dataset.prepared=1 B"))
    question = prepare(scenario)
    before = simulate(question.hardware, question.jobs).jobs[0].warm.step_time
    after = _with(question.hardware, question.jobs[0], "gpu", factor).jobs[0].warm.step_time
    assert after == pytest.approx(before / factor, rel=1e-6)  # one byte is copied


@pytest.mark.parametrize("name", ["disk", "cpu", "decode", "copy", "nvlink", "pcie", "network", "launch", "spread"])
def test_what_waits_scales(name: Any) -> None:
    """Bounds: with the only slow resource of a job twice as fast, the step ends between half its time and half its wait; ever less."""
    hardware, workload = scene(name)
    base = run(hardware, workload)
    times = [_with(hardware, base.jobs[0].job, name, factor).jobs[0].warm.step_time for factor in (0.5, 1.0, 2.0, 4.0)]
    assert times == sorted(times, reverse=True)
    assert times[1] == pytest.approx(base.jobs[0].warm.step_time, rel=1e-12)
    assert times[1] / 2 - 1e-9 <= times[2] <= COMPUTE + (times[1] - COMPUTE) / 2 + 1e-6 * times[1]


def test_twice_the_network_is_a_machine_with_twice_the_nic() -> None:
    """Oracle: the same machine described with twice the bandwidth and half the latencies."""
    transport = prepare(Scenario("p3.16xlarge", "vgg11")).hardware.groups[0].node.nic.transport
    better = (
        "node.nic.bandwidth=50 Gbps",
        f"node.nic.transport.hop_latency={transport.hop_latency / 2!r} s",
        f"node.nic.transport.hop_latency_ll={(transport.hop_latency_ll or 0) / 2!r} s",
        f"node.nic.transport.launch={transport.launch / 2!r} s",
        f"node.nic.transport.flow_cap={16 * (transport.flow_cap or 0) / 1e9!r} Gbps",
    )
    question = prepare(Scenario("p3.16xlarge", "vgg11", LIKE_STASH, nodes=2, batch=32))
    twice = _with(question.hardware, question.jobs[0], "network", 2.0)
    described = answer(Scenario("p3.16xlarge", "vgg11", (*LIKE_STASH, *better), nodes=2, batch=32)).run
    assert twice.jobs[0].warm.step_time == pytest.approx(described.jobs[0].warm.step_time, rel=1e-3)
    now = simulate(question.hardware, question.jobs).jobs[0].warm.step_time
    assert twice.jobs[0].warm.step_time < 0.95 * now


def _with(hardware: Hardware, job: Job, resource: Any, factor: float) -> Run:
    changed, jobs = faster(hardware, [job], [resource], factor)
    return simulate(changed, jobs, cold=False)


def test_at_the_break_even_price_an_epoch_costs_the_same() -> None:
    """Oracle: the run of the faster machine again, at the price that is called break-even."""
    scenario = Scenario("p3.2xlarge", "alexnet")
    what_if = whatif(scenario)
    document = whatif_document(what_if)
    best = what_if.upgrades[0]
    price = next(row for row in document["resources"] if row["resource"] == best.resource)["twice"]["break_even_price_usd_per_h"]
    assert price > document["price_usd_per_h"]
    dearer = prepare(Scenario("p3.2xlarge", "alexnet", (f"price.on_demand={price!r} USD/h",)))
    again = _with(dearer.hardware, dearer.jobs[0], best.resource, 2.0)
    assert cost(again.hardware, again.jobs[0].warm.time) == pytest.approx(document["cost_per_epoch_usd"], rel=1e-9)
    assert break_even(what_if.now, best.twice) == pytest.approx(price / document["price_usd_per_h"] - 1, rel=1e-9)


def test_the_document_and_its_table() -> None:
    """Round trip: the ranking falls, JSON can be written, and the text shows what gains, and only that."""
    document = json.loads(json.dumps(whatif_document(whatif(Scenario("p3.8xlarge", "alexnet", nodes=2)))))
    steps = [row["twice"]["step_time_s"] for row in document["resources"]]
    assert steps == pytest.approx(sorted(steps), rel=1e-5)
    text = whatif_text(document)
    assert "CPU" in text.splitlines()[3]
    assert [row["critical_path_s"] for row in document["resources"][:2]] == [pytest.approx(document["step_time_s"]), 0.0]
    assert "on critical path" in text
    assert "No effect even if infinitely fast: disk" in text


def test_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sim.cli import main

    assert main(["whatif", "p3.2xlarge", "resnet18", "-o", str(tmp_path), "--csv"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 11
    assert {path.name for path in tmp_path.iterdir()} == {f"whatif.{kind}" for kind in ("json", "txt", "csv", "html", "png", "svg")}
    assert (tmp_path / "whatif.png").read_bytes().startswith(b"\x89PNG")


def test_infinitely_much_that_gains_less_than_twice_says_what_it_crowds() -> None:
    """Oracle: the runs' own stalls and copies; preparation in no time takes the memory that copies read from."""
    what_if = whatif(Scenario("p2.16xlarge", "alexnet"))
    document = whatif_document(what_if)
    crowded = next(upgrade.crowded for upgrade in what_if.upgrades if upgrade.resource == "cpu")
    question = prepare(Scenario("p2.16xlarge", "alexnet"))
    twice, infinite = (_with(question.hardware, question.jobs[0].averaged, "cpu", factor) for factor in (2.0, INFINITE))
    slower = infinite.jobs[0].warm.step_time - twice.jobs[0].warm.step_time
    assert slower > 0 and crowded is not None and crowded.cause is Cause.COPY and crowded.longer == pytest.approx(slower, rel=1e-6)
    of_all = []
    for upgraded in (twice, infinite):
        copies = [work for work in upgraded.log.work if work.cause is Cause.COPY]
        there = sum(work.t1 - work.t0 for work in copies if work.resource == crowded.at)
        of_all.append(there / sum(work.t1 - work.t0 for work in copies))
    assert of_all[0] < 0.5 < of_all[1]
    assert any(
        text.startswith("CPU: infinitely fast gains less than twice") and "limited by the host memory of socket" in text
        for text in document["warnings"]
    )


def test_what_loses_is_not_said_to_have_no_effect() -> None:
    """Oracle: a network infinitely fast makes this step no shorter, but 0.3% longer."""
    document = whatif_document(whatif(Scenario("p3.8xlarge", "alexnet", nodes=2)))
    network = next(row for row in document["resources"] if row["resource"] == "network")
    assert network["infinite"]["throughput_gain_percent"] < -0.1 and abs(network["twice"]["throughput_gain_percent"]) < 0.1
    assert not has_effect(network) and not document["warnings"]
    gain = network["infinite"]["throughput_gain_percent"]
    said = next(line for line in whatif_text(document).splitlines() if "network" in line)
    assert said == f"  A step gets longer with more of: network ({gain:.2g}% throughput)."


def test_a_resource_that_nodes_have_unlike_amounts_of_has_no_unit() -> None:
    """By hand: cores of two kinds of node, 4 and 8; NICs, which are equal, are counted."""
    question = [cluster(toy_node(1, cores=cores), toy_node(1, cores=8)) for cores in (4, 8)]
    trials = [_ResourceTrials(hardware, Job(toy_workload(), place(hardware))) for hardware in question]
    assert [_unit(trial, "cpu", 0.0) for trial in trials] == [None, UpgradeUnit("core", 8.0, 0.0)]
    assert _unit(trials[0], "network", 0.0) == UpgradeUnit("Gbps", 8.0, 0.0)


def test_little_is_not_called_nothing() -> None:
    """Gains of 0.05% and of exactly zero have separate sentences; a rounding error counts as zero; 0.2% is a row of the table."""

    def row(resource: str, gain: float) -> dict[str, Any]:
        return {"resource": resource, "twice": {"throughput_gain_percent": 0.0}, "infinite": {"throughput_gain_percent": gain}}

    rows = [row("gpu", 0.2), row("disk", 0.05), row("cpu", 0.0), row("copy", 1e-12)]
    assert ineffective_lines(rows) == [
        "Less than 0.1% even if infinitely fast: disk.",
        "No effect even if infinitely fast: CPU, copy to the GPU.",
    ]
    assert ineffective_lines(rows[:1]) == []


def test_faster_gpus_are_named_with_what_they_bring_and_cost() -> None:
    """Oracles: the runs of those machines; of a job that waits for processors none is named."""
    what_if = whatif(Scenario("p3.2xlarge", "resnet50"))
    assert what_if.upgrades[0].resource == "gpu" and len(what_if.machines) > 1
    for one in what_if.machines:
        there = answer(Scenario(one.hardware, "resnet50", nodes=1)).run
        assert one.gpus == 1 and one.step_time == there.jobs[0].warm.step_time < what_if.now.step_time
        assert one.cost == pytest.approx(cost(there.hardware, there.jobs[0].warm.time))
    document = whatif_document(what_if)
    first = document["faster_machines"][0]
    assert first["throughput_gain_percent"] == pytest.approx(100 * (what_if.now.step_time / what_if.machines[0].step_time - 1))
    assert f"    {first['hardware']} (1 x {first['gpu']}): step " in whatif_text(document)
    assert whatif(Scenario("p3.8xlarge", "alexnet", nodes=2)).machines == ()
