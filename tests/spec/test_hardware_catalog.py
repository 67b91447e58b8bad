"""Does the hardware catalog describe machines that exist? Every file loads, names its sources, and agrees with what others published.

Check values are written out here with their source; nothing is derived from the catalog itself.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from pydantic import BaseModel

from sim.spec.fields import Spec
from sim.spec.hardware import Cpu, Gpu, Hardware, Link, Node, Socket, Switch, Transport, Volume
from sim.spec.kernels import Kernels
from sim.spec.library import catalog, load_hardware, load_part
from tests.for_each import for_each

MACHINES = sorted(catalog("hardware"))
KINDS: dict[str, type[Spec]] = {"gpus": Gpu, "links": Link, "cpus": Cpu, "volumes": Volume, "transports": Transport, "kernels": Kernels}
PARTS = [(folder, name) for folder in KINDS for name in sorted(catalog(f"hardware/parts/{folder}"))]

PROMISED = """
p2.xlarge p2.8xlarge p2.16xlarge p3.2xlarge p3.8xlarge p3.16xlarge p3dn.24xlarge p4d.24xlarge p4de.24xlarge p5.48xlarge g4dn.xlarge
g4dn.12xlarge g5.xlarge g5.12xlarge g5.48xlarge g6.12xlarge g6e.12xlarge nc24rs_v3 nd40rs_v2 nd96asr_v4 a2-highgpu-8g a3-highgpu-8g
dgx-1-p100 dgx-1-v100 dgx-2 dgx-a100 hgx-h100 p3.8xlarge-two-islands p3.8xlarge-mixed-quad 2x-p3.8xlarge 2x-p2.8xlarge
"""


@cache
def machine(name: str) -> Hardware:
    return load_hardware(name).spec


@cache
def part(folder: str, name: str) -> Any:
    return load_part(KINDS[folder], name)


def node(name: str) -> Node:
    return machine(name).groups[0].node


def blocks(value: object, place: str = "") -> Iterator[tuple[str, BaseModel]]:
    """Yield every block at and below *value* with its place."""
    if isinstance(value, BaseModel):
        yield place, value
        value = dict(value)
    if isinstance(value, dict):
        for key, below in value.items():
            yield from blocks(below, f"{place}.{key}")
    elif isinstance(value, tuple):
        for index, below in enumerate(value):
            yield from blocks(below, f"{place}.{index}")


def nvlinks(of: Node) -> dict[tuple[int, int], int]:
    """Return the NVLinks of every pair of GPUs, lower number first."""
    pairs = of.topology.nvlink.pairs if of.topology.nvlink else {}
    return {tuple(sorted(map(int, pair.split("-")))): count for pair, count in pairs.items()}  # type: ignore[misc]


# --- every file ------------------------------------------------------------------------------------------------------


def test_promised_machines_are_there() -> None:
    assert set(MACHINES) >= set(PROMISED.split())


@for_each(MACHINES)
def test_machine_is_named_like_its_file_in_lower_case(name: str) -> None:
    assert machine(name).name == name == name.lower()


@for_each(PARTS)
def test_part_is_named_like_its_file(folder: str, name: str) -> None:
    assert part(folder, name).name.lower() == name


@for_each([*(("", name) for name in MACHINES), *PARTS])
def test_every_source_names_something_public_or_the_reason_of_an_estimate(folder: str, name: str) -> None:
    described = part(folder, name) if folder else machine(name)
    for place, block in blocks(described):
        source = getattr(block, "source", None) or "estimate (none due)"
        for key, text in (source if isinstance(source, dict) else {"*": source}).items():
            assert key == "*" or key in type(block).model_fields, f"{place}: source names no field of the block: {key}"
            assert len(text) > 8, f"{place}: {text!r} is not a source"
            assert not text.startswith("estimate") or re.match(r"estimate \(.{5,}\)", text), f"{place}: estimate without a reason"
            assert not re.search(r"shared/|/work|\bgk\b", text), f"{place}: {text!r} is not public"


# --- link graphs -----------------------------------------------------------------------------------------------------

# NVLinks or Infinity Fabric links that a GPU has: stas00/ml-engineering @744d01e1 network/README.md; H800, A800 and H20:
# citsjtu2020/LLM-Prof hardware_spec.md (400, 400 and 900 GB/s both ways); none: PCIe boards;
# a die of an MI250: ROCm/ROCm @e396b489 docs/conceptual/gpu-arch/mi250.md (eight, of which one may be PCIe).
PORTS = {
    "P100-SXM2": 4, "V100-SXM2": 6, "A100-SXM4": 12, "A800-SXM4": 8, "H100-SXM5": 18, "H800-SXM5": 8, "H20-SXM": 18, "H200-SXM": 18,
    "GH200": 18, "B200-SXM": 18, "B300-SXM": 18, "GB200": 18, "GB300": 18, "MI300X": 7, "MI325X": 7, "MI350X": 7, "MI355X": 7, "MI250": 8,
    "TPU-v": 4,
}  # fmt: skip


@for_each(MACHINES)
def test_no_gpu_has_more_nvlinks_than_ports(name: str) -> None:
    for group in machine(name).groups:
        ports = next((count for board, count in PORTS.items() if group.node.gpu.name.startswith(board)), 0)
        nvlink = group.node.topology.nvlink
        used = Counter({gpu: nvlink.switch_links if nvlink else 0 for gpu in range(group.node.gpu_count)})
        for pair, count in nvlinks(group.node).items():
            used.update(dict.fromkeys(pair, count))
        assert max(used.values(), default=0) <= ports


@for_each(MACHINES)
def test_pairs_name_two_gpus_of_the_node_once(name: str) -> None:
    for group in machine(name).groups:
        pairs = nvlinks(group.node)
        assert all(0 <= low < high < group.node.gpu_count for low, high in pairs)
        assert len(pairs) == len(group.node.topology.nvlink.pairs if group.node.topology.nvlink else {}), "a pair is given in both orders"


@for_each(MACHINES)
def test_every_gpu_and_nic_hangs_off_exactly_one_port(name: str) -> None:
    for group in machine(name).groups:
        holders: list[Socket | Switch] = [*group.node.topology.sockets, *group.node.topology.switches]
        assert sorted(gpu for holder in holders for gpu in holder.gpus) == list(range(group.node.gpu_count))
        assert sorted(nic for holder in holders for nic in holder.nics) == list(range(group.node.nic.count))


@for_each(MACHINES)
def test_switches_lead_to_sockets_of_the_host(name: str) -> None:
    for group in machine(name).groups:
        topology = group.node.topology
        parents = {f"socket{index}" for index in range(len(topology.sockets))} | {switch.name for switch in topology.switches}
        assert len(topology.sockets) == group.node.host.sockets
        assert all(switch.parent in parents - {switch.name} for switch in topology.switches)


def test_cube_mesh_is_the_matrix_that_nvidia_smi_printed() -> None:
    """Oracle: nvidia-smi topo -m of 8 V100 pasted at kyumdoctor.tistory.com/74 (NV1, NV2, rest SYS), not the file the pairs come from."""
    printed = ["X112 2...", "1X21 .2..", "12X2 ..1.", "212X ...1", "2... X112", ".2.. 1X21", "..1. 12X2", "...1 212X"]
    rows = [row.replace(" ", "").ljust(8, ".") for row in printed]
    expected = {(low, high): int(rows[low][high]) for low, high in itertools.combinations(range(8), 2) if rows[low][high].isdigit()}
    for name in ("p3.16xlarge", "p3dn.24xlarge", "dgx-1-v100", "nd40rs_v2", "n1-v100-8"):
        assert nvlinks(node(name)) == expected, name


@pytest.mark.parametrize(("slice_of", "gpus"), [("p3.8xlarge", (0, 1, 2, 3)), ("p3.8xlarge-mixed-quad", (0, 1, 4, 5))])
def test_slices_are_cut_from_the_whole_mesh(slice_of: str, gpus: tuple[int, ...]) -> None:
    full_mesh = nvlinks(node("p3.16xlarge"))
    cut = {(gpus.index(low), gpus.index(high)): count for (low, high), count in full_mesh.items() if low in gpus and high in gpus}
    assert nvlinks(node(slice_of)) == cut


def most_rings(capacity: dict[tuple[int, int], int]) -> int:
    """Return the most directed rings over four GPUs that use no NVLink twice, by exhaustive search."""
    best = 0
    for order in itertools.permutations((1, 2, 3)):
        ring = list(itertools.pairwise((0, *order, 0)))
        if all(capacity.get(hop, 0) for hop in ring):
            left = {hop: count - (hop in ring) for hop, count in capacity.items()}
            best = max(best, 1 + most_rings(left))
    return best


@pytest.mark.parametrize(("name", "rings"), [("p3.8xlarge", 4), ("p3.8xlarge-mixed-quad", 2), ("p3.8xlarge-two-islands", 0)])
def test_slices_keep_the_rings_they_are_known_to_keep(name: str, rings: int) -> None:
    """Oracle: exhaustive packing of link-disjoint rings; a whole quad keeps four, a slice across both quads two, two islands none."""
    pairs = nvlinks(node(name))
    assert most_rings({**pairs, **{(high, low): count for (low, high), count in pairs.items()}}) == rings


@pytest.mark.parametrize(("name", "rate"), [("dgx-2", 150e9), ("p4d.24xlarge", 300e9), ("hgx-h100", 450e9), ("hgx-b200", 900e9)])
def test_nvswitch_rate_per_gpu_and_direction(name: str, rate: float) -> None:
    """Oracle: totals per GPU in NVIDIA/nccl-tests issue 78, awslabs/awsome-distributed-training and stas00/ml-engineering."""
    nvlink = node(name).topology.nvlink
    assert nvlink is not None
    assert nvlink.switch_links * nvlink.link.bandwidth == pytest.approx(rate)


@pytest.mark.parametrize("name", ["p2.xlarge", "p2.8xlarge", "p2.16xlarge", "g4dn.12xlarge", "g5.12xlarge", "g6.12xlarge"])
def test_no_peer_to_peer_where_the_virtual_machine_forbids_or_hides_it(name: str) -> None:
    assert node(name).topology.peer_to_peer == "none"


def test_two_devices_of_a_k80_board_share_one_uplink() -> None:
    assert [switch.gpus for switch in node("p2.8xlarge").topology.switches] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert {switch.parent for switch in node("p2.16xlarge").topology.switches} == {"socket0", "socket1"}


# --- numbers ---------------------------------------------------------------------------------------------------------

# DescribeInstanceTypes in moto 4.0.0 and 5.2.5: GPUs, vCPUs, cores, DRAM in GiB, network in Gbps in all, EBS in MB/s.
# Network of p2.xlarge: the sustained figure (AWS slides 2017); so are those of p3.2xlarge and of G machines up to 4xlarge (karpenter
# zz_generated.bandwidth.go). EBS: the sustained figure.
# G7e: aws/karpenter-provider-aws @1d927085 instance-types.md, with two threads a core.
AWS = {
    "p2.xlarge": (1, 4, 2, 61, 1.25, 93.75),
    "p2.8xlarge": (8, 32, 16, 488, 10, 625),
    "p2.16xlarge": (16, 64, 32, 732, 25, 1250),
    "p3.2xlarge": (1, 8, 4, 61, 2.5, 218.75),
    "p3.8xlarge": (4, 32, 16, 244, 10, 875),
    "p3.16xlarge": (8, 64, 32, 488, 25, 1750),
    "p3dn.24xlarge": (8, 96, 48, 768, 100, 2375),
    "p4de.24xlarge": (8, 96, 48, 1152, 400, 2375),
    "p5.48xlarge": (8, 192, 96, 2048, 3200, 10000),
    "p5en.48xlarge": (8, 192, 96, 2048, 3200, 12500),
    "g4dn.xlarge": (1, 4, 2, 16, 5, 118.75),
    "g4dn.2xlarge": (1, 8, 4, 32, 10, 143.75),
    "g4dn.4xlarge": (1, 16, 8, 64, 20, 593.75),
    "g4dn.8xlarge": (1, 32, 16, 128, 50, 1187.5),
    "g4dn.12xlarge": (4, 48, 24, 192, 50, 1187.5),
    "g4dn.16xlarge": (1, 64, 32, 256, 50, 1187.5),
    "g5.2xlarge": (1, 8, 4, 32, 5, 106.25),
    "g5.4xlarge": (1, 16, 8, 64, 10, 593.75),
    "g5.8xlarge": (1, 32, 16, 128, 25, 2000),
    "g5.16xlarge": (1, 64, 32, 256, 25, 2000),
    "g5.24xlarge": (4, 96, 48, 384, 50, 2375),
    "g5.48xlarge": (8, 192, 96, 768, 100, 2375),
    "g6.2xlarge": (1, 8, 4, 32, 5, 250),
    "g6.4xlarge": (1, 16, 8, 64, 10, 1000),
    "g6.8xlarge": (1, 32, 16, 128, 25, 2000),
    "g6.16xlarge": (1, 64, 32, 256, 25, 2500),
    "g6.24xlarge": (4, 96, 48, 384, 50, 3750),
    "g6e.2xlarge": (1, 8, 4, 64, 5, 250),
    "g6e.4xlarge": (1, 16, 8, 128, 20, 1000),
    "g6e.8xlarge": (1, 32, 16, 256, 25, 2000),
    "g6e.16xlarge": (1, 64, 32, 512, 35, 2500),
    "g6e.24xlarge": (4, 96, 48, 768, 200, 3750),
    "g7e.4xlarge": (1, 16, 8, 128, 50, 1000),
    "g7e.8xlarge": (1, 32, 16, 256, 100, 2000),
    "g7e.12xlarge": (2, 48, 24, 512, 400, 3125),
    "g7e.24xlarge": (4, 96, 48, 1024, 800, 6250),
}


@for_each(AWS)
def test_instance_is_what_the_provider_says(name: str) -> None:
    host, nic, storage = node(name).host, node(name).nic, node(name).storage
    assert storage is not None and storage.bandwidth is not None
    instance = (node(name).gpu_count, host.vcpus, host.physical_cores, host.memory / 2**30)
    assert (*instance, nic.count * nic.bandwidth * 8e-9, storage.bandwidth / 1e6) == pytest.approx(AWS[name])


# GPUs, vCPUs, DRAM in GiB, NVLinks of a GPU to switches. GCP: Cyclenerd/google-cloud-pricing-cost-calculator @dac31281
# tools/machinetypes.csv; Lambda: anycloud-sh/catalog @4c061026 lambda/vms.csv; NVLinks: stas00/ml-engineering @744d01e1 network/README.md.
SHAPES = {
    "g2-standard-4": (1, 4, 16, 0),
    "g2-standard-8": (1, 8, 32, 0),
    "g2-standard-16": (1, 16, 64, 0),
    "g2-standard-32": (1, 32, 128, 0),
    "g4-standard-96": (2, 96, 360, 0),
    "g4-standard-192": (4, 192, 720, 0),
    "a2-megagpu-16g": (16, 96, 1360, 12),
    "a4x-highgpu-4g": (4, 140, 884, 18),
    "a4x-maxgpu-4g-metal": (4, 144, 960, 18),
    "gpu_8x_v100": (8, 92, 448, 0),
    "gpu_4x_a6000": (4, 56, 400, 0),
}


@for_each(SHAPES)
def test_machine_is_what_published_lists_say(name: str) -> None:
    host, nvlink = node(name).host, node(name).topology.nvlink
    links = nvlink.switch_links if nvlink else 0
    assert (node(name).gpu_count, host.vcpus, host.memory / 2**30, links) == SHAPES[name]


# USD per hour. P2 and P3: cost_map of Stash's analyze.py, which AWS's list of 2026-07-20 repeats; others: that list.
PRICES = {
    "p2.xlarge": 0.90,
    "p2.8xlarge": 7.20,
    "p2.16xlarge": 14.40,
    "p3.2xlarge": 3.06,
    "p3.8xlarge": 12.24,
    "p3.16xlarge": 24.48,
    "p3dn.24xlarge": 31.212,
    "p4d.24xlarge": 21.957642,
    "p4de.24xlarge": 27.4471,
    "g5.48xlarge": 16.288,
    "nd40rs_v2": 22.032,
}


@for_each(PRICES)
def test_price_is_the_published_one(name: str) -> None:
    price = machine(name).groups[0].price
    assert price is not None and price.on_demand is not None
    assert price.on_demand * 3600 == pytest.approx(PRICES[name])


UNPRICED = {"a4x-highgpu-4g", "a4x-maxgpu-4g-metal", "p6e-gb200.36xlarge"}
"""Machines that are sold by contract or in blocks, whose price no source states."""


@for_each(MACHINES)
def test_spot_costs_less_and_own_machines_cost_nothing_known(name: str) -> None:
    provider, price = machine(name).provider, machine(name).groups[0].price
    assert (price is not None) == (provider != "" and name not in UNPRICED)
    assert price is None or not price.copied_from
    if price is not None and price.spot is not None and price.on_demand is not None:
        assert 0.1 < price.spot / price.on_demand < 1  # zones that are almost sold out ask nearly the on-demand price


def test_an_instance_does_not_inherit_the_spot_price_of_the_one_it_extends() -> None:
    own, extended = (machine(name).groups[0].price for name in ("p4de.24xlarge", "p4d.24xlarge"))
    assert own is not None and extended is not None and extended.spot is not None and own.spot != extended.spot


def test_prices_of_sizes_of_a_family_are_their_own() -> None:
    """Oracle: no two sizes of a family with different processors cost the same."""
    for family in ("g4dn", "g5", "g6", "g6e", "g7e", "g2-standard", "g4-standard"):
        sizes = [name for name in MACHINES if name.startswith((f"{family}.", f"{family}-"))]
        prices = {name: (price := machine(name).groups[0].price) and price.on_demand for name in sizes}
        assert None not in prices.values() and len(set(prices.values())) == len(sizes) > 3, prices


@pytest.mark.parametrize(("of", "twin"), [("p3.8xlarge", "p3.16xlarge"), ("p2.8xlarge", "p2.16xlarge")])
def test_two_nodes_have_the_gpus_and_the_price_of_their_twin(of: str, twin: str) -> None:
    """Oracle: arXiv 2208.14344 chose the pairs so."""
    (group,), (other,) = machine(f"2x-{of}").groups, machine(twin).groups
    assert group.count == 2 and group.node == node(of)
    assert group.count * group.node.gpu_count == other.node.gpu_count
    assert group.price is not None and other.price is not None
    assert group.count * (group.price.on_demand or 0) == pytest.approx(other.price.on_demand)


def test_the_name_of_the_paper_finds_the_machine_it_means() -> None:
    named = machine("p3.24xlarge")
    assert named.name == "p3dn.24xlarge" and "p3.24xlarge" in named.note


@for_each(MACHINES)
def test_cloud_volumes_are_assumed_and_own_ones_are_not(name: str) -> None:
    storage = node(name).storage
    assert storage is not None
    assert storage.volume.assumed == (machine(name).provider != "")
    if machine(name).provider == "aws":
        assert storage.volume.name == "gp2" and storage.volume.size == 500 * 2**30


def test_local_disks_replace_the_assumed_volume_as_the_notes_say() -> None:
    changes = ["node.storage.volume=nvme-p4d.24xlarge;node.storage.bandwidth=null;node.storage.iops=null"]
    storage = load_hardware("p4d.24xlarge", changes).spec.groups[0].node.storage
    assert storage is not None and storage.bandwidth is None
    assert not storage.volume.assumed and storage.volume.count * storage.volume.size == 8e12


# Cores of the largest processor of a family: NVIDIA Grace; AMD EPYC 9004 and 9005 (general knowledge); all others have at most 64.
CORES = {"grace": 72, "epyc-genoa": 96, "epyc-turin": 128}


@for_each(MACHINES)
def test_threads_and_memory_fit_the_processors(name: str) -> None:
    for group in machine(name).groups:
        host = group.node.host
        assert host.vcpus in (host.physical_cores, 2 * host.physical_cores)
        assert host.physical_cores <= CORES.get(host.cpu.name, 64) * host.sockets
        assert 2 <= host.memory / 2**30 / host.physical_cores <= 64
