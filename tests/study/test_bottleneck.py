"""What bounds a run? Oracles: scenes with one slow resource, whose step without it is known; runs of faster hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sim.analysis.bottleneck import RESOURCES, Bottleneck, largest_saving
from sim.cluster.build import Placement
from sim.report.verdict import bound_by, moment_warning, verdict
from sim.simulate import Run, simulate
from sim.study.bottleneck import bottlenecks, jobs_met_by
from sim.study.faster import faster
from sim.study.scenario import Scenario, answer
from sim.training.job import Job
from tests.harness import cluster, layer, machine, run, toy_node, toy_workload, volume
from tests.study.scenes import COMPUTE, scene


@pytest.mark.parametrize("name", [name for name in RESOURCES if name != "gpu"])
def test_the_only_slow_resource_is_the_bottleneck(name: str) -> None:
    """Closed form: without it the step is its compute; the sentence names the GPUs next, or the rate they could take."""
    simulated = run(*scene(name))
    [bottleneck] = bottlenecks(simulated)
    assert bottleneck.first == name
    assert bottleneck.step_time > 1.15 * COMPUTE
    assert bottleneck.freed_times[bottleneck.first] == pytest.approx(COMPUTE, rel=1e-3)
    assert all(step > COMPUTE * 1.1 for other, step in bottleneck.freed_times.items() if other not in (name, "pcie", "gpu"))
    sentence = verdict(simulated, 0, bottleneck)
    assert f"freeing it would save {100 * (1 - COMPUTE / bottleneck.step_time):.0f}% of the step" in sentence
    assert "the GPUs" in sentence


def test_without_stalls_the_gpus_are_the_bottleneck() -> None:
    """Closed form: a job that only computes; freed GPUs leave nothing of the step."""
    [bottleneck] = bottlenecks(run(machine(1), toy_workload()))
    assert (bottleneck.first, set(bottleneck.freed_times)) == (None, {"gpu"})
    assert bottleneck.freed_times["gpu"] < 1e-4 * COMPUTE
    assert verdict(run(machine(1), toy_workload()), 0, bottleneck).startswith("Compute-bound: GPUs are busy 100% of each step.")


def test_two_equal_resources_bound_the_step_together() -> None:
    """Closed form: disk and cores each take 1 s a batch beside one another; freeing one leaves the other, both leave 0.3 s of compute."""
    threads = {"num_threads": 1}
    workload = toy_workload(loader="dali_cpu", sample=1e6, prep=1.0, inputs=threads)
    simulated = run(machine(1, disk=volume(bandwidth=1e6)), workload)
    [bottleneck] = bottlenecks(simulated)
    assert bottleneck.freed_times["disk"] == pytest.approx(1.0, rel=1e-3)
    assert bottleneck.freed_times["cpu"] == pytest.approx(1.0, rel=1e-3)
    assert bottleneck.saved_by_both == pytest.approx(0.7, rel=1e-2)
    assert bottleneck.doubled_time == pytest.approx(0.5, rel=1e-3)
    said = "bound the step together: freeing either alone saves under 4%, both 70%, doubling both 50%."
    assert verdict(simulated, 0, bottleneck).endswith(said)


def test_a_network_whose_doubling_gains_little_since_pcie_is_next_is_named_with_it() -> None:
    """Closed form: 1 GB over a card of 1 GB/s, or over PCIe of 1.04 GB/s behind it: 1 s, 0.96 s with a faster card, 0.5 s with both."""
    workload = toy_workload([layer(0.1, 0.2, 250_000_000)])
    simulated = run(machine(1, 2, nic=1e9, pcie=1.04e9), workload)
    [bottleneck] = bottlenecks(simulated)
    assert bottleneck.tied == ("network", "pcie")
    assert bottleneck.freed_times["network"] == pytest.approx(0.3 + 1 / 1.04, rel=1e-3)
    assert bottleneck.doubled_time == pytest.approx(0.3 + 0.5, rel=1e-3)
    said = "The network and PCIe bound the step together: freeing either alone saves under 4%, both 77%, doubling both 38%."
    assert verdict(simulated, 0, bottleneck) == said
    assert bound_by(simulated, 0, bottleneck) == "network"


def test_what_binds_nearly_as_much_as_the_gpus_is_named_beside_them() -> None:
    """Closed form: 0.3 s of compute and cores that need 0.285 s a batch: faster GPUs alone save 5%, both doubled half."""
    workload = toy_workload(loader="dali_cpu", prep=0.285, inputs={"num_threads": 1})
    simulated = run(machine(1, disk=volume()), workload)
    [bottleneck] = bottlenecks(simulated)
    assert bottleneck.tied == ("gpu", "cpu")
    assert bottleneck.doubled_time == pytest.approx(0.15, rel=1e-3)
    said = "would save less than 4%; faster GPUs alone would save at most 5%, because then the CPU limits; doubling both saves 50%."
    assert verdict(simulated, 0, bottleneck).endswith(said)


def test_faster_gpus_of_all_jobs_that_make_one_slower_save_nothing() -> None:
    """The other job, whose GPU is faster too, then takes half of the cores: this one's batch takes 0.57 s, not 0.285 s."""
    prepared = {"loader": "dali_cpu", "prep": 0.285, "inputs": {"num_threads": 1}}
    simulated = run(machine(1, disk=volume()), toy_workload(**prepared))
    [bottleneck] = bottlenecks(simulated)
    slower = replace(bottleneck, freed_times={**bottleneck.freed_times, "gpu": 0.57})
    assert "; faster GPUs alone would save nothing, because then the CPU limits; doubling both saves 50%." in verdict(simulated, 0, slower)


