"""Topology prints of real machines, shortened to what is read, and a printer for machines made up by tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def printed(
    devices: Sequence[str], symbol: Callable[[int, int], str], tails: Sequence[str] = (), titles: str = "CPU Affinity\tNUMA Affinity"
) -> str:
    """Print a matrix as nvidia-smi does: *symbol* of two devices by number, *tails* behind the first rows."""
    lines = ["\t" + "\t".join([*devices, titles])]
    for one, name in enumerate(devices):
        cells = [" X " if one == other else symbol(min(one, other), max(one, other)) for other in range(len(devices))]
        lines.append("\t".join([name, *cells, tails[one] if one < len(tails) else ""]))
    return "\n".join(lines) + "\n" + LEGEND


# 8 x V100 of a DGX-1, affinities as in kyumdoctor.tistory.com/74; pairs as in NVIDIA/go-gpuallocator NewDGX1VoltaNode
DGX_1V = """\
	GPU0	GPU1	GPU2	GPU3	GPU4	GPU5	GPU6	GPU7	CPU Affinity
GPU0	 X 	NV1	NV1	NV2	NV2	SYS	SYS	SYS	0-13,28-41
GPU1	NV1	 X 	NV2	NV1	SYS	NV2	SYS	SYS	0-13,28-41
GPU2	NV1	NV2	 X 	NV2	SYS	SYS	NV1	SYS	0-13,28-41
GPU3	NV2	NV1	NV2	 X 	SYS	SYS	SYS	NV1	0-13,28-41
GPU4	NV2	SYS	SYS	SYS	 X 	NV1	NV1	NV2	14-27,42-55
GPU5	SYS	NV2	SYS	SYS	NV1	 X 	NV2	NV1	14-27,42-55
GPU6	SYS	SYS	NV1	SYS	NV1	NV2	 X 	NV2	14-27,42-55
GPU7	SYS	SYS	SYS	NV1	NV2	NV1	NV2	 X 	14-27,42-55
"""

# the same in a virtual machine (p3.16xlarge): sockets and switches hidden
P3_16XLARGE = DGX_1V.replace("SYS", "PHB").replace("0-13,28-41", "0-63").replace("14-27,42-55", "0-63")

# 8 x V100 with two InfiniBand cards (deep learning benchmark notes: HugeCTR, 2022-01)
CUBE_WITH_CARDS = """\
	GPU0	GPU1	GPU2	GPU3	GPU4	GPU5	GPU6	GPU7	mlx5_0	mlx5_1	CPU Affinity	NUMA Affinity
GPU0	X	NV1	NV2	NV1	SYS	SYS	SYS	NV2	NODE	SYS	0-23,48-71	0
GPU1	NV1	X	NV1	NV2	SYS	SYS	NV2	SYS	NODE	SYS	0-23,48-71	0
GPU2	NV2	NV1	X	NV2	SYS	NV1	SYS	SYS	PIX	SYS	0-23,48-71	0
GPU3	NV1	NV2	NV2	X	NV1	SYS	SYS	SYS	PIX	SYS	0-23,48-71	0
GPU4	SYS	SYS	SYS	NV1	X 	NV2	NV2	NV1	SYS	NODE	24-47,72-95	1
GPU5	SYS	SYS	NV1	SYS	NV2	X 	NV1	NV2	SYS	NODE	24-47,72-95	1
GPU6	SYS	NV2	SYS	SYS	NV2	NV1	X 	NV1	SYS	PIX	24-47,72-95	1
GPU7	NV2	SYS	SYS	SYS	NV1	NV2	NV1	X 	SYS	PIX	24-47,72-95	1
mlx5_0	NODE	NODE	PIX	PIX	SYS	SYS	SYS	SYS	X	SYS		
mlx5_1	SYS	SYS	SYS	SYS	NODE	NODE	PIX	PIX	SYS	X 		
"""

# 4 x A100 SXM wired to each other without NVSwitch, one card beside each (a university cluster's guide)
FOUR_A100 = """\
        GPU0    GPU1    GPU2    GPU3    mlx5_0  mlx5_1  mlx5_2  mlx5_3  CPU Affinity    NUMA Affinity
