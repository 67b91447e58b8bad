"""Descriptions written from topology prints: they load, pass every check, and have the wires of the print."""

from __future__ import annotations

import json
import re
import tempfile
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.check import check_hardware, count_estimates
from sim.cli import main
from sim.cluster.topology import node_graph
from sim.spec.catalog import catalog
from sim.spec.foreign.topo_import import parse_topology
from sim.spec.hardware import Gpu, Hardware, Node
from sim.spec.library import load_hardware, load_part
from sim.spec.wiring import CLASSES, Card, Processor
from sim.spec.yaml import SpecError
from sim.study.collective import collective_table
from sim.study.new import parts as new_parts
from sim.study.new.hardware import Options, hardware_yaml, new_hardware
from sim.study.scenario import Scenario, answer
from sim.training.collectives.routes.channels import ring_channels
from tests.spec.topologies import (
    DGX_1V,
    DGX_H100,
    FILES,
    FOUR_ON_NVSWITCH,
    G5_12XLARGE,
    MATRICES,
    P3_16XLARGE,
    V100_PCIE,
    XML_DGX_1V_QUAD,
    XML_H100,
    XML_P4D,
)

PRINTS = {**MATRICES, **FILES}


def written(tmp_path: Path, text: str, gpu: str | None = None, **options: str) -> Node:
    """Write a description from the print *text* and read it back."""
    (tmp_path / "topo.txt").write_text(text)
    output = tmp_path / "box.yaml"
    made = new_hardware(tmp_path / "topo.txt", output, None, gpu, overwrite=True, **options)
    loaded = load_hardware(str(output))
    assert made == loaded.spec and check_hardware(loaded.spec, loaded.document) == []
    assert made.name == "box"
    return made.groups[0].node


def wires(node: Node) -> dict[tuple[int, int], str]:
    """What the link graph says between every two GPUs, in the words of the print."""
    graph = node_graph(node)
    wire_by_pair = {}
    for one, other in combinations(range(node.gpu_count), 2):
        links = graph.nvlinks(one, other) or graph.switch_links
        wire_by_pair[one, other] = f"NV{links}" if links else graph.route(one, other).path_class
    return wire_by_pair


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_come_back(name, tmp_path):
    """Oracle: the cells of the print, split by hand, against the classes of `node_graph` on the written description."""
    text, gpu = MATRICES[name]
    rows = [line.split() for line in text.splitlines() if re.match(r"GPU\d+\s", line)]
    cells = {(one, other): rows[one][other + 1] for one, other in combinations(range(len(rows)), 2)}
    assert wires(written(tmp_path, text, gpu)) == {pair: CLASSES.get(cell, cell) for pair, cell in cells.items()}


@pytest.mark.parametrize("name", FILES)
def test_nccls_files_come_back(name, tmp_path):
    """Oracle: the classes and NVLinks that reading gave."""
    text, gpu = FILES[name]
    wiring = parse_topology(text)
    links = dict.fromkeys(wiring.classes, wiring.switch_links) if wiring.switch_links else wiring.nvlinks
    expected = {pair: f"NV{links[pair]}" if pair in links else near for pair, near in wiring.classes.items()}
    assert wires(written(tmp_path, text, gpu)) == expected


def test_cards_come_back(tmp_path):
    """By hand: GPUs 2, 3 beside card 0 and GPUs 6, 7 beside card 1 are PIX, their neighbors NODE, the others SYS."""
    graph = node_graph(written(tmp_path, *MATRICES["cube-with-cards"]))
    for nic, near in ((0, 2), (1, 6)):
        for gpu in range(8):
            expected = "PIX" if gpu in (near, near + 1) else "PHB" if gpu // 4 == near // 4 else "SYS"
            assert graph.pcie_class(f"gpu{gpu}", f"nic{nic}") == expected


