"""Do workers and servers exchange what they must, as fast as links and cores allow? Oracles: PHub's bounds and closed forms."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from sim.cli import main
from sim.epoch import Epoch
from sim.events import Cause
from sim.simulate import Run, simulate
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, prepare
from sim.study.server_bound import ServerPlacement, bandwidth_bound

BYTES = 4.0 * 693_818
NO_COST = ("training.stack.servers.update_cpu=0 s", "training.stack.servers.byte_cpu=0 s/GB", "training.noise.compute_cv=0")


def run(*overrides: str, stack: str = "tf-parameter-server-sync", nodes: int = 4, hardware: str = "cm-dare-p100", **options: Any) -> Run:
    question = prepare(Scenario(hardware, "resnet15-cifar", overrides, nodes=nodes, stack=stack))
    return simulate(question.hardware, question.jobs, cold=False, **options)


def servers(**values: object) -> list[str]:
    return [f"training.stack.servers.{key}={value}" for key, value in values.items()]


def carried(epoch: Epoch, link: str) -> float:
    """Bytes that *link* carries in one step, from the recorded rates."""
    window = epoch.windows[-1]
    rates: dict[int, tuple[float, float]] = {}
    total = 0.0
    for change in epoch.log.rates:
        since, rate = rates.get(change.activity, (change.t, 0.0))
        total += rate * max(0.0, min(change.t, window.end) - max(since, window.start))
        rates[change.activity] = (change.t, change.rate * dict(change.usage).get(link, 0.0))
    return total / window.steps


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2, 4, 7])
@pytest.mark.parametrize("placement", ["NCS", "NCC", "CC", "CS"])
@pytest.mark.parametrize("pipelined", [False, True])
def test_bytes_of_the_busiest_host_are_phubs_bound(placement: ServerPlacement, nodes: int, pipelined: bool) -> None:
    """NCS 2M/T, NCC 2NM/T, CC 2(N-1)M/T, CS 4(N-1)/N M/T, with T = 1 s: what crosses the host's port both ways in one step."""
    count = nodes if placement.endswith("S") else 1
    place = "colocated" if placement.startswith("C") else "group"
    simulated = run(
        *servers(count=count, placement=place, sharding="chunks", pipelined=str(pipelined).lower()),
        *NO_COST,
        "groups.1.count=8",
        nodes=nodes,
        keep_rates=True,
        fold=False,
    )
    hosts = {slot.name for slot in simulated.cluster}
    most = max(sum(carried(simulated.jobs[0].warm, f"{slot}.{link}") for link in ("nic0>net", "net>nic0")) for slot in hosts)
    assert most == pytest.approx(bandwidth_bound(placement, nodes, BYTES, 1.0), rel=1e-9)


def test_the_plan_counts_the_same_bytes() -> None:
    simulated = run(*servers(count=3, placement="colocated", sharding="chunks"), *NO_COST, keep_rates=True, fold=False)
    plan = simulated.rings[0]
    assert plan is not None
    for slot, nbytes in plan.host_bytes.items():  # type: ignore[union-attr]
        seen = sum(carried(simulated.jobs[0].warm, f"{slot}.{link}") for link in ("nic0>net", "net>nic0"))
        assert seen == pytest.approx(nbytes)


# --- time ------------------------------------------------------------------------------------------------------------


def exchange(simulated: Run) -> float:
    stalls = simulated.jobs[0].warm.stalls
    return stalls[Cause.NETWORK] + stalls[Cause.INTERCONNECT]


PORT = 1e9 * 0.956
"""Bytes/s of a server's 8 Gbps."""
LATENCY = 2 * 250e-6


@pytest.mark.parametrize(("pipelined", "passes"), [("false", 2), ("true", 1)])
def test_a_central_server_is_bound_by_its_port(pipelined: str, passes: int) -> None:
    """Four workers push through one port, and pull through it: one after the other, or side by side."""
    simulated = run(*servers(count=1, sharding="chunks", pipelined=pipelined), *NO_COST)
    assert exchange(simulated) == pytest.approx(passes * 4 * BYTES / PORT + LATENCY)