GPU0     X      NV4     NV4     NV4     PXB     NODE    NODE    NODE    0-15    0
GPU1    NV4      X      NV4     NV4     NODE    PXB     NODE    NODE    0-15    0
GPU2    NV4     NV4      X      NV4     NODE    NODE    PXB     NODE    0-15    0
GPU3    NV4     NV4     NV4      X      NODE    NODE    NODE    PXB     0-15    0
mlx5_0  PXB     NODE    NODE    NODE     X      NODE    NODE    NODE
mlx5_1  NODE    PXB     NODE    NODE    NODE     X      NODE    NODE
mlx5_2  NODE    NODE    PXB     NODE    NODE    NODE     X      NODE
mlx5_3  NODE    NODE    NODE    PXB     NODE    NODE    NODE     X
"""

# half of an NVSwitch machine, with the names of its GPUs in front and of its card behind
FOUR_ON_NVSWITCH = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-e04968e9-3302-841c-b00f-f388d7a8f56f)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-e04968e9-3302-841c-b00f-f388d7a8f560)
$ nvidia-smi topo -m
	GPU0	GPU1	GPU2	GPU3	NIC0	CPU Affinity	NUMA Affinity	GPU NUMA ID
GPU0	 X 	NV12	NV12	NV12	SYS	32-63,96-127	1		N/A
GPU1	NV12	 X 	NV12	NV12	SYS	32-63,96-127	1		N/A
GPU2	NV12	NV12	 X 	NV12	SYS	32-63,96-127	1		N/A
GPU3	NV12	NV12	NV12	 X 	SYS	32-63,96-127	1		N/A
NIC0	SYS	SYS	SYS	SYS	 X 				

Legend:

  X    = Self

NIC Legend:

  NIC0: rocep49s0
"""

# g5.12xlarge: no NVLink, everything behind the host bridge
G5_12XLARGE = """\
	GPU0	GPU1	GPU2	GPU3	CPU Affinity	NUMA Affinity
GPU0	 X 	PHB	PHB	PHB	0-47	0
GPU1	PHB	 X 	PHB	PHB	0-47	0
GPU2	PHB	PHB	 X 	PHB	0-47	0
GPU3	PHB	PHB	PHB	 X 	0-47	0
"""

# 4 x V100 PCIe on two sockets
V100_PCIE = """\
	GPU0	GPU1	GPU2	GPU3	CPU Affinity	NUMA Affinity
GPU0	 X 	NODE	SYS	SYS	0-11,24-35	0
GPU1	NODE	 X 	SYS	SYS	0-11,24-35	0
GPU2	SYS	SYS	 X 	NODE	12-23,36-47	1
GPU3	SYS	SYS	NODE	 X 	12-23,36-47	1
"""

# 8 x RTX 4090 in a virtual machine (NVIDIA/go-gpuallocator issue 17): SYS inside a NUMA node
EIGHT_4090 = """\
	GPU0	GPU1	GPU2	GPU3	GPU4	GPU5	GPU6	GPU7	NIC0	NIC1	CPU Affinity	NUMA Affinity	GPU NUMA ID
GPU0	 X 	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	0-55,112-167	0		N/A
GPU1	SYS	 X 	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	0-55,112-167	0		N/A
GPU2	SYS	SYS	 X 	SYS	SYS	SYS	SYS	SYS	SYS	SYS	0-55,112-167	0		N/A
GPU3	SYS	SYS	SYS	 X 	SYS	SYS	SYS	SYS	SYS	SYS	0-55,112-167	0		N/A
GPU4	SYS	SYS	SYS	SYS	 X 	SYS	SYS	SYS	SYS	SYS	56-111,168-223	1		N/A
GPU5	SYS	SYS	SYS	SYS	SYS	 X 	SYS	SYS	SYS	SYS	56-111,168-223	1		N/A
GPU6	SYS	SYS	SYS	SYS	SYS	SYS	 X 	SYS	PHB	PHB	56-111,168-223	1		N/A
GPU7	SYS	SYS	SYS	SYS	SYS	SYS	SYS	 X 	SYS	SYS	56-111,168-223	1		N/A
NIC0	SYS	SYS	SYS	SYS	SYS	SYS	PHB	SYS	 X 	PIX				
NIC1	SYS	SYS	SYS	SYS	SYS	SYS	PHB	SYS	PIX	 X 				
"""


