"""What do NCCL's protocols trade off? Wire bytes against latency: a flag in every word (LL) or line (LL128) saves the fence of Simple.

LL sends 4 bytes of flag with 4 bytes of data, LL128 8 of 128 (NVIDIA/nccl `src/include/device.h`); the flags load every link.
In a tree over NVLink, LL128 loses more: NCCL's tuner gives it 0.92 x 7/9 of a ring's bandwidth (`src/graph/tuning.cc`, one node).
The hop latency of Simple is a constant of the transport class, the same for rings and trees. That of LL is also a constant of the class
if it was fitted. Otherwise it is Simple's times the ratio in NCCL's tuner tables (`constants`, 2.30), for NVLink, PCIe or network hops of
rings or trees. LL128 polls flags like LL but synchronizes more. If LL was fitted, the latency of LL128 lies between those of LL and Simple,
at the position that it has between NCCL's values on a logarithmic scale; otherwise it is Simple's times NCCL's ratio. A separate piece size
for LL128 on the network made predictions of measured all-reduces worse and was dropped.
Not modeled: LL never reads a NIC's data from GPU memory directly.
"""

from __future__ import annotations

import math
from typing import Literal

from sim.cluster.topology import Route
from sim.training.collectives.nccl.constants import NCCL_2_30, PROTOCOLS, TREE_LL128_SHARE, TREE_SHARE

Protocol = Literal["LL", "LL128", "Simple"]

WIRE_BYTES = {"LL": 8 / 4, "LL128": 128 / 120, "Simple": 1.0}
"""Bytes on the wire per byte of payload."""


HopKind = Literal["nvlink", "pcie", "network"]


def wire_bytes(kind: HopKind, protocol: str, row: str = "Ring") -> float:
    """Return the bytes on the links of a hop per byte of payload, for rings or trees (*row*)."""
    return 1 / (TREE_SHARE * TREE_LL128_SHARE[0]) if (kind, protocol, row) == ("nvlink", "LL128", "Tree") else WIRE_BYTES[protocol]


def kind_of(route: Route, network: bool) -> HopKind:
    """Return the row of NCCL's tables for *route*; *network* specifies whether the hop leaves the node."""
    return "network" if network else "nvlink" if route.path_class in ("NVL", "NVS") else "pcie"


def latency_share(protocol: str, kind: HopKind, row: str = "Ring") -> float:
    """Return the ratio of the hop latency of *protocol* to Simple's in NCCL's tables, for rings or trees (*row*)."""
    rows = {"nvlink": NCCL_2_30.nvlink_hop, "pcie": NCCL_2_30.pcie_hop, "network": NCCL_2_30.network_hop}
    of = "Ring" if protocol == "Simple" else row
    return rows[kind][of][PROTOCOLS.index(protocol)] / rows[kind]["Ring"][PROTOCOLS.index("Simple")]


def hop_latency(route: Route, network: bool, protocol: str, row: str = "Ring") -> float:
    """Return the latency (s) of one hop, without the time of the bytes; *network* specifies whether the hop leaves the node."""
    transport = route.transport
    kind = kind_of(route, network)
    if protocol == "Simple" or transport.hop_latency_ll is None:
        return transport.hop_latency * latency_share(protocol, kind, row)
    low, share = latency_share("LL", kind), latency_share(protocol, kind, row)
    if protocol == "LL":
        return transport.hop_latency_ll * share / low
    place = math.log(share / low) / math.log(1 / low)
    return float(transport.hop_latency_ll * (transport.hop_latency / transport.hop_latency_ll) ** place)