def test_the_servers_processor_bounds_where_it_is_slower() -> None:
    """Four workers' 50 updates of 1 ms and bytes twice at 1 s/GB on 2.5 cores of 0.9 of the reference's speed."""
    simulated = run(*servers(update_cpu="1 ms", byte_cpu="1 s/GB", pipelined="true"), "training.noise.compute_cv=0")
    assert exchange(simulated) == pytest.approx(4 * (50 * 1e-3 + 2 * BYTES * 1e-9) / 0.9 / 2.5 + LATENCY)
    assert simulated.stalls[0].resource == "CPU of parameter server 0"


def test_a_server_with_more_nics_is_as_much_faster() -> None:
    """PHub's PBox: ten ports on one host."""
    one, ten = (
        exchange(
            run(
                *servers(count=1, sharding="chunks", pipelined="true"),
                *NO_COST,
                f"groups.1.node.nic.count={count}",
                f"groups.1.node.topology.sockets.0.nics=[{','.join(map(str, range(count)))}]",
                "groups.0.node.nic.bandwidth=100 Gbps",
                "groups.0.node.nic.transport=infiniband",
                "groups.1.node.nic.transport=infiniband",
                nodes=8,
            )
        )
        for count in (1, 10)
    )
    latency = 2 * 5e-6
    assert (one - latency) / (ten - latency) > 7  # ten ports; the workers' own begin to bind


def test_racks_spare_the_core_of_the_fabric() -> None:
    """Eight workers in two racks: through the core go 2 x 8 S each way in one rack's case, S both ways where racks are summed first."""
    core = "fabric.core_bandwidth=1 Gbps"
    flat = exchange(run(*servers(count=2, sharding="chunks", pipelined="true"), *NO_COST, core, nodes=8))
    racked = exchange(run(*servers(count=2, sharding="chunks", pipelined="true", racks=2), *NO_COST, core, nodes=8))
    assert flat == pytest.approx(2 * 8 * BYTES / 125e6 + LATENCY)
    assert racked == pytest.approx(4 * BYTES / PORT + LATENCY + 2 * BYTES / 125e6 + 250e-6)


def test_one_worker_waits_for_its_server_too() -> None:
    assert exchange(run(nodes=1)) > 0


def test_folded_and_unfolded_nodes_take_the_same_time() -> None:
    for options in (["count=4", "placement=colocated", "sharding=chunks"], ["count=2", "placement=group", "sharding=chunks"], ["count=2"]):
        given = [f"training.stack.servers.{option}" for option in options]
        folded, unfolded = (run(*given, fold=fold).jobs[0].warm.step_time for fold in (True, False))
        assert folded == pytest.approx(unfolded, rel=1e-9)


# --- asynchronous ----------------------------------------------------------------------------------------------------


@cache
def speed(nodes: int, count: int = 1) -> float:
    job = run(*servers(count=count), stack="tf-parameter-server", nodes=nodes).jobs[0]
    assert job.warm.exact
    return nodes / job.warm.step_time


def test_few_workers_add_up_and_many_saturate_the_server() -> None:
    """Throughput is below both n times one worker's and the server's own rate, and comes within 1% of the latter."""
    update = (50 * 0.275e-3 + 2 * BYTES * 1.43e-9) / 0.9 / 2.5
    for nodes in (1, 2, 4, 8, 64, 1000):
        assert speed(nodes) <= min(nodes * speed(1), 1 / update) * (1 + 1e-9)
    assert speed(2) > 1.7 * speed(1)
    assert speed(1000) > 0.99 / update


