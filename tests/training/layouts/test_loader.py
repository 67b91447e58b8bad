"""Do samples come as fast as disk and cores give them? Oracles: bytes over bandwidth, core time over cores, and no loader at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.events import Cause
from sim.mesh import LayoutRun, layout_scene, prepare
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Workload
from sim.study.layout_whatif import layout_whatif
from sim.study.scenario import Scenario
from sim.training.layouts.bound import least_time
from sim.training.layouts.loader import Feed, RankLoader
from tests.harness import machine, volume
from tests.training.layouts.toys import BACKWARD, FORWARD, blocks, run, split_block, workload

SLOT = FORWARD + BACKWARD
SAMPLE, SAMPLES = 1e6, 1e9


def fed(given_: Workload, prep: float = 0.0, **options: Any) -> Workload:
    """Return *given_* with samples of 1 MB in a stream far larger than memory, *prep* core seconds each."""
    dataset = given_.dataset.model_copy(update={"samples": int(SAMPLES), "sample": SAMPLE, "prep": prep, "files": "packed"})
    inputs = given_.input.model_copy(update={"loader": "pytorch", **options})
    return given_.model_copy(update={"dataset": dataset, "input": inputs})


def on(bandwidth: float, gpus: int = 1, nodes: int = 1) -> Hardware:
    """Return a machine whose messages are free, with a disk of *bandwidth* bytes/s in each node."""
    return machine(gpus, nodes, nvlink=1e18, nic=1e18, pcie=1e18, dram=1e19, disk=volume(bandwidth))


def stalled(layout_run: LayoutRun) -> float:
    return layout_run.stalls[Cause.FETCH] + layout_run.stalls[Cause.PREP]


@pytest.mark.parametrize("micro_batches", [1, 3, 8])
@pytest.mark.parametrize(("gpus", "tensor"), [(1, 1), (4, 1), (4, 4)])
def test_a_step_that_the_disk_bounds_is_bytes_over_bandwidth(micro_batches: int, gpus: int, tensor: int) -> None:
    readers = gpus // tensor  # ranks of a tensor group take the same samples
    bandwidth = readers * SAMPLE / (4 * SLOT)  # a micro-batch in four times what it computes
    layers = blocks(1) if tensor == 1 else split_block(0)
    given_ = fed(workload(layers, tensor=tensor, shard="parameters" if tensor == 1 else "none", micro_batches=micro_batches))
    batch = given_.training.batch
    layout_run = run(on(bandwidth, gpus), given_)
    assert layout_run.step_time == pytest.approx(micro_batches * readers * batch * SAMPLE / bandwidth, rel=1e-4)
    assert stalled(layout_run) == pytest.approx(layout_run.step_time - layout_run.stalls[Cause.COMPUTE], rel=1e-3)


def test_storage_over_the_network_is_no_faster_than_the_nics() -> None:
    given_ = fed(workload(blocks(1), shard="parameters", micro_batches=4))
    rate = given_.training.batch * SAMPLE / (4 * SLOT)
    for over_network in (False, True):
        layout_run = run(machine(1, nvlink=1e18, nic=rate, pcie=1e18, dram=1e19, disk=volume(2 * rate, over_network=over_network)), given_)
        assert layout_run.step_time == pytest.approx(4 * 4 * SLOT / (1 if over_network else 2), rel=1e-4)


@pytest.mark.parametrize(("pin_memory", "slower"), [(True, 1), (False, 2)])
def test_copies_of_samples_share_the_links_from_host_memory(pin_memory: bool, slower: int) -> None:
    """Bytes over bandwidth: one switch carries two samples per slot, and each rank of a tensor group copies the whole sample."""
    base = workload(split_block(0), tensor=2, micro_batches=3)
    dataset = base.dataset.model_copy(update={"prepared": 1.0})
    given_ = base.model_copy(update={"dataset": dataset, "input": base.input.model_copy(update={"pin_memory": pin_memory})})
    batch = given_.training.batch
    for gpus in (2, 4):
        hardware = machine(gpus, nvlink=1e18, nic=1e18, pcie=2 / SLOT)
        layout_run = run(hardware, given_)
        assert layout_run.stalls[Cause.COPY] == pytest.approx(3 * slower * batch * SLOT * gpus / 2, rel=1e-9)
        assert layout_run.step_time == pytest.approx(layout_run.stalls[Cause.COPY] + 3 * batch * SLOT / 2, rel=1e-9)
        assert least_time(layout_scene(hardware, given_, layout_run.layout)) == pytest.approx(layout_run.step_time, rel=1e-9)


def test_dali_has_copied_samples_before_and_tokens_take_no_time() -> None:
    on_gpu = load_workload("vgg16", ["training.stack=torchtitan-2.x", "training.parallel.shard=parameters", "input.loader=dali_cpu"]).spec
    tokens = load_workload("gpt2", ["training.parallel.shard=parameters"]).spec
    for machine_name, given_ in (("p3.16xlarge", on_gpu), ("hgx-h100", tokens)):
        hardware = load_hardware(machine_name).spec
        assert layout_scene(hardware, given_, prepare(hardware, given_)).copy_time == 0.0


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_step_that_workers_bound_is_their_time(workers: int) -> None:
    given_ = fed(workload(blocks(1), shard="parameters", micro_batches=8), prep=workers * 4 * SLOT, num_workers=workers)
    layout_run = run(on(1e15), given_)
    assert layout_run.step_time == pytest.approx(8 * given_.training.batch * 4 * SLOT, rel=1e-4)
    assert layout_run.stalls[Cause.PREP] > 0.7 * layout_run.step_time and layout_run.stalls[Cause.FETCH] < 1e-3 * layout_run.step_time


def test_without_workers_a_rank_reads_before_it_computes() -> None:
    layout_run = run(on(SAMPLE / SLOT), fed(workload(blocks(1), shard="parameters", micro_batches=4), num_workers=0))
    assert layout_run.step_time == pytest.approx(4 * (1 + layout_run.workload.training.batch) * SLOT, rel=1e-4)


@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_a_fast_loader_costs_nothing(pipeline: int) -> None:
    plain = workload(blocks(pipeline), pipeline=pipeline, micro_batches=8, **({} if pipeline > 1 else {"shard": "parameters"}))
    assert run(on(1e15, pipeline), fed(plain)).step_time == run(on(1e15, pipeline), plain).step_time


def test_data_are_ready_where_no_disk_is_described() -> None:
    plain = workload(blocks(1), shard="parameters")
    without = machine(1, 1, nvlink=1e18, nic=1e18, pcie=1e18, dram=1e19)
    assert run(without, fed(plain)).step_time == run(without, plain).step_time


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 2), st.floats(0, 2), st.floats(0, 1), st.integers(0, 4), st.integers(1, 3), st.floats(0.01, 2))
def test_no_rank_is_fed_faster_than_its_loader_builds(
    disk: float, prep: float, cores: float, workers: int, factor: int, compute: float
) -> None:
    """Conservation: n micro-batches take at least n intervals, and at most as long as all their work one after another."""
    loader = RankLoader(Feed(disk, disk, prep, cores, workers, workers * factor), starts_empty=True)
    now, first, count = 0.0, 0.0, 40
    for number in range(count):
        began = now
        now, held = loader.next(now)
        assert now >= began and all(until <= now + 1e-9 for *_, until in held)
        first = now if number == 0 else first
        now += compute
    assert now - first >= (count - 1 - max(workers, 1)) * loader.feed.interval - 1e-9
    assert now <= count * (max(disk + prep, disk + cores) + compute) + 1e-9


def test_an_upgrade_of_the_disk_helps_a_step_that_it_bounds() -> None:
    slow = ("node.storage.volume.bandwidth=1 MB/s", "node.storage.volume.count=1")
    layout = (("--shard", "parallel.shard", "parameters"),)
    what_if = layout_whatif(Scenario("hgx-h100", "qwen3-0.6b", slow, stack="torchtitan-2.x", layout=layout))
    now, disk = what_if.answer.run, what_if.upgrades[0]
    assert disk.resource == "disk" and now.stalls[Cause.FETCH] > 0.2 * now.step_time
    assert now.step_time == pytest.approx(8 * 4096 * 4 / 1e6, rel=1e-3)  # tokens of 4 bytes, a sequence of each GPU
    assert disk.infinite == pytest.approx(now.stalls[Cause.COMPUTE], rel=0.05)


@pytest.mark.parametrize(("turn", "repeats"), [(3.0, True), (1.5, True), (0.9, False)])
def test_leads_repeat_once_a_loader_keeps_pace(turn: float, repeats: bool) -> None:
    """Two workers need 3 s for a micro-batch each, so that one is ready every 1.5 s: a rank that takes them sooner uses these up."""
    loader = RankLoader(Feed(disk=0.5, read=1.0, prep=2.0, cores=0.1, workers=2, ahead=4), starts_empty=False)
    leads = []
    for number in range(12):
        loader.next(number * turn)
        leads.append(loader.leads(number * turn))
    assert leads[:5] == [()] * 5  # four are built ahead, and then each worker builds its first
    assert (leads[-1] == pytest.approx(leads[-2], abs=1e-9)) is repeats