def test_jobs_that_never_meet_are_tried_by_themselves() -> None:
    """By hand: of five jobs two share a node, two an uplink, one of each the other's; the last has a leaf to itself."""
    hardware = cluster(toy_node(2, nic=1e9), count=8, leaf_spine={"nodes_per_leaf": 2, "oversubscription": 2})
    on = [((0, 0), (1, 0)), ((0, 1), (2, 0)), ((3, 0), (4, 0)), ((5, 0),), ((6, 0), (7, 0))]
    jobs = [Job(toy_workload([layer(0.1, 0.1, 10**7)]), tuple(Placement(node, (gpu,)) for node, gpu in own)) for own in on]
    simulated = run(hardware, *jobs)
    assert jobs_met_by(simulated) == [(0, 1, 2), (0, 1, 2), (0, 1, 2), (3,), (4,)]
    alone = bottlenecks(run(hardware, jobs[4]))[0]
    assert bottlenecks(simulated)[4].freed_times == pytest.approx(alone.freed_times, rel=1e-9)


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
def test_an_infinitely_fast_network_has_no_latency(protocol: str) -> None:
    """Closed form: gradients that are ready at the end wait for hops between two nodes only; without these the step is its compute."""
    network = {"hop_latency_ll": "20 ms"}
    workload = toy_workload([layer(0.1, 0.2, 10)], stack={"nccl_proto": protocol})
    [bottleneck] = bottlenecks(run(machine(1, 2, network_latency=0.05, network=network), workload))
    assert bottleneck.step_time > 0.3 + 2 * 0.015
    assert bottleneck.freed_times["network"] == pytest.approx(0.3, rel=1e-5)


def test_gloo_waits_for_its_sockets_or_its_cores() -> None:
    """Closed form: 0.4 MB over sockets of 1 MB/s, or copied at 1 us a byte by each of two threads; without that the step is its compute."""
    socket = {"name": "socket", "hop_latency": "0 s", "launch": "0 s", "efficiency": 1.0, "source": "test"}
    for keys, name, stall in (({"flow_cap": "1 MB/s"}, "network", 0.4), ({"cpu_time_per_byte": "1000 s/GB"}, "cpu", 0.4)):
        stack = {"backend": "gloo", "gloo_transport": socket | keys, "nccl_algo": None, "nccl_proto": None}
        workload = toy_workload([layer(0.1, 0.2, 100_000)], stack=stack)
        [bottleneck] = bottlenecks(run(machine(1, 2, nic=1e15, pcie=1e15), workload))
        assert bottleneck.step_time == pytest.approx(0.3 + stall)
        assert bottleneck.first == name
        assert bottleneck.freed_times[bottleneck.first] == pytest.approx(0.3, rel=1e-3)