@pytest.mark.parametrize(("text", "gpu", "rings", "kind"), [
    (DGX_1V, "V100-SXM2-16GB", 6, "nvlink"),
    (P3_16XLARGE, "V100-SXM2-16GB", 6, "nvlink"),
    (XML_DGX_1V_QUAD, None, 4, "nvlink"),
    (MATRICES["dgx-a100"][0], "A100-SXM4-40GB", 12, "nvswitch"),
    (MATRICES["four-a100"][0], "A100-SXM4-40GB", 12, "nvlink"),
    (G5_12XLARGE, "A10G", 1, "pcie"),
    (*MATRICES["p3.8xlarge"], 4, "nvlink"),
    (*MATRICES["dgx-h100"], 18, "nvswitch"),
    (*MATRICES["box-3090"], 1, "pcie"),
    (*MATRICES["bridged-3090"], 2, "pcie"),
    (*MATRICES["epyc-box"], 1, "pcie"),
])  # fmt: skip
def test_rings(text, gpu, rings, kind, tmp_path):
    """Check values of NVIDIA/nccl: 6 rings on a DGX-1V, 4 on its quad, one per NVLink of a GPU where all reach all."""
    node = written(tmp_path, text, gpu)
    channels = ring_channels(node_graph(node), tuple(range(node.gpu_count)))
    assert (len(channels.channels), channels.kind) == (rings, kind)


def test_an_imported_machine_is_like_the_catalog_s(tmp_path):
    """Independent description: dgx-a100 of the catalog has the same NVLink, cards near the same GPUs, and PCIe."""
    own, cataloged = written(tmp_path, *MATRICES["dgx-a100"]), load_hardware("dgx-a100").spec.groups[0].node
    assert own.topology.nvlink == cataloged.topology.nvlink
    assert own.topology.pcie == cataloged.topology.pcie
    assert own.nic.count == cataloged.nic.count and own.nic.transport == cataloged.nic.transport and own.nic.gpudirect
    for gpu in range(8):
        near = [
            [nic for nic in range(8) if graph.pcie_class(f"gpu{gpu}", f"nic{nic}") in ("PIX", "PXB")]
            for graph in (node_graph(own), node_graph(cataloged))
        ]
        assert near[0] == near[1]


@pytest.mark.parametrize("name", PRINTS)
def test_what_is_written_runs(name, tmp_path):
    """Bound: no GPU takes part in an all-reduce faster than all its links together; and a step of training takes time."""
    node = written(tmp_path, *PRINTS[name])
    (row,) = collective_table(str(tmp_path / "box.yaml"), "all_reduce", [2**28]).rows
    links = sum(link.capacity for link_name, link in node_graph(node).links.items() if link_name.startswith("gpu0>"))
    assert 0 < row.algbw * 2 * (node.gpu_count - 1) / node.gpu_count < 2 * links
    assert answer(Scenario(str(tmp_path / "box.yaml"), "resnet18")).run.jobs[0].warm.step_time > 0


def test_a_machine_may_be_called_as_its_gpu(tmp_path):
    """rtx3090.yaml says gpu: RTX3090, and means the catalog's, not itself; nor does it disturb what stands beside it."""
    (tmp_path / "topo.txt").write_text(MATRICES["box-3090"][0])
    for name in ("rtx3090.yaml", "other.yaml"):
        new_hardware(tmp_path / "topo.txt", tmp_path / name, None, "RTX3090")
        assert load_hardware(str(tmp_path / name)).spec.groups[0].node.gpu.name == "RTX3090"


# --- parts -----------------------------------------------------------------------------------------------------------


def printed_all(count: int, links: int) -> str:
    names = [f"GPU{gpu}" for gpu in range(count)]
    rows = ["\t".join([name, *("X" if other == name else f"NV{links}" for other in names)]) for name in names]
    return "\n".join(["\t" + "\t".join(names), *rows])


