"""Which machine does a system in words mean? Oracle: what providers sell and centers run, written down here by hand."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from calibration.collectives.fit import committed_constants, predicted_time
from calibration.collectives.nccl_tests import network_of
from calibration.collectives.records import CollectiveRecord, plan_on
from calibration.collectives.systems import SystemWords, described, system_meant
from calibration.collectives.table import read_table
from calibration.machines.collective_table import write_machine
from calibration.network_words import StatedNics, nics_stated
from sim.spec.yaml import SpecError
from sim.training.collectives.price.collective_plan import Tuning
from sim.training.collectives.price.pricing import cost

SYSTEMS = [
    # system, gpu, nodes, GPUs; machine, nodes x GPUs of each, NICs of a node, Gbit/s of each, transport
    ("16 x Azure ND H100 v5", "NVIDIA H100 80GB HBM3", 16, 128, "nd96isr_h100_v5", "16x8", 8, 400, "infiniband"),
    ("Azure ND_H200_v5, 4 nodes", "H200", 4, 32, "nd96isr_h200_v5", "4x8", 8, 400, "infiniband"),
    ("Standard_ND96isr_MI300X_v5, 2 nodes", "AMD Instinct MI300X", 2, 16, "nd96isr_mi300x_v5", "2x8", 8, 400, "infiniband"),
    ("4x AWS p5.48xlarge EFA (3200 Gbps)", "H100", 4, 32, "p5.48xlarge", "4x8", 8, 400, "efa-rdma-2"),
    ("AWS p5en, 8 nodes", "H200", 8, 64, "p5en.48xlarge", "8x8", 8, 400, "efa-rdma-3"),
    ("2x p4de.24xlarge, EFA 400 Gbps", "A100-SXM4-80GB", 2, 16, "p4de.24xlarge", "2x8", 4, 100, "efa-read"),
    ("2x AWS p4d.24xlarge, TCP sockets (no EFA)", "A100-SXM4-40GB", 2, 16, "p4d.24xlarge", "2x8", 4, 100, "tcp"),
    ("2x g5.48xlarge over ENA", "A10G", 2, 16, "g5.48xlarge", "2x8", 1, 100, "tcp"),
    ("GCP a3-high (TCPX) 2 nodes", "H100", 2, 16, "a3-highgpu-8g", "2x8", 4, 200, "gpudirect-tcpx"),
    ("a3-mega 16 nodes", "H100", 16, 128, "a3-megagpu-8g", "16x8", 8, 200, "gpudirect-tcpxo"),
    ("GCP a3-ultra, RoCE, 4 nodes", "H200", 4, 32, "a3-ultragpu-8g", "4x8", 8, 400, "roce"),
    ("GCP a2-ultragpu-8g, 2 nodes", "A100-SXM4-80GB", 2, 16, "a2-ultragpu-8g", "2x8", 1, 100, "tcp"),
    ("OCI BM.GPU.H200.8, 4 nodes", "H200", 4, 32, "bm.gpu.h200.8", "4x8", 8, 400, "roce"),
    ("OCI GB300 NVL72, 2 racks", "GB300", 36, 144, "bm.gpu.gb300.4", "2x72", 144, 400, "roce"),
    ("CoreWeave GB200 NVL72", "GB200", 16, 64, "coreweave-gb200-nvl72", "1x64", 64, 400, "infiniband"),
    ("Lambda 1-Click Cluster, 16 H100", "H100 SXM5", 2, 16, "gpu_8x_h100_sxm5", "2x8", 8, 400, "infiniband"),
    ("DGX B200 SuperPOD, 4 nodes", "B200", 4, 32, "hgx-b200", "4x8", 8, 400, "infiniband"),
    ("DGX-1 V100, 4 nodes, 4x EDR", "V100-SXM2-16GB", 4, 32, "dgx-1-v100", "4x8", 4, 100, "infiniband"),
    ("DGX-2", "V100-SXM3-32GB", 1, 16, "dgx-2", "1x16", 8, 100, "infiniband"),
    ("HGX H100, 1 x 400 Gbps NDR, 4 nodes", "H100", 4, 32, "hgx-h100", "4x8", 1, 400, "infiniband"),
    ("HGX H100, 4 x 200 Gbps HDR InfiniBand", "H100", 4, 32, "hgx-h100", "4x8", 4, 200, "infiniband"),
    ("HGX H200, 8 x 400 Gbps RoCE (Spectrum-X)", "H200", 4, 32, "hgx-h200", "4x8", 8, 400, "roce"),
    ("HGX H100, 25 GbE TCP, 2 nodes", "H100", 2, 16, "hgx-h100", "2x8", 1, 25, "tcp"),
    ("Dell XE9680, 1x CX-7 400GbE per GPU", "H100 SXM", 2, 16, "hgx-h100", "2x8", 8, 400, "roce"),
    ("HGX H100, 8x 400 Gbps Ethernet, NCCL_NET=Socket", "H100", 2, 16, "hgx-h100", "2x8", 8, 400, "tcp"),
    ("2 nodes 16x H20, 16x CX7 NDR", "H20", 2, 16, "hgx-h20", "2x8", 8, 400, "infiniband"),
    ("Frontier, 8 nodes", "MI250X", 8, 64, "cray-ex235a", "8x8", 4, 200, "slingshot"),
    ("Perlmutter, 4 x A100 a node, Slingshot 11", "A100-SXM4-40GB", 16, 64, "perlmutter", "16x4", 4, 200, "slingshot"),
    ("Polaris, 8 nodes", "A100-SXM4-40GB", 8, 32, "polaris", "8x4", 2, 200, "slingshot"),
    ("Leonardo Booster", "NVIDIA A100-SXM-64GB", 8, 32, "leonardo-booster", "8x4", 4, 100, "infiniband"),
    ("JUWELS Booster", "A100-SXM4-40GB", 8, 32, "juwels-booster", "8x4", 4, 200, "infiniband"),
    ("MareNostrum 5 ACC", "NVIDIA H100 64GB HBM2", 4, 16, "marenostrum5-acc", "4x4", 4, 200, "infiniband"),
    ("JUPITER", "GH200", 4, 16, "jupiter-booster", "4x4", 4, 200, "infiniband"),
    ("CSCS Alps", "GH200", 16, 64, "alps-gh200", "16x4", 4, 200, "slingshot"),
    ("1 node, 8 x RTX 4090", "NVIDIA GeForce RTX 4090", 1, 8, "l40s-pcie", "1x8", 1, 10, "tcp"),
    ("2 x 8 RTX PRO 6000, 8 x 400G RoCE", "RTX PRO 6000 Blackwell Server", 2, 16, "g4-standard-384", "2x8", 8, 400, "roce"),
    ("2 nodes x 4 x A40, HDR100 InfiniBand", "NVIDIA A40", 2, 8, "l40s-pcie", "2x4", 1, 100, "infiniband"),
    ("4 nodes x 8 MI300X, Broadcom Thor 2 8x400G", "MI300X", 4, 32, "mi300x-platform", "4x8", 8, 400, "roce"),
    ("10 nodes x 4 of 8 H100 SXM, cluster01", "NVIDIA H100 80GB HBM3", 10, 40, "hgx-h100", "10x4", 8, 400, "infiniband"),
    ("GCP a3-highgpu-8g without TCPX", "H100", 2, 16, "a3-highgpu-8g", "2x8", 4, 200, "tcp"),
    ("GB200 NVL72, NCCL_MNNVL_ENABLE=0", "GB200", 2, 8, "gb200-nvl72", "2x4", 4, 400, "infiniband"),
    ("", "B200-SXM-180GB", None, 8, "hgx-b200", "1x8", 8, 400, "infiniband"),
]  # fmt: skip


@pytest.mark.parametrize(("system", "gpu", "nodes", "gpus", "machine", "job", "nics", "gbps", "transport"), SYSTEMS)
def test_systems_in_words(
    system: str, gpu: str, nodes: int | None, gpus: int, machine: str, job: str, nics: int, gbps: float, transport: str
):
    meant = system_meant(SystemWords(system, gpu, "", "", nodes, gpus))
    nic = described(meant.hardware, meant.overrides).groups[0].node.nic
    assert (meant.hardware, f"{meant.nodes}x{meant.gpus_per_node}") == (machine, job)
    assert (nic.count, nic.bandwidth * 8 / 1e9, nic.transport.name) == (nics, pytest.approx(gbps), transport)
    assert nic.gpudirect or transport not in ("infiniband", "roce") or machine in ("l40s-pcie", "g4-standard-384")


def test_sockets_have_nothing_of_the_plug_in_that_they_replace():
    meant = system_meant(SystemWords("2x p4d.24xlarge, NCCL_NET=Socket", "A100", "", "", 2, 16))
    nic = described(meant.hardware, meant.overrides).groups[0].node.nic
    assert (nic.gpudirect, nic.nccl_protocols, nic.nccl_plugin_latency) == (False, (), 0.0)


@pytest.mark.parametrize(
    ("system", "gpu", "nodes", "gpus", "reason"),
    [
        ("8 x Gaudi3", "Gaudi3", 1, 8, "no description of this GPU"),
        ("cluster A", "", 2, 16, "names no machine and no GPU; write the GPU"),
        ("", "", 2, 16, "system and gpu are blank"),
        ("8 x H100, SHARP on", "H100", 4, 32, "reduces in the network's switches"),
        ("8 x MI300X, MSCCL++ (mscclpp)", "MI300X", 1, 8, "another library"),
        ("2 nodes of 8 L40S", "L40S", 2, 16, "does not say which network"),
        ("2 nodes of 8 L40S, InfiniBand", "L40S", 2, 16, "does not say how fast"),
        ("AWS p5.48xlarge", "H200", 2, 16, "p5.48xlarge has H100"),
        ("DGX A100", "A100", 1, 16, "on 1 node are 16 of each, but dgx-a100-80gb has 8"),
        ("DGX A100", "A100", 3, 16, "do not divide evenly over 3 nodes"),
        ("GB200 NVL72", "GB200", 25, 101, "do not divide evenly over 25 nodes"),
        ("Summit", "V100", 4, 24, "not described"),
    ],
)
def test_what_is_not_described_is_told(system: str, gpu: str, nodes: int, gpus: int, reason: str):
    with pytest.raises(SpecError, match=reason):
        system_meant(SystemWords(system, gpu, "", "", nodes, gpus))


@pytest.mark.parametrize(
    ("text", "nics"),
    [
        ("8x400G", StatedNics(8, 0, 400)), ("16x HGX H100 80GB, 8 x NDR InfiniBand", StatedNics(8, 0, 400)),
        ("4 x GH200 a node, one 200 Gbps Slingshot 11 card a GPU", StatedNics(0, 1, 200)), ("single HDR200", StatedNics(1, 0, 200)),
        ("2 x dual-port HDR100", StatedNics(4, 0, 100)), ("HDR x8", StatedNics(8, 0, 200)), ("dual-port 100 GbE", StatedNics(2, 0, 100)),
        ("quad-rail EDR", StatedNics(4, 0, 100)), ("3.2 Tbps InfiniBand", StatedNics(0, 0, 3200, True)),
        ("NVLink 900 GB/s, 8 x 50 GB/s IB", StatedNics(8, 0, 400)), ("8x A100-40GB/node, 16 RDMA NICs", None),
        ("400G InfiniBand (single NIC)", StatedNics(1, 0, 400)),
        ("8 H100 80 GB per node, 25 GbE", StatedNics(0, 0, 25)), ("InfiniBand (mlx5)", None),
        ("2 x 4 L4 over 10GbE", StatedNics(0, 0, 10)), ("16 nodes x 8 H100 over HDR", StatedNics(0, 0, 200)),
        ("4 x 8 NVIDIA A100 80GB HDR200", StatedNics(0, 0, 200)), ("2 nodes x 8 RTX 4090 25GbE", StatedNics(0, 0, 25)),
        ("4 nodes x 8 NDR400", StatedNics(8, 0, 400)), ("2 nodes x 8 CX7 400G", StatedNics(8, 0, 400)),
    ],
)  # fmt: skip
def test_network_cards_in_words(text: str, nics: StatedNics | None):
    assert nics_stated(text) == nics


HEADER = "source,system,gpu,nodes,gpus,op,bytes,time_us,algbw_GBps,busbw_GBps,notes"


def table(tmp_path: Path, *rows: str, header: str = HEADER):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return read_table(path)


def test_a_time_follows_from_either_bandwidth(tmp_path: Path):
    """Closed form: 1 GB at a bus bandwidth of 300 GB/s on 8 ranks, 2 x 7/8 of the algorithm's bandwidth."""
    cells = "s,p5.48xlarge,H100,1,8,all_reduce,1000000000"
    read = table(tmp_path, f"{cells},5833.3,171.43,300,", f"{cells},,171.43,,", f"{cells},,,300,")
    assert [record.time for record in read.records] == pytest.approx([1e9 / (300e9 / 1.75)] * 3, rel=1e-4)
    assert {record.system for record in read.records} == {"p5.48xlarge"}


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ("all_reduce,1000000000,5833.3,171.43,160,", "busbw is 0.933 times algbw, not 1.75 times as with 8 GPUs"),
        (
            "all_reduce,1000000000,9999,171.43,300,",
            "algbw 171.43 contradicts the time: 1e+09 bytes in 0.009999 s have an algbw of 100 GB/s; correct",
        ),
        ("all_reduce,1024,,0.05,,", "rounded too much to tell it; write the time"),
        ("all_reduce,1024,,,,", "time is missing; write it, or algbw or busbw in GB/s"),
        ("all_reduce,1000000000,fast,171.43,300,", "time_s: 'fast' is not a number above 0"),
        ("osu_allreduce,1024,20,,,", "OSU's benchmark of MPI"),
    ],
)
def test_rows_that_contradict_are_told(tmp_path: Path, cells: str, reason: str):
    (row,) = table(tmp_path, f"s,p5.48xlarge,H100,1,8,{cells}").skipped
    assert row.row.endswith("on p5.48xlarge")
    assert reason in row.reason


