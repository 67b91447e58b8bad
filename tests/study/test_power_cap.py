"""How much longer do steps take with limited GPUs? Oracles: the same job with longer layers, and what a slower GPU cannot change."""

from __future__ import annotations

import pytest

from sim.analysis.energy import NodePower, gpu_power, node_power, power_model, shares_of
from sim.report.document import run_figures
from sim.report.limited import under_power_cap
from sim.spec.hardware import Hardware
from sim.spec.workload import Workload
from sim.study.power_cap import slower_runs
from sim.training.layer_times import mix_of
from tests.harness import layer, machine, run, toy_workload, volume
from tests.study.scenes import WORKERS

POWER = 400.0
SPEED = 0.821
"""Of a GPU that is limited to 0.611 of its draw, by the curve of the power model."""
GRADIENTS = 25_000_000


def limited_machine(described: Hardware) -> Hardware:
    """Return *described* with a TDP of its GPUs."""
    groups = [
        group.model_copy(update={"node": group.node.model_copy(update={"gpu": group.node.gpu.model_copy(update={"power": POWER})})})
        for group in described.groups
    ]
    return described.model_copy(update={"groups": tuple(groups)})


def layers_taking(longer: float) -> Workload:
    """Return a job whose gradients of 0.4 GB overlap with most of the backward pass; layers take *longer* times 0.1 s."""
    return toy_workload([layer(0.03 * longer, 0.07 * longer, GRADIENTS) for _ in range(4)])


def cap_of(hardware: Hardware, workload: Workload) -> str:
    """Return the limit with which GPUs compute at `SPEED`."""
    gpu = hardware.groups[0].node.gpu
    return f"{0.611 * POWER * gpu_power(gpu, power_model(), mix_of(workload, gpu)).compute!r} W"


@pytest.mark.parametrize("nic", [0.5e9, 1.2e9, 8e9])
def test_messages_stay_hidden_behind_longer_compute(nic: float) -> None:
    """Oracle: the run of a job whose layers take as much longer, and its power; with fast, equal and slow networks."""
    hardware, workload = limited_machine(machine(1, 2, nic=nic, pcie=1e15)), layers_taking(1.0)
    played = run(hardware, workload)
    shown = under_power_cap(run_figures(played), hardware, workload, cap_of(hardware, workload), slower=slower_runs(played))
    slower = run_figures(run(hardware, layers_taking(1 / SPEED)))
    for name in ("step_time_s", "epoch_time_s", "throughput_samples_per_s"):
        assert shown[name] == pytest.approx(slower[name])
    assert shown["stalls_s"] == pytest.approx(slower["stalls_s"])
    assert shown["first_epoch"]["epoch_time_s"] == pytest.approx(slower["first_epoch"]["epoch_time_s"])
    mix, cap = mix_of(workload, hardware.groups[0].node.gpu), shown["energy"]["power_cap"]["gpu_cap_w"]
    power = node_power(hardware.groups[0].node, power_model(), shares_of(slower["stalls_s"]), True, mix=mix, cap=cap)
    assert isinstance(power, NodePower)
    joules = 2 * power_model().pue * power.total * slower["step_time_s"] / 2  # of two nodes, for two samples
    assert shown["energy"]["energy_per_sample_j"] == pytest.approx(joules)
    if nic < 1e9:  # the network takes longer than compute, which is only waited for before the first message
        longer = 1 / SPEED - 1
        assert shown["step_time_s"] - run_figures(played)["step_time_s"] < 0.5 * 0.4 * longer


def test_a_job_that_waits_for_its_loaders_keeps_its_speed_and_saves_energy() -> None:
    """Closed form: 3 s of preparation on two cores take longer than 0.3 s of compute, however slow; the limit is still told."""
    hardware = limited_machine(machine(1, disk=volume(), cores=2))
    workload = toy_workload(prep=3.0, loader="pytorch", inputs=WORKERS)
    played = run(hardware, workload)
    before = run_figures(played)
    shown = under_power_cap(before, hardware, workload, cap_of(hardware, workload), slower=slower_runs(played))
    assert shown["step_time_s"] == pytest.approx(before["step_time_s"]) == pytest.approx(1.5)
    assert shown["stalls_s"]["compute"] == pytest.approx(0.3 / SPEED)
    assert shown["energy"]["energy_per_sample_j"] < before["energy"]["energy_per_sample_j"]
    estimated = under_power_cap(before, hardware, workload, cap_of(hardware, workload))
    for name in ("step_time_s", "epoch_time_s", "stalls_s"):
        assert estimated[name] == pytest.approx(shown[name], rel=2e-4, abs=1e-9)  # without the longer wait for the first batch of an epoch