@pytest.mark.parametrize(("count", "links", "gpu", "switched"), [
    (8, 12, "A100-SXM4-80GB", 12),  # more than 12 in all: NVSwitch
    (4, 4, "A100-SXM4-40GB", 0),  # 3 x 4 links: wired to each other
    (4, 12, "A100-SXM4-40GB", 12),  # a slice of an NVSwitch machine
    (2, 12, "A100-SXM4-40GB", 12),  # likewise: no SXM board joins two alone
    (2, 12, "A100-PCIe-80GB", 0),  # three bridges between two boards
    (16, 6, "V100-SXM2-32GB", 6),
    (8, 18, "H100-SXM5-80GB", 18),
    (2, 4, "RTX3090", 0),
    (4, 1, "P100-SXM2-16GB", 0),
])  # fmt: skip
def test_nvswitch_is_told_from_wires(count, links, gpu, switched, tmp_path):
    """Counting: a GPU has 4, 6, 12 or 18 links; where that many cannot reach every peer, switches stand between."""
    nvlink = written(tmp_path, printed_all(count, links), gpu).topology.nvlink
    assert nvlink is not None
    assert (nvlink.switch_links, len(nvlink.pairs)) == (switched, 0 if switched else count * (count - 1) // 2)


@pytest.mark.parametrize(("text", "gpu", "words"), [
    (printed_all(4, 12), "V100-SXM2-16GB", "12 NVLinks on one GPU, but V100-SXM2-16GB has 6; specify the GPU with --gpu"),
    (printed_all(2, 4), "L4", "the topology shows NVLink, but L4 has none"),
    (DGX_1V, "P100-SXM2-16GB", "6 NVLinks on one GPU, but P100-SXM2-16GB has 4"),
    (XML_H100, "A100-SXM4-80GB", "18 NVLinks on one GPU, but A100-SXM4-80GB has 12"),
    (DGX_1V, "V100-PCIe-16GB", "the topology shows NVLink, but V100-PCIe-16GB has none"),
    (DGX_H100, "H100-PCIe", "a GPU to 7 others, but PCIe boards such as H100-PCIe-80GB are joined only in pairs; .* as H100-SXM5-80GB$"),
    (FOUR_ON_NVSWITCH, "A100-PCIe-40GB", "a GPU to 3 others.* such as A100-SXM4-40GB$"),
    (DGX_1V, None, "does not name the GPU model; specify one with --gpu, such as --gpu A100-SXM4-40GB"),
    (
        DGX_1V, "V100",
        "--gpu V100: is not in hardware/parts/gpus/; did you mean v100-pcie-16gb, v100-pcie-32gb, v100-sxm2-16gb or v100-sxm2-32gb?",
    ),
    (DGX_1V, "V1OO", r"--gpu V1OO: is not in hardware/parts/gpus/; 'python -m sim list gpus' shows all \d+"),
    (XML_H100.replace("0x2330", "0x9999"), None, "several GPUs have compute capability 9.0; specify one with --gpu: .*H100-"),
    (XML_H100.replace("0x2330", "0x9999").replace('sm="90"', 'sm="99"'), None, "no catalog GPU has compute capability 9.9"),
    (XML_H100.replace("0x2330", "0x2335", 1), None, "GPUs of several kinds .PCI devices 0x2335, 0x2330"),
    (FOUR_ON_NVSWITCH.replace("A100-SXM4-80GB", "B7"), None, "'NVIDIA B7' is not in the catalog; specify one"),
    (FOUR_ON_NVSWITCH.replace("A100-SXM4-80GB", "B7", 1), None, "GPUs of several kinds .'NVIDIA B7', 'NVIDIA A100-SXM4-80GB'."),
])  # fmt: skip
def test_a_gpu_that_cannot_be_is_refused(text, gpu, words, tmp_path):
    with pytest.raises(SpecError, match=words):
        written(tmp_path, text, gpu)
    assert not (tmp_path / "box.yaml").exists()


@pytest.mark.parametrize(("printed", "name"), [
    ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"), ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"), ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
    ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"), ("A100-SXM-80GB", "a100-sxm4-80gb"), ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
    ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"), ("NVIDIA H100 PCIe", "h100-pcie-80gb"), ("NVIDIA H200", "h200-sxm-141gb"),
    ("NVIDIA B200", "b200-sxm-180gb"), ("Tesla T4", "t4"), ("NVIDIA A10G", "a10g"), ("NVIDIA L4", "l4"), ("NVIDIA L40S", "l40s"),
    ("NVIDIA L40", "l40"), ("NVIDIA GeForce RTX 3090", "rtx3090"), ("GeForce GTX 1080 Ti", "gtx1080ti"),
    ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
    ("Quadro RTX 6000", "quadrortx6000"), ("NVIDIA RTX A6000", "rtxa6000"), ("Tesla K80", "k80"),
    ("Tesla P100-PCIE-16GB", "p100-pcie-16gb"), ("NVIDIA A10", "a10"), ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
    ("NVIDIA H100 NVL", "h100-nvl-94gb"), ("NVIDIA A30", "a30"), ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
    ("Tesla V100", None), ("", None), ("NVIDIA", None),
])  # fmt: skip
def test_printed_names(printed, name):
    """By hand: names as nvidia-smi prints them; A10 is no A10G, and what fits two boards is told by neither."""
    assert new_parts.named_like(printed) == name