def test_operations_sizes_and_settings_in_words(tmp_path: Path):
    rows = [
        "s,p5.48xlarge,H100,1,8,alltoall,8M,100,,,NCCL 22902", "s,p5.48xlarge,H100,1,8,sendrecv_perf,1G,9000,,,nccl-tests 2.13.6",
        's,p5.48xlarge,H100,1,8,Bcast,64K,30,,,"NCCL 2.18.5; one process (-g 8); NCCL_ALGO=Ring"',
        "s,p5.48xlarge,H100,1,8,osu_xccl_allgather,1024,20,,,",
    ]  # fmt: skip
    records = table(tmp_path, *rows).records
    assert [(record.op, record.nbytes) for record in records] == [
        ("all_to_all", 2**23), ("send_recv", 2**30), ("broadcast", 2**16), ("all_gather", 8 * 1024),
    ]  # fmt: skip
    assert [record.tuning.version for record in records] == ["2.30", "2.30", "2.20", "2.30"]
    assert [(record.gpus_per_process, record.tuning.algorithms) for record in records[1:3]] == [(1, None), (8, "Ring")]


def test_settings_end_where_their_list_ends_and_unknown_ones_are_listed(tmp_path: Path):
    """One row that names an algorithm NCCL does not have had stopped the whole table."""
    cells = "s,p5.48xlarge,H100,2,16,all_reduce,8M,100,,"
    read = table(
        tmp_path, f'{cells},"NCCL_ALGO=Ring, NCCL 2.26"', f'{cells},"NCCL_ALGO=Ring,Tree; NCCL_PROTO=LL,"', f"{cells},NCCL_ALGO=Foo"
    )
    assert [record.tuning[1:3] for record in read.records] == [("Ring", None), ("Ring,Tree", "LL")]
    (row,) = read.skipped
    assert row.where.endswith("rows.csv:4") and "NCCL_ALGO: 'Foo' is not known to NCCL 2.30; write any of Tree, Ring" in row.reason


