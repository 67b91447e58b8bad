"""What a job asks of its machine: bytes, core-seconds and loads by hand, and which loader it gets."""

from __future__ import annotations

import pytest

from sim.cluster.build import Placement
from sim.cluster.storage import read_rate
from sim.events import Cause
from sim.spec.hardware import PageCache
from sim.study.scenario import Scenario, answer
from sim.training.input_pipeline import PAGEABLE_SLOWDOWN, PIN_BANDWIDTH
from sim.training.job import Job, batch_cost
from tests.harness import MEMORY_BANDWIDTH, cluster, layer, machine, run, toy_node, toy_workload, volume

PARTITIONED = PageCache(policy="partitioned", memory_share=1.0)
DISK = volume(bandwidth=1e8, latency="10 ms")


def cost(loader="pytorch", hits=0.0, node=None, **keys):
    node = node or toy_node(disk=DISK)
    workload = toy_workload(loader=loader, **{"batch": 4, "sample": 1e6, "prepared": 3e6, "prep": 0.5} | keys)
    return batch_cost(workload, node, read_rate(node.storage, workload.dataset, burst=False), hits)


def epoch(loader, **keys):
    """A warm epoch whose batches are 2 x 1 MB on disk and 2 x 100 MB on the way to the GPU, beside 0.3 s of compute."""
    workload = toy_workload([layer(0.05, 0.1)], **{"loader": loader, "batch": 2, "sample": 1e6, "prepared": 1e8, "samples": 200} | keys)
    return run(machine(1, pcie=10e9, disk=volume()), workload).jobs[0].warm


def test_ranks_are_all_gpus_of_all_nodes():
    assert Job(toy_workload(), (Placement(0, (0, 1)), Placement(3, (2,)))).ranks == 3


# --- what one batch costs --------------------------------------------------------------------------------------------


def test_a_batch_reads_what_the_cache_has_not():
    """By hand: 4 samples of 1 MB, a quarter of them cached."""
    assert cost(hits=0.25).read == pytest.approx(3e6)
    assert cost("synthetic").read == 0


def test_one_reader_waits_for_every_file():
    """By hand: 10 ms to reach a file and 10 ms to read its 1 MB at 100 MB/s; packed records are reached once and for all."""
    assert cost(files="per_sample").read_cap == pytest.approx(1e6 / 20e-3)
    assert cost(files="packed").read_cap == pytest.approx(1e8)


def test_prep_scales_with_the_batch_and_the_cores_speed():
    """By hand: 4 samples of 0.5 s; on cores 1.6 times as fast as the reference 1.25 s."""
    assert cost().prep == pytest.approx(2.0)
    node = toy_node(disk=DISK)
    fast = node.host.model_copy(update={"cpu": node.host.cpu.model_copy(update={"speed": 1.6})})
    assert cost(node=node.model_copy(update={"host": fast})).prep == pytest.approx(1.25)


def test_each_loader_has_its_own_prep():
    """Where DALI's own times are known they count; elsewhere the PyTorch loader's stand in."""
    own = {"dali_prep": 0.2, "dali_gpu_prep": 0.1}
    assert cost("synthetic").prep == 0
    assert cost("dali_cpu").prep == cost("dali_gpu").prep == pytest.approx(2.0)
    workload = toy_workload(loader="dali_cpu", batch=4)
    dataset = workload.dataset.model_copy(update=own)
    node = toy_node(disk=DISK)
    for loader, expected in (("dali_cpu", 0.8), ("dali_gpu", 0.4)):
        given = workload.model_copy(update={"dataset": dataset, "input": workload.input.model_copy(update={"loader": loader})})
        assert batch_cost(given, node, 1e8, 0.0).prep == pytest.approx(expected)


def test_dali_on_the_gpu_copies_what_lies_on_disk():
    """By hand: 4 x 1 MB instead of 4 x 3 MB cross PCIe, and the GPU decodes 4 x 20 ms; a faster memory decodes faster."""
    decode_cost = cost("dali_gpu", gpu_prep=0.02)
    assert (decode_cost.copy, decode_cost.gpu_prep) == (pytest.approx(4e6), pytest.approx(0.08))
    assert cost("dali_cpu", gpu_prep=0.02).copy == cost().copy == pytest.approx(12e6)
    node = toy_node(disk=DISK)
    fast = node.model_copy(update={"gpu": node.gpu.model_copy(update={"memory_bandwidth": 2 * MEMORY_BANDWIDTH})})
    assert cost("dali_gpu", gpu_prep=0.02, node=fast).gpu_prep == pytest.approx(0.04)


# --- what the step sees of it ----------------------------------------------------------------------------------------


def test_pageable_memory_copies_at_half_the_rate():
    """Closed form: 200 MB at 10 GB/s, twice as long from pageable memory; the rank waits for the copy."""
    pinned, pageable = (epoch("pytorch", inputs={"pin_memory": pinned}) for pinned in (True, False))
    assert pinned.stalls[Cause.COPY] == pytest.approx(0.02)
    assert pageable.stalls[Cause.COPY] == pytest.approx(0.02 * PAGEABLE_SLOWDOWN)


def test_dali_copies_ahead():
    """DALI hands over batches that lie on the GPU already: no copy is waited for."""
    warm = epoch("dali_cpu")
    assert warm.stalls[Cause.COPY] == 0
    assert {work.stream for work in warm.log.work if work.name == "copy"} == {"pipeline gpu"}


