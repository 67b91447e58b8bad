"""Trays of an NVL72 rack that NVLink joins into one node."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.check import check_hardware
from sim.spec.catalog import catalog
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from sim.study.collective import collective_table

TRAY = "coreweave-gb200-nvl72"


def hardware(name: str, *overrides: str) -> Hardware:
    return load_hardware(name, overrides).spec


@pytest.mark.parametrize("trays", [2, 16, 18])
def test_a_node_holds_the_sums_of_its_trays(trays: int) -> None:
    one, group = hardware("bm.gpu.gb200.4").groups[0], hardware("bm.gpu.gb200.4", f"trays={trays}").groups[0]
    node = group.node
    assert (node.gpu_count, node.nic.count) == (4 * trays, 4 * trays)
    assert (node.host.sockets, node.host.physical_cores) == (2 * trays, 144 * trays)
    assert node.host.memory == trays * one.node.host.memory
    assert one.node.storage is not None
    assert node.storage is not None
    assert node.storage.volume.count == trays * one.node.storage.volume.count
    assert group.price is not None
    assert one.price is not None
    assert one.price.on_demand is not None
    assert group.price.on_demand == trays * one.price.on_demand
    assert [gpu for socket in node.topology.sockets for gpu in socket.gpus] == list(range(4 * trays))
    assert [nic for socket in node.topology.sockets for nic in socket.nics] == list(range(4 * trays))
    assert group.trays == 1, "loading the sums again must not multiply them"


def test_every_tray_of_the_catalog_joins_a_rack_as_its_note_says() -> None:
    """Also those with two NICs a GPU: 144 of a rack."""
    trays = [name for name in catalog("hardware") if "trays=18" in hardware(name).note]
    assert {"bm.gpu.gb300.4", "a4x-highgpu-4g", "a4x-maxgpu-4g-metal", "p6e-gb200.36xlarge"} <= set(trays)
    for name in trays:
        rack = load_hardware(name, ("trays=18",))
        assert rack.spec.groups[0].node.gpu_count == 72, name
        assert not check_hardware(rack.spec, rack.document), name


def test_a_limit_of_all_copies_through_host_memory_is_added_up_and_that_of_a_socket_is_not() -> None:
    limits = ("node.topology.host_copy_bandwidth=100 GB/s", "node.topology.host_bridge_bandwidth=50 GB/s")
    topology = hardware(TRAY, "trays=4", *limits).groups[0].node.topology
    assert (topology.host_copy_bandwidth, topology.host_bridge_bandwidth) == (400e9, 50e9)


def test_limits_of_remote_disks_and_lowest_prices_are_added_up_too() -> None:
    one, rack = (hardware("nd128isr_ndr_gb200_v6", f"trays={trays}").groups[0] for trays in (1, 18))
    assert one.node.storage is not None
    assert rack.node.storage is not None
    assert (rack.node.storage.bandwidth, rack.node.storage.iops) == (18 * 1200e6, 18 * 80_000)
    assert one.price is not None
    assert one.price.cheapest is not None
    assert one.price.cheapest.on_demand is not None
    assert rack.price is not None
    assert rack.price.cheapest is not None
    assert rack.price.cheapest.on_demand == 18 * one.price.cheapest.on_demand


def test_a_rack_is_a_group_of_trays_in_a_file(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(f"name: own\ngroups:\n  - {{node: {TRAY}, trays: 8, count: 3}}\n", encoding="utf-8")
    group = hardware(str(own)).groups[0]
    assert (group.count, group.node.gpu_count) == (3, 32)
    assert group.price is not None
    assert group.price.on_demand == pytest.approx(8 * 42 / 3600)


@pytest.mark.parametrize(
    ("text", "gpus", "price"),
    [
        ("groups:\n  - {node: coreweave-gb200-rack, count: 3}\n", 72, 18 * 42),
        ("node: coreweave-gb200-rack\n", 72, 18 * 42),
        ("node: {extends: coreweave-gb200-rack, nic: {bandwidth: 100 Gbps}}\n", 72, 18 * 42),
        ("node: coreweave-gb200-rack\ntrays: 2\n", 8, 2 * 42),
        ("extends: coreweave-gb200-rack\ntrays: 2\n", 8, 2 * 42),
    ],
)
def test_a_file_that_names_a_rack_has_its_trays_and_their_price(tmp_path: Path, text: str, gpus: int, price: float) -> None:
    """Oracle: 42 USD/h a tray; own trays replace those of the rack."""
    own = tmp_path / "own.yaml"
    own.write_text(f"name: own\n{text}", encoding="utf-8")
    group = hardware(str(own)).groups[0]
    assert group.node.gpu_count == gpus
    assert group.price is not None
    assert group.price.on_demand == pytest.approx(price / 3600)


@pytest.mark.parametrize(
    ("name", "override", "gpus"),
    [
        ("hgx-h100", "node=gb200-nvl72", 72),
        ("gb200-nvl72", "node=hgx-h100", 8),
        ("gb200-nvl72", f"node={TRAY}", 4),
        ("gb200-nvl72", f"node={TRAY};trays=2", 8),
    ],
)
def test_another_machine_brings_its_own_trays(name: str, override: str, gpus: int) -> None:
    assert hardware(name, override).groups[0].node.gpu_count == gpus


def test_messages_between_trays_of_a_rack_use_nvlink() -> None:
    """A gigabyte over 64 GPUs: one node of 16 trays is several times as fast as 16 nodes with a NIC per GPU."""
    times = [
        collective_table(TRAY, "all_reduce", [2**30], nodes=nodes, overrides=overrides).rows[0].time
        for nodes, overrides in ((16, ()), (1, ("trays=16",)))
    ]
    assert times[1] < times[0] / 3


@pytest.mark.parametrize(
    ("name", "overrides", "problem"),
    [
        ("p3.16xlarge", ("trays=2",), "trays: joins nodes whose GPUs are connected by NVLink switches"),
        ("g5.xlarge", ("trays=2",), "trays: joins nodes"),
        (TRAY, ("trays=0",), "0 is too small"),
        (TRAY, ("trays=1000",), "1,?000 is too large"),
    ],
)
def test_nodes_that_nvlink_cannot_join_are_refused(name: str, overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        hardware(name, *overrides)