def _dgx_a100(one: int, other: int) -> str:
    if other < 8:
        return "NV12"
    if one < 8:
        return "PXB" if one // 2 == (other - 8) // 2 else "SYS"
    return "PXB" if one // 2 == other // 2 else "SYS"


# 8 x A100 on NVSwitch, two GPUs and two cards below each of four switch trees (shape of NVIDIA/nccl issue 1505)
DGX_A100 = printed(
    [*(f"GPU{gpu}" for gpu in range(8)), *(f"mlx5_{nic}" for nic in range(8))],
    _dgx_a100,
    [
        f"{cpus}\t{numa}"
        for cpus, numa in (("48-63,176-191", 3), ("16-31,144-159", 1), ("112-127,240-255", 7), ("80-95,208-223", 5))
        for _ in "ab"
    ],
)


def _dgx_h100(one: int, other: int) -> str:
    if other < 8:
        return "NV18"
    (half, own), (half_there, there) = _h100_place(one), _h100_place(other)
    return "SYS" if half != half_there else "PIX" if own == there else "NODE"


def _h100_place(device: int) -> tuple[int, str]:
    """Socket and switch: a port beside each GPU, and two cards of two ports for storage."""
    if device < 8:
        return device // 4, f"gpu{device}"
    nic = device - 8
    if nic in (1, 2, 7, 8):
        return int(nic > 6), f"storage{nic > 6}"
    gpu = (0, 3, 4, 5, 6, 9, 10, 11).index(nic)
    return gpu // 4, f"gpu{gpu}"


# 8 x H100 with twelve ports (shape of NVIDIA/nccl issue 1264, cards as a DGX H100 has them), as a terminal shows it: the first line
# underlined; saved on Windows
DGX_H100 = (
    printed(
        [*(f"GPU{gpu}" for gpu in range(8)), *(f"NIC{nic}" for nic in range(12))],
        _dgx_h100,
        [f"{cpus}\t{numa}\t\tN/A" for numa, cpus in enumerate(("0-55,112-167", "56-111,168-223")) for _ in range(4)],
        "CPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m",
    )
    .replace("\tGPU0", "\x1b[4m\tGPU0", 1)
    .replace("\n", "\r\n")
)

# 4 x RTX 3090 in a workstation of two sockets: two below one host bridge, two below bridges of their own
BOX_3090 = printed(
    [f"GPU{gpu}" for gpu in range(4)],
    lambda one, other: "SYS" if one // 2 != other // 2 else "PHB" if one == 0 else "NODE",
    [f"{cpus}\t{numa}\t\tN/A" for numa, cpus in enumerate(("0-13,28-41", "14-27,42-55")) for _ in "ab"],
)

# the same GPUs on one socket, each two joined by an NVLink bridge
BRIDGED_3090 = printed(
    [f"GPU{gpu}" for gpu in range(4)], lambda one, other: "NV4" if one // 2 == other // 2 else "NODE", ["0-31\t0\t\tN/A"] * 4
)

# 8 x RTX A6000 on two EPYC of four NUMA nodes each, of which two GPUs share one; the card is beside the third
EPYC_BOX = printed(
    [*(f"GPU{gpu}" for gpu in range(8)), "mlx5_0"],
    lambda one, other: (
        ("PHB" if one == 2 else "NODE" if one == 3 else "SYS") if other == 8 else "NODE" if one // 2 == other // 2 else "SYS"
    ),
    [f"{16 * numa}-{16 * numa + 15},{128 + 16 * numa}-{143 + 16 * numa}\t{numa}\t\tN/A" for numa in (3, 3, 1, 1, 7, 7, 5, 5)],
    "CPU Affinity\tNUMA Affinity\tGPU NUMA ID",
)

