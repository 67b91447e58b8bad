"""What do NCCL's protocols trade? Wire bytes for latency: a flag in every word (LL) or line (LL128) saves the fence that Simple needs.

LL sends 4 bytes of flag with 4 of data, LL128 8 of 128 (NVIDIA/nccl `src/include/device.h`): that many more bytes cross every link.
In a tree over NVLink LL128 loses more: NCCL's tuner leaves it 0.92 x 7/9 of a ring's bandwidth there (`src/graph/tuning.cc`, one node).
A hop's latency is the transport class's for Simple; LL's is the class's own where it was fitted, otherwise the share that
NCCL's tuner takes between its own figures (`constants`, 2.30) for NVLink, PCIe and network hops, of rings or of trees; of
Simple one latency stands for both. LL128 polls flags as LL does and synchronizes more: between the two that were fitted it
stands where it does between NCCL's, on a logarithmic scale, and without LL's it has its share of Simple. Pieces of the network's
own for LL128 were tried too, and dropped for the scores on measured all-reduces. Not modelled: that LL never reads a NIC's data
from GPU memory directly.
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
    """Return what a byte of payload weighs on the links of a hop of rings or of trees (*row*)."""
    return 1 / (TREE_SHARE * TREE_LL128_SHARE[0]) if (kind, protocol, row) == ("nvlink", "LL128", "Tree") else WIRE_BYTES[protocol]


def kind_of(route: Route, network: bool) -> HopKind:
    """Return the row of NCCL's tables that *route* takes; *network* tells whether the hop leaves the node."""
    return "network" if network else "nvlink" if route.path_class in ("NVL", "NVS") else "pcie"


def latency_share(protocol: str, kind: HopKind, row: str = "Ring") -> float:
    """Return LL's or LL128's share of Simple's hop latency in NCCL's own tables, for hops of rings or of trees (*row*)."""
    rows = {"nvlink": NCCL_2_30.nvlink_hop, "pcie": NCCL_2_30.pcie_hop, "network": NCCL_2_30.network_hop}
    of = "Ring" if protocol == "Simple" else row
    return rows[kind][of][PROTOCOLS.index(protocol)] / rows[kind]["Ring"][PROTOCOLS.index("Simple")]


def hop_latency(route: Route, network: bool, protocol: str, row: str = "Ring") -> float:
    """Return the seconds that a chunk takes on one hop beyond its bytes; *network* tells whether the hop leaves the node."""
    transport = route.transport
    kind = kind_of(route, network)
    if protocol == "Simple" or transport.hop_latency_ll is None:
        return transport.hop_latency * latency_share(protocol, kind, row)
    low, share = latency_share("LL", kind), latency_share(protocol, kind, row)
    if protocol == "LL":
        return transport.hop_latency_ll * share / low
    place = math.log(share / low) / math.log(1 / low)
    return float(transport.hop_latency_ll * (transport.hop_latency / transport.hop_latency_ll) ** place)