def test_what_is_next_at_once_is_named() -> None:
    """Closed form: cores allow a batch in 1.5 s, the disk one in 1 s: freeing the cores saves a third, then the disk limits."""
    workload = toy_workload(loader="dali_cpu", sample=1e6, prep=1.5, inputs={"num_threads": 1})
    simulated = run(machine(1, disk=volume(bandwidth=1e6)), workload)
    [bottleneck] = bottlenecks(simulated)
    assert (bottleneck.first, bottleneck.next_limit) == ("cpu", "disk")
    assert "saves" not in (sentence := verdict(simulated, 0, bottleneck))
    assert "would save 33% of the step, then the disk limits at 1 samples/s. Cores are idle: --set input.num_threads=2 " in sentence


def test_two_p3_8xlarge_wait_for_their_cores_before_the_network() -> None:
    """Oracle: machines that have the better part. Most waiting is for the NIC, but a faster NIC alone helps nobody."""
    options = {"nodes": 2}
    answered = answer(Scenario("p3.8xlarge", "alexnet", **options), thorough=True)
    better = {
        "network": answer(Scenario("p3.8xlarge", "alexnet", ("node.nic.bandwidth=100 Gbps",), **options)).run,
        "cpu": answer(Scenario("p3.8xlarge", "alexnet", ("node.host.cpu.speed=9",), **options)).run,
    }
    [bottleneck] = answered.bottlenecks
    assert (bottleneck.first, bottleneck.next_limit) == ("cpu", "network")
    assert better["cpu"].jobs[0].warm.step_time == pytest.approx(bottleneck.freed_times["cpu"], rel=0.02)
    assert better["network"].jobs[0].warm.step_time == pytest.approx(bottleneck.freed_times["network"], rel=0.02)


@pytest.mark.parametrize(
    ("hardware", "workload", "nodes"),
    [
        ("p3.16xlarge", "vgg16", 1),
        pytest.param("p2.8xlarge", "resnet18", 1, marks=pytest.mark.nightly),
        ("p3.8xlarge", "vgg16", 2),
        pytest.param("p3.2xlarge", "alexnet", 1, marks=pytest.mark.nightly),
    ],
)
def test_what_was_not_tried_would_not_have_helped(hardware: str, workload: str, nodes: int) -> None:
    """Oracle: the runs that were left out. No resource that nobody waits for saves more than what was called the best."""
    answered = answer(Scenario(hardware, workload, nodes=nodes), thorough=True)
    [bottleneck] = answered.bottlenecks
    job = answered.run.jobs[0].job
    for resource in RESOURCES:
        if resource not in bottleneck.freed_times:
            assert 1 - _freed(answered.run, job, resource) / bottleneck.step_time < 0.01, resource


def _freed(simulated: Run, job: Job, resource: Any) -> float:
    hardware, [freed] = faster(simulated.hardware, [job], [resource])
    return run(hardware, freed, cold=False).jobs[0].warm.step_time


def test_the_document_tells_what_was_freed() -> None:
    """Round trip: the figures of the document are those of the counterfactual runs; without them it says so."""
    from sim.report.document import run_document

    answered = answer(Scenario("p3.2xlarge", "alexnet"), thorough=True)
    document = run_document(answered.run, answered.inputs, bottlenecks=answered.bottlenecks)
    assert document["freed_step_time_s"] == dict(answered.bottlenecks[0].freed_times)
    assert document["verdict"] == verdict(answered.run, 0, answered.bottlenecks[0])
    assert run_document(answered.run, answered.inputs)["freed_step_time_s"] is None


