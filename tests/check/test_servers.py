"""Oracle: stacks with parameter servers and a known mistake; each is reported with what to write instead."""

from __future__ import annotations

import pytest

from sim.check.servers import check_servers
from sim.cluster.build import with_nodes
from sim.spec.library import load_hardware, load_workload

pytestmark = pytest.mark.usefixtures("whole_catalog")  # machines with hosts for servers are due, which the toy library has not


COLOCATED = ["training.stack.servers.placement=colocated"]
SYNC, ASYNC = "tf-parameter-server-sync", "tf-parameter-server"


def problems(stack: str, *overrides: str, hardware: str = "cm-dare-p100", nodes: int | None = 4) -> list[str]:
    for_hardware = [text for text in overrides if text.startswith(("fabric", "groups"))]
    for_workload = [f"training.stack={stack}", *(text for text in overrides if text not in for_hardware)]
    machine = load_hardware(hardware, for_hardware).spec
    return [
        words
        for _, words in check_servers(
            machine if nodes is None else with_nodes(machine, nodes), load_workload("resnet50", for_workload).spec
        )
    ]


@pytest.mark.parametrize("stack", [SYNC, ASYNC])
def test_the_catalog_s_stacks_are_as_they_should_be(stack: str) -> None:
    assert problems(stack) == []


def test_other_stacks_have_none() -> None:
    assert problems("torch-1.13-ddp", hardware="p3.16xlarge", nodes=None) == []


@pytest.mark.parametrize(
    ("stack", "overrides", "said"),
    [
        (SYNC, ["training.stack.servers.count=9"], "servers need one host of role 'server' each"),
        (SYNC, [*COLOCATED, "training.stack.servers.count=5"], "5 colocated servers need one worker node each"),
        (SYNC, ["training.stack.gradient_clipping=true"], "needs the norm of the full summed gradient"),
        (ASYNC, ["training.gradient_accumulation_steps=2"], "2 micro-batches: asynchronous workers push after each one; write 1"),
        (ASYNC, ["training.stack.servers.racks=2"], "racks need strategy parameter_server, sharding: chunks"),
        (SYNC, ["training.stack.servers.racks=3", "training.stack.servers.sharding=chunks"], "do not divide over 3 racks; write a divisor"),
    ],
)  # fmt: skip
def test_slips_are_told(stack: str, overrides: list[str], said: str) -> None:
    assert any(said in words for words in problems(stack, *overrides)), problems(stack, *overrides)


def test_without_hosts_for_servers_it_is_told() -> None:
    assert any("has no group of role 'server'" in words for words in problems(SYNC, hardware="p3.16xlarge", nodes=None))