# p3.8xlarge: the quad of a DGX-1 (shape of a paper artifact's paste), no card shown
P3_8XLARGE = printed(
    [f"GPU{gpu}" for gpu in range(4)], lambda one, other: "NV2" if (one, other) in {(0, 3), (1, 2), (2, 3)} else "NV1", ["0-31\tN/A"] * 4
)

MATRICES = {
    "dgx-1v": (DGX_1V, "V100-SXM2-16GB"),
    "p3.16xlarge": (P3_16XLARGE, "V100-SXM2-16GB"),
    "cube-with-cards": (CUBE_WITH_CARDS, "V100-SXM2-32GB"),
    "four-a100": (FOUR_A100, "A100-SXM4-40GB"),
    "four-on-nvswitch": (FOUR_ON_NVSWITCH, None),
    "g5.12xlarge": (G5_12XLARGE, "A10G"),
    "v100-pcie": (V100_PCIE, "V100-PCIe-16GB"),
    "eight-4090": (EIGHT_4090, "RTX4090"),
    "dgx-a100": (DGX_A100, "A100-SXM4-40GB"),
    "dgx-h100": (DGX_H100, "H100-SXM5-80GB"),
    "box-3090": (BOX_3090, "RTX3090"),
    "bridged-3090": (BRIDGED_3090, "RTX3090"),
    "epyc-box": (EPYC_BOX, "RTXA6000"),
    "p3.8xlarge": (P3_8XLARGE, "V100-SXM2-16GB"),
}
"""Prints, and the GPU to say with them (None: the print names it)."""

# half of a DGX-1 as NCCL dumped it (NVIDIA/nccl issue 671), with one InfiniBand card added
XML_DGX_1V_QUAD = """\
<system version="1">
  <cpu numaid="0" affinity="0000,0fffff00,000fffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79">
    <pci busid="0000:03:00.0" class="0x060400" vendor="0x10b5" device="0x8764" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:06:00.0" class="0x030200" vendor="0x10de" device="0x1db5" link_speed="8 GT/s" link_width="16">
        <gpu dev="0" sm="70" rank="0" gdr="1">
          <nvlink target="0000:07:00.0" count="1" tclass="0x030200"/>
          <nvlink target="0000:0a:00.0" count="1" tclass="0x030200"/>
          <nvlink target="0000:0b:00.0" count="2" tclass="0x030200"/>
          <nvlink target="0000:85:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:07:00.0" class="0x030200" vendor="0x10de" device="0x1db5" link_speed="8 GT/s" link_width="16">
        <gpu dev="1" sm="70" rank="1" gdr="1">
          <nvlink target="0000:06:00.0" count="1" tclass="0x030200"/>
          <nvlink target="0000:0a:00.0" count="2" tclass="0x030200"/>
          <nvlink target="0000:0B:00.0" count="1" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:05:00.0" class="0x020700" link_speed="8 GT/s" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="100000" port="1" guid="0x1" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
    <pci busid="0000:08:00.0" class="0x060400" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:0a:00.0" class="0x030200" vendor="0x10de" device="0x1db5" link_speed="8 GT/s" link_width="16">
        <gpu dev="2" sm="70" rank="2" gdr="1">
          <nvlink target="0000:06:00.0" count="1" tclass="0x030200"/>
          <nvlink target="0000:07:00.0" count="2" tclass="0x030200"/>
          <nvlink target="0000:0b:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:0b:00.0" class="0x030200" vendor="0x10de" device="0x1db5" link_speed="8 GT/s" link_width="16">
        <gpu dev="3" sm="70" rank="3" gdr="1">
          <nvlink target="0000:06:00.0" count="2" tclass="0x030200"/>
          <nvlink target="0000:07:00.0" count="1" tclass="0x030200"/>
          <nvlink target="0000:0a:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
    </pci>
  </cpu>
</system>
"""