def test_tables_of_one_node_need_no_column_of_nodes(tmp_path: Path):
    read = table(
        tmp_path, "aic,L40S,2.27.3,alltoall,half,8,4096,30.1", "aic,L40S,2.27.3,alltoall,half,16,4096,30.1",
        header="source,gpu,nccl,operation,dtype,gpus,bytes,time_us",
    )  # fmt: skip
    (record,) = read.records
    assert (record.hardware, record.network, record.nodes, record.gpus_per_node, record.system) == ("l40s-pcie", "pcie", 1, 8, "L40S")
    assert "16 GPUs are more than the 8 of one node" in read.skipped[0].reason


def test_a_network_in_words_replaces_that_of_a_named_machine(tmp_path: Path):
    """A row on p4d over sockets was predicted over EFA, and one of HGX H100 with one card as with eight."""
    header = "hardware,network,nodes,gpus,op,bytes,time_s"
    read = table(
        tmp_path, "p4d.24xlarge,TCP,2,16,all_reduce,1e9,1", "hgx-h100,1 x HDR InfiniBand,2,16,all_reduce,1e9,1",
        "hgx-h100,infiniband,2,16,all_reduce,1e9,1", header=header,
    )  # fmt: skip
    tcp, one, eight = read.records
    assert network_of(described(tcp.hardware, tcp.overrides).groups[0].node, 2) == "tcp"
    assert described(one.hardware, one.overrides).groups[0].node.nic.count == 1
    assert eight.overrides == ()
    times = [predicted_time(record, committed_constants()) for record in (one, eight)]
    assert times[0] > 1e9 / 25e9 > 5 * times[1]