def test_every_part_that_may_be_chosen_is_in_the_catalog():
    """Conservation: tables name parts that exist, and each PCI number's GPU is one GPU."""
    gpus = {load_part(Gpu, stem).name for stem in catalog(new_parts.GPUS)}
    assert set(new_parts.PCI_DEVICES.values()) <= gpus
    assert {link for link, _ in new_parts.NVLINKS.values()} <= set(catalog("hardware/parts/links"))
    assert set(new_parts._CPU_BY_AGE.values()) | {new_parts._OLDEST_CPU} <= set(catalog("hardware/parts/cpus"))


@pytest.mark.parametrize(("processor", "link"), [
    (Processor("GenuineIntel", 6, 79), "qpi"),
    (Processor("GenuineIntel", 6, 85), "upi-skylake"),
    (Processor("GenuineIntel", 6, 106), "upi-skylake"),
    (Processor("GenuineIntel", 6, 143), "upi-sapphire-rapids"),
    (Processor("GenuineIntel", 6, 207), "upi-emerald-rapids"),
    (Processor("AuthenticAMD", 23, 49), "infinity-fabric"),
    (Processor("AuthenticAMD", 175, 1), "infinity-fabric"),
])  # fmt: skip
def test_the_processor_has_the_socket_link_that_nccl_assumes(processor, link, tmp_path):
    """NVIDIA/nccl topo.cc: Broadwell below model 0x55, Skylake from there, Sapphire Rapids 0x8F, Emerald Rapids 0xCF."""
    text = XML_P4D.replace("GenuineIntel", processor.vendor).replace('familyid="6"', f'familyid="{processor.family}"')
    node = written(tmp_path, text.replace('modelid="85"', f'modelid="{processor.model}"'), "A100-SXM4-40GB")
    assert node.host.cpu.socket_link.name == link


@pytest.mark.parametrize(("vendor", "of_two"), [("AuthenticAMD", "sys"), ("GenuineIntel", None)])
def test_on_amd_without_nvlink_two_gpus_meet_anywhere(vendor, of_two, tmp_path):
    """NVIDIA/nccl src/graph/paths.cc: up to PXB, but pairs of GPUs on AMD across sockets."""
    without_nvlink = re.sub(r"\s*<nvlink[^>]*>", "", XML_DGX_1V_QUAD)
    topology = written(tmp_path, without_nvlink.replace("GenuineIntel", vendor)).topology
    assert (topology.peer_to_peer, topology.peer_to_peer_of_two) == ("pxb", of_two)


