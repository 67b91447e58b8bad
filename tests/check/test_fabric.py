"""Oracle: descriptions with a known mistake; each is reported with file, line, column, and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.check import check_hardware
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, prepare

pytestmark = pytest.mark.usefixtures("whole_catalog")  # a node with several NICs is due, which the toy library has not


HEAD = "name: mine\ngroups:\n  - node: dgx-a100\n    count: 48\nfabric:\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "  leaf_spine: {nodes_per_leaf: 8, radix: 64}",
            "6:35: fabric.leaf_spine.radix: 64 ports are too few: 64 NICs below a leaf",
        ),
        ("  leaf_spine: {nodes_per_leaf: 1, rails: true, radix: 40}", "a spine switch has a link to each of 384 leaves"),
        ("  leaf_spine: {nodes_per_leaf: 8, oversubscription: 0.5}", "6:35: fabric.leaf_spine.oversubscription: 0.5 is less than 1"),
        ("  leaf_spine: {nodes_per_leaf: 8, oversubscription: 2, uplink_bandwidth: 1 Tbps}", "write one of the two"),
        ("  leaf_spin: {nodes_per_leaf: 8}", "6:3: fabric.leaf_spin: unknown key; did you mean 'leaf_spine'?"),
        ("  hypercube: {dimensions: 4}", "6:3: fabric.hypercube: unknown key; valid keys: core_bandwidth, dragonfly"),
        ("  torus: {dimensions: [4, 4], link_bandwidth: 1 Gbps}", "6:11: fabric.torus.dimensions: 4 x 4 are 16 places, but 48 nodes"),
        ("  torus: {dimensions: [5, 10], link_bandwidth: 1 Gbps}", "48 nodes do not fill rows of 5; write 45 or 50 nodes"),
        (
            "  torus: {dimensions: [4, 12], link_bandwidth: 1 Gbps}\n  leaf_spine: {nodes_per_leaf: 8}",
            "cannot be combined with 'leaf_spine'",
        ),
        (
            "  torus: {dimensions: [4, 12], link_bandwidth: 1 Gbps}\n  core_bandwidth: 1 Tbps",
            "7:3: fabric.core_bandwidth: cannot be combined with",
        ),
        ("  torus: {dimensions: [4, 12]}", "fabric.torus.link_bandwidth: is missing"),
        ("  path_efficiency: 0", "fabric.path_efficiency"),
        ("  path_efficiency: 1.1", "above zero, at most 1"),
        ("  rank_order: scattered", "has an effect only with leaf_spine, dragonfly or torus"),
    ],
)
def test_slips_are_told_with_their_place(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    message = complaint(path, lines)
    assert said in message
    assert message.startswith(f"{path}:")


def complaint(path: Path, lines: str) -> str:
    path.write_text(f"{HEAD}{lines}\n")
    with pytest.raises(SpecError) as caught:
        loaded = load_hardware(str(path), ())
        raise SpecError(check_hardware(loaded.spec, loaded.document))
    return str(caught.value)


DRAGONFLY = "nodes_per_router: 2, routers_per_group: 4, local_bandwidth: 1 Tbps, global_bandwidth: 1 Tbps"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("groups: 6", "6 groups need 5 global links each; 4 routers with 1 have 4: write 5 or fewer"),
        ("groups: 4", "has places for 32 nodes, but 48 are described"),
        ("groups: 9, global_links: 2, radix: 20", "20 ports are too few: 16 NICs, 3 local and 2 global links take 21"),
        ("groups: 9, global_links: 2, routing: valiant", "write one of minimal, adaptive"),
    ],
)
def test_a_dragonfly_can_be_built(tmp_path: Path, keys: str, said: str) -> None:
    assert said in complaint(tmp_path / "mine.yaml", f"  dragonfly: {{{DRAGONFLY}, {keys}}}")


def test_parameter_servers_know_no_switches() -> None:
    scenario = Scenario("cm-dare-p100", "resnet15-cifar", ("fabric.leaf_spine.nodes_per_leaf=2",), stack="tf-parameter-server")
    with pytest.raises(SpecError, match="is not modeled across switches"):
        prepare(scenario)