# two GPUs of an HGX H100 virtual machine (IBM Cloud): emulated bridges, four NVSwitches, RoCE cards; a socket interface added
XML_H100 = """\
<system version="1">
  <cpu host_hash="0xa5" numaid="0" affinity="0000ffff,ffffffff,ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:a1:00.0" class="0x060400" link_speed="2.5 GT/s PCIe" link_width="1">
      <pci busid="0000:a3:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="0">
        <nic><net name="mlx5_7" dev="7" speed="200000" port="1" guid="0x34" gdr="1"/></nic>
      </pci>
      <pci busid="0000:a4:00.0" class="0x030200" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="0">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:f5:00.0" count="5" tclass="0x068000"/>
          <nvlink target="0000:f4:00.0" count="5" tclass="0x068000"/>
          <nvlink target="0000:f3:00.0" count="4" tclass="0x068000"/>
          <nvlink target="0000:f6:00.0" count="4" tclass="0x068000"/>
        </gpu>
      </pci>
    </pci>
    <nic><net name="eth0" dev="8" speed="10000" port="0" guid="0x0" gdr="0"/></nic>
  </cpu>
  <cpu host_hash="0xa5" numaid="1" affinity="ffffffff,ffffffff,ffff0000,0,0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:c9:00.0" class="0x060400" link_speed="2.5 GT/s PCIe" link_width="1">
      <pci busid="0000:cb:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="0">
        <nic><net name="mlx5_3" dev="3" speed="200000" port="1" guid="0x35" gdr="1"/></nic>
      </pci>
      <pci busid="0000:cc:00.0" class="0x030200" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="0">
        <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/></gpu>
      </pci>
    </pci>
    <nic><net name="eth0" dev="8" speed="10000" port="0" guid="0x0" gdr="0"/></nic>
  </cpu>
</system>
"""

# p4d.24xlarge as AWS ships it for NCCL_TOPO_FILE (aws/aws-ofi-nccl), two of four switches: devices by PCI class only
XML_P4D = """\
<!-- Static topology -->
<system version="1">
  <cpu numaid="0" affinity="000000ff,ffff0000,00ffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:10:1c.0" class="0x030200" link_speed="8 GT/s" link_width="16"/> <!-- GPU 0 -->
      <pci busid="0000:10:1d.0" class="0x030200" link_speed="8 GT/s" link_width="16"/>
      <pci busid="0000:10:1b.0" class="0x020000" link_speed="8 GT/s" link_width="16"/> <!-- NIC 0 -->
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ffffff00,0000ffff,ff000000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="ffff:ff:03.0" class="0x060400" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:90:1c.0" class="0x030200" link_speed="8 GT/s" link_width="16"/>
      <pci busid="0000:90:1d.0" class="0x030200" link_speed="8 GT/s" link_width="16"/>
      <pci busid="0000:90:1b.0" class="0x020000" link_speed="8 GT/s" link_width="16"/>
    </pci>
  </cpu>
</system>
"""

# two GPUs of NC96ads A100 v4 as Azure ships it: NVLinks to themselves, no link speed, one socket interface
XML_NC_A100 = """\
<system version="1">
  <cpu numaid="0" affinity="00000000,00000000,00ffffff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0001:00:00.0" class="0x030200" vendor="0x10de" device="0x20b5" link_speed="" link_width="0">
      <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0001:00:00.0" count="12" tclass="0x030200"/></gpu>
    </pci>
    <nic><net name="eth0" dev="0" speed="100000" port="0" guid="0x0" maxconn="65536" gdr="0"/></nic>
  </cpu>
  <cpu numaid="1" affinity="00000000,0000ffff,ff000000" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0002:00:00.0" class="0x030200" vendor="0x10de" device="0x20b5" link_speed="" link_width="0">
      <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0002:00:00.0" count="12" tclass="0x030200"/></gpu>
    </pci>
  </cpu>
</system>
"""

FILES = {
    "dgx-1v-quad": (XML_DGX_1V_QUAD, None),
    "h100": (XML_H100, None),
    "p4d": (XML_P4D, "A100-SXM4-40GB"),
    "nc-a100": (XML_NC_A100, None),
}
"""NCCL topology files, and the GPU to say with them."""
