"""What does one rank do, step after step? Oracles: the loop's order in the log, and seconds by hand."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest

from sim.events import Cause
from sim.training.step_plan import optimizer_work
from tests.harness import layer, machine, run, toy_workload

FUSION = {"threshold": "8 MB", "cycle_time": "1 ms", "control_latency": "10 us", "request_time": "0 s", "source": "test"}
SOCKET = {"name": "socket", "hop_latency": "0 s", "launch": "0 s", "efficiency": 1.0, "source": "test"}
GLOO = {"backend": "gloo", "gloo_transport": SOCKET, "nccl_algo": None, "nccl_proto": None}


def waits(simulated, rank=0):
    return [wait for wait in simulated.log.waits if wait.rank == rank]


def test_a_micro_batch_is_copied_run_forward_and_backward_in_turn() -> None:
    """By hand: a copy of 1 s, layers of 0.1 and 0.2 s forward, 0.4 and 0.3 s backward; two of them a step."""
    workload = toy_workload([layer(0.1, 0.3), layer(0.2, 0.4)], prepared=1e10, accumulation=2, samples=8)
    simulated = run(machine(1), workload, exact=True)
    first = [wait for wait in waits(simulated) if wait.t1 <= simulated.jobs[0].warm.step_time * (1 + 1e-9)]
    assert [cause for cause, _ in groupby(wait.cause for wait in first if wait.t1 - wait.t0 > 1e-9)] == 2 * [Cause.COPY, Cause.COMPUTE]
    assert sum(wait.t1 - wait.t0 for wait in first) == pytest.approx(2 * (1.0 + 1.0))
    assert simulated.jobs[0].warm.step_time == pytest.approx(4.0)


def test_a_rank_never_does_two_things_and_never_rests() -> None:
    """Conservation: waits follow one another without gap."""
    simulated = run(machine(2), toy_workload([layer(0.1, 0.2, 10**6)], prepared=1e9, samples=40), exact=True)
    assert all(earlier.t1 == later.t0 for earlier, later in pairwise(waits(simulated)))


def test_gradients_are_exchanged_once_for_all_micro_batches() -> None:
    """By hand: without no_sync each micro-batch exchanges; with it only the last does."""
    layers = [layer(0.1, 0.2, 10**7)]
    counts = []
    for no_sync in (True, False):
        workload = toy_workload(layers, accumulation=3, samples=36, stack={"no_sync": no_sync})
        simulated = run(machine(2), workload, exact=True)
        steps = len(simulated.log.steps[0])
        exchanged = [work for work in simulated.log.work if work.stream == "comm" and work.t1 <= simulated.log.steps[0][-1]]
        counts.append(len({work.t0 for work in exchanged if work.nbytes > 0}) / steps)
    assert counts[1] == pytest.approx(3 * counts[0], rel=0.01)


def test_every_step_of_a_rank_is_noted_when_it_ends() -> None:
    simulated = run(machine(1), toy_workload([layer(0.1, 0.2)], samples=10), exact=True)
    assert simulated.log.steps[0][:10] == pytest.approx([0.3 * (count + 1) for count in range(10)])
    assert simulated.jobs[0].warm.steps == 10


@pytest.mark.parametrize("launch", [0.0, 3e-3, 30e-3, 100e-3])
def test_the_host_catches_up_while_the_gpu_waits_for_the_network(launch: float) -> None:
    """Oracle: a recurrence over host, GPU and network, kernel by kernel, of a step whose buckets leave as they fill."""
    times = [(20e-3, 60e-3), (30e-3, 10e-3), (10e-3, 50e-3), (40e-3, 5e-3)]
    sizes, wire = [500_000, 20_000_000, 3_000_000, 10_000_000], 1e9
    layers = [layer(*each, elements) for each, elements in zip(times, sizes, strict=True)]
    stack = {"launch_cpu": f"{launch!r} s", "strategy": "apex_per_tensor", "optimizer": "per_tensor", "gradient_copy_passes": 0.0}
    hardware = machine(1, 2, nic=wire)
    workload = toy_workload(layers, samples=40, noise=0.0, stack=stack, optimizer="sgd")
    host = gpu = network = 0.0
    for forward, _ in times:
        host += launch
        gpu = max(gpu, host) + forward
    for (_, backward), elements in zip(reversed(times), reversed(sizes), strict=True):
        host += launch
        gpu = max(gpu, host) + backward
        network = max(gpu, network) + 4.0 * elements / wire  # of two ranks, each sends and receives half of the sum's bytes twice
    stalls = gpu - sum(forward + backward for forward, backward in times)
    gpu = max(gpu, network)
    for _ in range(int(optimizer_work(workload, hardware.groups[0].node.gpu).launches)):
        host += launch
        gpu = max(gpu, host)
    assert run(hardware, workload).jobs[0].warm.step_time == pytest.approx(gpu, rel=1e-6)
    hidden = run(machine(1, 2, nic=wire / 100), workload).jobs[0].warm.stalls[Cause.LAUNCH]
    assert hidden == pytest.approx(stalls), "the optimizer's launches hide behind a slow network"


def test_a_host_that_waits_itself_launches_the_optimizer_after_it() -> None:
    """By hand: launches of the optimizer, 10 ms each, hide behind an exchange on the stream and come after one of Horovod or Gloo."""
    layers = [layer(0.1, 0.1, 10_000_000)] * 3
    stalls = []
    for more in ({}, {"strategy": "horovod", "fusion": FUSION}, GLOO):
        stack = {"launch_cpu": "10 ms", "optimizer": "per_tensor", **more}
        workload = toy_workload(layers, samples=20, noise=0.0, stack=stack, optimizer="sgd")
        launches = optimizer_work(workload, machine(1).groups[0].node.gpu).launches
        stalls.append(run(machine(1, 2, nic=1e8), workload).jobs[0].warm.stalls[Cause.LAUNCH])
    assert stalls == pytest.approx([10e-3, (1 + launches) * 10e-3, (1 + launches) * 10e-3], rel=1e-6)


def test_a_host_that_falls_behind_is_waited_for() -> None:
    """By hand: kernels of nothing behind launches of 10 ms: the step is its launches, blamed on the host."""
    simulated = run(machine(1), toy_workload([layer(0.0, 0.0)] * 5, samples=10, stack={"launch_cpu": "10 ms"}))
    epoch = simulated.jobs[0].warm
    assert epoch.stalls[Cause.LAUNCH] > 0.9 * epoch.step_time and epoch.step_time >= 10 * 0.01 * 0.99