def test_gpu_decode_takes_turns_with_training():
    """Closed form: 2 x 50 ms of decode share the GPU with 300 ms of compute, 400 ms in all; the time shared is split in half."""
    warm = epoch("dali_gpu", gpu_prep=0.05)
    assert warm.step_time == pytest.approx(0.4)
    assert warm.stalls[Cause.PREP] == pytest.approx(0.1)
    assert warm.stalls[Cause.COMPUTE] == pytest.approx(0.3)


def test_the_pin_thread_can_be_the_bottleneck():
    """Closed form: 2 x 2.5 GB a batch through a pin thread of 5 GB/s: 1 s a step, all of it prep but compute and copy."""
    warm = epoch("pytorch", prepared=2.5e9)
    assert warm.step_time == pytest.approx(5e9 / PIN_BANDWIDTH)
    assert warm.stalls[Cause.PREP] == pytest.approx(5e9 / PIN_BANDWIDTH - 0.3 - 0.5)


def test_worker_start_is_paid_once_an_epoch():
    """Closed form: 3 s before the first batch, nothing after; persistent workers keep running."""
    plain, persistent, quick = (
        epoch("pytorch", prepared=0.0, inputs=inputs)
        for inputs in ({"worker_start": "3 s"}, {"worker_start": "3 s", "persistent_workers": True}, {})
    )
    assert plain.time - quick.time == pytest.approx(3.0)
    assert persistent.time == pytest.approx(quick.time)
    assert plain.step_time == pytest.approx(quick.step_time)


def test_no_workers_build_between_steps():
    """Closed form: 2 x 0.25 s of decode before 0.3 s of compute, one after the other."""
    warm = epoch("pytorch", prep=0.25, prepared=0.0, inputs={"num_workers": 0})
    assert warm.step_time == pytest.approx(0.8)
    assert warm.stalls[Cause.PREP] == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("launch", ["10 us", "0 s"])
def test_reading_slower_gains_at_most_the_gaps_that_the_host_leaves(launch):
    """Bound: GPU decode that comes later may fall where the GPU waits for the host, and fill that gap; it gains nothing else.

    So the cold epoch of this job, which has to read, is 0.8% faster than the warm one; without gaps it is not.
    """
    [job] = answer(Scenario("p3.2xlarge", "resnet18", ("input.loader=dali_gpu", f"training.stack.launch_cpu={launch}"))).run.jobs
    gained = job.warm.step_time - job.first.step_time
    assert gained <= job.warm.stalls[Cause.LAUNCH] * (1 + 1e-6) + 1e-9
    assert (gained > 1e-9) == (launch != "0 s")


@pytest.mark.parametrize("loader", ["pytorch", "dali_cpu"])
@pytest.mark.parametrize("nic", [5e5, 4e6, 1e9])
def test_servers_read_from_each_others_memory(loader, nic):
    """Closed form: of 8 MB a step, a quarter is a node's own, a quarter comes from the other's memory, half from a disk of 2 MB/s.

    Workers read one after the other and overlap; so the slower of NIC and disk bounds the step.
    """
    node = toy_node(1, disk=volume(2e6), nic=nic, memory=400e6).model_copy(update={"page_cache": PARTITIONED})
    hardware = cluster(node, count=2)
    inputs = {"num_workers": 8, "num_threads": 8}
    workload = toy_workload([layer(1e-6, 1e-6, 10)], loader=loader, batch=8, samples=1600, sample=1e6, inputs=inputs)
    job = run(hardware, workload).jobs[0]
    assert job.hit_ratio == pytest.approx(0.5)
    assert job.warm.step_time == pytest.approx(max(2e6 / nic, 4e6 / 2e6), rel=0.02)
    assert job.first.step_time == pytest.approx(8e6 / 2e6, rel=0.02)


@pytest.mark.parametrize("loader", ["pytorch", "dali_cpu"])
@pytest.mark.parametrize("nic", [1e6, 4e6, 1e9])
def test_storage_over_the_network_loads_the_nics(loader, nic):
    """Closed form: 8 MB a step arrive through a NIC, and in a ring of two nodes as many bytes of gradients as a node has.

    Storage with a connection of its own, as Amazon EBS, does not meet the gradients.
    """
    gradients = 2_000_000  # of 4 bytes: as many bytes as samples
    for nodes, exchanged in ((1, 0.0), (2, 4.0 * gradients)):
        for over_network, through_nic in ((True, 8e6 + exchanged), (False, exchanged)):
            node = toy_node(1, disk=volume(8e6, over_network=over_network), nic=nic, pcie=1e15)
            workload = toy_workload(
                [layer(1e-6, 1e-6, gradients)], loader=loader, batch=8, inputs={"num_workers": 8, "num_threads": 8}
            )  # fmt: skip
            job = run(cluster(node, count=nodes), workload).jobs[0]
            assert job.warm.step_time == pytest.approx(max(through_nic / nic, 8e6 / 8e6), rel=0.02)


def test_a_partitioned_cache_gains_what_coordl_gained():
    """Direction: up to 15 times against DALI on servers whose disks rotate (arXiv 2007.06775v1, abstract); here 15 MB/s, 65% each."""
    workload = toy_workload([layer(1e-4, 2e-4, 10)], loader="pytorch", batch=32, samples=6400, sample=1e5, inputs={"num_workers": 8})
    times = {}
    for policy in ("linux", "never_evict", "partitioned"):
        cache = PageCache(policy=policy, memory_share=1.0)
        node = toy_node(1, disk=volume(15e6), nic=5e9, memory=0.65 * 640e6).model_copy(update={"page_cache": cache})
        times[policy] = run(cluster(node, count=2), workload).jobs[0].warm.step_time
    assert times["linux"] / times["never_evict"] == pytest.approx(1.2, abs=0.3)  # alone up to 2 times on one server
    assert 2 < times["linux"] / times["partitioned"] < 15
