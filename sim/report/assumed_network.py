"""What is said if the network between the nodes of a machine is not published? How fast the one is that is assumed, and how to set it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sim.check import count_estimates
from sim.spec.hardware import Hardware

_KEYS: Final = ("count", "bandwidth")
"""Fields of a node's NICs that decide how fast its network is."""
_SET: Final = "--set node.nic.bandwidth='100 Gbps'"


def assumed_network(hardware: Hardware, nodes: int) -> str | None:
    """Return the NICs of each of *nodes* nodes of *hardware*, such as ``8 x 400 Gbps``, if they are an estimate and are used; else None."""
    nic = hardware.first_workers.node.nic
    if nodes < 2 or not _reason(hardware):
        return None
    return f"{nic.count} x {8e-9 * nic.bandwidth:g} Gbps"


def network_assumption(hardware: Hardware, nodes: int) -> list[str]:
    """Return a sentence on the assumed network of a run on *nodes* nodes of *hardware*; empty if it is published, or not used."""
    network = assumed_network(hardware, nodes)
    if network is None:
        return []
    return [f"the network between nodes of {hardware.name}, {network} per node, is an estimate ({_reason(hardware)}); {_SET}, for example"]


def network_figures(hardware: Hardware, nodes: int) -> dict[str, Any]:
    """Return the key of a run's document for an assumed network; empty if there is none."""
    network = assumed_network(hardware, nodes)
    return {} if network is None else {"assumed_network": network}


def network_notes(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note with the machines of *documents* whose network between nodes is assumed; empty if there are none."""
    assumed = {document["hardware"]: network for document in documents if (network := document.get("assumed_network")) is not None}
    if not assumed:
        return []
    listed = ", ".join(f"{name} ({network} per node)" for name, network in assumed.items())
    return [f"the network between nodes is an estimate for {listed}; {_SET}, for example"]


def _reason(hardware: Hardware) -> str:
    """Return why the NICs of *hardware* are an estimate; empty if they are not."""
    nic = hardware.first_workers.node.nic
    return next((estimate.reason for estimate in count_estimates(nic) if estimate.key in _KEYS), "")