def test_the_note_on_a_machine_in_words_describes_it_on_a_command_line(tmp_path: Path):
    """What a shell makes of the options in the note: the machine, and what differs from it."""
    for system in ("HGX H100, 1 x HDR InfiniBand", "p4d.24xlarge over TCP, 16 GPUs"):
        read = table(tmp_path, f's,"{system}",,2,16,all_reduce,1000000000,50000,,,')
        (record,), (note,) = read.records, [note for note in read.notes if "was read as 2 x 8 GPUs" in note]
        machine, *options = shlex.split(note.partition(", ")[2].rpartition(" over ")[2].partition(", ")[2].partition(";")[0])
        assert (machine, tuple(options[1::2])) == (record.hardware, record.overrides)
        assert set(options[::2]) == {"--set"}


def test_no_system_in_words_is_predicted_above_its_wire():
    """Conservation: what a node must send in an all-reduce of 1 GiB crosses its cards."""
    for system, gpu, nodes, gpus, *_ in SYSTEMS:
        meant = system_meant(SystemWords(system, gpu, "", "", nodes, gpus))
        nic = described(meant.hardware, meant.overrides).groups[0].node.nic
        record = CollectiveRecord(
            "", "", "tcp", meant.hardware, meant.nodes, meant.gpus_per_node, 1, "all_reduce", 2.0**30, 1.0, Tuning("2.30"), "score", False,
            meant.overrides,
        )  # fmt: skip
        if meant.nodes > 1:
            assert predicted_time(record, committed_constants()) > record.nbytes / (nic.count * nic.bandwidth)