PCIE_SWITCHES = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPIX\tPXB\tPXB\t0-15\t0
GPU1\tPIX\t X \tPXB\tPXB\t0-15\t0
GPU2\tPXB\tPXB\t X \tPIX\t0-15\t0
GPU3\tPXB\tPXB\tPIX\t X \t0-15\t0
"""


@pytest.mark.parametrize(("gpu", "staged"), [("RTX4090", True), ("RTX6000Ada", False)])
def test_boards_without_peer_access_copy_through_host_memory(gpu, staged, tmp_path):
    node = written(tmp_path, PCIE_SWITCHES, gpu)
    assert {node_graph(node).route(0, other).staged for other in (1, 2, 3)} == {staged}
    assert ("no peer access over PCIe" in (load_hardware(str(tmp_path / "box.yaml")).spec.note or "")) is staged


@pytest.mark.parametrize(("gpu", "direct"), [("RTX4090", False), ("RTX6000Ada", True)])
def test_geforce_boards_have_no_gpudirect(gpu, direct, tmp_path):
    """GPUDirect RDMA is "available on both Tesla and Quadro GPUs" (docs.nvidia.com/cuda/gpudirect-rdma)."""
    rows = [row.replace("\tCPU", "\tmlx5_0\tCPU").replace("\t0-15", "\tPXB\t0-15") for row in PCIE_SWITCHES.splitlines()]
    card = "mlx5_0\tPXB\tPXB\tPXB\tPXB\t X \t\t\n"
    assert written(tmp_path, "\n".join([*rows, card]), gpu).nic.gpudirect is direct


def test_what_is_assumed_is_told_with_its_lines_and_with_each_run(tmp_path, capsys):
    """The lines are those of the written file; naming the parts, in the file or as options, ends it."""
    (tmp_path / "topo.txt").write_text(PCIE_SWITCHES)
    box = str(tmp_path / "box.yaml")
    assert main(["new", "--from-topo", str(tmp_path / "topo.txt"), "--gpu", "RTX4090", "-o", box]) == 0
    said = capsys.readouterr().err
    lines = (tmp_path / "box.yaml").read_text().splitlines()
    network = dict(re.findall(r"line (\d+): nic (.+?)(?:;|$)", said))
    assert set(network.values()) == {"bandwidth 10 Gbps", "transport tcp"}
    assert all(lines[int(number) - 1].strip() == value.replace(" ", ": ", 1) for number, value in network.items())
    told = re.findall(r"line (\d+): (cpu|volume) ([\w-]+)", said)
    assert [(kind, name) for _, kind, name in told] == [("cpu", "epyc-7742"), ("volume", "gp2")]
    assert all(f"{kind}: {{extends: {name}, assumed: true}}" in lines[int(number) - 1] for number, kind, name in told)
    for options, assumed in (([], True), (["--set", "node.host.cpu=epyc-genoa", "--set", "node.storage.volume=gp3"], False)):
        assert main(["run", box, "alexnet", "--fast", "--json", *options]) == 0
        sentences = json.loads(capsys.readouterr().out)["assumptions"]
        assert any("the processor of box is not known, so epyc-7742 is assumed" in each for each in sentences) is assumed
        assert any("comes without a volume, so one gp2" in each for each in sentences) is assumed


def test_a_given_network_is_not_assumed(tmp_path, capsys):
    (tmp_path / "topo.txt").write_text(PCIE_SWITCHES)
    question = ["new", "--from-topo", str(tmp_path / "topo.txt"), "--gpu", "RTX4090", "-o", str(tmp_path / "box.yaml")]
    assert main([*question, "--nic-bandwidth", "400 Gbps", "--transport", "roce"]) == 0
    assert ": nic " not in capsys.readouterr().err


def test_a_given_processor_is_not_assumed(tmp_path):
    assert written(tmp_path, PCIE_SWITCHES, "RTX4090").host.cpu.assumed
    assert not written(tmp_path, PCIE_SWITCHES, "RTX4090", cpu="epyc-genoa").host.cpu.assumed


def test_an_unknown_processor_is_an_estimate(tmp_path):
    text = XML_P4D.replace("GenuineIntel", "Neoverse")
    reason = written(tmp_path, text, "A100-SXM4-40GB").host.source["cpu"]  # type: ignore[index,unused-ignore]
    assert reason == "estimate (none of vendor Neoverse in the catalog; usual with ampere GPUs)"


@pytest.mark.parametrize(("card", "transport"), [
    (Card("mlx5_0"), "infiniband"), (Card("mlx5_0", kind="ethernet"), "roce"), (Card("mlx5_0", kind="infiniband"), "infiniband"),
    (Card("rdmap16s27"), "efa"), (Card("rocep49s0"), "roce"), (Card("bnxt_re0"), "roce"), (Card("NIC3"), "infiniband"),
    (Card("eth0"), "tcp"), (Card(kind="ethernet"), "tcp"), (Card(kind="infiniband"), "infiniband"),
])  # fmt: skip
def test_cards_by_name_and_class(card, transport):
    assert new_parts.find_transport((card,), None).name == transport


def test_lanes_make_the_pcie_link(tmp_path):
    """Closed form: half the lanes carry half; no GPU is faster than its own generation; a slow uplink is the switch's."""
    eight = written(tmp_path, XML_DGX_1V_QUAD.replace('link_width="16"', 'link_width="8"')).topology.pcie
    sixteen = written(tmp_path, XML_DGX_1V_QUAD).topology.pcie
    assert (eight.bandwidth, eight.nccl_bandwidth) == (sixteen.bandwidth / 2, sixteen.nccl_bandwidth / 2)
    assert eight.efficiency == sixteen.efficiency and eight.name == "pcie3-x8"
    fast = XML_DGX_1V_QUAD.replace("8 GT/s", "16.0 GT/s PCIe")
    assert written(tmp_path, fast).topology.pcie == sixteen
    first = 'device="0x8764" link_speed="8 GT/s" link_width='
    switches = written(tmp_path, XML_DGX_1V_QUAD.replace(first + '"16"', first + '"8"')).topology.switches
    assert [switch.link and switch.link.name for switch in switches] == ["pcie3-x8", None]


