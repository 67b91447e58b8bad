"""Layouts over Gloo. Oracles: closed forms of its ring, its notices, and torch's pipelining schedules, by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sim.cluster.build import with_nodes
from sim.events import Cause
from sim.mesh import layout_scene, prepare
from sim.parallel.lower.layouts import program
from sim.parallel.program import Send, Start, Wait
from sim.training.layouts.bound import least_time
from tests.harness import machine
from tests.training.layouts.toys import BACKWARD, FORWARD, blocks, run, workload

RATE, ELEMENTS = 1e8, 1_000_000
SOCKET = {"name": "socket", "hop_latency": "0 s", "launch": "0 s", "efficiency": 1.0, "source": "test"}
SLOT = FORWARD + BACKWARD


def gloo(**keys: Any) -> dict[str, Any]:
    return {"backend": "gloo", "gloo_transport": SOCKET | keys, "nccl_algo": None, "nccl_proto": None}


def hosts(count: int, latency: str = "0 s") -> Any:
    """Hosts of one processor each behind NICs of RATE bytes/s."""
    one = with_nodes(machine(1, 2, nic=RATE, pcie=1e18, dram=1e19, nvlink=1e18), count)
    return one.model_copy(update={"fabric": one.fabric.model_copy(update={"latency": float(latency.split()[0])})})


@pytest.mark.parametrize("count", [2, 4])
def test_a_host_that_waits_hides_nothing(count: int) -> None:
    """A unit of S bytes is gathered twice, (n-1)/n S each, and its gradients are all-reduced, 2 (n-1)/n S: ProcessGroupGloo has no
    reduce-scatter. The root's last unit, here a block, is gathered again as well."""
    layers = blocks(3, elements=ELEMENTS)
    given = workload(layers, stack=gloo(), mesh={"host_waits": "everything", "forward_prefetch": False}, shard="parameters")
    moved = (count - 1) / count * 4.0 * ELEMENTS / RATE
    gathered = 1.5 if count == 2 else 1.0
    assert run(hosts(count), given).step_time == pytest.approx(3 * SLOT + 3 * (2 * gathered + 2) * moved, rel=1e-6)


def test_gathers_issued_ahead_are_hidden_behind_backward() -> None:
    """With gathers of 5 ms and backward of 20 ms, only the first gather of backward is seen; forward sees all of its own."""
    layers = blocks(3, elements=ELEMENTS // 4)
    waits = {"host_waits": "reductions", "forward_prefetch": False}
    moved = 0.5 * ELEMENTS / RATE
    layout_run = run(hosts(2), workload(layers, stack=gloo(), mesh=waits, shard="parameters"))
    assert layout_run.step_time == pytest.approx(3 * SLOT + (4 * 1.5 + 3 * 2) * moved, rel=1e-6)


@pytest.mark.parametrize(("waits", "waited"), [("nothing", 5), ("reductions", 7), ("everything", 9)])
def test_the_host_waits_behind_each_operation_it_waits_for(waits: str, waited: int) -> None:
    """Of nine operations the gathers of forward, backward's first and the last reduction are needed at once, whatever the host does."""
    mesh = {"host_waits": waits, "forward_prefetch": False}
    layout = prepare(hosts(2), workload(blocks(3), stack=gloo(), mesh=mesh, shard="parameters"))
    steps = program(layout, 0)
    assert sum(isinstance(step, Start) for step in steps) == 9
    assert sum(isinstance(one, Start) and after == Wait(one.tag) for one, after in pairwise(steps)) == waited


def test_a_message_waits_for_its_receivers_notice() -> None:
    """Two stages, one micro-batch: there and back the receiver has long asked, so each message is one way late, once."""
    layers = [each.model_copy(update={"read": 4e6, "write": 4e6}) for each in blocks(2)]
    given = workload(layers, stack=gloo(), pipeline=2)
    assert run(hosts(2, "0.003 s"), given).step_time == pytest.approx(2 * SLOT + 2 * (4e6 / RATE + 0.003), rel=1e-6)


def test_a_token_bucket_lets_the_first_bytes_of_a_message_pass_at_once() -> None:
    """Of each of two messages, there and back, the bytes of the bucket take no time."""
    layers = [each.model_copy(update={"read": 4e6, "write": 4e6}) for each in blocks(2)]
    given, plain = workload(layers, stack=gloo(), pipeline=2), hosts(2)
    nic = plain.groups[0].node.nic.model_copy(update={"burst": 1e6})
    node = plain.groups[0].node.model_copy(update={"nic": nic})
    shaped = plain.model_copy(update={"groups": (plain.groups[0].model_copy(update={"node": node}),)})
    assert run(shaped, given).step_time == pytest.approx(2 * SLOT + 2 * 3e6 / RATE, rel=1e-6)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_torch_waits_for_a_send_with_the_next_pass_of_the_other_direction(schedule: str) -> None:
    """``Schedule1F1B`` fires sends of warm-up and cool-down alone, ``ScheduleGPipe`` all of them, and waits for them later."""
    layout = prepare(hosts(2), workload(blocks(2), stack=gloo(), pipeline=2, schedule=schedule, micro_batches=3))
    holds = [step.holds for step in program(layout, 0) if isinstance(step, Send)]
    assert holds == ([False, False, True] if schedule == "gpipe" else [False, True, True])


@pytest.mark.parametrize("waits", ["reductions", "everything"])
def test_stages_that_wait_for_their_norm_have_a_bound(waits: str) -> None:
    """The all-reduce of the norm is waited for anyway, by host or GPU: the bound is that of a host that waits for nothing."""
    layers, bounds = [each.model_copy(update={"read": 4e6, "write": 4e6}) for each in blocks(2)], {}
    for each in ("nothing", waits):
        given = workload(layers, stack=gloo() | {"gradient_clipping": True}, mesh={"host_waits": each}, pipeline=2, micro_batches=4)
        layout = prepare(hosts(2), given)
        bounds[each] = least_time(layout_scene(hosts(2), given, layout))
        assert bounds[each] <= run(hosts(2), given).step_time * (1 + 1e-9)
    assert bounds[waits] == pytest.approx(bounds["nothing"], rel=1e-9)


def test_a_message_that_waits_for_its_notice_waits_for_the_network() -> None:
    """In 1F1B, a stage's notice queues behind the data that it has just sent; equal ranks have no straggler."""
    layers = [each.model_copy(update={"read": 4e6, "write": 4e6}) for each in blocks(2)]
    stalls = run(hosts(2, "0.003 s"), workload(layers, stack=gloo(), pipeline=2, micro_batches=4)).stalls
    assert stalls.get(Cause.STRAGGLER, 0.0) == 0.0 and stalls[Cause.NETWORK] > 0.0
