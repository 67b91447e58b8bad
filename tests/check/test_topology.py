"""Oracle: link graphs broken by hand in one place each, and the message each must give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.check import check_hardware
from sim.check.topology import check_topology
from sim.spec.hardware import Node, Topology
from sim.spec.library import load_hardware

BROKEN = {
    "node.topology.sockets.0.gpus=[0]": "disconnected: gpu_count is 2, but GPU 1 is not attached to any socket or switch; "
    "list it under 'gpus' of one",
    "node.topology.sockets.0.gpus=[]": "disconnected: gpu_count is 2, but GPUs 0, 1 are not attached to any socket or switch; "
    "list them under 'gpus' of one",
    "node.topology.sockets.0.nics=[]": "disconnected: nic.count is 1, but NIC 0 is not attached to any socket or switch; "
    "list it under 'nics' of one",
    "node.topology.sockets.0.gpus=[0, 1, 2]": "there is no GPU 2; gpu_count is 2, so write 0 to 1",
    "node.topology.sockets.0.nics=[0, 1]": "there is no NIC 1; nic.count is 1, so write 0",
    "node.topology.sockets.0.nics=[0, 1, 2]": "places NICs up to 2, but nic.count is 1; for a slower network keep the NICs and lower "
    "nic.bandwidth, or write a topology with fewer NICs",
    "node.topology.sockets.0.gpus=[0, 1, 1]": "GPU 1 is already attached to socket0; list it in one place",
    "node.topology.switches=[{name: plx0, parent: socket0, gpus: [1]}]": "GPU 1 is already attached to socket0; list it in one place",
    "node.topology.sockets=[{gpus: [0, 1], nics: [0]}, {}]": "lists 2 sockets, but host.sockets is 1; "
    "write one item per socket, {} for an empty one",
    "node.topology.switches=[{name: gpu3, parent: socket0}]": "'gpu3' is already used in the link graph; write a name such as plx0",
    "node.topology.switches=[{name: a, parent: socket0}, {name: a, parent: socket0}]": "'a' is the name of two switches; "
    "give each switch its own name",
    "node.topology.switches=[{name: plx0, parent: socket1}]": "there is no socket1; did you mean socket0?",
    "node.topology.switches=[{name: plx0, parent: zzz}]": "there is no zzz; write one of socket0, plx0",
    "node.topology.switches=[{name: plx0, parent: plx0}]": "plx0 and the switches above it "
    "form a cycle that reaches no socket; put the topmost one below a socket",
    "node.topology.nvlink={link: wire, pairs: {}}": "connects nothing; write 'pairs' such as {0-1: 2}, or 'switch_links' to an NVSwitch",
    "node.topology.nvlink.pairs={0-2: 1}": "there is no GPU 2; gpu_count is 2, so write 0 to 1",
    "node.topology.nvlink.pairs={1-0: 1}": "write the smaller GPU number first: 0-1",
    "node.topology.nvlink.pairs={0-0: 1}": "'0-0' is not a pair; write two GPU numbers, the smaller first, such as 0-1",
    "node.topology.nvlink.pairs={one: 1}": "'one' is not a pair; write two GPU numbers, the smaller first, such as 0-1",
    "node.topology.nvlink.pairs={00-1: 1}": "'00-1' is not a pair; write two GPU numbers, the smaller first, such as 0-1",
}


@pytest.mark.parametrize("override", BROKEN)
def test_a_broken_graph_has_one_message(override: str) -> None:
    loaded = load_hardware("toy", [override])
    [problem] = check_hardware(loaded.spec, loaded.document)
    assert problem.endswith(f": {BROKEN[override]}")


def test_messages_have_the_place_of_the_block_at_fault(tmp_path: Any) -> None:
    path = tmp_path / "hardware/toy.yaml"
    path.write_text(path.read_text().replace("gpus: [0, 1]", "gpus: [1, 2]"))
    loaded = load_hardware("toy")
    assert check_hardware(loaded.spec, loaded.document) == [
        f"{path}:6:3: node.topology: disconnected: gpu_count is 2, but GPU 0 is not attached to any socket or switch; "
        "list it under 'gpus' of one",
        f"{path}:9:16: node.topology.sockets.0.gpus: there is no GPU 2; gpu_count is 2, so write 0 to 1",
    ]
    assert check_hardware(loaded.spec) == [  # without a document the keys alone
        "node.topology.sockets.0.gpus: there is no GPU 2; gpu_count is 2, so write 0 to 1",
        "node.topology: disconnected: gpu_count is 2, but GPU 0 is not attached to any socket or switch; list it under 'gpus' of one",
    ]


def test_a_circle_of_switches_is_told_for_each_of_them() -> None:
    switches = "[{name: a, parent: b}, {name: b, parent: a}, {name: c, parent: a}]"
    loaded = load_hardware("toy", [f"node.topology.switches={switches}"])
    keys = [problem.partition(": ")[0] for problem in check_hardware(loaded.spec)]
    assert keys == ["node.topology.switches.0.parent", "node.topology.switches.1.parent"]


def test_trees_of_switches_are_whole() -> None:
    switches = "[{name: top, parent: socket0}, {name: low, parent: top, gpus: [0, 1], nics: [0]}]"
    loaded = load_hardware("toy", ["node.topology.sockets=[{}]", f"node.topology.switches={switches}"])
    assert check_hardware(loaded.spec, loaded.document) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the toy library does not change between examples
@given(st.data())
def test_whole_graphs_pass_and_a_cut_in_one_place_is_found(data: st.DataObject) -> None:
    """Build a random tree of sockets and switches with every device in it; then take one device out."""
    sockets, switches, gpus = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 4)), data.draw(st.integers(1, 6))
    holders = [f"socket{index}" for index in range(sockets)] + [f"plx{index}" for index in range(switches)]
    parents = [data.draw(st.sampled_from(holders[: sockets + index])) for index in range(switches)]
    places = [data.draw(st.sampled_from(holders)) for _ in range(gpus)]
    node = graph(sockets, parents, places)
    assert list(check_topology(node)) == []
    lost = data.draw(st.integers(0, gpus - 1))
    cut = graph(sockets, parents, [place if index != lost else "" for index, place in enumerate(places)])
    [(_, message)] = check_topology(cut)
    assert message.startswith(f"disconnected: gpu_count is {gpus}, but GPU {lost} is not attached to")


def graph(sockets: int, parents: list[str], places: list[str]) -> Node:
    """A node whose GPU i hangs off ``places[i]`` and whose switch j off ``parents[j]``; its NIC off socket 0."""

    def held(name: str) -> tuple[int, ...]:
        return tuple(index for index, place in enumerate(places) if place == name)

    node = load_hardware("toy").spec.groups[0].node
    host = node.host.model_copy(update={"sockets": sockets})
    node = node.model_copy(update={"gpu_count": len(places), "host": host})
    plain = {"pcie": node.topology.pcie, "source": "tests"}
    topology = {
        "sockets": [{"gpus": held(f"socket{index}"), "nics": (0,) if index == 0 else ()} for index in range(sockets)],
        "switches": [{"name": f"plx{index}", "parent": parent, "gpus": held(f"plx{index}")} for index, parent in enumerate(parents)],
    }
    return node.model_copy(update={"topology": Topology.model_validate(plain | topology)})