def test_numa_nodes_share_the_memory_bandwidth_of_their_sockets(tmp_path):
    """Conservation: four NUMA nodes of two sockets have together what two sockets have."""
    node = written(tmp_path, *MATRICES["dgx-a100"])
    socket_bandwidth = load_hardware("dgx-a100").spec.groups[0].node.host.cpu.memory_bandwidth
    graph = node_graph(node)
    assert sum(graph.links[f"dram{index}"].capacity for index in range(4)) == pytest.approx(2 * socket_bandwidth)
    half = node_graph(written(tmp_path, V100_PCIE, "V100-PCIe-16GB"))
    assert half.links["dram0"].capacity == half.node.host.cpu.memory_bandwidth


# --- options, sources, files -----------------------------------------------------------------------------------------


def test_options_win(tmp_path):
    options = {"cpu": "epyc-7742", "nic_bandwidth": "400 Gbps", "transport": "efa", "memory": "1 TiB"}
    node = written(tmp_path, V100_PCIE, "v100-pcie-16gb", **options)
    assert (node.gpu.name, node.host.cpu.name, node.nic.transport.name) == ("V100-PCIe-16GB", "epyc-7742", "efa")
    assert (node.nic.bandwidth, node.host.memory) == (50e9, 2**40)
    assert isinstance(node.nic.source, dict) and node.nic.source["bandwidth"] == "given by the user"


def test_a_network_whose_rate_the_user_gave_is_no_estimate(tmp_path):
    """Oracle: the option. A run on two nodes called 10 Gbps an estimate although the user had written it."""
    print_of_two = "\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n"
    for options, estimated in (({}, True), ({"nic_bandwidth": "25 Gbps"}, False)):
        nic = written(tmp_path, print_of_two, "RTX4090", **options).nic
        assert bool({"count", "bandwidth"} & {estimate.key for estimate in count_estimates(nic)}) == estimated