def test_the_better_saving_wins_and_ties_go_to_the_narrower() -> None:
    """By hand, of a step of 1 s."""
    assert largest_saving(1.0, {"pcie": 0.7, "copy": 0.7}) == "copy"
    assert largest_saving(1.0, {"pcie": 0.6, "copy": 0.7}) == "pcie"
    assert largest_saving(1.0, {"gpu": 1.0, "disk": 1.2}) is None
    assert Bottleneck(1.0, {"disk": 0.75}).saved("disk") == 0.25


def test_the_step_is_given_for_several_moments_of_the_loaders_work() -> None:
    """Decoding on the GPU beside training or in a gap of it, by when a batch is built; the cold epoch's moment is among those tried."""
    scenario = Scenario("g5.12xlarge", "resnet50", ("input.loader=dali_gpu",), nodes=3, batch=8)
    simulated = answer(scenario).run
    job, [bottleneck] = simulated.jobs[0], bottlenecks(simulated)
    low, high = bottleneck.spread
    assert job.first.step_time < 0.96 * job.warm.step_time  # both exact
    assert low <= job.first.step_time * 1.001
    assert high >= job.warm.step_time
    assert moment_warning(bottleneck)[0].startswith("the step takes 53.9 ms to 56.9 ms, depending on when the loaders")


def test_jobs_that_meet_are_moved_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three moments for all, each job by its own share of its own step. Two jobs with cores of their own take what each takes alone."""
    moved: list[Sequence[float]] = []

    def counted(*arguments: Any, **options: Any) -> Run:
        moved.extend([options["lags"]] if options.get("lags") else [])
        return simulate(*arguments, **options)

    monkeypatch.setattr("sim.study.bottleneck.simulate", counted)
    workload = toy_workload(loader="dali_cpu", prep=1.0, inputs={"num_threads": 1})
    slower = toy_workload(loader="dali_cpu", prep=2.0, inputs={"num_threads": 1})
    hardware = machine(2, disk=volume())
    jobs = [Job(work, (Placement(0, (gpu,)),)) for gpu, work in enumerate((slower, workload))]
    bounds = bottlenecks(run(hardware, *jobs))
    assert moved == [pytest.approx((2 * share, share), rel=1e-6) for share in (0.25, 0.5, 0.75)]
    assert [each.spread for each in bounds] == [pytest.approx((2.0, 2.0), rel=1e-6), pytest.approx((1.0, 1.0), rel=1e-6)]


def test_the_moment_of_a_loader_that_bounds_the_step_does_not_matter() -> None:
    """Closed form: one decoder takes 1 s a batch, whenever that is; synthetic data have no moment."""
    simulated = run(machine(1, disk=volume()), toy_workload(loader="dali_cpu", prep=1.0, inputs={"num_threads": 1}))
    [bottleneck] = bottlenecks(simulated)
    assert bottleneck.spread == pytest.approx((1.0, 1.0), rel=1e-6)
    assert moment_warning(bottleneck) == []
    assert bottlenecks(run(machine(1), toy_workload()))[0].phases == ()


def test_accumulated_batches_are_moved_within_the_time_between_two_of_them() -> None:
    """Closed form: a loader far faster than the GPU. A batch moved by up to three quarters of a micro-batch never holds up the step."""
    options = {"num_workers": 1, "prefetch_factor": 1, "pin_memory": False}
    work = toy_workload(loader="pytorch", prep=1e-4, inputs=options, accumulation=8)
    simulated = run(machine(1, disk=volume()), work)
    [bottleneck] = bottlenecks(simulated)
    assert simulated.jobs[0].warm.step_time == pytest.approx(8 * COMPUTE, rel=1e-2)
    assert bottleneck.spread == pytest.approx((8 * COMPUTE, 8 * COMPUTE), rel=1e-2)