def test_two_classes_of_workers_add_up() -> None:
    """Throughput counts every update: if the server costs nothing and is rarely used, K80s and P100s add up."""
    seldom = (*NO_COST, "training.batch=512")
    question = prepare(Scenario("cm-dare-p100", "resnet15-cifar", seldom, nodes=2, stack="tf-parameter-server"))
    slow = prepare(Scenario("cm-dare-k80", "resnet15-cifar", seldom, nodes=3, stack="tf-parameter-server"))
    groups = (question.hardware.groups[0], slow.hardware.groups[0], question.hardware.groups[1])
    mixed = question.hardware.model_copy(update={"groups": groups})
    placement = tuple(part._replace(node=number) for number, part in enumerate((*question.jobs[0].placement, *slow.jobs[0].placement)))
    job = replace(question.jobs[0], placement=placement)
    alone = [simulate(prepared.hardware, prepared.jobs, cold=False).jobs[0] for prepared in (question, slow)]
    together = simulate(mixed, [job], cold=False).jobs[0]
    assert together.throughput == pytest.approx(sum(result.throughput for result in alone), rel=0.02)
    assert sum(together.warm.stalls.values()) == pytest.approx(together.warm.step_time)


def test_asynchronous_workers_wait_for_no_straggler() -> None:
    assert run(stack="tf-parameter-server", nodes=8).jobs[0].warm.stalls[Cause.STRAGGLER] == 0


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "stack", "sentence"),
    [
        (servers(count=3), "tf-parameter-server", "3 servers need one host of role 'server' each, but cm-dare-p100 has 2; write at most 2"),
        (servers(count=5, placement="colocated"), "phub", "5 colocated servers need one worker node each, but cm-dare-p100 has 4"),
        (["training.gradient_accumulation_steps=2"], "tf-parameter-server", "asynchronous workers push after each one"),
        (["training.stack.gradient_clipping=true"], "tf-parameter-server", "needs the norm of the full summed gradient"),
        (["training.stack.overlap=true"], "tf-parameter-server", "asynchronous workers push only after backward"),
        (["training.stack.broadcast_buffers=true"], "phub", "applies only to ddp, apex, apex_per_tensor, flat or horovod"),
        (["training.stack.nccl_algo=Tree"], "phub", "nccl_algo=Tree: is an NCCL option, but parameter_server has no all-reduces"),
        (["training.stack.channels=4"], "phub", "channels=4: is an NCCL option"),
        (servers(racks=2), "tf-parameter-server", "racks need strategy parameter_server, sharding: chunks"),
        (servers(racks=3, count=2, placement="group"), "phub", "2 servers and 4 worker nodes do not divide over 3 racks"),
    ],
)
def test_what_servers_cannot_do_is_refused(overrides: list[str], stack: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        run(*overrides, stack=stack)


def test_machines_without_hosts_for_servers_say_what_would_do() -> None:
    with pytest.raises(SpecError, match="has no group of role 'server' for the servers; add one, or write placement: colocated"):
        run(hardware="dlperf", stack="tf-parameter-server")


def test_the_report_names_the_servers(capsys: pytest.CaptureFixture[str]) -> None:
    for stack, who in (("tf-parameter-server", "one worker alone"), ("tf-parameter-server-sync", "each of the workers")):
        assert main(["run", "cm-dare-p100", "resnet15-cifar", "--stack", stack, "--nodes", "4", "--fast", "-v"]) == 0
        shown = capsys.readouterr().out
        assert f"parameter servers: {who} pushes and pulls" in shown and "bound by CPU of parameter server 0" in shown
        assert "1 parameter server on hosts of role server, whole variables assigned round-robin" in shown


def test_what_stays_on_one_host_knows_no_limit_of_its_connections() -> None:
    """PCIe is the oracle: VGG-16's gradients reach the memory of their own host and return sooner than TCP would carry them."""
    question = prepare(Scenario("p2.8xlarge", "vgg16", ("input.loader=synthetic",), gpus=1, stack="tensorflow-1.1-cpu-variables"))
    node = question.hardware.groups[0].node
    transport = node.nic.transport.model_copy(update={"flow_cap": 1e8})
    slow = node.model_copy(update={"nic": node.nic.model_copy(update={"transport": transport})})
    group = question.hardware.groups[0].model_copy(update={"node": slow})
    machines = [question.hardware, question.hardware.model_copy(update={"groups": (group,)})]
    steps = [simulate(machine, question.jobs, cold=False).jobs[0].warm.step_time for machine in machines]
    assert steps[0] == steps[1]