def test_one_card_of_eight_gpus_carries_its_rate_since_2_12():
    """NCCL's PXN: rings over NVSwitch come back to the card instead of leaving through host memory, unless NCCL is older."""
    meant = system_meant(SystemWords("HGX H100, 1 x 400 Gbps NDR", "H100", "", "", 4, 32))
    sent = 2 * 31 / 32 * 2.0**33 / 50e9
    times = {}
    for release in ("2.10", "2.30"):
        plan = plan_on(meant.hardware, 4, 8, Tuning(release, "Ring", "Simple"), meant.overrides)
        chosen = plan.choice(2**33, "all_reduce")
        times[release] = cost(plan.layout, "all_reduce", chosen.algorithm, chosen.protocol, 2.0**33, chosen.channels).uncontended_time
    assert sent < times["2.30"] < 1.1 * sent < 1.5 * sent < times["2.10"]


def test_a_note_says_which_of_host_and_network_are_assumed():
    for system, said in (("8x H200, 3200Gbps IB", "host is"), ("8x H200, 8x400 RoCE", "host is"), ("8x H200", "host and network are")):
        assert system_meant(SystemWords(system, "H200", "", "", 2, 16)).assumed.endswith(f"; its {said} assumed")


def test_bridges_between_pairs_are_not_the_network_of_eight_cards(tmp_path: Path):
    """The path that limits them is PCIe; two bridged cards have none between them."""
    cells = "RTX A6000 NVLink bridge pairs,RTX A6000,1"
    read = table(
        tmp_path, f"s,{cells},8,all_reduce,1e8,60000,,,", f"s,{cells},2,all_reduce,1e8,6000,,,", "s,DGX-1,V100,1,8,all_reduce,1e8,900,,,"
    )
    assert [record.network for record in read.records] == ["pcie", "nvlink", "nvlink"]


def test_a_machine_in_words_cannot_be_fitted(tmp_path: Path):
    """The written file would extend the machine without what the words changed."""
    records = table(tmp_path, 's,"HGX H100, 1 x HDR InfiniBand",H100,2,16,all_reduce,1000000000,50000,,,').records
    with pytest.raises(SpecError, match="describes its machine in words"):
        write_machine(records, tmp_path / "rows.csv", tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    "header",
    [
        "op,gpu,gpus,nodes,size,busbw",
        "Collective,GPU,# GPUs,Nodes,Size,busbw (GB/s)",
        "Op,System,World Size,#Nodes,Bytes,BusBw",
        "op,GPU,gpu_count,node_count,size,busbw",
    ],
)
def test_columns_are_read_in_any_case(header: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text(f"{header}\nAllReduce,H100,16,2,1 GB,340\n")
    (record,) = read_table(runs).records
    assert (record.hardware, record.nodes, record.gpus_per_node, record.op) == ("hgx-h100", 2, 8, "all_reduce")