@pytest.mark.parametrize(("options", "words"), [
    ({"cpu": "z80"}, "--cpu z80: is not in hardware/parts/cpus/; 'python -m sim list cpus' shows all"),
    ({"transport": "pigeon"}, "--transport pigeon: is not in hardware/parts/transports/; .python -m sim list transports. shows all"),
    ({"nic_bandwidth": "400"}, "--nic-bandwidth: .*unit"),
    ({"memory": "1 TB\nname: x"}, "--memory: "),
    ({"memory": "1 B"}, r"box.yaml:\d+:\d+: node.host.memory: "),
    ({"name": "a: b"}, "name 'a: b': write letters"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(options, words, tmp_path):
    (tmp_path / "topo.txt").write_text(V100_PCIE)
    with pytest.raises(SpecError, match=words) as caught:
        new_hardware(tmp_path / "topo.txt", tmp_path / "box.yaml", gpu="V100-PCIe-16GB", **options)
    assert ".part" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["topo.txt"]


def test_what_the_print_does_not_tell_is_an_estimate(tmp_path):
    """Every number of host, NIC and disk without a source of its own says so; those of the print name it."""
    written(tmp_path, DGX_1V, "V100-SXM2-16GB")
    loaded = load_hardware(str(tmp_path / "box.yaml"))
    estimates = {estimate.key for estimate in count_estimates(loaded.spec, loaded.document)}
    assert {"node.host.memory", "node.host.physical_cores", "node.nic.bandwidth"} <= estimates
    assert not any(key.startswith(("node.topology.nvlink.pairs", "node.topology.sockets", "node.host.vcpus")) for key in estimates)
    assert loaded.spec.groups[0].node.storage is not None and loaded.spec.groups[0].node.storage.volume.assumed


def test_files_are_written_whole_or_not_at_all(tmp_path):
    """An existing file stays unless told otherwise, and whenever something is wrong; nothing else is left behind."""
    topo, output = tmp_path / "topo.txt", tmp_path / "box.yaml"
    topo.write_text(V100_PCIE)
    output.write_text("mine")
    with pytest.raises(SpecError, match="already exists"):
        new_hardware(topo, output, gpu="V100-PCIe-16GB")
    with pytest.raises(SpecError, match="memory"):
        new_hardware(topo, output, gpu="V100-PCIe-16GB", memory="1 B", overwrite=True)
    assert output.read_text() == "mine"
    assert isinstance(new_hardware(topo, output, gpu="V100-PCIe-16GB", overwrite=True), Hardware)
    assert "\nname: box\n" in output.read_text()
    deep = tmp_path / "new" / "folder" / "box.yml"
    new_hardware(topo, deep, "my-box", "V100-PCIe-16GB")
    assert load_hardware(str(deep)).spec.name == "my-box"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["box.yaml", "box.yml", "folder", "new", "topo.txt"]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "topo.txt").write_text(V100_PCIE)
    for output, words in ((tmp_path / "box.txt", "ends in .yaml"), (tmp_path / "topo.txt" / "box.yaml", "cannot be written")):
        with pytest.raises(SpecError, match=words):
            new_hardware(tmp_path / "topo.txt", output, gpu="V100-PCIe-16GB")


def test_a_run_accepts_what_was_imported(tmp_path):
    """Smoke: the description runs, with the steps of a catalog workload."""
    written(tmp_path, DGX_1V, "V100-SXM2-16GB")
    run = answer(Scenario(str(tmp_path / "box.yaml"), "vgg16")).run
    assert run.jobs


@given(st.sampled_from(sorted(PRINTS)), st.data())
def test_damaged_prints_become_descriptions_or_are_refused(name, data):
    """Real prints with words replaced: a description that loads and checks, or a SpecError, never another exception."""
    text, gpu = PRINTS[name]
    words = re.split(r"(\s+)", text)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(words) - 1))
        words[place] = data.draw(
            st.sampled_from(["", "X", "NV4", "NV99", "SYS", "PIX", "GPU1", "0-9", 'class="0x030200"', 'speed="-1"', 'sm="70"', "</pci>"])
        )
    try:
        text = hardware_yaml(parse_topology("".join(words)), Path("topo.txt"), "box", Options(gpu))
    except SpecError:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "box.yaml"
        path.write_text(text)
        loaded = load_hardware(str(path))
    assert check_hardware(loaded.spec, loaded.document) == []
    node_graph(loaded.spec.groups[0].node)
