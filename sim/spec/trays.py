"""What does a node consist of if NVLink joins several machines? The trays of an NVL72 rack, rented one by one, as one node of a job.

NCCL fuses the topologies of all machines of a multi-node NVLink domain into one system (``src/graph/topo.cc``, ``ncclTopoGetSystem``, if
``comm->MNNVL``), so a rack is one node with the parts of its trays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

if TYPE_CHECKING:
    from sim.spec.hardware import Node, Socket, Storage
    from sim.spec.node_prices import Prices

B = TypeVar("B", bound=BaseModel)


def joined_node(node: Node, trays: int) -> Node:
    """Return the node that *trays* nodes like *node* form. Raise ValueError unless NVSwitches connect its GPUs."""
    topology = node.topology
    if node.nvlink is None or not node.nvlink.switch_links or topology.switches:
        raise ValueError(
            "trays: joins nodes whose GPUs are connected by NVLink switches (topology.nvlink.switch_links) and no PCIe switches; write 1, "
            "or leave it out"
        )
    sockets = _repeated(topology.sockets, trays, node.gpu_count, node.nic.count)
    return node.model_copy(
        update={
            "gpu_count": node.gpu_count * trays,
            "topology": _multiplied(topology, ("host_copy_bandwidth",), trays).model_copy(update={"sockets": sockets}),
            "host": _multiplied(node.host, ("sockets", "physical_cores", "vcpus", "memory"), trays),
            "nic": _multiplied(node.nic, ("count",), trays),
            "storage": node.storage and _joined_storage(node.storage, trays),
        }
    )


def joined_prices(prices: Prices, trays: int) -> Prices:
    """Return the prices of *trays* nodes of *prices* each."""
    amounts = ("on_demand", "spot")
    cheapest = None if prices.cheapest is None else _multiplied(prices.cheapest, amounts, trays)
    return _multiplied(prices, amounts, trays).model_copy(update={"cheapest": cheapest})


def _joined_storage(storage: Storage, trays: int) -> Storage:
    limits = _multiplied(storage, ("bandwidth", "iops"), trays)
    return limits.model_copy(update={"volume": _multiplied(storage.volume, ("count",), trays)})


def _repeated(sockets: Sequence[Socket], trays: int, gpus: int, nics: int) -> tuple[Socket, ...]:
    """Return *sockets* for each tray, with the numbers of its GPUs and NICs after those of the trays before it."""
    return tuple(
        socket.model_copy(
            update={"gpus": tuple(tray * gpus + gpu for gpu in socket.gpus), "nics": tuple(tray * nics + nic for nic in socket.nics)}
        )
        for tray in range(trays)
        for socket in sockets
    )


def _multiplied(block: B, fields: Sequence[str], trays: int) -> B:
    """Return *block* with *trays* times the value of each of *fields* that is given."""
    return block.model_copy(update={name: value * trays for name in fields if (value := getattr(block, name)) is not None})
