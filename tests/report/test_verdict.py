"""Which sentence does a run get? Oracle: scenes with one slow resource, and the sentence a reader should see."""

from __future__ import annotations

import re

import pytest

from sim.cli import main
from sim.events import Cause
from sim.report.verdict import assumptions, machine_notes, verdict, warnings
from sim.spec.library import load_hardware
from sim.study.bottleneck import bottlenecks
from tests.harness import cluster, layer, machine, run, toy_node, toy_workload, volume
from tests.study.scenes import scene

SENTENCES = {
    "disk": "Disk fetch: the disk, with 0% of the reads cached, feeds 1 samples/s",
    "cpu": "CPU prep: 2 workers deliver 0.667 samples/s, the GPUs could take 3.33 samples/s",
    "decode": "Prep: decoding on the GPUs during training allows 0.769 samples/s",
    "copy": "The copy to the GPU (2 GB per step) is not overlapped",
    "nvlink": "Gradient exchange waits on 1 NVLinks GPU0-NVSwitch",
    "pcie": "Gradient exchange waits on the PCIe port of GPU0",
    "network": "Gradient exchange waits on NIC 0, 8 Gbps",
    "launch": "The host launches kernels more slowly than the GPU runs them",
    "spread": "Ranks wait for the slowest one",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_the_sentence_names_the_slow_resource(name: str) -> None:
    """With counterfactual runs and without them."""
    simulated = run(*scene(name))
    assert verdict(simulated, 0, bottlenecks(simulated)[0]).startswith(SENTENCES[name])
    assert verdict(simulated).startswith(SENTENCES[name])


def test_the_single_nvlink_is_named() -> None:
    """Two GPUs on one NVLink, a gigabyte of gradients."""
    simulated = run(machine(2, wiring={"0-1": 1}, nvlink=1e9), toy_workload((layer(0.1, 0.2, 250_000_000),)))
    assert verdict(simulated, 0, bottlenecks(simulated)[0]).startswith(
        "Gradient exchange waits on the single NVLink GPU0-GPU1; freeing it would save"
    )


def test_copies_and_exchange_may_share_pcie() -> None:
    """Both on one bus: the sentence says so."""
    simulated = run(machine(2, wiring="pcie", pcie=1e9), toy_workload((layer(0.1, 0.2, 250_000_000),), prepared=4e9))
    assert "and gradient exchange wait on PCIe" in verdict(simulated, 0, bottlenecks(simulated)[0])


def test_a_store_behind_a_slow_nic_is_not_a_slow_disk() -> None:
    """A sample in 1 s through the NIC, and in a millisecond from the disk behind it: a faster disk would save nothing."""
    stored = machine(1, nic=1e6, disk=volume(1e9, over_network=True))
    simulated = run(stored, toy_workload(sample=1e6, loader="pytorch", inputs={"num_workers": 2}))
    text = "Disk fetch: the network to the storage, with 0% of the reads cached, feeds 1 samples/s"
    [bottleneck] = bottlenecks(simulated)
    assert bottleneck.first == "network" and bottleneck.freed_times["disk"] == pytest.approx(1.0, rel=1e-3)
    assert verdict(simulated, 0, bottleneck).startswith(text) and verdict(simulated).startswith(text)


def test_cores_that_prepare_do_not_copy_for_the_network() -> None:
    """Closed form, one node: two workers read a batch in 0.4 s, alone at the disk, and prepare it in 1 s: 0.7 s a step, 0.3 s compute."""
    inputs = {"num_workers": 2, "pin_memory": False}
    workload = toy_workload(sample=4e5, prep=1.0, loader="pytorch", inputs=inputs)
    simulated = run(machine(1, disk=volume(1e6), cores=4), workload)
    warm = simulated.jobs[0].warm
    assert warm.step_time == pytest.approx(0.7, rel=1e-3)
    assert warm.stalls[Cause.FETCH] == pytest.approx(0.4 * 0.4 / 1.4, rel=0.01)
    assert warm.stalls[Cause.PREP] == pytest.approx(0.4 * 1.0 / 1.4, rel=0.01)
    text = "CPU prep: 2 workers deliver 1.43 samples/s"
    assert verdict(simulated, 0, bottlenecks(simulated)[0]).startswith(text) and verdict(simulated).startswith(text)


def test_a_disk_that_reads_on_credit_limits_faster_preparation() -> None:
    """Closed form: 40 reads a second, half of them on credit, use 30,000 credits an epoch of 1,500 s.

    After the first, 30,400 are left: at 100 a second for 380 s. The other 22,000 samples take 1,100 s, so that the epoch saves 1%.
    A faster disk saves 0.01 s of the 0.1 s of each of four workers: 10%.
    """
    bursts = {"burst_iops": "100 IOPS", "burst_credits": 60_400, "io_size": "1 MB"}
    inputs = {"num_workers": 4, "pin_memory": False}
    layers = [layer(0.001, 0.002, 10)]
    workload = toy_workload(layers, loader="pytorch", sample=1e6, files="per_sample", samples=60_000, prep=0.09, inputs=inputs)
    simulated = run(machine(1, disk=volume(iops=20.0, **bursts), cores=16), workload)
    stalls = simulated.jobs[0].warm.stalls
    assert stalls[Cause.PREP] > stalls[Cause.FETCH] > 0
    [bottleneck] = bottlenecks(simulated)
    text = verdict(simulated, 0, bottleneck)
    assert text.startswith("The disk and the CPU bound the step together: ")
    assert "Faster preparation alone would use up the burst credits of the disk." in text


@pytest.mark.parametrize(("bandwidth", "longer"), [(1e6, " First epoch: 6.67 min instead of 2 min."), (3.2e6, ""), (1e9, "")])
def test_a_first_epoch_that_is_much_longer_is_mentioned(bandwidth: float, longer: str) -> None:
    """Closed form: 400 samples of 1 MB, each read in 1 s or in less than 110% of its 0.3 s of compute; from memory in warm epochs."""
    simulated = run(machine(1, memory=1e9, disk=volume(bandwidth)), toy_workload(loader="pytorch", inputs={"num_workers": 2}))
    for sentence in (verdict(simulated, 0, bottlenecks(simulated)[0]), verdict(simulated)):
        assert sentence.startswith("Compute-bound: ") and sentence.endswith(f"%.{longer}")


def test_the_broadcast_of_buffers_has_a_remedy_of_its_own() -> None:
    """Closed form: three hops of 50 ms before each step of 1 s, and an all-reduce of six that hides behind backward, or does not."""
    for backward, exposed in ((0.6, 0.0), (0.2, 0.1)):
        layers = (layer(0.1, backward), layer(0.1, 0.2, 10))  # the gradients of the second are there first
        simulated = run(machine(4, hop_latency=0.05), toy_workload(layers, buffers=8.0, stack={"broadcast_buffers": True}))
        [bottleneck] = bottlenecks(simulated)
        step = 0.15 + 0.4 + backward + exposed
        assert simulated.jobs[0].warm.step_time == pytest.approx(step, rel=1e-6)
        assert bottleneck.without_broadcast == pytest.approx(step - 0.15, rel=1e-6)
        assert bottleneck.freed_times["nvlink"] == pytest.approx(0.4 + backward, rel=1e-6)
        hidden = (
            "Before each forward the buffers (BatchNorm statistics) are broadcast from GPU to GPU: 150 ms per step, nvlink latency over 4 "
            "GPUs; turning that off (--set training.stack.broadcast_buffers=false) would save 13% of the step."
        )
        sentence = verdict(simulated, 0, bottleneck)
        assert sentence.startswith("Gradient exchange waits on nvlink latency") if exposed else sentence == hidden


def test_an_epoch_of_few_steps_says_what_its_first_batch_takes() -> None:
    """Closed form: four workers prepare a batch in 1 s each, a step takes 0.3 s; an epoch of one step waits for its batch first."""
    workload = toy_workload((layer(0.1, 0.2, 10),), loader="pytorch", prep=1.0, samples=1, inputs={"num_workers": 4})
    [text] = warnings(run(machine(1, disk=volume()), workload))
    assert text == "a warm epoch has 1 step, and waits 1 s of its 1.3 s for the first batch; figures of a step exclude that"


def test_drawn_steps_tell_how_well_their_mean_is_known() -> None:
    """The seed, how many steps were drawn of how many, and the interval of the run."""
    workload = toy_workload()
    noise = workload.training.noise.model_copy(update={"draw": True, "compute_cv": 0.02})
    simulated = run(machine(4), workload.with_training(noise=noise), seed=7)
    warm = simulated.jobs[0].warm
    assert warm.interval is not None
    [text] = warnings(simulated)
    assert text.startswith(f"steps are drawn at random (seed 7): {min(warm.drawn_steps, warm.steps)} of {warm.steps} in the warm epoch")
    assert text.endswith(f"the 95% interval of the step time is ±{100 * warm.interval / warm.step_time:.2g}%")


def test_every_kind_of_node_is_asked_for_its_volume() -> None:
    """By hand: the second of two unlike nodes comes without a volume; alone, and with both without, the machine does."""
    bare, own = toy_node(1, disk=volume(assumed=True)), toy_node(2, disk=volume())
    workload = toy_workload(loader="pytorch")
    texts = [[line for line in assumptions(run(cluster(*nodes), workload)) if "volume" in line] for nodes in ((own, bare), (bare,), (own,))]
    size = "so one disk of 93.1 GiB is assumed"
    assert texts == [
        [f"toys with toy comes without a volume, {size} (--set groups.N.node.storage.volume=...)"],
        [f"toys comes without a volume, {size} (--set node.storage.volume=...)"],
        [],
    ]


def test_what_a_machine_s_file_remarks_is_assumed() -> None:
    tray = load_hardware("coreweave-gb200-nvl72").spec
    assert machine_notes(tray)[0] == tray.note.removesuffix(".") and "over NICs" in tray.note
    assert machine_notes(load_hardware("p3.16xlarge").spec) == []


def test_a_key_suggested_for_one_of_several_jobs_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the run with what the sentence suggests has the rate that it promises."""
    command = ["run", "p3.16xlarge", "resnet18-and-vgg16"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    suggested = re.search(r"Cores are idle: --set (jobs\.0\.\S+=\d+) gives ([\d,]+) samples/s", printed)
    assert suggested is not None and not re.search(r"--set (input|training|dataset|model)\b", printed)
    assert main([*command, "--fast", "--set", suggested[1]]) == 0
    assert f"  {suggested[2]} samples/s" in capsys.readouterr().out.split("job 1:")[0]
